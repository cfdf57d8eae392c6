"""Methods of the store for readers that stay: subscriptions, and messages that are not stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from pellucid.durable.store import queries
from pellucid.durable.store.database import TransactionLost
from pellucid.durable.store.records import JournalEntry
from pellucid.durable.store.transactions import Transactions
from pellucid.durable.store.wakeups import Waiter
from pellucid.errors import StoreUnavailable

_EVENT_POLLS: Final = 10
"""Polls after which a reader of events looks for itself: only a listening connection that was lost is without a
notification of them, while the expiry of a lease, which makes work, never has one."""

_LISTENING: Final = ("listening", "")
"""Key of which nobody notifies: it is woken with all others, once the database listens."""

_CLOCK_INTERVAL: Final = 60.0
"""Seconds for which a reading of the database's clock is used, with the time that has passed since."""


class LiveMethods(Transactions):
    """Methods for readers of a run that wait, and the time of the database."""

    _clock: tuple[float, float] | None = None

    async def now(self) -> float:
        """Return the time by the database's clock, in seconds since the epoch, as are all times of the store."""
        if self._clock is None or time.monotonic() - self._clock[0] > _CLOCK_INTERVAL:
            reading = await self._read(queries.now)
            self._clock = (time.monotonic(), reading)
        read_at, reading = self._clock
        return reading + time.monotonic() - read_at

    @property
    def event_poll(self) -> float:
        """Seconds after which a reader of events looks for itself, in case a notification was lost."""
        return _EVENT_POLLS * self._database.poll

    def subscribed(self, run_id: str) -> AbstractContextManager[Waiter]:
        """Wake a waiter when a run has new events or has ended, within the block; maybe without a reason."""
        return self._subscribed([("events", run_id)])

    async def has_events(self, run_id: str, after: int) -> bool:
        """Return whether a run has events after a sequence number, or has ended.

        Raises:
            UnknownRun: there is no such run.
        """
        return await self._read(partial(queries.has_events, run_id=run_id, after=after))

    async def wait_for_events(self, run_id: str, after: int, timeout: float) -> bool:  # noqa: ASYNC109
        """Wait until a run has events after a sequence number, or has ended; return False after `timeout` seconds.

        Raises:
            UnknownRun: there is no such run.
        """
        check = partial(self.has_events, run_id, after)
        return await self._wait([("events", run_id)], check, self.event_poll, timeout)

    async def entry(self, run_id: str, key: str) -> JournalEntry | None:
        """Return the entry of a run's journal with a key; None if there is none."""
        return await self._read(partial(queries.entry, run_id=run_id, key=key))

    # Messages

    @property
    def can_send(self) -> bool:
        """True if the database carries messages to other processes."""
        return self._database.can_send

    def receive(self, channel: str, receiver: Callable[[str], None]) -> None:
        """Call a function with each message on a channel from now on, in a thread; it must raise nothing."""
        self._wakeups.receivers[channel] = receiver
        self._watch()

    async def listen(self) -> None:
        """Wait until messages arrive, for as long as the store is patient; then some may be lost."""

        async def is_listening() -> bool:
            return self._wakeups.is_listening or not self.can_send

        await self._wait([_LISTENING], is_listening, self._database.poll, self._patience)

    async def send(self, messages: Sequence[tuple[str, str]]) -> None:
        """Send texts on channels to the processes that receive them, this one included; they are not stored.

        A message may be lost. Together with its channel it has at most 7,998 bytes.

        Raises:
            StoreUnavailable: the database did not answer; it is not asked again.
        """
        async with self._sending.get():
            if not self._is_open or not messages:
                return
            try:
                await self._writing.run(partial(self._database.send, messages))
            except TransactionLost as lost:
                raise StoreUnavailable(self._database.name) from lost.__cause__
