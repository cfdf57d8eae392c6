"""The handshake with a server: the client that it opens, or the reason why there is none."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Literal, TypeAlias

from mcp import Client, MCPError
from mcp.client.session import ElicitationFnT, MessageHandlerFnT
from mcp_types import CONNECTION_CLOSED, CallToolResult, Implementation
from opentelemetry import context as otel_context
from opentelemetry.util.types import AttributeValue

from pellucid.mcp.elicitation import AskingClient
from pellucid.mcp.exchange import Exchange, Refused, ServerGone
from pellucid.mcp.link import Link
from pellucid.mcp.transports import Target
from pellucid.version import __version__

Negotiation: TypeAlias = Literal["auto", "legacy"]
"""Newest protocol that the server has, or one before 2026-07-28."""


class Handshake:
    """The first exchange of a session, in which client and server agree on a protocol version.

    Args:
        target: The way to the server.
        link: State of the session's transport.
        protocol: `legacy` agrees on a protocol before 2026-07-28, although the server may have a newer one.
    """

    __slots__ = ("_exchange", "_link", "_protocol", "_target")

    def __init__(self, target: Target, link: Link, protocol: Negotiation) -> None:
        self._target = target
        self._link = link
        self._protocol = protocol
        self._exchange = Exchange("initialize", _ignore)

    async def open(
        self,
        stack: AsyncExitStack,
        parent: otel_context.Context,
        *,
        receive: MessageHandlerFnT,
        answer: ElicitationFnT | None,
    ) -> Client:
        """Open a client. Errors are raised unchanged, for `failure_of`.

        Args:
            stack: Closes the client.
            parent: Context of the spans.
            receive: Receives what the server sends unasked.
            answer: Answers the server's questions to a person; None declares no support for them.
        """
        token = otel_context.attach(parent)
        try:
            client = (Client if answer is None else AskingClient)(
                self._target.reach(self._link, self._target.holder),
                mode=self._protocol,
                cache=None,  # the provider caches listings and records that on its spans
                message_handler=receive,
                client_info=Implementation(name="pellucid", version=__version__),
                elicitation_callback=answer,
            )
            with self._exchange.observed():
                await stack.enter_async_context(client)
                # Dispatch checks results, by what was listed and without values; the SDK might list the tools for it.
                client.session.validate_tool_result = _unchecked  # type: ignore[method-assign]
                self._link.protocol_version = client.protocol_version
                return client
        finally:
            otel_context.detach(token)

    def failure_of(self, error: BaseException) -> BaseException:
        """Convert a failure to open a client; other errors than those of the MCP SDK are returned unchanged.

        Returns `Refused` if the server answered, and `ServerGone` if it closed the connection.
        """
        if not isinstance(error, MCPError):
            return error
        refusal = self._exchange.refusal or self._link.refusal
        if refusal is not None and self._exchange.status is None:
            return refusal.with_traceback(None)
        is_answer = error.code != CONNECTION_CLOSED or self._exchange.status is not None
        failure = Refused(error, self._exchange) if is_answer else ServerGone("the server closed the connection")
        failure.__cause__ = error
        return failure


def _ignore(_name: str, _value: AttributeValue) -> None:
    """Drop an attribute: connecting has no span of its own."""


async def _unchecked(name: str, result: CallToolResult) -> None:
    """Take a result as it is."""
