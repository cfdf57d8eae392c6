"""The thread's side of a queue: what runs in its event loop."""

from __future__ import annotations

import json
from collections.abc import Callable

import anyio
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal
from nats.aio.client import Client
from nats.aio.msg import Msg

from pellucid.durable.queue.connection import Connection
from pellucid.durable.queue.deliveries import Deliveries, NATSDelivery
from pellucid.durable.queue.event_log import EventLog
from pellucid.durable.queue.live import LiveSubjects
from pellucid.durable.queue.metrics import QueueMetrics
from pellucid.durable.queue.options import Options
from pellucid.durable.queue.outbox import Outbox
from pellucid.durable.queue.reader import EventReader
from pellucid.durable.queue.receiver import Receiver
from pellucid.durable.queue.subjects import text_of

_GROUP = "pellucid"
"""Queue group of the processes that answer a request for missing events; one of them receives it."""


class Link:
    """Parts of a queue that share a connection. Use it in the thread's event loop.

    Attributes:
        log: Writes events.
        outbox: Sends messages about runs that are due; `put` can be called from any thread.
        live: Sends and receives what is not stored.
    """

    def __init__(self, connection: Connection, deliveries: Deliveries, outbox: Outbox) -> None:
        self.log = EventLog(connection)
        self.live = LiveSubjects(connection)
        self.outbox = outbox
        self._connection = connection
        self._deliveries = deliveries
        self._receivers: dict[tuple[str, ...], Receiver] = {}

    async def receive(self, agents: tuple[str, ...], timeout: float) -> NATSDelivery | None:  # noqa: ASYNC109
        """Wait for a message about a run of one of the agents; return None after `timeout` seconds."""
        receiver = self._receivers.get(agents)
        if receiver is None:
            receiver = self._receivers[agents] = Receiver(self._connection, self._deliveries, agents)
        return await receiver.receive(timeout)

    async def reader(self, run_id: str, after: int) -> EventReader:
        """Return a reader of the events of a run."""
        return EventReader(self._connection, run_id, after)

    async def answer(self, copy: Callable[[str, Msg], None]) -> None:
        """Answer requests for missing events: `copy` receives the id of the run, and the request for `respond`."""

        async def pass_on(request: Msg) -> None:
            copy(text_of(request.subject), request)

        async def subscribe(client: Client) -> None:
            await client.subscribe(self._connection.options.names.all("sync"), queue=_GROUP, cb=pass_on)

        await self._connection.on_connect(subscribe)

    async def respond(self, request: Msg, outcome: str, seq: int) -> None:
        """Answer a request for missing events."""
        client = await self._connection.client()
        await client.publish(request.reply, json.dumps({"outcome": outcome, "seq": seq}).encode())

    async def flush(self) -> None:
        """Wait until what was sent and acknowledged has arrived."""
        await self.outbox.flush()
        await self._deliveries.flush()


async def serve(
    portal: BlockingPortal, options: Options, metrics: QueueMetrics, *, task_status: TaskStatus[Link]
) -> None:
    """Run a link, until cancelled."""
    connection = Connection(options)
    async with anyio.create_task_group() as tasks:
        deliveries = Deliveries(connection, metrics, portal)
        outbox = Outbox(connection, metrics)
        for part in (connection.serve, deliveries.keep, outbox.serve):
            tasks.start_soon(part)
        task_status.started(Link(connection, deliveries, outbox))
