"""Helpers for tests of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import anyio
from opentelemetry.trace import format_span_id

from pellucid import ToolResult, semconv
from pellucid.events import InferenceDelta

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid import Agent, RunResult
    from pellucid.errors import PolicyHalt
    from pellucid_exporters.testing import Captured, Tree

T = TypeVar("T")


async def within(awaitable: Awaitable[T], seconds: float = 60.0) -> T:
    """Await something that must not take longer."""
    with anyio.fail_after(seconds):
        return await awaitable


async def cancel_itself(backend: str) -> NoReturn:
    """Raise the event loop's own cancellation, although nobody cancels."""
    if backend == "asyncio":
        import asyncio

        raise asyncio.CancelledError
    import trio

    saved: BaseException | None = None
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            saved = error
    assert saved is not None
    raise saved


async def words_of(agent: Agent) -> AsyncGenerator[str]:
    """Yield from inside the block, as web frameworks have their users do."""
    async with agent.stream("x") as events:
        async for event in events:
            if isinstance(event, InferenceDelta):
                yield event.content


def iteration(*tools: str, model: str = "scripted", provider: str = "static") -> list[Tree]:
    """Return the spans of one iteration that calls these tools."""
    phases = [
        f"discover_tools {provider}",
        "compose_request",
        f"chat {model}",
        *(f"execute_tool {tool}" for tool in tools),
    ]
    return [(name, []) for name in phases]


def results(run: RunResult[Any] | PolicyHalt) -> list[ToolResult]:
    """Return the results of all calls of a run."""
    return [part for message in run.messages for part in message.parts if isinstance(part, ToolResult)]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})


def ending(span: ReadableSpan) -> tuple[str, str, str | None]:
    """Return how a span ended: outcome, status and `error.type`."""
    found = attributes(span)
    return found[semconv.OUTCOME], span.status.status_code.name, found.get(semconv.ERROR_TYPE)


COMPLETED = ("completed", "UNSET", None)
CANCELLED = ("cancelled", "UNSET", None)
TIMEOUT = ("timeout", "ERROR", "timeout")


def span_id(span: ReadableSpan) -> str:
    """Return the id of a span in hexadecimal."""
    context = span.get_span_context()
    assert context is not None
    return format_span_id(context.span_id)


def everything(telemetry: Captured) -> str:
    """Return all that left the process, as text to search for what must not be in it."""
    spans = [
        (
            span.name,
            attributes(span),
            span.status.description,
            [(event.name, dict(event.attributes or {})) for event in span.events],
            [dict(link.attributes or {}) for link in span.links],
        )
        for span in telemetry.spans
    ]
    return repr((spans, telemetry.logs, telemetry.events, telemetry.metrics))
