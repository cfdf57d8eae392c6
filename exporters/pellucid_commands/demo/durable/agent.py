"""Agent of the demo: an ordinary tool, one whose work is done by another service, and one that a person approves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import requests

from pellucid import Agent, ToolCall, ToolContext, ToolResult, tool
from pellucid.testing import FunctionModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import ModelRequest

QUESTION: Final = "Reserve a dock for 12 pallets to Turin, and book a truck."
NAME: Final = "PELLUCID_DEMO_AGENT"
"""Variable with the name of the agent."""
FOLDER: Final = "PELLUCID_DEMO_FOLDER"
"""Variable with the folder of the notes."""
OFFICE: Final = "PELLUCID_DEMO_OFFICE"
"""Variable with the address of the service that quotes."""
STALLS: Final = "PELLUCID_DEMO_STALLS"
"""Variable of the worker whose model never answers its second request."""

NOTES: Final = "notes"
"""File in which the tools note that they run, whatever store and telemetry say."""

_JOB: Final = {"city": "Turin", "pallets": 12}


@tool
async def reserve_dock(city: str, pallets: int) -> str:
    """Reserve a dock. Not idempotent: twice would be two docks."""
    _note("reserve_dock")
    return f"dock 4, for {pallets} pallets to {city}"


@tool(execution="external-dispatch", expires_in=600)
async def quote_truck(city: str, pallets: int, ctx: ToolContext) -> None:
    """Ask a service for the price of a truck. It sends the price to the server of the run."""
    call = ctx.external
    assert call is not None
    job: dict[str, Any] = {
        "resultId": call.result_id,
        "input": {"city": city, "pallets": pallets},
        "completeUrl": call.complete_url,
        "token": call.token,
        "headers": dict(call.headers),
    }
    _note("quote_truck")
    url = f"{os.environ[OFFICE]}/jobs"
    answer = await anyio.to_thread.run_sync(lambda: requests.post(url, json=job, timeout=10))
    answer.raise_for_status()


@tool(needs_approval=True)
async def book_truck(price: int) -> str:
    """Book a truck."""
    _note("book_truck")
    return f"a truck for {price:,} EUR"


def _note(name: str) -> None:
    with Path(os.environ[FOLDER], NOTES).open("a") as notes:
        notes.write(f"{name}\n")


async def answer(request: ModelRequest) -> str | Sequence[ToolCall]:
    """Answer as a model would, with results of the tools only."""
    results = {
        part.name: part.response
        for message in request.messages
        for part in message.parts
        if isinstance(part, ToolResult)
    }
    if not results:
        return [ToolCall("reserve_dock", _JOB), ToolCall("quote_truck", _JOB)]
    if os.environ.get(STALLS):
        await anyio.sleep_forever()
    if "async_status" not in results:
        return "I am waiting for the price of a truck."
    if "book_truck" not in results:
        return [ToolCall("book_truck", {"price": results["async_status"]["result"]["price"]})]
    return f"Reserved: {results['reserve_dock']}. Booked: {results['book_truck']}."


TOOLS: Final = ("reserve_dock", "quote_truck", "book_truck")
AGENT: Final = Agent(
    os.environ.get(NAME, "freight"),
    model=FunctionModel(answer, name="scripted"),
    tools=[reserve_dock, quote_truck, book_truck],
)
