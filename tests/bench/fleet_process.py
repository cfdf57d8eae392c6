"""A process of the fleet: `python -m bench.fleet_process none|metrics|all [ENDPOINT]`.

It prints the URL of its metrics. For each line `FIRST RUNS RATE` it starts so many runs at that rate, whether or not
those before have ended, and prints what came of them as JSON.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from pellucid import Agent, DiscoveryProvider, Message, Tool, ToolCall, ToolContext, Usage
from pellucid.models import ModelResponse
from pellucid_exporters import Otlp, Prometheus, configure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from pellucid import ModelRequest
    from pellucid.context import DiscoveryContext
    from pellucid_exporters.telemetry import Telemetry

HUBS: Final = 3
TOOLS: Final = 10
CALLS: Final = 3
LATENCY: Final = 0.2
"""Seconds of a call of the model."""

SPANS: Final = 1 + (CALLS + 1) * (HUBS + 2) + CALLS
"""Of a run: the run; of each iteration a discovery of each hub, a composition and a call of the model; the tools."""

LOOKED_AT: Final = 100
"""Of so many runs, one is looked for in the store of traces."""

_LETTERS: Final = " ".join(random.Random(1).choices([f"{number:x}" for number in range(4096, 65536)], k=100_000))


def text(size: int, number: int) -> str:
    """Return a text of so many characters, which compresses about as text does; that of each number is another one."""
    start = number * 7919 % (len(_LETTERS) - size)
    return _LETTERS[start : start + size]


class Hub:
    """A hub that answers at once, and keeps nothing."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Return the tools."""
        return self._tools


class QuickModel:
    """A model that calls another tool in each iteration, then answers; the first word says which."""

    name = "quick"
    provider_name = "pellucid.bench"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the next call, or the answer."""
        await anyio.sleep(LATENCY)
        number = sum(message.role == "tool" for message in request.messages)
        usage = Usage(input_tokens=1500 + 400 * number, output_tokens=60)
        run = int(request.messages[0].text.split()[0])
        if number == CALLS:
            return ModelResponse(message=Message("assistant", text(1500, run)), usage=usage)
        name = f"hub{(run + number) % HUBS}_tool{(run // HUBS + number) % TOOLS}"
        call = ToolCall(name, {"question": text(200, run + number)}, f"c{number}")
        return ModelResponse(message=Message("assistant", [call]), usage=usage, finish_reason="tool_call")

    def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        """Fail: no run of this benchmark streams."""
        raise NotImplementedError


async def look(arguments: Any, ctx: ToolContext) -> str:
    """Return a result of 1.5 kB."""
    return text(1500, int(ctx.run_id[:8], 16))


def agent(telemetry: Telemetry | None) -> Agent:
    """Return the agent of all runs."""
    schema = {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}
    providers = [
        DiscoveryProvider(
            Hub(
                [
                    Tool(name=f"hub{hub}_tool{tool}", run=look, description=text(200, tool), input_schema=schema)
                    for tool in range(TOOLS)
                ]
            ),
            id=f"hub-{hub}",
            ttl=300,
            objective=0.5,
        )
        for hub in range(HUBS)
    ]
    return Agent("desk", model=QuickModel(), providers=providers, telemetry=telemetry)


async def submit(desk: Agent, first: int, runs: int, rate: float) -> dict[str, Any]:
    """Make so many runs, and return how many completed, how long they took, and the traces to look for."""
    seconds: list[float] = []
    traces: list[str] = []

    async def run(number: int) -> None:
        began = time.monotonic()
        result = await desk.run(f"{number} {text(1500, number)}")
        if result.status == "completed":
            seconds.append(time.monotonic() - began)
        if number % LOOKED_AT == 0:
            traces.append(result.trace_id)

    started = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for place in range(runs):
            await anyio.sleep(max(0.0, started + place / rate - time.monotonic()))
            tasks.start_soon(run, first + place)
    ended = time.monotonic()
    slowest = statistics.quantiles(seconds, n=100)[98] if len(seconds) > 1 else 0.0
    return {"completed": len(seconds), "seconds": ended - started, "p99": slowest, "traces": traces}


async def serve(telemetry: Telemetry | None) -> None:
    """Obey the lines of standard input."""
    desk = agent(telemetry)
    while line := await anyio.to_thread.run_sync(sys.stdin.readline):
        first, runs, rate = line.split()
        print(json.dumps(await submit(desk, int(first), int(runs), float(rate))), flush=True)


def main(what: str, endpoint: str = "") -> None:
    """Be a process of the fleet."""
    telemetry = None
    if what != "none":
        otlp = Otlp(endpoint=endpoint, metrics=False) if what == "all" else None
        telemetry = configure("fleet", prometheus=Prometheus(port=0, classic=False), otlp=otlp)
    print(telemetry.prometheus_url if telemetry else "", flush=True)
    anyio.run(serve, telemetry)
    if telemetry is not None:
        telemetry.shutdown(30.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
