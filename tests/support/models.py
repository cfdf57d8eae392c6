"""Helpers for tests of model adapters."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import anyio

from pellucid import Message, ModelDelta, ModelRequest, ModelResponse, ToolDefinition
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import Model
    from support.vendor_server import VendorServer

ADD = ToolDefinition(
    name="add",
    description="Add two numbers.",
    parameters={"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
)
HELLO = ModelRequest(messages=[Message("user", "Hello?")])


def asking(*messages: Message, **more: Any) -> ModelRequest:
    """Return a request with this history."""
    return ModelRequest(messages=messages, **more)


async def read(model: Model, request: ModelRequest) -> tuple[list[ModelDelta], ModelResponse]:
    """Stream an answer to its end; return its pieces and the whole."""
    items: list[Any] = []
    with anyio.fail_after(60):
        async with aclosing(cast("Any", model.stream(request))) as stream:
            items.extend([item async for item in stream])
    assert isinstance(items[-1], ModelResponse)
    assert all(isinstance(item, ModelDelta) for item in items[:-1])
    return items[:-1], items[-1]


async def sent(server: VendorServer, model: Model, request: ModelRequest) -> Any:
    """Ask for the whole answer, and return the body of what was sent."""
    await within(model.generate(request))
    return server.requests[-1].json


async def both(model: Model, request: ModelRequest = HELLO) -> ModelResponse:
    """Ask for the whole answer and for a stream; return the answer, which must be the same."""
    whole = await within(model.generate(request))
    deltas, streamed = await read(model, request)
    assert streamed == whole
    assert joined(deltas, "text") == whole.message.text
    assert [delta.content for delta in deltas if delta.type == "tool_call"] == [
        call.name for call in whole.message.tool_calls
    ]
    return whole


def joined(deltas: Sequence[ModelDelta], kind: str) -> str:
    """Return all pieces of one kind."""
    return "".join(delta.content for delta in deltas if delta.type == kind)


async def until(server: VendorServer, *, left: int) -> None:
    """Wait until so many clients have gone away from an answer that hangs."""
    with anyio.fail_after(60):
        while server.left < left:  # noqa: ASYNC110  (the server is in a thread of its own)
            await anyio.sleep(0.005)


async def reached(server: VendorServer) -> None:
    """Wait until an answer hangs."""
    with anyio.fail_after(60):
        await anyio.to_thread.run_sync(server.reached.wait, 10, abandon_on_cancel=True)
