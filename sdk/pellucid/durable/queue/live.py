"""Pieces of answers and announcements of readers, as messages that NATS does not store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from pellucid.durable.queue.connection import UNAVAILABLE, Connection

Receive = Callable[[str], None]


class LiveSubjects:
    """The thread's side. What cannot be sent at once is dropped: a stored event takes its place."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._names = connection.options.names
        self._announced: Receive | None = None
        self._received: Receive | None = None
        self._followed: dict[str, Subscription | None] = {}
        self._is_hooked = False
        self._subscribing = anyio.Lock()

    async def open(self, announced: Receive, received: Receive) -> None:
        """Pass messages on from now on."""
        self._announced, self._received = announced, received
        if not self._is_hooked:
            self._is_hooked = True
            await self._connection.on_connect(self._subscribe_all)

    async def _subscribe_all(self, client: Client) -> None:
        await client.subscribe(self._names.readers, cb=self._pass_announcement)
        self._followed = dict.fromkeys(self._followed)
        await self._subscribe(client)

    async def _subscribe(self, client: Client) -> None:
        """Subscribe the pieces of those runs that are not subscribed."""
        async with self._subscribing:
            for run_id in [run_id for run_id, subscription in self._followed.items() if subscription is None]:
                subscription = await client.subscribe(self._names.subject("pieces", run_id), cb=self._pass_piece)
                if run_id in self._followed:
                    self._followed[run_id] = subscription
                else:  # the reader has left meanwhile
                    await subscription.unsubscribe()

    async def _pass_announcement(self, message: Msg) -> None:
        if self._announced is not None:
            self._announced(message.data.decode("utf-8", "replace"))

    async def _pass_piece(self, message: Msg) -> None:
        if self._received is not None:
            self._received(message.data.decode("utf-8", "replace"))

    async def follow(self, run_id: str) -> None:
        """Receive the pieces of a run from the next announcement on."""
        self._followed.setdefault(run_id, None)

    async def leave(self, run_id: str) -> None:
        """Receive no more pieces of a run."""
        if (subscription := self._followed.pop(run_id, None)) is not None:
            with suppress(*UNAVAILABLE):  # it ended with its connection
                await subscription.unsubscribe()

    async def announce(self, texts: Sequence[str]) -> None:
        """Send announcements, once the pieces of all runs are subscribed."""
        await self._publish([(self._names.readers, text) for text in texts])

    async def send(self, messages: Sequence[tuple[str, str]]) -> None:
        """Send pieces, by the ids of their runs."""
        await self._publish([(self._names.subject("pieces", run_id), text) for run_id, text in messages])

    async def _publish(self, messages: Sequence[tuple[str, str]]) -> None:
        if (client := self._connection.current) is None:
            return
        try:
            await self._subscribe(client)
            for subject, text in messages:
                await client.publish(subject, text.encode())
        except UNAVAILABLE as error:
            self._connection.warn(error)
