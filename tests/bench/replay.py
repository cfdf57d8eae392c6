"""Times of a replay: milliseconds for an iteration, and its duration with the recorded timing.

Run it with `make bench WHAT=replay`. Runs are recorded in a local store: a model asks for a tool in each iteration;
hub, model and tool take their time; there are catalogues of some sizes. Targets: at most 5 ms for an iteration without
waiting, and a duration within 10 % of the recorded one with `timing=1`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from pellucid import Agent, DiscoveryProvider, Limits, Message, ModelRequest, ModelResponse, Tool, ToolCall, Usage
from pellucid.testing import FakeHub, FunctionModel
from pellucid_exporters import configure
from pellucid_exporters.options import resolve_local
from pellucid_replay import Tape, replay

ITERATIONS = 20
SIZES = (10, 100, 1000)
WAITS = {"model": 0.05, "tool": 0.02, "hub": 0.03}
"""Seconds."""

TARGET = 5.0
"""Milliseconds for an iteration."""

TOLERANCE = 0.1


async def look_up(arguments: dict[str, Any], ctx: object) -> str:
    """Take as long as a tool."""
    await anyio.sleep(WAITS["tool"])
    return f"result of {arguments['a']}, " * 20


async def answer(request: ModelRequest) -> ModelResponse:
    """Ask for a tool, twenty times, and then answer."""
    await anyio.sleep(WAITS["model"])
    number = len(request.messages)
    usage = Usage(input_tokens=100 * number, output_tokens=10)
    if number >= 2 * ITERATIONS - 1:
        return ModelResponse(message=Message("assistant", "done"), usage=usage)
    call = ToolCall("tool_1", {"a": f"x{number}"}, f"call_{number}")
    return ModelResponse(message=Message("assistant", [call]), usage=usage, finish_reason="tool_call")


def agent_of(size: int, telemetry: Any) -> Agent:
    """Return an agent whose hub lists so many tools, anew for each iteration."""
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in ("a", "b", "c")}}
    tools = [
        Tool(name=f"tool_{n}", description=f"Do the {n}th thing, carefully. " * 4, input_schema=schema, run=look_up)
        for n in range(size)
    ]
    hub = DiscoveryProvider(FakeHub(tools, latency=WAITS["hub"]), id="hub", ttl=0)
    limits = Limits(max_iterations=ITERATIONS + 1)
    return Agent("bench", model=FunctionModel(answer), providers=[hub], limits=limits, telemetry=telemetry)


async def measure(size: int, repeats: int, path: Path) -> bool:
    """Record a run, replay it, print the figures, and return whether they are within the targets."""
    telemetry = configure("bench", local=resolve_local(path), set_global=False)
    agent = agent_of(size, telemetry)
    recorded = await agent.run("go")
    assert recorded.iterations == ITERATIONS
    telemetry.shutdown()
    twin = agent_of(size, None)
    started = time.perf_counter()
    tape = Tape.load(path, recorded.run_id)
    loaded = time.perf_counter() - started
    samples = []
    for _ in range(repeats):
        started = time.perf_counter()
        (await replay(twin, tape)).check()
        samples.append((time.perf_counter() - started) * 1000 / ITERATIONS)
    started = time.perf_counter()
    (await replay(twin, tape, timing=1)).check()
    timed, duration = time.perf_counter() - started, tape.spans[0].seconds
    each = statistics.median(samples)
    print(
        f"{size:>5} tools: {each:6.2f} ms an iteration, {loaded * 1000:6.1f} ms to load; "
        f"recorded {duration:.3f} s, with its timing {timed:.3f} s ({timed / duration - 1:+.1%})"
    )
    return each <= TARGET and abs(timed / duration - 1) <= TOLERANCE


def main() -> None:
    """Measure each size, and exit with 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20, help="replays of each size (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        met = [anyio.run(measure, size, options.repeats, Path(folder, f"{size}.db")) for size in SIZES]
    raise SystemExit(0 if all(met) else "a target was missed: 5 ms for an iteration, 10 % of the recorded duration")


if __name__ == "__main__":
    main()
