"""Messages about runs that are due, received one at a time by a worker that has room for a run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import anyio
from nats.aio.client import Client
from nats.aio.msg import Msg

from pellucid.durable.queue.connection import UNAVAILABLE, Connection
from pellucid.durable.queue.deliveries import Deliveries, NATSDelivery
from pellucid.durable.queue.inbox import IDLE, Inbox, status_of
from pellucid.durable.queue.subjects import consumer_of

_MAX_REQUEST: Final = 2.0
"""Maximum seconds of a request: one may be lost without an answer, with its stream or its server."""

_GRACE: Final = 1.0
"""Seconds after the end of a request in which its answer may come."""

_RETRY: Final = 0.2
"""Seconds between two requests to a server that has refused one."""


class _Requests:
    """Requests for messages of one agent; at most one is open at a time."""

    def __init__(self, stream: str, agent: str, inbox: Inbox) -> None:
        self.agent = agent
        self.inbox = inbox
        self._stream = stream
        self._open_until = -math.inf

    @property
    def is_open(self) -> bool:
        """True if the server may still answer the latest request."""
        return anyio.current_time() < self._open_until

    async def send(self, expires: float, *, no_wait: bool = False) -> None:
        """Request a message, unless one was requested that may still come."""
        if not self.is_open:
            self._open_until = anyio.current_time() + expires + _GRACE
            await self.inbox.request(self._stream, consumer_of(self.agent), expires=expires, no_wait=no_wait)

    def answered(self) -> None:
        """Note an answer."""
        self._open_until = -math.inf


class Receiver:
    """Receives for one worker, in the thread's event loop.

    Each agent has its own consumer, so a worker with several agents first asks each for a message that is there, in
    turn; when there is none it waits for all. A message that comes when it waits for none is given back.

    Args:
        connection: The connection.
        deliveries: Keeps what is received.
        agents: Names of the worker's agents.
    """

    def __init__(self, connection: Connection, deliveries: Deliveries, agents: Sequence[str]) -> None:
        self._connection = connection
        self._deliveries = deliveries
        self._agents = deque(agents)
        self._client: Client | None = None
        self._requests: dict[str, _Requests] = {}
        self._answers: deque[tuple[str, Msg]] = deque()
        self._is_answered = anyio.Event()
        self._is_waiting = False
        self._lock = anyio.Lock()

    async def receive(self, timeout: float) -> NATSDelivery | None:  # noqa: ASYNC109
        """Wait for a message; return None after `timeout` seconds, a little later if one may still come."""
        until = anyio.current_time() + timeout
        async with self._lock:
            self._is_waiting = True
            try:
                with anyio.move_on_at(until + _GRACE):
                    return await self._receive(until)
            finally:
                self._is_waiting = False
                with anyio.move_on_after(_GRACE, shield=True):
                    while self._answers:
                        await self._give_back(self._answers.popleft()[1])
        return None

    async def _receive(self, until: float) -> NATSDelivery | None:
        while (remaining := until - anyio.current_time()) > 0:
            try:
                with anyio.move_on_at(until):
                    await self._open()
                if self._client is None:
                    return None
                delivery = await self._probe() if len(self._agents) > 1 else None
                delivery = delivery or await self._wait(min(max(remaining, 0.01), _MAX_REQUEST))
            except UNAVAILABLE:
                await anyio.sleep(_RETRY)
                continue
            if delivery is not None:
                return delivery
        return None

    async def _open(self) -> None:
        """Create inboxes and consumers, once for each client."""
        client = await self._connection.client()
        if client is self._client:
            return
        self._requests.clear()
        await self._connection.set_up(*self._agents)
        for agent in self._agents:
            inbox = Inbox(client, partial(self._deliver, agent))
            await inbox.open()
            self._requests[agent] = _Requests(self._connection.options.names.stream("work"), agent, inbox)
        self._client = client

    async def _deliver(self, agent: str, answer: Msg) -> None:
        self._requests[agent].answered()
        if self._is_waiting:
            self._answers.append((agent, answer))
            self._is_answered.set()
        else:
            await self._give_back(answer)

    async def _give_back(self, answer: Msg) -> None:
        if status_of(answer) is None:
            with suppress(*UNAVAILABLE):
                await self._deliveries.give_back(answer)

    async def _probe(self) -> NATSDelivery | None:
        """Ask for a message that is there already, each agent in turn."""
        for _ in range(len(self._agents)):
            self._agents.rotate(-1)
            requests = self._requests[self._agents[0]]
            if not requests.is_open:
                await requests.send(0.0, no_wait=True)
                with anyio.move_on_after(_GRACE):
                    if (delivery := await self._next()) is not None:
                        return delivery
        return None

    async def _wait(self, seconds: float) -> NATSDelivery | None:
        """Ask for the next message of any agent."""
        for requests in self._requests.values():
            await requests.send(seconds)
        with anyio.move_on_after(seconds + _GRACE):
            return await self._next()
        return None

    async def _next(self) -> NATSDelivery | None:
        """Wait for the next answer; return None if it was not a message for a pass."""
        while not self._answers:
            self._is_answered = anyio.Event()
            await self._is_answered.wait()
        agent, answer = self._answers.popleft()
        status = status_of(answer)
        if status is None:
            return await self._deliveries.accept(answer, agent)
        if status not in IDLE:  # the stream or the consumer was deleted
            await self._connection.repair()
        return None
