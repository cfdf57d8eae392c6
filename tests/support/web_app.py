"""A FastAPI application that runs an agent: awaited, and streamed; its telemetry is configured in each process."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from fastapi import FastAPI, Request

from pellucid import Agent, ToolCall, tool
from pellucid.messages import TextPart, ToolResult
from pellucid.server import EventStreamResponse, cancel_on_disconnect, drain_at_signals
from pellucid.testing import FunctionModel
from pellucid_exporters import Prometheus, configure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid.models import ModelRequest


@tool(timeout=600)
async def look_up(question: str) -> str:
    """Return an answer; to some questions never."""
    await (anyio.sleep_forever() if question == "wait" else anyio.sleep(0.01))
    return f"answer to {question}"


def answer(request: ModelRequest) -> ToolCall | str:
    """Call the tool, and return its result."""
    match request.messages[-1].parts[-1]:
        case TextPart(content=question):
            return ToolCall("look_up", {"question": question})
        case ToolResult(response=found):
            return str(found)
    raise AssertionError


agent = Agent("web", model=FunctionModel(answer), tools=[look_up])
if "RUN_AT_IMPORT" in os.environ:
    agent.run_sync("import")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Configure telemetry in each process."""
    port = int(os.environ["METRICS_PORT"]) if "METRICS_PORT" in os.environ else None
    telemetry = configure("web", prometheus=Prometheus(port=port))
    with drain_at_signals(app):
        yield
    telemetry.shutdown()


app = FastAPI(lifespan=lifespan)


@app.get("/answer")
async def get_answer(text: str, request: Request) -> str:
    """Run the agent."""
    async with cancel_on_disconnect(request):
        result = await agent.run(text)
    return result.output


@app.get("/stream", response_class=EventStreamResponse)
async def stream_answer(text: str) -> EventStreamResponse:
    """Stream a run."""
    return EventStreamResponse(agent.stream(text))
