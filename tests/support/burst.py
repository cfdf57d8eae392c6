"""Two hundred runs at once that wait for their model, as real ones do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio

from pellucid import Agent, Limits, ModelRequest, ToolCall, tool
from pellucid.testing import FunctionModel

if TYPE_CHECKING:
    from pellucid.telemetry.pipeline import Pipeline

RUNS = 100
ITERATIONS = 30
WAIT = 0.45
"""Seconds that the model takes for each answer: a run lasts about 14 s."""


@tool
async def look_up(word: str) -> str:
    """Look a word up."""
    return word * 20


async def burst(telemetry: Pipeline) -> list[float]:
    """Run all, and return how long each took, in seconds. A run that fails is raised."""

    async def answer(request: ModelRequest) -> Any:
        await anyio.sleep(WAIT)
        done = sum(message.role == "assistant" for message in request.messages)
        return ToolCall("look_up", {"word": f"word {done}"}) if done < ITERATIONS - 1 else "done"

    agent = Agent(
        "burst",
        model=FunctionModel(answer),
        tools=[look_up],
        telemetry=telemetry,
        limits=Limits(max_iterations=ITERATIONS),
    )
    taken: list[float] = []

    async def one() -> None:
        began = time.perf_counter()
        result = await agent.run("go")
        assert result.output == "done"
        taken.append(time.perf_counter() - began)

    async with anyio.create_task_group() as tasks:
        for _ in range(RUNS):
            tasks.start_soon(one)
    return taken
