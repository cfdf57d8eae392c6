"""Requests for messages of consumers, and the subscription to which the server answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import Header

from pellucid.durable.queue.connection import UNAVAILABLE

IDLE: Final = frozenset({"404", "408"})
"""Statuses of a request without a message; another one means that the consumer is missing, or cannot be used."""

_API: Final = "$JS.API.CONSUMER.MSG.NEXT"


class Inbox:
    """Subscription for the answers to requests: messages, and statuses without content.

    Args:
        client: The client.
        deliver: Receives each answer, in order.
    """

    def __init__(self, client: Client, deliver: Callable[[Msg], Awaitable[None]]) -> None:
        self.client = client
        self._deliver = deliver
        self._subject = client.new_inbox()
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        """Subscribe."""

        async def deliver(answer: Msg) -> None:
            await self._deliver(answer)

        self._subscription = await self.client.subscribe(self._subject, cb=deliver)

    async def request(
        self, stream: str, consumer: str, *, batch: int = 1, expires: float = 0.0, no_wait: bool = False
    ) -> None:
        """Request messages.

        Args:
            stream: Name of the stream.
            consumer: Name of the consumer.
            batch: Maximum number of messages.
            expires: Seconds after which the server ends the request.
            no_wait: End the request at once if there is no message.
        """
        body = {"batch": batch, **({"no_wait": True} if no_wait else {"expires": int(expires * 1e9)})}
        await self.client.publish(f"{_API}.{stream}.{consumer}", json.dumps(body).encode(), reply=self._subject)

    async def close(self) -> None:
        """Unsubscribe, unless the client has been closed."""
        if self._subscription is not None:
            with suppress(*UNAVAILABLE):
                await self._subscription.unsubscribe()


def status_of(answer: Msg) -> str | None:
    """Return the status of an answer without content, or None for a message."""
    return (answer.headers or {}).get(Header.STATUS)
