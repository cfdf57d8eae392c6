"""The timeline of a durable run, across passes, processes and waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pellucid.durable import CallRecord, JournalEntry, RunEvent, RunOverview
from pellucid.durable.store.records import FINAL

BarKind: TypeAlias = Literal["queued", "pass", "call", "approval", "retry"]

_PASS_ENDS: Final = frozenset({"run.waiting", "run.retrying", "run.completed", "run.failed", "run.cancelled"})


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


def timeline(
    run: RunOverview,
    now: float,
    calls: Iterable[CallRecord],
    steps: Iterable[JournalEntry],
    events: Sequence[RunEvent],
) -> list[Bar]:
    """Return the bars of a run in order of their starts.

    A claim of a worker is a bar from its first journal entry to its last one, or to the event that ends its pass. When
    a process was killed is not known: the bar ends with its last entry.
    """
    passes = _passes(steps, events, is_running=run.status == "running")
    bars = [*passes, *(_call(call) for call in calls), *_retries(run, events)]
    first = min((bar.start for bar in passes), default=None)
    bars.append(Bar("queued", "waited for a worker", run.created_at, first, ""))
    end = max([now if run.status not in FINAL else run.updated_at, *(bar.end or 0.0 for bar in bars)])
    return [_placed(bar, run.created_at, end) for bar in sorted(bars, key=lambda bar: bar.start)]


def _passes(steps: Iterable[JournalEntry], events: Sequence[RunEvent], *, is_running: bool) -> list[Bar]:
    times: dict[int, list[float]] = {}
    for step in steps:
        times.setdefault(step.fence, []).append(step.created_at)
    starts = {fence: min(entries) for fence, entries in times.items()}
    for event in events:
        if event.type in _PASS_ENDS:
            before = [fence for fence, start in starts.items() if start <= event.time]
            if before:
                times[max(before)].append(event.time)
    ends = {event.time: event.type.removeprefix("run.") for event in events if event.type in _PASS_ENDS}
    bars = []
    for fence, entries in sorted(times.items()):
        is_last = fence == max(times)
        end = None if is_last and is_running else max(entries)
        note = "running" if end is None else ends.get(end, "interrupted")
        bars.append(Bar("pass", f"claim {fence}", min(entries), end, note))
    return bars


def _call(call: CallRecord) -> Bar:
    note = call.status if call.dispatched_at is not None or call.kind == "approval" else f"{call.status}, never sent"
    return Bar("approval" if call.kind == "approval" else "call", call.tool, call.created_at, call.settled_at, note)


def _retries(run: RunOverview, events: Sequence[RunEvent]) -> list[Bar]:
    bars = []
    retried = [event.time for event in events if event.type == "run.retried"]
    for event in events:
        if event.type == "run.retrying":
            due_at = event.data.get("next_at")
            end = float(due_at) if isinstance(due_at, int | float) else None
            if end is not None:  # unless an operator did not wait
                end = min([end, *(time for time in retried if time >= event.time)])
            is_next = run.next_attempt_at is not None and end == run.next_attempt_at
            note = f"attempt {event.data.get('attempt')}: {event.data.get('error_type')}"
            bars.append(Bar("retry", "waited after a failure", event.time, None if is_next else end, note))
    return bars


def _placed(bar: Bar, start: float, end: float) -> Bar:
    length = max(end - start, 1e-9)
    left = max(0.0, min(100.0, 100 * (bar.start - start) / length))
    right = max(left, min(100.0, 100 * ((bar.end if bar.end is not None else end) - start) / length))
    return Bar(bar.kind, bar.label, bar.start, bar.end, bar.note, round(left, 2), round(max(right - left, 0.3), 2))
