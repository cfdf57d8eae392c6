"""Agent of the demo: a scripted model, an ordinary tool, and two tools whose work is done in another process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pellucid import Agent, ToolCall, ToolContext, ToolResult, tool
from pellucid.testing import FunctionModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from pellucid import ModelRequest
    from pellucid_commands.demo.durable.notes import Notebook

QUESTION: Final = "Reserve a dock for 12 pallets to Turin, and find out what road and rail would cost."

DEADLINE: Final = 4.0
"""Seconds after which a quote expires, unless heartbeats extend them."""

PATIENCE: Final = 2.0
"""Seconds by which each heartbeat extends the deadline."""

ORDINARY: Final = "reserve_dock"
QUOTES: Final = ("quote_road", "quote_rail")

_JOB: Final = {"city": "Turin", "pallets": 12}


@dataclass(frozen=True, slots=True)
class _Freight:
    """Tools and model.

    Attributes:
        jobs: Folder that is the queue of the job process.
        stall: Called instead of an answer to the model's second request, and does not return.
    """

    notebook: Notebook
    jobs: Path
    stall: Callable[[], Awaitable[None]] | None

    def enqueue(self, name: str, ctx: ToolContext, city: str, pallets: int) -> None:
        """Add a job to the queue; its file has the name of the result id, so that it can be added once only."""
        assert ctx.external is not None
        job = {
            "tool": name,
            "result_id": ctx.external.result_id,
            "url": ctx.external.complete_url,
            "token": ctx.external.token,
            "headers": dict(ctx.external.headers),
            "arguments": {"city": city, "pallets": pallets},
        }
        self.notebook.write("enqueue", tool=name, key=ctx.external.result_id)
        path = self.jobs / f"{ctx.external.result_id}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(job))
        partial.replace(path)

    async def answer(self, request: ModelRequest) -> str | Sequence[ToolCall]:
        """Return the model's answer; it contains only results of the tools."""
        results = [part for message in request.messages for part in message.parts if isinstance(part, ToolResult)]
        delivered = _delivered(results)
        pending = [name for name in QUOTES if name not in delivered]
        iteration = 1 if not results else 2 if pending else 3
        self.notebook.write("model", iteration=iteration)
        if iteration == 2 and self.stall is not None:  # noqa: PLR2004
            await self.stall()
        if not results:
            return [ToolCall(name, _JOB, f"call_{name}") for name in (ORDINARY, *QUOTES)]
        if pending:
            return f"{_reservation(results)} I am waiting for {' and '.join(pending)}."
        return " ".join([_reservation(results), *(_sentence(name, delivered[name]) for name in QUOTES)])


def freight_agent(
    name: str, notebook: Notebook, jobs: Path, stall: Callable[[], Awaitable[None]] | None = None
) -> Agent:
    """Return the agent.

    Args:
        name: Name of the agent.
        notebook: Where tools and model note what they do.
        jobs: Folder that is the queue of the job process.
        stall: Called instead of an answer to the model's second request, and does not return.
    """
    freight = _Freight(notebook, jobs, stall)

    @tool
    async def reserve_dock(city: str, pallets: int, ctx: ToolContext) -> str:
        """Reserve a dock. Not idempotent: twice would be two docks."""
        notebook.write("tool", tool=ORDINARY, key=ctx.idempotency_key)
        return f"dock 4, for {pallets} pallets to {city}"

    @tool(execution="external-dispatch", expires_in=DEADLINE)
    async def quote_road(city: str, pallets: int, ctx: ToolContext) -> None:
        """Request a quote for a truck."""
        freight.enqueue("quote_road", ctx, city, pallets)

    @tool(execution="external-dispatch", expires_in=DEADLINE)
    async def quote_rail(city: str, pallets: int, ctx: ToolContext) -> None:
        """Request a quote for a train."""
        freight.enqueue("quote_rail", ctx, city, pallets)

    return Agent(
        name,
        model=FunctionModel(freight.answer, name="scripted"),
        tools=[reserve_dock, quote_road, quote_rail],
    )


def _delivered(results: Sequence[ToolResult]) -> dict[str, dict[str, Any]]:
    """Return the results of other processes that the model has got, by tool."""
    responses = [result.response for result in results if result.name == "async_status"]
    return {response["toolName"]: response for response in responses if isinstance(response, dict)}


def _reservation(results: Sequence[ToolResult]) -> str:
    return f"Reserved: {next(result.response for result in results if result.name == ORDINARY)}."


def _sentence(name: str, delivered: dict[str, Any]) -> str:
    name = name.removeprefix("quote_").capitalize()
    if delivered["status"] != "completed":
        return f"{name}: no quote, the request has {delivered['status']}."
    quote = delivered["result"]
    return f"{name}: {quote['price']:,} EUR, {quote['days']} days."
