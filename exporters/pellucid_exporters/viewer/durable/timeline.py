"""The timeline of a durable run, across passes, processes and waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pellucid.durable import CallRecord, JournalEntry, RunEvent
from pellucid.durable.store.details import RunDetails
from pellucid.durable.store.records import FINAL
from pellucid.durable.store.retries import RETRIED
from pellucid.durable.store.values import GIVEN_UP
from pellucid.run.journal import BEGUN

BarKind: TypeAlias = Literal["queued", "pass", "call", "approval", "retry"]

_ENDS: Final = frozenset({"run.waiting", "run.retrying", "run.completed", "run.failed", "run.cancelled"})
_INTERRUPTED: Final = "interrupted; its end is not known"


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time of a run.

    Attributes:
        kind: Its kind.
        label: Its name.
        start: Seconds since the epoch.
        end: As `start`; None if it has not ended.
        note: Its end, in words.
        left: Start, in percent of the axis.
        width: Length, in percent of the axis.
    """

    kind: BarKind
    label: str
    start: float
    end: float | None
    note: str
    left: float = 0.0
    width: float = 0.0


def timeline(found: RunDetails, steps: Iterable[JournalEntry], events: Iterable[RunEvent]) -> list[Bar]:
    """Return the bars of a run in order of their starts.

    Args:
        found: The run.
        steps: Its journal, without contents.
        events: Its events of types `run.*`.
    """
    run, known = found.run, list(events)
    claims = _Claims(found, steps, known).bars()
    bars = [*claims, *map(_call, found.calls), *_retries(found, known), *_queued(found, claims)]
    end = max([found.now if run.status not in FINAL else run.updated_at, *(bar.end or 0.0 for bar in bars)])
    return [_placed(bar, run.created_at, end) for bar in sorted(bars, key=lambda bar: bar.start)]


class _Claims:
    """Claims of a run, as far as their journal entries and the events that ended passes tell.

    A claim itself is not recorded. It has begun before its first entry, which is made at once where passes are traced,
    and ended with an event or, if its process was killed or gave the run back, at some time after its last entry.
    """

    def __init__(self, found: RunDetails, steps: Iterable[JournalEntry], events: Sequence[RunEvent]) -> None:
        self._found = found
        records: list[JournalEntry | RunEvent] = [*steps, *events]
        self._records = sorted(records, key=lambda record: record.seq)
        self._last_seq = max((event.seq for event in events if event.type in _ENDS), default=0)
        self._bars: list[Bar] = []
        self._open: list[JournalEntry] = []
        self._due_at = found.run.created_at

    def bars(self) -> list[Bar]:
        """Return a bar for each claim that has left a trace."""
        for record in self._records:
            if isinstance(record, RunEvent):
                self._take_event(record)
            else:
                self._take_entry(record)
        run = self._found.run
        if run.status != "running":
            self._interrupt()
        elif run.lease_until is not None and run.lease_until > self._found.now:
            self._hold(None, "running")
        else:
            self._hold(run.updated_at, "its lease has expired")
        return self._bars

    def _take_entry(self, entry: JournalEntry) -> None:
        is_claim = not entry.key.startswith(f"{RETRIED}:")
        if not is_claim or (self._open and self._open[0].fence != entry.fence):
            self._interrupt()
        if is_claim:
            self._open.append(entry)

    def _take_event(self, event: RunEvent) -> None:
        if event.type in _ENDS:
            if self._has_no_claim(event):
                self._interrupt()
            elif self._open or event.type != "run.cancelled":  # without a claim, an operator has cancelled it
                self._end(event.time, event.type.removeprefix("run."))
            self._due_at = max([event.time, *self._settled(event)])
        if event.type == "run.retrying":
            self._due_at = max(event.time, _next_at(event) or 0.0)
        elif event.type == "run.retried":
            self._due_at = event.time

    def _has_no_claim(self, event: RunEvent) -> bool:
        """Return whether an event is known not to be of the claim that has written the entries before it."""
        run = self._found.run
        if event.data.get("error_type") == GIVEN_UP:
            return True
        is_last = event.seq == self._last_seq and run.status in FINAL and bool(self._open)
        return is_last and event.type == "run.cancelled" and (run.lease_owner is not None or self._is_older())

    def _is_older(self) -> bool:
        """Return whether the run was claimed after the claim that has written the latest entries."""
        return bool(self._open) and self._open[0].fence < self._found.run.fence

    def _settled(self, event: RunEvent) -> list[float]:
        """Return when the calls were settled that the run waits for after an event."""
        calls = self._found.calls
        return [call.settled_at for call in calls if call.seq < event.seq and call.settled_at is not None]

    def _interrupt(self) -> None:
        if self._open:
            last = self._open[-1].created_at
            self._end(last, _INTERRUPTED)
            self._due_at = last

    def _hold(self, end: float | None, note: str) -> None:
        """Add the claim that holds the run."""
        run = self._found.run
        if self._is_older():
            self._interrupt()
        if not self._open and run.due_at is not None:
            self._due_at = run.due_at
        self._end(end, note, run.fence)

    def _end(self, end: float | None, note: str, fence: int | None = None) -> None:
        fence = self._open[0].fence if self._open else fence
        label = f"claim {fence}" if fence is not None else "claim"
        if self._open and self._open[0].key.startswith(f"{BEGUN}:"):
            start = self._open[0].created_at
        else:
            start, label = self._due_at, f"{label} and the wait for it"
        self._bars.append(Bar("pass", label, start, end, note))
        self._open = []


