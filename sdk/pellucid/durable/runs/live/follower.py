"""One reader of a run: its stored events, and the pieces of answers between them."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, cast

import anyio

from pellucid.durable.runs.live.hub import RENEWAL, Inbox, LiveHub
from pellucid.durable.runs.live.pieces import Step, step_of
from pellucid.durable.states.records import RunDelta, RunEvent, RunEventPage, event_of
from pellucid.durable.store import RunStore
from pellucid.errors import ConfigError
from pellucid.messages import load_messages
from pellucid.run.journal import ANSWER

_WAIT = 60.0
"""Seconds after which a reader looks again, whatever it was notified of."""


Order: TypeAlias = tuple[int, Step, int]
"""Claim, answer and attempt."""

_NOTHING: Final[Order] = (0, (0, False), 0)


def _order_of(piece: RunDelta) -> Order:
    return piece.claim, step_of(piece.key), piece.attempt


class Follower:
    """A reader, within a block.

    Attributes:
        is_stale: Whether the store may have events that `page` has not returned.

    Args:
        store: The store.
        hub: Source of the pieces; without it there are none, and stored events have no content.
        run_id: Id of the run.
        after: Sequence number of the last event that the reader has seen.
    """

    def __init__(self, store: RunStore, hub: LiveHub | None, run_id: str, after: int) -> None:
        self._store = store
        self._hub = hub
        self._run_id = run_id
        self._after = self._start = after
        self._answered: Step | None = None if after else (0, False)
        self._begun = self._latest = _NOTHING
        self._arrived: list[RunDelta] = []
        self._ends: dict[str, int] = {}
        self._inbox: Inbox | None = None
        self._exits = ExitStack()
        self._look_at = 0.0
        self.is_stale = True

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            self._waiter = exits.enter_context(self._store.subscribed(self._run_id))
            if self._hub is not None:
                self._inbox = self._hub.join(self._run_id)
                self._inbox.wake = self._waiter.nudge
                exits.callback(self._hub.leave, self._run_id, self._inbox)
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exits.close()

    async def announce(self) -> None:
        """Let the run's worker know that somebody reads; call it once, before anything else."""
        if self._hub is not None:
            await self._hub.announce(self._run_id)

    async def page(self) -> RunEventPage:
        """Return the next stored events, those of answers with their text.

        Raises:
            UnknownRun: there is no such run.
        """
        self._waiter.clear()
        self._look_at = anyio.current_time() + self._store.event_poll
        page = await self._store.events(self._run_id, after=self._after)
        events = [await self._with_content(event_of(event)) for event in page.events]
        for event in events:
            self._after = event.seq
            self._note(event)
        self.is_stale = page.has_more
        return RunEventPage(tuple(events), page.has_more, page.run_status)

    async def _with_content(self, event: RunEvent) -> RunEvent:
        """Return an event, with the text of the answer if it is about one."""
        if self._hub is None or event.type != f"step.{ANSWER}":
            return event
        entry = await self._store.entry(self._run_id, f"{ANSWER}:{event.data['key']}")
        if entry is None:
            return event
        with suppress(ConfigError, LookupError, TypeError):  # damaged: a pass fails
            messages = load_messages(cast("dict[str, Any]", entry.value)["state"]["messages"])
            return replace(event, data={**event.data, "content": messages[-1].text})
        return event

    async def pieces(self) -> list[RunDelta]:
        """Return the pieces that have arrived, of the answer that the run is at."""
        if self._hub is not None:
            await self._hub.renew()  # a reader that always has pieces never waits
        if self._inbox is not None:
            self._arrived += self._inbox.pieces.take()
        newest = max(map(_order_of, self._arrived), default=self._begun)
        if newest > self._begun:  # what was stored before this answer began comes first
            self._begun, self.is_stale = newest, True
            return []
        if self._arrived and self._answered is None:
            await self._read_answered()
        arrived, self._arrived = self._arrived, []
        return [piece for piece in arrived if self._accepts(piece)]

    async def _read_answered(self) -> None:
        """Read which answers the reader has seen before."""
        seq, has_more = 0, True
        seen: list[RunEvent] = []
        while has_more and seq < self._start:
            page = await self._store.events(self._run_id, after=seq)
            seen += [event_of(event) for event in page.events if event.seq <= self._start]
            seq, has_more = page.events[-1].seq if page.events else seq, page.has_more
        self._answered = (0, False)  # only now: a reader that was stopped meanwhile reads again
        for event in seen:
            self._note(event)

    def _note(self, event: RunEvent) -> None:
        if event.type == f"step.{ANSWER}":
            self._answered = max(self._answered or (0, False), step_of(str(event.data["key"])))

    def _accepts(self, piece: RunDelta) -> bool:
        """Return whether a piece is new: not of an answer that is stored, an earlier pass or attempt, or sent twice."""
        assert self._answered is not None  # it was read
        order = _order_of(piece)
        if order[1] <= self._answered or order < self._latest:
            return False
        if order > self._latest:
            self._latest, self._ends = order, {}
        if piece.offset < self._ends.get(piece.type, 0):
            return False
        self._ends[piece.type] = piece.offset + len(piece.content)
        return True

    async def wait(self, timeout: float) -> bool:  # noqa: ASYNC109
        """Wait until pieces have arrived, or `is_stale`; return False after `timeout` seconds.

        Raises:
            UnknownRun: there is no such run.
        """
        with anyio.move_on_after(timeout):
            while not self.is_stale:
                if self._arrived or (self._inbox is not None and self._inbox.pieces):
                    return True
                if self._waiter.is_woken or anyio.current_time() >= self._look_at:
                    self._waiter.clear()
                    self._look_at = 0.0  # again, if it is stopped meanwhile: it was notified once
                    self.is_stale = await self._store.has_events(self._run_id, self._after)
                    self._look_at = anyio.current_time() + self._store.event_poll
                    continue
                with anyio.move_on_after(min(self._look_at - anyio.current_time(), RENEWAL)):
                    await self._waiter.wait_again()
                if self._hub is not None:
                    await self._hub.renew()
        return self.is_stale


class LiveEvents:
    """Events of a durable run and the pieces of its answers: what `DurableRuns.stream` returns.

    Read it within its block, by `async for`. It ends with the run.
    """

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._items: deque[RunEvent | RunDelta] = deque()
        self._is_over = False

    async def __aenter__(self) -> Self:
        self._follower.__enter__()
        try:
            await self._follower.announce()
        except BaseException:
            self._follower.__exit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._follower.__exit__(exc_type, exc, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RunEvent | RunDelta:
        """Return the next one.

        Raises:
            UnknownRun: there is no such run.
        """
        follower = self._follower
        while not self._items:
            if self._is_over:
                raise StopAsyncIteration
            if follower.is_stale:
                page = await follower.page()
                self._items.extend(page.events)
                self._is_over = page.is_over
            else:
                self._items.extend(await follower.pieces())
                if not self._items:
                    await follower.wait(_WAIT)
        return self._items.popleft()
