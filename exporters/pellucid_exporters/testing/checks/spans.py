"""Rules for spans."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from opentelemetry.trace import StatusCode

from pellucid import semconv
from pellucid.events import ReliabilityRetried
from pellucid_exporters.testing.checks.observed import Observed, Seen

OUTCOMES: Final = (semconv.COMPLETED, semconv.FAILED, semconv.CANCELLED, semconv.TIMEOUT, semconv.LOST)
CONTENT: Final = (
    semconv.INPUT, semconv.OUTPUT, semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.SYSTEM_INSTRUCTIONS,
    semconv.TOOL_DEFINITIONS, semconv.TOOL_CALL_ARGUMENTS, semconv.TOOL_CALL_RESULT, semconv.AGENT_CONFIGURATION,
)  # fmt: skip
TARGETS: Final[Mapping[str, str]] = {
    semconv.RUN: semconv.AGENT_NAME, semconv.DISCOVERY: semconv.PROVIDER_ID, semconv.INFERENCE: semconv.REQUEST_MODEL,
    semconv.DISPATCH: semconv.TOOL_NAME, semconv.AWAIT: semconv.TOOL_NAME,
}  # fmt: skip
REQUIRED: Final[Mapping[str, Mapping[str, type]]] = {
    semconv.RUN: {semconv.OPERATION_NAME: str, semconv.AGENT_NAME: str},
    semconv.DISCOVERY: {semconv.PROVIDER_ID: str, semconv.PROVIDER_KIND: str, semconv.DISCOVERY_CACHE: str},
    semconv.COMPOSE: {semconv.AGENT_NAME: str},
    semconv.INFERENCE: {
        semconv.OPERATION_NAME: str, semconv.PROVIDER_NAME: str, semconv.REQUEST_MODEL: str, semconv.ATTEMPT: int,
        semconv.RESPONSE_FINISH_REASONS: tuple,
    },
    semconv.DISPATCH: {semconv.OPERATION_NAME: str, semconv.TOOL_NAME: str, semconv.TOOL_CALL_ID: str},
    semconv.AWAIT: {semconv.TOOL_NAME: str, semconv.ASYNC_RESULT_ID: str, semconv.ASYNC_STATUS: str},
}  # fmt: skip
WHEN_COMPLETED: Final[Mapping[str, Mapping[str, type]]] = {
    semconv.RUN: {semconv.ITERATIONS: int, semconv.STOP_REASON: str, semconv.RESPONSE_FINISH_REASONS: tuple},
    semconv.DISCOVERY: {semconv.DISCOVERY_TOOL_COUNT: int, semconv.CATALOG_DIGEST: str, semconv.CATALOG_CHANGED: bool},
    semconv.COMPOSE: {semconv.COMPOSE_TOOLS: int, semconv.COMPOSE_MESSAGES: int, semconv.CATALOG_DIGEST: str},
    semconv.DISPATCH: {semconv.PROVIDER_ID: str, semconv.DISPATCH_MODE: str},
}
RESUMED: Final = (semconv.DISCOVERY, semconv.DISPATCH)
ORDER: Final = (semconv.DISCOVERY, semconv.COMPOSE, semconv.INFERENCE, semconv.DISPATCH)


def check(observed: Observed) -> Iterator[str]:
    """Yield problems."""
    yield from _ends(observed)
    for seen in observed.phases:
        yield from _attributes(seen)
        yield from _outcome(seen)
        yield from _content(seen, observed)
        yield from _parent(seen, observed)
    lost = {
        seen.run for seen in observed.phases if seen.outcome == semconv.LOST
    }  # spans of a killed process are absent
    for run in observed.runs:
        if run not in lost:
            yield from _run(run, observed.by_run[run])


def _ends(observed: Observed) -> Iterator[str]:
    for span_id, name in observed.started.items():
        ends = observed.ends.get(span_id, 0)
        if ends != 1:
            remedy = "; if it outlasts its run, wait for it: telemetry.settle()" if not ends else ""
            yield f"span {name!r} ({span_id}) has ended {ends} times instead of once{remedy}"


def _attributes(seen: Seen) -> Iterator[str]:
    phase = seen.phase
    target = seen.attributes.get(TARGETS.get(phase.name, ""))
    name = f"{phase.operation} {target}" if target else phase.operation
    if seen.span.name != name:
        yield f"{seen} should be called {name!r}"
    if seen.span.kind is not phase.kind:
        yield f"{seen} has the kind {seen.span.kind.name} instead of {phase.kind.name}"
    required = dict(REQUIRED[phase.name])
    if seen.run is None:
        required.pop(semconv.TOOL_CALL_ID, None)  # a call of another framework, which has no id on the wire
    elif seen.outcome == semconv.COMPLETED:
        required.update(WHEN_COMPLETED.get(phase.name, {}))
    for attribute, kind in required.items():
        value = seen.attributes.get(attribute)
        if not isinstance(value, kind):
            yield f"{seen} has {attribute}={value!r}, which should be of type {kind.__name__}"
    share = seen.attributes.get(semconv.CACHED_SHARE, 0.0)
    if not 0 <= share <= 1:
        yield f"{seen} has {semconv.CACHED_SHARE}={share}, which is no share of its input"
    for attribute, expected in phase.attributes.items():
        if seen.attributes.get(attribute) != expected:
            yield f"{seen} has {attribute}={seen.attributes.get(attribute)!r} instead of {expected!r}"


def _outcome(seen: Seen) -> Iterator[str]:
    outcome, error_type = seen.outcome, seen.attributes.get(semconv.ERROR_TYPE)
    if outcome not in OUTCOMES:
        yield f"{seen} has no outcome"
        return
    is_error = outcome in (semconv.FAILED, semconv.TIMEOUT, semconv.LOST)
    status = seen.span.status.status_code
    if (status is StatusCode.ERROR) is not is_error:
        yield f"{seen} has outcome {outcome} but status {status.name}"
    if (error_type is not None) is not is_error or (error_type == semconv.TIMEOUT) is not (outcome == semconv.TIMEOUT):
        yield f"{seen} has outcome {outcome} but error.type {error_type!r}"


def _content(seen: Seen, observed: Observed) -> Iterator[str]:
    total = 0
    for attribute in CONTENT:
        text = seen.attributes.get(attribute)
        if text is None:
            continue
        size = len(text.encode("utf-8", "surrogatepass"))
        total += size
        try:
            json.loads(text)
        except ValueError as error:
            yield f"{seen} has {attribute} that is not JSON: {error}"
        if size > observed.policy.max_bytes:
            yield f"{seen} has {attribute} of {size} bytes; the bound is {observed.policy.max_bytes}"
        if not observed.policy.content:
            yield f"{seen} has {attribute} although no content is recorded in mode {observed.policy.mode!r}"
    if total > observed.policy.max_span_bytes:
        yield f"{seen} has {total} bytes of content; the bound is {observed.policy.max_span_bytes}"


def _parent(seen: Seen, observed: Observed) -> Iterator[str]:
    if seen.end < seen.start:
        yield f"{seen} ends before it begins"
    parent = observed.by_id.get(seen.parent or "")
    if seen.phase.name == semconv.RUN:
        yield from _nested(seen, parent)
        return
    if parent is None:
        if seen.run in observed.runs and seen.phase.name != semconv.AWAIT:  # its call may be another process's
            yield f"{seen} is not below its run"
        return
    if seen.phase.name == semconv.AWAIT:
        yield from _awaited(seen, parent)
        return
    # Spans of a combined provider's parts are its children; all other phases of a run are children of the run. What
    # belongs to no run, such as a request to an MCP server of ours, may be below any.
    is_nested = seen.phase.name == parent.phase.name == semconv.DISCOVERY
    is_below = parent.phase.name == semconv.RUN or is_nested or _is_summary(seen, parent)
    is_in_place = is_below and parent.run == seen.run
    if seen.run is not None and not is_in_place:
        yield f"{seen} is below {parent}"
    if parent.trace != seen.trace:
        yield f"{seen} is in another trace than {parent}"
    if seen.start < parent.start or seen.end > parent.end:
        yield f"{seen} does not lie within {parent} in time"


def _is_summary(seen: Seen, parent: Seen | None) -> bool:
    """Return whether a model call makes the summary of what a request leaves out."""
    return parent is not None and seen.phase.name == semconv.INFERENCE and _is_fitted(parent)


def _is_fitted(seen: Seen) -> bool:
    """Return whether a request was fitted into the model's window."""
    return seen.phase.name == semconv.COMPOSE and semconv.COMPOSE_TOKENS in seen.attributes


