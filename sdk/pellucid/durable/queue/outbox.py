"""Messages that wait to be sent, in a bounded buffer: nothing ever waits for the queue."""

from __future__ import annotations

import json
from collections import deque

import anyio

from pellucid.durable.queue.connection import UNAVAILABLE, Connection
from pellucid.durable.queue.metrics import QueueMetrics
from pellucid.durable.queue.subjects import token
from pellucid.durable.store import RunDue
from pellucid.durable.store.wakeups import Waiter

_CONCURRENCY = 32
"""Messages that wait for the server's answer at the same time."""


class Outbox:
    """Messages about runs that are due. Except for `put`, use it in the thread's event loop."""

    def __init__(self, connection: Connection, metrics: QueueMetrics) -> None:
        self._connection = connection
        self._metrics = metrics
        self._waiter = Waiter()
        self._messages: deque[tuple[RunDue, dict[str, str]]] = deque()
        self._sending = 0

    def put(self, due: RunDue, headers: dict[str, str]) -> None:
        """Send a message soon, or drop it if too many wait; from any thread."""
        if len(self._messages) >= self._connection.options.buffer:
            self._metrics.dropped("work", "full")
            return
        self._messages.append((due, headers))
        self._waiter.wake()

    async def serve(self) -> None:
        """Send messages, until cancelled."""
        slots = anyio.Semaphore(_CONCURRENCY)
        async with anyio.create_task_group() as tasks:
            while True:
                self._waiter.clear()
                while self._messages:
                    await self._connection.client()
                    await slots.acquire()
                    self._sending += 1
                    tasks.start_soon(self._send, *self._messages.popleft(), slots)
                await self._waiter.wait()

    async def _send(self, due: RunDue, headers: dict[str, str], slots: anyio.Semaphore) -> None:
        body = json.dumps({"run_id": due.id, "agent": due.agent, "fence": due.fence}).encode()
        headers["Nats-Msg-Id"] = f"{token(due.id)}:{due.fence}"  # a run becomes due once after each claim
        try:
            await self._connection.publish(self._connection.options.names.subject("work", due.agent), body, headers)
        except UNAVAILABLE as error:
            self._connection.warn(error)
            self._metrics.dropped("work", "unavailable")
        else:
            self._metrics.published("work")
        finally:
            self._sending -= 1
            slots.release()

    async def flush(self) -> None:
        """Wait until all messages were sent."""
        while self._messages or self._sending:  # noqa: ASYNC110  (once, when the queue is closed)
            await anyio.sleep(0.01)