def _queued(found: RunDetails, claims: Sequence[Bar]) -> list[Bar]:
    """Return the wait for the first claim, unless it is part of the bar of that claim."""
    run = found.run
    if not claims:
        label = "waited for a worker" if not run.fence else "waited for a first step"
        return [Bar("queued", label, run.created_at, run.updated_at if run.status in FINAL else None, "")]
    first = min(bar.start for bar in claims)
    return [Bar("queued", "waited for a worker", run.created_at, first, "")] if first > run.created_at else []


def _call(call: CallRecord) -> Bar:
    if call.kind == "approval":
        return Bar("approval", call.tool, call.created_at, call.settled_at, _decision(call))
    note = call.status if call.dispatched_at is not None else f"{call.status}, never sent"
    return Bar("call", call.tool, call.created_at, call.settled_at, note)


def _decision(call: CallRecord) -> str:
    if call.status == "completed" and isinstance(call.output, dict):
        return "approved" if call.output.get("approved") else "denied"
    return call.status


def _retries(found: RunDetails, events: Sequence[RunEvent]) -> list[Bar]:
    bars = []
    for event in events:
        if event.type == "run.retrying":
            end = _next_at(event)
            if end is not None:  # unless an operator did not wait
                end = min([end, *(other.time for other in events if other.seq > event.seq)])
            failures = found.run.failures
            is_next = found.run.status == "retrying" and failures is not None and end == failures.next_at
            note = f"attempt {event.data.get('attempt')}: {event.data.get('error_type')}"
            bars.append(Bar("retry", "waited after a failure", event.time, None if is_next else end, note))
    return bars


def _next_at(event: RunEvent) -> float | None:
    """Return when the run is due again after a failure."""
    due_at = event.data.get("next_at")
    return float(due_at) if isinstance(due_at, int | float) else None


def _placed(bar: Bar, start: float, end: float) -> Bar:
    length = max(end - start, 1e-9)
    left = max(0.0, min(100.0, 100 * (bar.start - start) / length))
    right = max(left, min(100.0, 100 * ((bar.end if bar.end is not None else end) - start) / length))
    return Bar(bar.kind, bar.label, bar.start, bar.end, bar.note, round(left, 2), round(max(right - left, 0.3), 2))