def _awaited(seen: Seen, parent: Seen) -> Iterator[str]:
    """Check the wait for an asynchronous call, which is below the span of its dispatch and outlives it."""
    name, tools = semconv.TOOL_NAME, (parent.attributes.get(semconv.TOOL_NAME), seen.attributes.get(semconv.TOOL_NAME))
    if parent.phase.name != semconv.DISPATCH or tools[0] != tools[1]:
        yield f"{seen} of {name}={tools[1]!r} is below {parent}, which did not dispatch it"
    if parent.trace != seen.trace:
        yield f"{seen} is in another trace than {parent}"
    if seen.start < parent.start:
        yield f"{seen} begins before {parent}"


def _nested(seen: Seen, parent: Seen | None) -> Iterator[str]:
    """Check a nested run. It may outlive the phase that started it, if a tool does not wait for it."""
    if parent is None:
        return
    if parent.run == seen.run:
        yield f"{seen} is below {parent}, which is a part of it"
    if parent.trace != seen.trace:
        yield f"{seen} is in another trace than {parent}"
    if seen.start < parent.start:
        yield f"{seen} begins before {parent}"


def _run(run: str, spans: Sequence[Seen]) -> Iterator[str]:
    roots = [seen for seen in spans if seen.phase.name == semconv.RUN]
    if len(roots) != 1:
        yield f"run {run} has {len(roots)} spans of its own that have ended instead of one"
        return
    by_iteration: dict[int, list[Seen]] = defaultdict(list)
    for seen in spans:
        if seen.phase.name not in (semconv.RUN, semconv.AWAIT):
            by_iteration[seen.iteration].append(seen)
    inner = {seen.id: seen for seen in spans}
    by_iteration = {
        number: [seen for seen in group if not _is_summary(seen, inner.get(seen.parent or ""))]
        for number, group in by_iteration.items()
    }
    # A resumed run starts in the iteration in which it paused, with the waiting calls.
    resumed = semconv.RESUMED_FROM in roots[0].attributes
    first = min(by_iteration, default=1) if resumed else 1
    if sorted(by_iteration) != list(range(first, first + len(by_iteration))):
        yield f"run {run} has the iterations {sorted(by_iteration)}"
    previous = roots[0].start
    for number, group in sorted(by_iteration.items()):
        yield from _iteration(run, group, previous, RESUMED if resumed and number == first else ORDER)
        previous = max(seen.end for seen in group)
    counted = roots[0].attributes.get(semconv.ITERATIONS, 0)
    if counted < max(by_iteration, default=0):  # the last one may have ended before its first phase
        yield f"{roots[0]} counts {counted} iterations; there are spans of {max(by_iteration)}"
    yield from _usage(roots[0], spans)


