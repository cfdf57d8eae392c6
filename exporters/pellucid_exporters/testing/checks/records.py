"""Rules for events, log lines and boundary records: each agrees with its span."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid.events import (
    ReliabilityFellBack,
    ReliabilityRetried,
    ToolDenied,
    ToolsActivated,
    ToolsBudgetExceeded,
    ToolsDeactivated,
    ToolsDiscoveryPending,
    ToolsRedefined,
    ToolsSearched,
    ToolsShadowed,
)
from pellucid.semconv.scores import EVALUATION_RESULT
from pellucid.semconv.tool_locks import CATALOG_REDEFINED
from pellucid.telemetry.phases import PHASES
from pellucid_exporters.boundary_records import boundary_of
from pellucid_exporters.testing.checks.observed import DECISIONS, Observed, Seen

if TYPE_CHECKING:
    from pellucid.events import Event


RESTORED: Final = ("history", "checkpoint")
"""Attributes that show that tools were active before."""


def check(observed: Observed) -> Iterator[str]:
    """Yield problems."""
    events: dict[str, list[Event]] = defaultdict(list)
    for event in observed.events:
        events[event.span_id].append(event)
    lines: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in observed.logs:
        if line.get("event") == EVALUATION_RESULT:
            continue  # judges a span of any process, at any time
        lines[str(line.get("span_id"))].append(line)
    for seen in observed.phases:
        yield from _events(seen, events[seen.id])
        yield from _lines(seen, lines[seen.id])
        yield from _record(seen)
        yield from _tools(seen, events[seen.id])
        yield from _pending(seen, events[seen.id])
        yield from _denials(seen, [event for event in events[seen.id] if isinstance(event, ToolDenied)])
        yield from _decisions(seen, events[seen.id])
    known = observed.by_id.keys() | observed.started.keys()
    kinds = {kind for phase in PHASES.values() for kind in (phase.started, phase.completed, phase.failed)}
    for stray in (event for event in observed.events if type(event) in kinds and event.span_id not in known):
        yield f"event {stray.name} of run {stray.run_id or 'none'} names an unknown span: {stray.span_id}"
    for span_id in lines.keys() - known:
        yield f"a log line names an unknown span: {span_id}"


def _events(seen: Seen, events: Sequence[Event]) -> Iterator[str]:
    phase = seen.phase
    ended = phase.completed if seen.outcome == semconv.COMPLETED else phase.failed
    order = [type(event) for event in events if type(event) in (phase.started, ended)]
    if phase.started is not None and order == [ended, phase.started]:
        yield f"{seen} has its events in the wrong order"
    for kind in {phase.started, phase.completed, phase.failed} - {None}:
        assert kind is not None  # just removed
        of_kind = [event for event in events if type(event) is kind]
        expected = 1 if kind in (phase.started, ended) else 0
        if kind is phase.failed and (tries := _failures(seen)):
            # A rule continued the phase: each failed attempt emits an event, and only the last can end the span.
            if not expected <= len(of_kind) <= tries:
                yield f"{seen} has {len(of_kind)} events {kind.name} of {tries} attempts"
            of_kind = of_kind[len(of_kind) - expected :]
        elif len(of_kind) != expected:
            yield f"{seen} has {len(of_kind)} events {kind.name} instead of {expected}"
        for event in of_kind:
            actual = {"run_id": event.run_id or None, "trace_id": event.trace_id, "iteration": event.iteration}
            if kind is ended:
                actual |= {
                    name: getattr(event, name)
                    for name in ("duration_ms", "outcome", "error_type")
                    if hasattr(event, name)
                }
            yield from _differences(seen, f"event {kind.name}", actual)


def _pending(seen: Seen, events: Sequence[Event]) -> Iterator[str]:
    """Check that a discovery that did not wait for its round trip links to it, and emits an event if it completed."""
    is_pending = seen.attributes.get(semconv.DISCOVERY_CACHE) == "pending"
    if is_pending and not seen.span.links and semconv.REPLAY_OF not in seen.attributes:
        yield f"{seen} did not wait for a round trip, and does not link to it"
    counts = [event.tool_count for event in events if isinstance(event, ToolsDiscoveryPending)]
    expected = [seen.attributes.get(semconv.DISCOVERY_TOOL_COUNT)]
    if counts != (expected if is_pending and seen.outcome == semconv.COMPLETED else []):
        yield f"{seen} has events of pending discoveries with {counts} tools"


def _failures(seen: Seen) -> int:
    """Return the number of failed attempts of a discovery or tool call that a rule continued, the last one included."""
    if seen.phase not in (PHASES[semconv.DISCOVERY], PHASES[semconv.DISPATCH]):
        return 0
    decided = [event for event in seen.span.events if event.name in (ReliabilityRetried.name, ReliabilityFellBack.name)]
    return len(decided) + 1 if decided else 0


def _tools(seen: Seen, events: Sequence[Event]) -> Iterator[str]:
    """Check that events about tools belong to the span in which they happened and agree with it."""
    found = seen.attributes
    offers = _offers(seen)
    for event in events:
        if isinstance(event, ToolsSearched):
            emitted: tuple[Any, ...] = (event.query, event.hits, event.names)
            actual = tuple(
                found.get(name) for name in (semconv.SEARCH_QUERY, semconv.SEARCH_HITS, semconv.SEARCH_RANKED)
            )
            if emitted != actual:
                yield f"{seen} says {actual} of a search, but its event {emitted}"
        elif isinstance(event, ToolsActivated):
            is_restored = event.via in RESTORED
            if not (offers if is_restored else event.via == found.get(semconv.TOOL_NAME)):
                yield f"{seen} has an event of a tool that was activated via {event.via!r}"
        elif isinstance(event, ToolsDeactivated) and not offers:
            yield f"{seen} has an event of a tool that was deactivated"
        elif isinstance(event, ToolsRedefined) and not (offers if event.after != "lock" else _lists(seen)):
            yield f"{seen} has an event of a tool that was redefined"
    yield from _counts(seen, events)


def _counts(seen: Seen, events: Sequence[Event]) -> Iterator[str]:
    """Check the counts on the span; a resumed run has none before it composes a request."""
    found = seen.attributes
    for event in events:
        if isinstance(event, ToolsBudgetExceeded) and (
            found.get(semconv.COMPOSE_TOOL_TOKENS, event.tokens if semconv.RESUMED_FROM in found else None)
            != event.tokens
        ):
            yield f"{seen} has an event of tools that take {event.tokens} tokens, and says something else"
    shadowed = sum(isinstance(event, ToolsShadowed) for event in events)
    if seen.phase.name == semconv.COMPOSE and shadowed > found.get(semconv.COMPOSE_SHADOWED, 0):
        yield f"{seen} has more events of collisions than it counts: {shadowed}"
    redefined = [event for event in events if isinstance(event, ToolsRedefined)]
    unlocked = sum(event.after == "lock" for event in redefined)
    if unlocked > found.get(CATALOG_REDEFINED, 0):
        yield f"{seen} has more events of tools that differ from the lock file than it counts: {unlocked}"
    refused = sum(event.refused for event in redefined)
    if seen.phase.name == semconv.COMPOSE and refused > found.get(semconv.COMPOSE_REDEFINED, 0):
        yield f"{seen} has more events of tools that are refused than it counts redefined ones: {refused}"


def _lists(seen: Seen) -> bool:
    """Return whether tools are listed in a span."""
    return seen.phase.name == semconv.DISCOVERY


def _offers(seen: Seen) -> bool:
    """Return whether tools are offered in a span: when a request is composed, and when a run resumes."""
    return seen.phase.name == semconv.COMPOSE or semconv.RESUMED_FROM in seen.attributes


def _denials(seen: Seen, events: Sequence[ToolDenied]) -> Iterator[str]:
    """Check that denial events belong to the span in which the policy was evaluated, and that a call's span agrees."""
    is_call, actual = seen.phase.name == semconv.DISPATCH, seen.attributes.get(semconv.PERMISSION)
    stages = {"offer": _offers(seen), "activation": _offers(seen) or is_call, "dispatch": is_call}
    for event in events:
        if not stages.get(event.stage, False):
            yield f"{seen} has an event of a denial at stage {event.stage!r}"
        decides = is_call and (event.stage == "dispatch" or event.permission == "halt")
        if decides and actual != event.permission:
            yield f"{seen} has {semconv.PERMISSION}={actual!r}, but its event says {event.permission!r}"


