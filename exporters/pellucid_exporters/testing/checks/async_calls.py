"""Rules for asynchronous tool calls: spans, events and counters agree on each dispatch, expiry and late result."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pellucid import semconv
from pellucid.events import AsyncToolContinued, AsyncToolDispatched, AsyncToolExpired, AsyncToolLate
from pellucid_exporters.testing.checks.observed import Observed, Seen

if TYPE_CHECKING:
    from pellucid.events import Event


def check(observed: Observed) -> Iterator[str]:
    """Yield problems."""
    events: dict[str, list[Event]] = defaultdict(list)
    for event in observed.events:
        events[event.span_id].append(event)
    for seen in observed.phases:
        if seen.phase.name in (semconv.DISPATCH, semconv.AWAIT):
            yield from _noted(seen, events[seen.id])
    yield from _continued(observed)
    yield from _late(observed)


def _noted(seen: Seen, events: Sequence[Event]) -> Iterator[str]:
    """Check that what a span notes of a call was emitted, once."""
    kinds = (AsyncToolDispatched, AsyncToolExpired)
    noted = Counter(event.name for event in seen.span.events)
    emitted = Counter(event.name for event in events if isinstance(event, kinds))
    for kind in kinds:
        if noted[kind.name] != emitted[kind.name]:
            yield f"{seen} notes {kind.name} {noted[kind.name]} times; {emitted[kind.name]} were emitted"
    is_expired = seen.attributes.get(semconv.ASYNC_STATUS) == "expired"
    if noted[AsyncToolExpired.name] != int(is_expired):
        yield f"{seen} notes {AsyncToolExpired.name} {noted[AsyncToolExpired.name]} times"


def _continued(observed: Observed) -> Iterator[str]:
    """Check that a run gets each result once."""
    results = Counter(
        (event.run_id, result_id)
        for event in observed.events
        if isinstance(event, AsyncToolContinued)
        for result_id in event.result_ids
    )
    for (run_id, result_id), times in results.items():
        if times > 1:
            yield f"run {run_id} continued {times} times with the result {result_id}"


def _late(observed: Observed) -> Iterator[str]:
    """Check that late results are counted and emitted, also those that a store received."""
    emitted = Counter(event.tool_name for event in observed.events if isinstance(event, AsyncToolLate))
    counted: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    for point in observed.points:
        tool = str(point.attributes.get(semconv.TOOL_NAME))
        if point.name == semconv.EXTERNAL_LATE.name:
            counted[tool] += int(point.value)
        elif point.name == semconv.DURABLE_SETTLEMENTS.name and _is_late(point.attributes):
            stored[tool] += int(point.value)
    for tool in emitted | counted | stored:
        if not stored[tool] <= counted[tool] == emitted[tool]:
            yield (
                f"tool {tool!r} has {counted[tool]} late results, of which {emitted[tool]} were emitted; "
                f"the store received {stored[tool]}"
            )


def _is_late(attributes: Mapping[str, Any]) -> bool:
    return attributes.get(semconv.DURABLE_SETTLEMENT) == "late" and attributes.get(semconv.DURABLE_KIND) == "external"
