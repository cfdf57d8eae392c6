"""Waits that users notice first: the import, making an agent, the first run, and the chunks of a stream.

Run it with `make bench WHAT=first`. Every sample is a process of its own; medians of processor time, so that a busy
machine adds little. Only the ratios carry over to another machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

CHUNKS: Final = 4_000
SIZES: Final = (10, 1_000, 10_000)

STATEMENTS: Final = ("import pellucid", "from pellucid import Agent, tool")

LOADED: Final = """
import json, sys
before = set(sys.modules)
exec(sys.argv[1])
print(json.dumps([name for name in sys.modules if name not in before and not name.startswith("pellucid")]))
"""

EXECUTE: Final = """
import json, sys, time
began = time.process_time()
exec(sys.argv[1])
print(json.dumps((time.process_time() - began) * 1e3))
"""

IMPORT: Final = """
import importlib, json, sys, time
names = json.loads(sys.argv[1])
began = time.process_time()
for name in names:
    try:
        importlib.import_module(name)
    except ImportError:  # made by another module, as os.path is
        pass
print(json.dumps((time.process_time() - began) * 1e3))
"""


def answer_of(*arguments: str) -> Any:
    """Return what a Python process printed as JSON."""
    command = [sys.executable, *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def imports(samples: int) -> Iterator[tuple[str, float]]:
    """Yield the processor time of each import, of what it loads of other packages, and their ratio."""
    for statement in STATEMENTS:
        dependencies = json.dumps(answer_of("-c", LOADED, statement))
        own, others = [], []
        for _ in range(samples):
            own.append(answer_of("-c", EXECUTE, statement))
            others.append(answer_of("-c", IMPORT, dependencies))
        yield f"{statement}, ms", statistics.median(own)
        yield "the modules of others that it loads, ms", statistics.median(others)
        yield "ratio", statistics.median(mine / theirs for mine, theirs in zip(own, others, strict=True))


def beginning() -> dict[str, float]:
    """Import, make an agent of one function, and run it: all that a program does until it has its first answer."""
    began = time.process_time()
    from pellucid import Agent, Message, ModelRequest, ModelResponse, ToolCall, Usage, tool

    imported = time.process_time()

    @tool
    async def search(query: str, limit: int = 10) -> str:
        """Search for a thing."""
        return "ok"

    class Scripted:
        name = "scripted"
        provider_name = "test"

        async def generate(self, request: ModelRequest) -> ModelResponse:
            call = ToolCall("search", {"query": "x"}, "c")
            message = Message("assistant", (call,) if len(request.messages) == 1 else "done")
            return ModelResponse(message=message, usage=Usage())

        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            yield await self.generate(request)

    agent = Agent("first", model=Scripted(), tools=[search])
    made = time.process_time()
    result = asyncio.run(agent.run("go"))
    ended = time.process_time()
    assert result.output == "done"
    steps = {"import": imported - began, "agent": made - imported, "run": ended - made, "sum": ended - began}
    return {step: taken * 1e3 for step, taken in steps.items()}


def observed_steps() -> Callable[[], float]:
    """Measure each step of the event loop from now on; the returned function returns the longest one, in ms."""
    durations = [0.0]
    run = asyncio.Handle._run

    def measured(self: asyncio.Handle) -> None:
        began = time.thread_time()
        run(self)
        durations.append((time.thread_time() - began) * 1e3)

    asyncio.Handle._run = measured  # type: ignore[method-assign]
    return lambda: max(durations)


@contextmanager
def telemetry_of(*, exports: bool) -> Iterator[Any]:
    """Yield the telemetry of an agent: none, or what `configure(otlp=...)` makes."""
    from bench.sink import sink
    from pellucid import TelemetryOptions
    from pellucid_exporters import configure
    from pellucid_exporters.options import Otlp

    if not exports:
        yield TelemetryOptions()
        return
    with sink() as endpoint:
        telemetry = configure("bench", otlp=Otlp(endpoint=endpoint), set_global=False)
        try:
            yield telemetry
        finally:
            telemetry.shutdown(30.0)


def functions(size: int) -> list[Callable[..., Any]]:
    """Return functions with parameters and a docstring of a usual size."""

    def create(number: int) -> Callable[..., Any]:
        async def search(query: str, limit: int = 10, tags: list[str] | None = None) -> str:
            """Search for a thing, carefully.

            Args:
                query: What to search for, in a few words.
                limit: Maximum number of things.
                tags: Tags that a thing must have.
            """
            return "ok"

        search.__name__ = f"tool_{number}"
        return search

    return [create(number) for number in range(size)]


def first_run(size: int, kind: str, *, exports: bool) -> dict[str, float]:
    """Make an agent of so many tools of a kind, and run it; return the time to make it, and the longest step."""
    from bench.iteration import catalogue
    from pellucid import Agent, DiscoveryProvider, ToolCall, ToolRegistry
    from pellucid.testing import FakeHub, ScriptedModel

    tools: list[Any] = functions(size) if kind == "functions" else catalogue(size)
    call = ToolCall("tool_search", {"query": "do the 7th thing"}) if kind == "lazy" else ToolCall("tool_1", {"a": "x"})
    with telemetry_of(exports=exports) as telemetry:
        began = time.process_time()
        agent = Agent(
            "first",
            model=ScriptedModel(call, "done"),
            tools=tools if kind in ("own", "functions") else (),
            providers=[DiscoveryProvider(FakeHub(tools), id="hub")]
            if kind == "hub"
            else [ToolRegistry(tools, registry_mode="lazy")]
            if kind == "lazy"
            else [],
            telemetry=telemetry,
        )
        made = (time.process_time() - began) * 1e3
        longest = observed_steps()
        asyncio.run(agent.run("go"))  # not anyio.run, which loads the backend before the loop starts
        return {"made": made, "step": longest()}


def streaming(*, exports: bool) -> dict[str, float]:
    """Return the time of one chunk of a stream that is read, in µs; without Pellucid as well."""
    from pellucid import Agent, Message, ModelDelta, ModelRequest, ModelResponse, Usage
    from pellucid.testing import FunctionModel

    async def pieces(request: ModelRequest) -> AsyncIterator[Any]:
        for _ in range(CHUNKS):
            yield ModelDelta("text", "a word ")
        yield ModelResponse(message=Message("assistant", "done"), usage=Usage())

    async def bare() -> None:
        async for _ in pieces(ModelRequest(messages=())):
            pass

    async def observed(agent: Agent) -> None:
        async with agent.stream("go") as events:
            async for _ in events:
                pass

    async def measured(read: Callable[[], Any]) -> float:
        taken = []
        for _ in range(6):
            gc.collect()
            began = time.thread_time()
            await read()
            taken.append((time.thread_time() - began) / CHUNKS * 1e6)
        return statistics.median(taken[1:])

    with telemetry_of(exports=exports) as telemetry:
        agent = Agent("streams", model=FunctionModel(pieces), telemetry=telemetry)
        return {"bare": asyncio.run(measured(bare)), "chunk": asyncio.run(measured(partial(observed, agent)))}


def cases() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the name of each measurement, the call that makes it, and what to show of its answer."""
    yield "beginning", "beginning()", {step: f"{step}, ms" for step in ("import", "agent", "run", "sum")}
    for kind in ("own", "functions"):
        for size in SIZES:
            yield f"agent of {size} {kind}", f"first_run({size}, {kind!r}, exports=False)", {"made": "made, ms"}
    for kind in ("own", "hub", "lazy"):
        for size in SIZES:
            for exports in (False, True):
                name = f"first run, {size} {kind} tools, {'configure(otlp=...)' if exports else 'no SDK'}"
                yield name, f"first_run({size}, {kind!r}, exports={exports})", {"step": "longest step, ms"}
    for exports in (False, True):
        name = f"stream, {'configure(otlp=...)' if exports else 'no SDK'}"
        yield name, f"streaming(exports={exports})", {"bare": "chunk of a bare loop, µs", "chunk": "chunk, µs"}


def main() -> None:
    """Measure and print; with `--one`, one measurement of this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--only", default="", help="measure what has this in its name")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(eval(options.one)))
        return
    print(f"Processor time, medians of {options.samples}; Python {platform.python_version()}\n")
    if options.only in "import":
        for name, value in imports(options.samples):
            print(f"{name:62} {value:9.2f}")
    for name, call, shown in cases():
        if options.only in name:
            found = [answer_of("-m", "bench.first_moments", "--one", call) for _ in range(options.samples)]
            for key, unit in shown.items():
                print(f"{name + ': ' + unit:62} {statistics.median(each[key] for each in found):9.2f}")


if __name__ == "__main__":
    main()
