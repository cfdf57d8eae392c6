"""Costs of lazy tools: the index, a query, composing a request and an activation, by the number of tools."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio

from pellucid import Agent, Limits, ModelRequest, Tool, ToolCall, ToolRegistry
from pellucid.testing import FunctionModel
from pellucid.tools.search import SearchIndex
from pellucid_exporters.testing import Captured, capture

SIZES = (100, 1_000, 10_000)
QUERIES = 200
ITERATIONS = 20
WORDS = [
    f"{first}{second}" for first in ("ba", "ke", "li", "mo", "nu", "pa", "re", "so") for second in "bcdfghjklmnprstv"
]


async def noop(arguments: dict[str, Any], ctx: object) -> str:
    """Do nothing."""
    return "ok"


def catalogue(size: int) -> list[Tool]:
    """Return tools with names and descriptions of words, some of them common and most of them rare."""
    chance = random.Random(7)

    def some(count: int) -> list[str]:
        return [WORDS[min(int(chance.expovariate(0.05)), len(WORDS) - 1)] for _ in range(count)]

    schema = {"type": "object", "properties": {name: {"type": "string"} for name in ("a", "b", "c")}}
    return [
        Tool(name=f"{'_'.join(some(3))}_{n}", description=" ".join(some(25)), input_schema=schema, run=noop)
        for n in range(size)
    ]


def taken(work: Callable[[], object], times: int = 1) -> float:
    """Return the median time of some work, in milliseconds."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1e3)
    return statistics.median(found)


async def run(tools: list[Tool], *, activate: bool, budget: int | None = None) -> Captured:
    """Let an agent with a lazy registry run some iterations; in each it activates a tool, or does nothing new.

    With a budget for a few tools, each one that is activated takes the place of another.
    """
    names = iter([tool.name for tool in tools])

    def answer(request: ModelRequest) -> ToolCall | str:
        if not request.tools or len(request.messages) > 2 * ITERATIONS:
            return "done"
        return ToolCall("tool_search", {"name": next(names) if activate else tools[0].name})

    registry = ToolRegistry(tools, registry_mode="lazy")
    limits = Limits(max_iterations=ITERATIONS + 2, max_discoveries=ITERATIONS + 2, max_tool_tokens=budget)
    with capture(fixed=False) as telemetry:
        agent = Agent("bench", model=FunctionModel(answer), providers=[registry], limits=limits)
        await agent.run("go")
    return telemetry


def median_of(telemetry: Captured, name: str) -> float:
    """Return the median duration of the spans of a name, but for the first, in milliseconds."""
    return statistics.median(((span.end_time or 0) - (span.start_time or 0)) / 1e6 for span in telemetry.find(name)[1:])


def measure(size: int) -> tuple[float, ...]:
    """Return the medians for a number of tools."""
    tools = catalogue(size)
    index = SearchIndex(tools)
    chance = random.Random(1)
    same = anyio.run(partial(run, tools, activate=False))
    active = anyio.run(partial(run, tools, activate=True))
    bounded = anyio.run(partial(run, tools, activate=True, budget=sum(tool.tokens for tool in tools[:5])))
    return (
        taken(lambda: SearchIndex(tools)),
        taken(lambda: index.search(" ".join(chance.choices(WORDS, k=4)), 15), QUERIES),
        median_of(same, "compose_request"),
        median_of(active, "compose_request"),
        median_of(bounded, "compose_request"),
        median_of(active, "execute_tool"),
    )


def main() -> None:
    """Print a table."""
    print(f"\nmilliseconds, median; {QUERIES} queries of 4 words, {ITERATIONS} iterations")
    heads = ("tools", "index, once", "query", "compose", "and activated", "in a budget", "activate")
    print("{:>8} {:>12} {:>8} {:>8} {:>14} {:>12} {:>9}".format(*heads))
    for size in SIZES:
        print(f"{size:8,} {'{:12.1f} {:8.2f} {:8.2f} {:14.2f} {:12.2f} {:9.2f}'.format(*measure(size))}")


if __name__ == "__main__":
    main()
