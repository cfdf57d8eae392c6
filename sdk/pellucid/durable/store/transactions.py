"""Transactions of a store in worker threads: their repetition while the database is away, and waiting for commits."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

import anyio
import anyio.to_thread

from pellucid.concurrency.per_loop import PerLoop
from pellucid.concurrency.threads import Threads
from pellucid.durable.store.database import Database, Transaction, TransactionLost
from pellucid.durable.store.records import Changes
from pellucid.durable.store.wakeups import Key, Waiter, Wakeups
from pellucid.errors import ConfigError, StoreError, StoreUnavailable
from pellucid.text import excerpt
from pellucid.tools.functions import name_of

T = TypeVar("T")

_NO_CHANGES: Final = Changes()


class Transactions:
    """Connections of a store: opens and closes them, runs transactions, and waits for commits.

    Args:
        database: The database.
        patience: Seconds for which a transaction that was lost is repeated.
    """

    def __init__(self, database: Database, *, patience: float = 10.0) -> None:
        self._database = database
        self._patience = patience
        # Budgets are used in any event loop, also in that of `run_sync`.
        self._writing, self._reading = Threads(database.writers), Threads(database.readers)
        self._wakeups = Wakeups()
        self._is_open = False
        self._is_watching = False
        self._sending = PerLoop(anyio.Lock)
        self._listeners: list[Callable[[Changes], object]] = []

    def on_commit(self, listener: Callable[[Changes], object]) -> None:
        """Call a function after each commit of this store that made a run due or wrote events.

        It is called in the event loop, and must return at once and raise nothing. The process may end between a commit
        and the call.
        """
        self._listeners.append(listener)

    async def __aenter__(self) -> Self:
        """Open the store: create its schema, or check it. A store that was left can be entered again.

        Raises:
            ConfigError: the schema is of another version, or the database is not a store.
            StoreError: the store is open already.
        """
        if self._is_open:
            raise StoreError(f"store {self._database.name!r} is open already; enter it once, and share it")
        self._is_open = True
        self._writing.open()
        self._reading.open()
        try:
            await self._repeat(partial(self._writing.run, self._database.open))
        except BaseException:
            await self._close()
            raise
        if self._wakeups.receivers:
            self._watch()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for transactions that have begun, and close all connections; other methods raise a `StoreError`."""
        await self._close()

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True):
            async with self._sending.get():  # the last message
                await anyio.to_thread.run_sync(self._close_database)
        self._wakeups.notify_all()

    def _close_database(self) -> None:
        self._is_open = self._is_watching = False
        self._writing.close()
        self._reading.close()
        self._database.close()

    @contextmanager
    def _subscribed(self, keys: Sequence[Key]) -> Iterator[Waiter]:
        """Wake a waiter at notifications of these keys, within the block."""
        with self._wakeups.subscribe(keys) as waiter:
            self._watch()
            yield waiter

    def _watch(self) -> None:
        """Start to receive notifications; a store without waiting tasks needs none, nor does one that is not open."""
        if self._is_open and not self._is_watching:
            self._is_watching = True
            self._database.watch(self._wakeups)

    async def _wait(
        self,
        keys: Sequence[Key],
        check: Callable[[], Awaitable[bool]],
        poll: float,
        timeout: float,  # noqa: ASYNC109
    ) -> bool:
        with self._subscribed(keys) as waiter, anyio.move_on_after(timeout):
            while True:
                waiter.clear()
                if await check():
                    return True
                with anyio.move_on_after(poll):
                    await waiter.wait()
        return False

    async def _write(
        self,
        work: Callable[[Transaction], T],
        *,
        is_repeatable: bool = True,
        is_single: bool = False,
        then: Callable[[Transaction, T], None] | None = None,
    ) -> T:
        """Run a transaction, and `then` on its connection once it is committed, without further round trips.

        `is_single` as of `Database.write`.
        """
        is_repeat = False
        changes = _NO_CHANGES
        result: T

        def noted(transaction: Transaction) -> T:
            nonlocal changes, result
            result = work(transaction)
            if self._listeners:
                changes = transaction.changes
            return result

        # Tests name a transaction by its work. `functools.wraps` takes longer than opening the transaction, as a
        # `partial` lacks most of what it copies.
        noted.__wrapped__ = work  # type: ignore[attr-defined]

        async def attempt() -> T:
            nonlocal is_repeat
            transaction = partial(self._database.write, noted, is_repeat=is_repeat, is_single=is_single, then=then)
            try:
                await self._in_thread(work, transaction, self._writing)
            except TransactionLost as lost:
                if not lost.is_committed:
                    is_repeat = is_repeat or lost.is_outcome_unknown
                    if is_repeat and not is_repeatable:
                        raise StoreUnavailable(self._database.name, is_outcome_unknown=True) from lost.__cause__
                    raise
                if then is not None:
                    await self._read(lambda transaction: then(transaction, result))
            if changes != _NO_CHANGES:
                for listener in self._listeners:
                    listener(changes)
            return result

        return await self._repeat(attempt)

    async def _read(self, work: Callable[[Transaction], T]) -> T:
        reading = partial(self._database.read, work)
        return await self._repeat(partial(self._in_thread, work, reading, self._reading))

    async def _in_thread(self, work: Callable[[Transaction], T], transaction: Callable[[], T], threads: Threads) -> T:
        """Run a transaction, if the store is open when its turn comes.

        Raises:
            StoreError: it is not.
        """
        try:
            return await threads.run(transaction)
        except anyio.ClosedResourceError:
            raise StoreError(
                f"{name_of(work)}: store {self._database.name!r} is not open: it was closed, or never entered; "
                f"use it within `async with`"
            ) from None

    async def _repeat(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat a transaction that was lost, for as long as the store is patient."""
        until = time.monotonic() + self._patience
        delay = 0.02
        is_outcome_unknown = False
        while True:
            try:
                return await attempt()
            except TransactionLost as lost:
                is_outcome_unknown = is_outcome_unknown or lost.is_outcome_unknown
                if not lost.is_transient or time.monotonic() + delay > until:
                    raise StoreUnavailable(
                        self._database.name, is_outcome_unknown=is_outcome_unknown, reason=lost.reason
                    ) from lost.__cause__
            await anyio.sleep(delay)
            delay = min(2 * delay, 1.0)


def seconds(value: float, function: str, option: str) -> float:
    """Return a number of seconds, the option of a function.

    Raises:
        ConfigError: it is negative, not finite, or no number.
    """
    with suppress(TypeError, OverflowError):
        if math.isfinite(value) and value >= 0:
            return float(value)
    raise ConfigError(f"{function}({option}={excerpt(repr(value))}): must be a number of seconds, and not negative")