def _turns(group: Sequence[Seen]) -> Iterator[str]:
    """Check that calls of serial tools did not overlap, and that queue times are not negative."""
    serial = sorted((seen for seen in group if semconv.TOOL_QUEUED in seen.attributes), key=lambda seen: seen.start)
    for before, after in pairwise(serial):
        if after.start < before.end:
            yield f"{after} begins before {before}, of a serial tool, has ended"
    for seen in serial:
        if seen.attributes[semconv.TOOL_QUEUED] < 0:
            yield f"{seen} has {semconv.TOOL_QUEUED}={seen.attributes[semconv.TOOL_QUEUED]}"


def _iteration(run: str, group: Sequence[Seen], previous: int, order: Sequence[str]) -> Iterator[str]:
    for seen in group:
        if seen.start < previous:
            yield f"{seen} begins before the iteration before has ended"
    counts = Counter(seen.phase.name for seen in group)
    if not counts[semconv.DISCOVERY] and order is not RESUMED:  # a resumed run may have no calls to dispatch
        yield f"run {run} called no provider in iteration {group[0].iteration}"
    calls = [seen for seen in group if seen.phase.name == semconv.INFERENCE]
    first_attempts = sum(seen.attributes.get(semconv.ATTEMPT) == 1 for seen in calls)
    # The second is a closing answer; what is too long for the model's window is composed anew.
    most = 4 if any(map(_is_fitted, group)) else 2
    if counts[semconv.COMPOSE] > most or first_attempts > min(2, counts[semconv.COMPOSE]):
        yield f"run {run} has in iteration {group[0].iteration} the spans {dict(counts)}"
    yield from _attempts(calls)
    yield from _turns(group)
    first = {name: min((seen.start for seen in group if seen.phase.name == name), default=None) for name in order}
    # All providers respond before a request is composed; other phases may repeat after a closing response.
    done = {name: max if name == semconv.DISCOVERY else min for name in order}
    last = {name: done[name]((seen.end for seen in group if seen.phase.name == name), default=None) for name in order}
    for before, after in pairwise(order):
        ended, started = last[before], first[after]
        if started is not None and (ended is None or started < ended):
            yield f"run {run} started {after} before {before} in iteration {group[0].iteration}"


def _attempts(calls: Sequence[Seen]) -> Iterator[str]:
    """Check that each retry follows a failed attempt."""
    before: Seen | None = None
    for seen in sorted(calls, key=lambda call: call.start):
        attempt = seen.attributes.get(semconv.ATTEMPT)
        if attempt != 1 and (
            before is None
            or before.attributes.get(semconv.ATTEMPT, 0) + 1 != attempt
            or not (
                before.attributes.get(semconv.OUTCOME) in {semconv.FAILED, semconv.TIMEOUT}
                or any(event.name == ReliabilityRetried.name for event in before.span.events)
            )
        ):
            yield f"{seen} is attempt {attempt}, but no failed attempt goes before it"
        before = seen


def _usage(root: Seen, spans: Sequence[Seen]) -> Iterator[str]:
    for attribute in (semconv.USAGE_INPUT_TOKENS, semconv.USAGE_OUTPUT_TOKENS, semconv.COST_USD):
        reported: list[Any] = [
            seen.attributes[attribute]
            for seen in spans
            if seen.phase.name == semconv.INFERENCE and attribute in seen.attributes
        ]
        total = sum(reported) if reported else None
        of_run = root.attributes.get(attribute)
        # Costs are floats: another order of addition can change the last digit.
        is_same = of_run == total or (of_run is not None and total is not None and math.isclose(of_run, total))
        if not is_same:
            yield f"{root} has {attribute}={of_run}; its chat spans add up to {total}"
