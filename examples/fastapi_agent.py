"""An agent in a FastAPI application: awaited, streamed to a browser, cancelled when the client leaves, and measured.

Needs `pip install 'pellucid[server]' fastapi`. With curl instead of the client below:

    uvicorn fastapi_agent:app
    curl http://127.0.0.1:8000/answers -H 'Content-Type: application/json' -d '{"text": "Will it rain in Bergen?"}'
    curl 'http://127.0.0.1:8000/answers/stream?text=Will+it+rain+in+Bergen%3F'
    curl http://127.0.0.1:9464/metrics
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import httpx2
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from pellucid import Agent, ToolCall, tool
from pellucid.models import ModelRequest
from pellucid.server import EventStreamResponse, cancel_on_disconnect, drain_at_signals
from pellucid.testing import FunctionModel
from pellucid_exporters import Prometheus, configure


@tool
async def forecast(city: str) -> str:
    """Return the weather forecast."""
    return f"{city}: rain, 8 °C"


def answer(request: ModelRequest) -> ToolCall | str:
    """Stand for a model."""
    return ToolCall("forecast", {"city": "Bergen"}) if len(request.messages) == 1 else "Take an umbrella."


agent = Agent("weather", model=FunctionModel(answer), tools=[forecast], warm=True)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Configure telemetry in each process that serves, and end open streams when it is stopped."""
    telemetry = configure("weather", prometheus=Prometheus(port=range(9464, 9480)))
    with drain_at_signals(app):
        yield
    telemetry.shutdown()  # at SIGTERM, uvicorn ends without the exit handlers of Python


app = FastAPI(lifespan=lifespan)


class Question(BaseModel):
    """Question of a client."""

    text: str


class Answer(BaseModel):
    """Answer of the agent, and the id of its trace."""

    text: str
    trace_id: str | None


@app.post("/answers")
async def create_answer(question: Question, request: Request) -> Answer:
    """Run the agent; if the client leaves, the run is cancelled."""
    async with cancel_on_disconnect(request):
        result = await agent.run(question.text)
    return Answer(text=result.output, trace_id=result.trace_id)


@app.get("/answers/stream", response_class=EventStreamResponse)
async def stream_answer(text: str) -> EventStreamResponse:
    """Stream the events of a run; in a browser, read them with `EventSource` and close it at the event `run`."""
    return EventStreamResponse(agent.stream(text))


@app.get("/readyz")
async def readyz() -> JSONResponse:
    """Say whether the hubs of the agent have answered; the first probe connects to them."""
    readiness = agent.ready()
    return JSONResponse(readiness.to_dict(), 200 if readiness else 503)


async def main() -> None:
    """Serve, and be a client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        async with anyio.create_task_group() as tasks, httpx2.AsyncClient(base_url=url, timeout=60) as http:
            tasks.start_soon(server.serve, [listener])
            answer = await http.post("/answers", json={"text": "Will it rain in Bergen?"})
            print(answer.json()["text"])
            stream = await http.get("/answers/stream", params={"text": "Will it rain in Bergen?"})
            print(*(line for line in stream.text.splitlines() if line.startswith("event: ")), sep="\n")
            server.should_exit = True


if __name__ == "__main__":
    anyio.run(main)
