"""Rules for metrics: recompute them from spans and compare."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from pellucid import semconv
from pellucid.events import ApprovalDecided, ApprovalRequested, AsyncToolDispatched
from pellucid.semconv.scores import EVALUATION_RESULTS, EVALUATION_SCORE
from pellucid.semconv.servers import ALL_METRICS, SERVER_OPERATION_DURATION, SERVER_OVER_OBJECTIVE
from pellucid.telemetry.labels import MAX_LENGTH, MOST
from pellucid.telemetry.phases import PHASES
from pellucid_exporters.testing.checks.observed import DECISIONS, Observed, Seen

Labels: TypeAlias = frozenset[tuple[str, Any]]
Expected: TypeAlias = dict[str, dict[Labels, list[float]]]

SDK_BOUNDS: Final = (
    0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0, 5000.0, 7500.0, 10000.0,
)  # fmt: skip
METRICS: Final = {metric.name: metric for metric in ALL_METRICS}
PHASE_OF: Final[Mapping[str, str]] = {
    **{phase.duration.name: phase.name for phase in PHASES.values()},
    semconv.TOKEN_USAGE.name: semconv.INFERENCE,
    semconv.TIME_TO_FIRST_CHUNK.name: semconv.INFERENCE,
    semconv.TIME_PER_OUTPUT_CHUNK.name: semconv.INFERENCE,
    semconv.PROMPT_CACHE_SHARE.name: semconv.INFERENCE,
    semconv.COST.name: semconv.INFERENCE,
    semconv.RUN_ITERATIONS.name: semconv.RUN,
    semconv.RUN_FAILURES.name: semconv.RUN,
    semconv.INFERENCE_CALLS.name: semconv.RUN,
    semconv.TOOL_CALLS.name: semconv.RUN,
    semconv.APPROVAL_WAIT.name: semconv.DISPATCH,
    semconv.DISCOVERY_OVER_OBJECTIVE.name: semconv.DISCOVERY,
    semconv.DURABLE_SETTLEMENTS.name: semconv.DISPATCH,
    semconv.DURABLE_DISPATCHES_SKIPPED.name: semconv.DISPATCH,
}
DERIVED: Final = (
    *(phase.duration for phase in PHASES.values()),
    semconv.TOKEN_USAGE, semconv.TIME_TO_FIRST_CHUNK, semconv.RUN_ITERATIONS, semconv.CATALOG_CHANGES,
    semconv.PROMPT_CACHE_SHARE, semconv.COST, semconv.RELIABILITY_DECISIONS, semconv.APPROVAL_PENDING,
    semconv.APPROVAL_WAIT, semconv.DISCOVERY_OVER_OBJECTIVE, semconv.INFERENCE_CALLS, semconv.TOOL_CALLS,
    semconv.EXTERNAL_PENDING, semconv.HUB_LISTING_DURATION, semconv.HUB_OVER_OBJECTIVE,
)  # fmt: skip
"""Metrics that can be computed from spans."""
OUTSIDE: Final = (semconv.HUB_LISTING_DURATION, semconv.HUB_OVER_OBJECTIVE)
"""Metrics that also have measurements without a span: of requests to hubs outside of runs."""
ELSEWHERE: Final = (
    semconv.DURABLE_SETTLEMENTS.name, semconv.EXTERNAL_LATE.name,  # the dispatch
    semconv.DURABLE_DUE_WAIT.name,  # the submission of the run
    semconv.HTTP_SERVER_DURATION.name, semconv.DURABLE_CALLBACKS.name,
    semconv.MCP_CONNECT_DURATION.name,  # who connects
    SERVER_OPERATION_DURATION.name, SERVER_OVER_OBJECTIVE.name, EVALUATION_SCORE.name, EVALUATION_RESULTS.name,
)  # fmt: skip
"""Metrics whose exemplars may lead to a span of another process, or of no phase."""
OPERATIONS: Final[Mapping[str, str]] = {
    semconv.DISCOVERY: "discovery",
    semconv.INFERENCE: "inference",
    semconv.DISPATCH: "tool",
    semconv.RUN: "inference",  # a rule that blocks the first attempt produces no span of an attempt
}
"""Subject of reliability decisions, by the span that records them."""


def check(observed: Observed) -> Iterator[str]:
    """Yield problems."""
    expected = _expected(observed)
    found: Expected = defaultdict(dict)
    for point in observed.points:
        metric = METRICS.get(point.name)
        if metric is None:
            continue
        where = f"{point.name} of {dict(point.attributes)}"
        if extra := set(point.attributes) - set(metric.attributes):
            yield f"{where} has labels that its instrument does not allow: {sorted(extra)}"
        if point.unit == "s" and point.bounds == SDK_BOUNDS:
            yield f"{where} has bounds that are made for milliseconds"
        found[point.name][frozenset(point.attributes.items())] = [point.value, point.count or 0]
        for exemplar in point.exemplars:
            yield from _exemplar(where, exemplar, point.name, observed)
    for metric in DERIVED:
        values = found[metric.name]
        yield from _compare(metric, _bounded(expected[metric.name], values), values)
    yield from _requests(observed, found)


def _requests(observed: Observed, found: Expected) -> Iterator[str]:
    """Compare MCP calls with tool calls that received a response; a call may be sent twice, or be measured later."""
    answered = [
        seen
        for seen in observed.phases
        if seen.attributes.get(semconv.MCP_METHOD_NAME) == "tools/call"
        and semconv.MCP_PROTOCOL_VERSION in seen.attributes
        and seen.outcome == semconv.COMPLETED
    ]
    points = found[semconv.MCP_OPERATION_DURATION.name].items()
    measured = sum(count for labels, (_, count) in points if (semconv.MCP_METHOD_NAME, "tools/call") in labels)
    if measured < len(answered):
        name = semconv.MCP_OPERATION_DURATION.name
        yield f"{name} has {measured:g} measurements for {len(answered)} calls of MCP tools"


def _bounded(expected: Mapping[Labels, list[float]], found: Mapping[Labels, Any]) -> Mapping[Labels, list[float]]:
    """Return expected values, with those together that have no label of their own because there were too many."""
    kept = {label for labels in found for label in labels}
    bounded: dict[Labels, list[float]] = defaultdict(list)
    for labels, values in expected.items():
        limited = frozenset(_limited(name, value, kept) if name in MOST else (name, value) for name, value in labels)
        bounded[limited].extend(values)
    return bounded


def _limited(name: str, value: str, kept: Collection[tuple[str, Any]]) -> tuple[str, str]:
    label = (name, value[:MAX_LENGTH])
    return label if label in kept or (name, semconv.OTHER) not in kept else (name, semconv.OTHER)


def _compare(
    metric: semconv.Metric, expected: Mapping[Labels, list[float]], found: Mapping[Labels, list[float]]
) -> Iterator[str]:
    for labels in expected.keys() | found.keys():
        values = expected.get(labels, [])
        total, count = found.get(labels, [0.0, 0])
        where = f"{metric.name} of {dict(labels)}"
        if metric in OUTSIDE and count >= len(values):
            continue
        if metric.kind == "histogram" and count != len(values):
            yield f"{where} has {count} measurements for {len(values)} spans"
        elif not math.isclose(total, sum(values), rel_tol=1e-9, abs_tol=1e-9):
            yield f"{where} adds up to {total}, its spans to {sum(values)}"


def _exemplar(where: str, exemplar: Any, name: str, observed: Observed) -> Iterator[str]:
    seen = observed.by_id.get(exemplar.span_id)
    if seen is None and (name in ELSEWHERE or observed.others.get(exemplar.span_id) == exemplar.trace_id):
        return
    if seen is None or seen.trace != exemplar.trace_id:
        yield f"{where} has an exemplar of a span that was not exported: {exemplar.span_id}"
    elif name in PHASE_OF and seen.phase.name != PHASE_OF[name]:
        yield f"{where} has an exemplar that leads to {seen}"
    elif name == seen.phase.duration.name and not math.isclose(exemplar.value, seen.seconds, rel_tol=1e-9):
        yield f"{where} has an exemplar of {exemplar.value} s that leads to {seen}, which took {seen.seconds} s"


def _expected(observed: Observed) -> Expected:
    expected: Expected = defaultdict(lambda: defaultdict(list))
    objectives = {
        point.attributes.get(semconv.PROVIDER_ID): point.value
        for point in observed.points
        if point.name == semconv.DISCOVERY_OBJECTIVE.name
    }
    for run in observed.runs:
        for metric, of_run, value in _calls(observed.by_run[run]):
            expected[metric.name][of_run].append(value)
    for seen in observed.phases:
        for metric, extra, value in (*_measured(seen), *_decided(seen), *_judged(seen, objectives)):
            source = {**_labelled(seen), **extra}
            labels = {name: source[name] for name in metric.attributes if source.get(name) is not None}
            expected[metric.name][frozenset(labels.items())].append(value)
    return expected


def _measured(seen: Seen) -> Iterator[tuple[semconv.Metric, Mapping[str, Any], float]]:
    attributes = seen.attributes
    if seen.outcome != semconv.LOST and not attributes.get(semconv.DISCOVERY_BACKGROUND):
        yield seen.phase.duration, {}, seen.seconds
    yield from _listings(seen)
    if seen.phase.name == semconv.INFERENCE:
        for kind, name in (("input", semconv.USAGE_INPUT_TOKENS), ("output", semconv.USAGE_OUTPUT_TOKENS)):
            if name in attributes:
                yield semconv.TOKEN_USAGE, {semconv.TOKEN_TYPE: kind}, attributes[name]
        for metric, name in ((semconv.PROMPT_CACHE_SHARE, semconv.CACHED_SHARE), (semconv.COST, semconv.COST_USD)):
            if name in attributes:
                yield metric, {}, attributes[name]
        if semconv.RESPONSE_TIME_TO_FIRST_CHUNK in attributes:
            yield semconv.TIME_TO_FIRST_CHUNK, {}, attributes[semconv.RESPONSE_TIME_TO_FIRST_CHUNK]
    if seen.phase.name == semconv.RUN and semconv.STOP_REASON in attributes:
        yield semconv.RUN_ITERATIONS, {}, attributes[semconv.ITERATIONS]
    yield from _approvals(seen)
    yield from _asynchronous(seen)
    if attributes.get(semconv.CATALOG_CHANGED):
        yield semconv.CATALOG_CHANGES, {}, 1


def _listings(seen: Seen) -> Iterator[tuple[semconv.Metric, Mapping[str, Any], float]]:
    """Return the requests to hubs that a discovery made."""
    for event in seen.span.events:
        if event.name == semconv.HUB_LISTING:
            facts: dict[str, Any] = dict(event.attributes or {})
            labels = {semconv.ERROR_TYPE: None, **facts}
            yield semconv.HUB_LISTING_DURATION, labels, facts[semconv.HUB_LISTING_SECONDS]
            if semconv.HUB_LATE in facts:
                yield semconv.HUB_OVER_OBJECTIVE, labels, int(facts[semconv.HUB_LATE])


def _calls(of_run: Sequence[Seen]) -> Iterator[tuple[semconv.Metric, Labels, float]]:
    """Return the number of calls of a run, if it has ended in the process that started it."""
    phases = Counter(seen.phase.name for seen in of_run)
    for seen in of_run:
        if seen.phase.name == semconv.RUN and seen.outcome != semconv.LOST:
            for metric, phase in ((semconv.INFERENCE_CALLS, semconv.INFERENCE), (semconv.TOOL_CALLS, semconv.DISPATCH)):
                labels = {name: seen.attributes[name] for name in metric.attributes if name in seen.attributes}
                yield metric, frozenset(labels.items()), phases[phase]


def _approvals(seen: Seen) -> Iterator[tuple[semconv.Metric, Mapping[str, Any], float]]:
    if semconv.APPROVAL_WAITED in seen.attributes:
        # The tool may have been removed by the time of approval, but the model did not invent it.
        tool = {semconv.TOOL_NAME: seen.attributes[semconv.TOOL_NAME]}
        yield semconv.APPROVAL_WAIT, tool, seen.attributes[semconv.APPROVAL_WAITED]
        yield semconv.APPROVAL_PENDING, tool, -1
    for event in seen.span.events:
        if event.name in (ApprovalRequested.name, ApprovalDecided.name):
            yield semconv.APPROVAL_PENDING, event.attributes or {}, 1 if event.name == ApprovalRequested.name else -1


def _asynchronous(seen: Seen) -> Iterator[tuple[semconv.Metric, Mapping[str, Any], float]]:
    if seen.phase.name == semconv.AWAIT:
        yield semconv.EXTERNAL_PENDING, {}, -1
    for event in seen.span.events:
        if event.name == AsyncToolDispatched.name:
            yield semconv.EXTERNAL_PENDING, {}, 1


def _decided(seen: Seen) -> Iterator[tuple[semconv.Metric, Mapping[str, Any], float]]:
    operation = {semconv.OPERATION: OPERATIONS.get(seen.phase.name)}
    for event in seen.span.events:
        if event.name in DECISIONS:
            yield semconv.RELIABILITY_DECISIONS, {**operation, **(event.attributes or {})}, 1


def _judged(seen: Seen, objectives: Mapping[Any, float]) -> Iterator[tuple[semconv.Metric, Mapping[str, Any], float]]:
    objective = objectives.get(seen.attributes.get(semconv.PROVIDER_ID))
    is_judged = (
        seen.phase.name == semconv.DISCOVERY
        and seen.attributes.get(semconv.DISCOVERY_CACHE) != "validation"
        and not seen.attributes.get(semconv.DISCOVERY_BACKGROUND)
    )
    if is_judged and objective is not None:
        yield semconv.DISCOVERY_OVER_OBJECTIVE, {}, int(seen.seconds > objective)


def _labelled(seen: Seen) -> Mapping[str, Any]:
    """Return the attributes as metric labels, which omit the name of a tool that is in no catalogue."""
    is_invented = seen.phase.name == semconv.DISPATCH and semconv.DISPATCH_MODE not in seen.attributes
    return {**seen.attributes, semconv.TOOL_NAME: semconv.OTHER} if is_invented else seen.attributes
