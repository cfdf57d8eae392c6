"""Records for the store: spans, starts and events in the form in which they are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import SpanKind, StatusCode

from pellucid import semconv
from pellucid.semconv.names import ITERATION, PHASE, SCOPE
from pellucid.telemetry.phases import PHASES
from pellucid_exporters.local import shapes
from pellucid_exporters.local.schema import LARGEST
from pellucid_exporters.local.score_schema import SCORE
from pellucid_exporters.plain_json import plain_json

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Event as SpanEvent
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Link

    from pellucid.events import Event

_OVERHEAD: Final = 200
_UNSET: Final = StatusCode.UNSET  # reading a member from its class takes longer than the comparison
_INTERNAL: Final = SpanKind.INTERNAL
_STATUS: Final = {code: code.name.lower() for code in StatusCode}
_KINDS: Final = {kind: kind.name.lower() for kind in SpanKind}
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_ENVELOPE: Final = ("run_id", "agent", "identity", "trace_id", "span_id", "time")
_KEPT: Final = ("run_id", "trace_id", "agent")
"""Parts of the envelope that the index of scores needs."""


@dataclass(slots=True, eq=False)
class SpanRecord:
    """A span that has ended, or the start of one.

    Attributes:
        run_id: Id of its run; empty if it belongs to none.
        parent_run_id: On the span of a run: the run to whose tool call it belongs.
        duration: Nanoseconds; None for a start.
        values: Values of attributes, as JSON.
        extra: Events, links and the text of the status, as JSON; None if there are none.
        bodies: Large texts by digest.
        facts: Attributes, from which the rows of runs and hubs are derived.
        error: Text of the status.
        is_own: Whether it is one of Pellucid's boundaries.
        requests: Attributes of the requests to hubs that a discovery made, with the time at which each was sent.
    """

    run_id: str
    parent_run_id: str | None
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes | None
    start: int
    duration: int | None
    shape: shapes.Shape
    iteration: int | None
    values: bytes
    digests: bytes | None
    extra: bytes | None
    bodies: dict[bytes, bytes]
    facts: Mapping[str, Any]
    error: str | None
    is_own: bool
    requests: Sequence[tuple[int, Mapping[str, Any]]] = ()

    def __len__(self) -> int:
        """Return about how many bytes it takes to write it."""
        size = _OVERHEAD + len(self.values)
        return size + sum(map(len, self.bodies.values())) if self.bodies else size


@dataclass(slots=True, eq=False)
class StartRecord:
    """The start of a boundary, which is read only if the boundary has not ended by the time of writing."""

    span: ReadableSpan
    run_id: str
    parent_run_id: str | None

    def __len__(self) -> int:
        """Return about how many bytes it takes to write it."""
        return _OVERHEAD


@dataclass(slots=True, eq=False)
class EventRecord:
    """An event."""

    run_id: str
    time: int
    name: str
    span_id: bytes
    payload: bytes
    bodies: dict[bytes, bytes]

    def __len__(self) -> int:
        """Return about how many bytes it takes to write it."""
        return _OVERHEAD + len(self.payload) + sum(map(len, self.bodies.values()))


def span_record(
    span: ReadableSpan, run_id: str, parent_run_id: str | None = None, attributes: dict[str, Any] | None = None
) -> SpanRecord:
    """Return the record of a span; without a duration if it has not ended.

    Args:
        span: The span.
        run_id: Id of its run; empty if it belongs to none.
        parent_run_id: On the span of a run: the run to whose tool call it belongs.
        attributes: Its attributes, if they have been copied.

    Raises:
        ValueError: its times are out of range.
    """
    context, parent, scope = span.context, span.parent, span.instrumentation_scope
    assert context is not None  # it was sampled
    start, end = span.start_time or 0, span.end_time
    if not 0 <= start <= LARGEST or (end is not None and not 0 <= end <= LARGEST):
        raise ValueError(f"a span from {start} to {end}")
    of = scope.name if scope is not None else ""
    facts = attributes if attributes is not None else copied(span.attributes)
    bodies: dict[bytes, bytes] = {}
    values: list[Any] = []
    name, status, events = span.name, span.status, span.events
    if of != SCOPE:
        name, values = shapes.FREE, [name]
    kind, code, error = span.kind, status.status_code, status.description
    head = (  # the hash of an enumeration's member is slow
        name,
        "internal" if kind is _INTERNAL else _KINDS[kind],
        of,
        "unset" if code is _UNSET else _STATUS[code],
    )
    duration = None
    if end is not None:
        duration = end - start if end > start else 0  # the clock may have been set back
    shape, digests = shapes.split(head, facts, values, bodies)
    iteration, phase = facts.get(ITERATION), facts.get(PHASE)
    is_own = of == SCOPE and phase in PHASES
    return SpanRecord(  # by position, in half of the time
        run_id,
        parent_run_id,
        context.trace_id.to_bytes(16, "big"),
        context.span_id.to_bytes(8, "big"),
        parent.span_id.to_bytes(8, "big") if parent is not None else None,
        start,
        duration,
        shape,
        iteration if type(iteration) is int and 0 <= iteration <= LARGEST else None,
        plain_json(values),
        digests,
        _extra(error, events, span.links, bodies),
        bodies,
        facts,
        error,
        is_own,
        _requests(events) if is_own and phase == semconv.DISCOVERY else (),
    )


def copied(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return attributes as a plain object, which is read many times faster than what the SDK has."""
    copy = getattr(attributes, "copy", None)
    found = copy() if copy is not None else attributes or {}
    return found if type(found) is dict else dict(found)


