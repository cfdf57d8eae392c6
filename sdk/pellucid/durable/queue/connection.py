"""A connection to NATS that never gives up, in the event loop of a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import anyio
from nats.aio.client import Client
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError

from pellucid.durable.queue.options import Options, places_of
from pellucid.durable.queue.subjects import consumer_of

_log = logging.getLogger("pellucid.nats")

ConnectHook: TypeAlias = Callable[[Client], Awaitable[None]]

UNAVAILABLE: Final = (Error, OSError, TimeoutError)
"""Errors of a server that does not answer, or refuses a request."""

TIMEOUT: Final = 5.0
"""Seconds to wait for an answer of the server."""

_RETRY: Final = 0.5
"""Seconds between two attempts to connect."""

_DELETION: Final = 0.5
"""Seconds that a server gets for the deletion of a stream."""

_CLOSE: Final = 2.0
"""Seconds for closing a connection."""

_STREAM_EXISTS: Final = 10058
"""Error code of a stream that exists with other options: those of an administrator, which apply."""

_NO_STORAGE: Final = 10047
"""Error code of a server, or an account, that cannot reserve the bytes of a stream."""

_STREAMS: Final = {
    "work": RetentionPolicy.WORK_QUEUE,
    "events": RetentionPolicy.LIMITS,
    "dead": RetentionPolicy.LIMITS,
}


class Connection:
    """The connection. Its methods are called in the thread's event loop.

    Attributes:
        options: Options of the queue.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._client: Client | None = None
        self._is_connected = anyio.Event()
        self._is_warned = False
        self._hooks: list[ConnectHook] = []
        self._missed: list[ConnectHook] = []
        self._agents: set[str] = set()
        self._setup = anyio.Lock()

    async def serve(self) -> None:
        """Connect, and connect again, until cancelled."""
        while True:
            client, closed = Client(), anyio.Event()
            try:
                await self._connect(client, closed)
                await closed.wait()
            except Exception as error:  # noqa: BLE001  (whatever the client raises, another one is tried)
                self.warn(error)
            finally:
                self._disconnected()
                self._client = None
                with anyio.move_on_after(_CLOSE, shield=True):
                    await client.close()
            await anyio.sleep(_RETRY)

    async def _connect(self, client: Client, closed: anyio.Event) -> None:
        async def on_error(error: Exception) -> None:
            self.warn(error)

        async def on_disconnected() -> None:
            self._disconnected()

        async def on_reconnected() -> None:
            self._is_warned = False
            self._is_connected.set()
            missed, self._missed = self._missed, []
            for hook in missed:
                await hook(client)

        async def on_closed() -> None:
            closed.set()

        await client.connect(
            list(self.options.servers),
            **{
                "name": "pellucid",
                "max_reconnect_attempts": -1,
                "reconnect_time_wait": _RETRY,
                **self.options.connect_options,
                "error_cb": on_error,
                "disconnected_cb": on_disconnected,
                "reconnected_cb": on_reconnected,
                "closed_cb": on_closed,
            },
        )
        self._client = client
        await self.set_up()
        self._missed.clear()
        for hook in self._hooks:
            await hook(client)
        self._is_warned = False
        self._is_connected.set()

    def _disconnected(self) -> None:
        if self._is_connected.is_set():  # otherwise tasks wait for this very event
            self._is_connected = anyio.Event()

    def warn(self, error: Exception) -> None:
        """Log an error, once for each loss of the connection."""
        if self._is_warned:
            return
        self._is_warned = True
        places = places_of(self.options.servers)
        _log.warning("nats.unavailable servers=%s %s: %s%s", places, type(error).__name__, error, self._remedy(error))

    def _remedy(self, error: Exception) -> str:
        if not isinstance(error, APIError) or error.err_code != _NO_STORAGE:
            return ""
        need = f"the queue reserves {len(_STREAMS)} streams of {self.options.limits.max_bytes:,} bytes"
        return f"; {need}: raise max_file_store of the server, or give NATSQueue limits=StreamLimits(max_bytes=…)"

    async def on_connect(self, hook: ConnectHook) -> None:
        """Call a function with each new client, such as one that subscribes, and now if there is one."""
        self._hooks.append(hook)
        if (client := self.current) is not None:
            await hook(client)
        else:
            self._missed.append(hook)  # called by a client that connects again; a new one calls all

    @property
    def current(self) -> Client | None:
        """The client, if it is connected."""
        return self._client if self._client is not None and self._client.is_connected else None

    async def client(self) -> Client:
        """Return the client, once it is connected."""
        while True:
            await self._is_connected.wait()
            if (client := self.current) is not None:
                return client
            await anyio.sleep(_RETRY)  # between the loss of a connection and its notice

    async def stream(self) -> JetStreamContext:
        """Return JetStream, once the client is connected."""
        return (await self.client()).jetstream(timeout=TIMEOUT)

    async def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> int:
        """Store a message, creating the streams if they were deleted; return its sequence number in the stream.

        Raises:
            nats.errors.Error, TimeoutError: it was not stored, or the answer was lost.
        """
        stream = await self.stream()
        try:
            return (await stream.publish(subject, body, headers=headers)).seq
        except NoStreamResponseError:
            await self.repair()
            return (await stream.publish(subject, body, headers=headers)).seq

    async def repair(self) -> None:
        """Create what was deleted, when its deletion has ended: a server may damage a stream that comes too soon.

        Raises:
            nats.errors.Error, TimeoutError: the server did not answer, or refused.
        """
        await anyio.sleep(_DELETION)
        await self.set_up()

    async def set_up(self, *agents: str) -> None:
        """Create the streams that are missing, and the consumers of these agents and of earlier ones.

        Raises:
            nats.errors.Error, TimeoutError: the server did not answer, or refused.
        """
        self._agents.update(agents)
        if not self.options.is_managed or self._client is None:
            return
        stream = self._client.jetstream(timeout=TIMEOUT)
        async with self._setup:
            for kind, retention in _STREAMS.items():
                await self._add_stream(stream, kind, retention)
            for agent in self._agents:
                await self._add_consumer(stream, agent)

    async def _add_stream(self, stream: JetStreamContext, kind: str, retention: RetentionPolicy) -> None:
        names, limits = self.options.names, self.options.limits
        try:
            await stream.add_stream(
                StreamConfig(
                    name=names.stream(kind),
                    subjects=[names.all(kind)],
                    retention=retention,
                    storage=StorageType.FILE,
                    max_age=limits.max_age,
                    max_bytes=limits.max_bytes,
                    num_replicas=limits.replicas,
                    duplicate_window=min(120.0, limits.max_age),
                )
            )
        except APIError as error:
            if error.err_code != _STREAM_EXISTS:
                raise

    async def _add_consumer(self, stream: JetStreamContext, agent: str) -> None:
        names = self.options.names
        await stream.add_consumer(
            names.stream("work"),
            ConsumerConfig(
                durable_name=consumer_of(agent),
                filter_subject=names.subject("work", agent),
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=self.options.ack_wait,
                max_deliver=-1,  # the one that receives it too often moves it to the dead letters
                max_ack_pending=-1,
            ),
        )