def _decisions(seen: Seen, events: Sequence[Event]) -> Iterator[str]:
    """Check that exactly the reliability decisions of a span were emitted to listeners."""
    emitted = Counter((event.name, getattr(event, "attempt", None)) for event in events if event.name in DECISIONS)
    noted = Counter(
        (event.name, (event.attributes or {}).get(semconv.ATTEMPT))
        for event in seen.span.events
        if event.name in DECISIONS
    )
    for name, attempt in noted - emitted:
        yield f"{seen} notes {name} at attempt {attempt}, but no event was emitted"
    for name, attempt in emitted - noted:
        yield f"{seen} has an event {name} of attempt {attempt} that it does not note"


def _lines(seen: Seen, lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if len(lines) != 1:
        yield f"{seen} has {len(lines)} log lines instead of one"
    for line in lines:
        names = ("trace_id", "iteration", "duration_ms", "outcome", "error_type")
        actual = {name: line.get(name) for name in names}
        yield from _differences(seen, "log line", {**actual, "run_id": line.get("run_id") or None})


def _record(seen: Seen) -> Iterator[str]:
    record = boundary_of(seen.span)
    if record is None:
        yield f"{seen} has no boundary record"
        return
    names = ("trace_id", "duration_ms", "outcome", "error_type", "run_id")
    yield from _differences(seen, "boundary record", {name: record.get(name) for name in names})


def _differences(seen: Seen, source: str, actual: Mapping[str, Any]) -> Iterator[str]:
    truth: dict[str, Any] = {
        "run_id": seen.run,
        "trace_id": seen.trace,
        "iteration": seen.iteration,
        "duration_ms": seen.seconds * 1e3,
        "outcome": seen.outcome,
        "error_type": seen.attributes.get(semconv.ERROR_TYPE),
    }
    for name, value in actual.items():
        if name == "iteration" and seen.phase.name == semconv.RUN:
            continue  # events of a run have its current iteration; its span counts iterations instead
        expected = truth[name]
        is_same = math.isclose(value, expected, rel_tol=1e-6) if isinstance(value, float) else value == expected
        if not is_same:
            yield f"{seen} has {name}={expected!r}, but its {source} says {value!r}"