def event_record(event: Event) -> EventRecord:
    """Return the record of an event."""
    bodies: dict[bytes, bytes] = {}
    fields = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    payload = {key: value for key, value in fields.items() if key not in _ENVELOPE and value is not None}
    if event.name == SCORE:
        payload |= {key: fields[key] for key in _KEPT if fields[key].strip("0")}
    return EventRecord(
        run_id=event.run_id,
        time=round(event.time * 1e6) * 1000,
        name=event.name,
        span_id=bytes.fromhex(event.span_id),
        payload=light_json(event.name, payload, bodies),
        bodies=bodies,
    )


def light_json(name: str, payload: Mapping[str, Any], bodies: dict[bytes, bytes]) -> bytes:
    """Return the payload of an event with references to large texts; of scores, explanations only may be large."""
    light = shapes.lighten(payload, bodies) if name != SCORE else _light_score(payload, bodies)
    return plain_json(light)


def _light_score(payload: Mapping[str, Any], bodies: dict[bytes, bytes]) -> dict[str, Any]:
    """Return a score without NUL, at which the triggers that index scores would end a text."""
    shown = {
        key: value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value
        for key, value in payload.items()
    }
    return {key: shapes.lighten(value, bodies) if key == "explanation" else value for key, value in shown.items()}


def _requests(events: Iterable[SpanEvent]) -> list[tuple[int, Mapping[str, Any]]]:
    return [(event.timestamp, event.attributes or _NOTHING) for event in events if event.name == semconv.HUB_LISTING]


def _extra(
    error: str | None, events: Sequence[SpanEvent], links: Sequence[Link], bodies: dict[bytes, bytes]
) -> bytes | None:
    if not (error or events or links):
        return None
    found: dict[str, Any] = {"error": error} if error else {}
    if events:
        found["events"] = [
            {
                "time": event.timestamp,
                "name": event.name,
                "attributes": shapes.lighten(copied(event.attributes), bodies),
            }
            for event in events
        ]
    if links:
        found["links"] = [
            {"trace_id": f"{link.context.trace_id:032x}", "span_id": f"{link.context.span_id:016x}"} for link in links
        ]
    return plain_json(found)
