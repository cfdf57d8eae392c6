"""`NATSQueue`: the queue of durable runs on NATS JetStream."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread
from anyio.lowlevel import EventLoopToken, current_token

from pellucid.approvals.checkpoint import current_trace
from pellucid.concurrency.tasks import call_soon, spawn
from pellucid.durable.queue.metrics import QueueMetrics
from pellucid.durable.queue.options import Options, StreamLimits, servers_of
from pellucid.durable.queue.subjects import Names
from pellucid.durable.states.records import RunEvent
from pellucid.durable.states.work_queue import Delivery, Relay
from pellucid.durable.store import Changes, RunStore
from pellucid.durable.store.wakeups import Waiter
from pellucid.errors import ConfigError
from pellucid.telemetry import Pipeline

if TYPE_CHECKING:  # what needs nats-py
    from pellucid.durable.queue.copies import Copies
    from pellucid.durable.queue.link import Link
    from pellucid.durable.queue.relay import NATSRelay
    from pellucid.durable.queue.thread import Thread

_log = logging.getLogger("pellucid.nats")

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_FLUSH: Final = 2.0
"""Seconds at the end for what was not sent yet."""

_LAST: Final = frozenset({"run.completed", "run.failed", "run.cancelled"})
"""Types of the events with which a run ends."""


class NATSQueue:
    """Queue of durable runs on NATS JetStream: wakes workers, and streams events. Needs the extra `nats`.

    ```python
    async with open_store("postgresql://...") as store, NATSQueue("nats://localhost:4222") as queue:
        await DurableRuns(store, [agent], queue=queue).work()
    ```

    The store decides everything. A message that is lost, repeated or late changes nothing but the time at which a
    worker looks for its run, and a server that is away delays no run and no caller. The client of NATS has a thread of
    its own, on asyncio and trio alike.

    Args:
        url: `nats://host:4222`, or several with commas between; may have a user and a password, or a token.
        prefix: Start of all subjects and names of streams, to share a server.
        ack_wait: Seconds after which a message of a process that ended is delivered again.
        max_deliveries: Deliveries after which a message is moved to the dead letters.
        limits: Limits of the streams that the queue creates.
        is_managed: Create streams and consumers that are missing; False leaves that to an administrator.
        buffer: Messages that wait to be sent; further ones are dropped.
        connect_options: Further options of `nats.connect`, such as `tls` or `user_credentials`.
        telemetry: Destination of the metrics, as the option of an agent.

    Raises:
        ConfigError: an option is invalid, or nats-py is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "pellucid",
        ack_wait: float = 30.0,
        max_deliveries: int = 10,
        limits: StreamLimits | None = None,
        is_managed: bool = True,
        buffer: int = 10_000,
        connect_options: Mapping[str, Any] | None = None,
        telemetry: Pipeline | None = None,
    ) -> None:
        if find_spec("nats") is None:
            raise ConfigError("NATSQueue needs nats-py: pip install 'pellucid[nats]'")
        self._options = Options(
            servers=servers_of(url),
            names=Names(prefix),
            ack_wait=ack_wait,
            max_deliveries=max_deliveries,
            limits=limits or StreamLimits(),
            is_managed=is_managed,
            buffer=buffer,
            connect_options=connect_options or {},
        )
        self._metrics = QueueMetrics(telemetry)
        self._thread: Thread | None = None
        self._store: RunStore | None = None
        self._copies: Copies | None = None
        self._relay: NATSRelay | None = None

    @property
    def relay(self) -> Relay:
        """Carries pieces of answers between processes, for `DurableRuns`.

        Raises:
            ConfigError: the queue was not entered.
        """
        self._entered()
        assert self._relay is not None  # it was entered
        return self._relay

    async def __aenter__(self) -> Self:
        """Start to connect; a server that is away is tried again and again."""
        from pellucid.durable.queue.relay import NATSRelay
        from pellucid.durable.queue.thread import Thread

        self._thread = await anyio.to_thread.run_sync(Thread, self._options, self._metrics)
        self._relay = NATSRelay(self._thread)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Send what waits, for 2 seconds at most, and close the connection."""
        thread = self._entered()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(_FLUSH):
                if self._copies is not None:
                    await self._copies.flush()
                await thread.call(thread.link.flush)
            if self._copies is not None:
                await self._copies.close()
            self._thread = None
            await anyio.to_thread.run_sync(thread.close)

    def attach(self, store: RunStore) -> None:
        """Send messages of what this store commits from now on; the store must stay open for longer than the queue.

        Raises:
            ConfigError: the queue belongs to another store, or was not entered.
        """
        if self._store is store:
            return
        if self._store is not None:
            raise ConfigError("NATSQueue: the queue belongs to another store; use a queue with another prefix for it")
        from pellucid.durable.queue.copies import Copies

        thread = self._entered()
        copies = Copies(store, thread.call, thread.link.log, self._metrics, self._options.buffer)
        self._store, self._copies = store, copies
        store.on_commit(partial(self._announce, thread.link, copies))
        spawn(copies.serve)
        thread.start(thread.link.answer, partial(_copy_from_thread, current_token(), thread, copies))

    def _announce(self, link: Link, copies: Copies, changes: Changes) -> None:
        for due in changes.due:
            link.outbox.put(due, current_trace())
        for run_id in changes.events:
            copies.add(run_id)

    async def receive(self, agents: Collection[str], timeout: float) -> Delivery | None:  # noqa: ASYNC109
        """Wait for a message about a run of one of the agents; return None after `timeout` seconds."""
        thread = self._entered()
        handover = _Handover()
        future = thread.start(_receive, thread.link, handover, tuple(agents), timeout)
        try:
            await handover.waiter.wait()
        except BaseException:
            handover.abandon()
            future.cancel()
            raise
        return handover.delivery

    async def events(self, run_id: str, after: int = 0) -> AsyncIterator[RunEvent]:
        """Yield the events of a run after a sequence number, until the run has ended, from NATS alone.

        No event is missing and none comes twice, whatever happens to connections and streams. While the server is
        away, the iterator waits.

        Raises:
            UnknownRun: there is no such run.
            EventsExpired: an event that follows was deleted from the stream by its limits.
        """
        thread = self._entered()
        reader = await thread.call(thread.link.reader, run_id, after)
        try:
            while True:
                for event in await thread.call(reader.read):
                    yield event
                    if event.type in _LAST:
                        return
        finally:
            with suppress(RuntimeError):  # the queue was closed first
                thread.start(reader.close)

    def _entered(self) -> Thread:
        if self._thread is None:
            raise ConfigError("NATSQueue: the queue is not open; use it within `async with NATSQueue(...) as queue`")
        return self._thread


class _Handover:
    """A delivery on its way from the thread to a task, which may have been cancelled meanwhile."""

    def __init__(self) -> None:
        self.waiter = Waiter()
        self.delivery: Delivery | None = None
        self._lock = threading.Lock()
        self._is_abandoned = False

    def put(self, delivery: Delivery | None) -> None:
        """Hand over, or give back if nobody waits any longer."""
        with self._lock:
            self.delivery = None if self._is_abandoned else delivery
        if self.delivery is None and delivery is not None:
            delivery.give_back()
        self.waiter.wake()

    def abandon(self) -> None:
        """Stop waiting."""
        with self._lock:
            self._is_abandoned = True
            delivery, self.delivery = self.delivery, None
        if delivery is not None:
            delivery.give_back()


async def _receive(link: Link, handover: _Handover, agents: tuple[str, ...], timeout: float) -> None:  # noqa: ASYNC109
    delivery: Delivery | None = None
    try:
        delivery = await link.receive(agents, timeout)
    finally:
        handover.put(delivery)


def _copy_from_thread(token: EventLoopToken, thread: Thread, copies: Copies, run_id: str, request: Any) -> None:
    """Copy the events of a run in the event loop of the store, and answer the request."""

    def answer(outcome: str, seq: int) -> None:
        thread.start(thread.link.respond, request, outcome, seq)

    call_soon(token, lambda: copies.add(run_id, answer))
