"""Copies of the events of runs, from the store to the stream, in the event loop of the store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, Protocol, TypeAlias, TypeVar, TypeVarTuple

import anyio

from pellucid.durable.queue.connection import UNAVAILABLE
from pellucid.durable.queue.event_log import EventLog, Position
from pellucid.durable.queue.metrics import QueueMetrics
from pellucid.durable.states.records import event_of
from pellucid.durable.store import RunStore
from pellucid.durable.store.records import FINAL
from pellucid.errors import StoreUnavailable, UnknownRun

CopyOutcome: TypeAlias = Literal["copied", "unknown", "failed"]
Answer: TypeAlias = Callable[[CopyOutcome, int], None]
"""Receives how a copy ended, and the sequence number of the last event that was copied."""

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Call(Protocol):
    """Calls an async function in another event loop."""

    async def __call__(self, function: Callable[[*Arguments], Awaitable[T]], /, *arguments: *Arguments) -> T:
        """Return what the function returns."""
        ...


_CONCURRENCY: Final = 4
"""Runs whose events are copied at the same time."""

_MAX_POSITIONS: Final = 10_000
"""Runs whose last position is remembered."""


class Copies:
    """Copies the events of runs that have new ones. Each copy reads on from the last event in the stream.

    Args:
        store: The store.
        call: Calls a function in the thread of the connection.
        log: The stream.
        metrics: Counters.
        buffer: Maximum number of runs that wait.
    """

    def __init__(self, store: RunStore, call: Call, log: EventLog, metrics: QueueMetrics, buffer: int) -> None:
        self._store = store
        self._call = call
        self._log = log
        self._metrics = metrics
        self._buffer = buffer
        self._waiting: dict[str, list[Answer]] = {}
        self._active: set[str] = set()
        self._positions: OrderedDict[str, Position] = OrderedDict()
        self._wakeup = anyio.Event()
        self._scope = anyio.CancelScope()
        self._has_ended = anyio.Event()

    def add(self, run_id: str, answer: Answer | None = None) -> None:
        """Copy the new events of a run soon, unless too many runs wait."""
        if run_id not in self._waiting and len(self._waiting) >= self._buffer:
            self._metrics.dropped("event", "full")
            return
        answers = self._waiting.setdefault(run_id, [])
        if answer is not None:
            answers.append(answer)
        self._wakeup.set()

    async def serve(self) -> None:
        """Copy, until closed."""
        slots = anyio.Semaphore(_CONCURRENCY)
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    while True:
                        self._wakeup = anyio.Event()
                        for run_id in [run_id for run_id in self._waiting if run_id not in self._active]:
                            await slots.acquire()
                            self._active.add(run_id)
                            tasks.start_soon(self._copy, run_id, self._waiting.pop(run_id), slots)
                        await self._wakeup.wait()
        finally:
            self._has_ended.set()

    async def close(self) -> None:
        """End `serve`."""
        self._scope.cancel()
        await self._has_ended.wait()

    async def flush(self) -> None:
        """Wait until all copies were made."""
        while self._waiting or self._active:  # noqa: ASYNC110  (once, when the queue is closed)
            await anyio.sleep(0.01)

    async def _copy(self, run_id: str, answers: Sequence[Answer], slots: anyio.Semaphore) -> None:
        position = self._positions.pop(run_id, None)
        outcome: CopyOutcome = "failed"
        try:
            position, is_over = await self._append(run_id, position)
            outcome = "copied"
            if not is_over:
                self._remember(run_id, position)
        except UnknownRun:
            outcome = "unknown"
        except (StoreUnavailable, *UNAVAILABLE) as error:
            self._log.warn(error)
            self._metrics.dropped("event", "unavailable")
        finally:
            self._active.discard(run_id)
            self._wakeup.set()
            slots.release()
        for answer in answers:
            answer(outcome, position.seq if position is not None else 0)

    async def _append(self, run_id: str, known: Position | None) -> tuple[Position, bool]:
        """Append what the stream lacks; return its last position, and whether the run has ended."""
        position = known if known is not None else await self._call(self._log.position, run_id)
        while True:
            page = await self._store.events(run_id, after=position.seq)
            if page.events:
                before = position.seq
                position, is_written = await self._call(
                    self._log.append, run_id, position, [event_of(event) for event in page.events]
                )
                self._metrics.published("event", sum(before < event.seq <= position.seq for event in page.events))
                if not is_written:
                    position = await self._call(self._log.position, run_id)
                    continue
            if not page.has_more:
                return position, page.run_status in FINAL

    def _remember(self, run_id: str, position: Position) -> None:
        self._positions[run_id] = position
        while len(self._positions) > _MAX_POSITIONS:
            self._positions.popitem(last=False)
