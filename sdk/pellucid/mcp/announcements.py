"""Announcements of a server that its tools changed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import anyio
from mcp import Client, MCPError
from mcp.client import IncomingMessage
from mcp.client.subscriptions import Subscription, SubscriptionLost
from mcp_types import ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

LISTEN_TIMEOUT: Final = 5.0
"""Seconds to subscribe to changes of the tool list."""


class Announcements:
    """Announcements of one session: by a subscription, or unasked with protocols before 2026-07-28.

    Args:
        changed: Called for each announcement.
        ended: Called when a subscription has ended, after which there are no more announcements.

    Attributes:
        are_expected: Whether the server announces changes of its tools.
    """

    __slots__ = ("_changed", "_ended", "_subscription", "are_expected")

    def __init__(self, *, changed: Callable[[], None], ended: Callable[[], None]) -> None:
        self.are_expected = False
        self._changed = changed
        self._ended = ended
        self._subscription: Subscription | None = None

    async def subscribe(self, client: Client, stack: AsyncExitStack, *, pushes: bool) -> None:
        """Subscribe if the server offers it; without, listings are fetched more often.

        Args:
            client: The session's client.
            stack: Ends the subscription.
            pushes: Whether notifications are certain to arrive with protocols that have no subscriptions.
        """
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self.are_expected = pushes
            return
        try:
            with anyio.move_on_after(LISTEN_TIMEOUT):
                self._subscription = await stack.enter_async_context(client.listen(tools_list_changed=True))
                self.are_expected = bool(self._subscription.honored.tools_list_changed)
        except (MCPError, SubscriptionLost):
            pass  # refused: the server announces nothing

    async def follow(self) -> None:
        """Receive announcements until the subscription ends; return at once if there is none."""
        if self._subscription is None:
            return
        try:
            async for _event in self._subscription:
                self._changed()
        except SubscriptionLost:
            pass  # lost or ended by the server: changes are no longer announced
        self.are_expected = False
        self._ended()

    async def receive(self, message: IncomingMessage) -> None:
        """Receive a message that the server sent unasked."""
        if isinstance(message, ToolListChangedNotification):
            self._changed()
