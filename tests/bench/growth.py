"""Bytes and time of an iteration of a long run: flat, because content is recorded once.

Run it with `PYTHONPATH=tests python -m bench.growth`. One run calls a tool in each of 200 iterations, with 100 tools on
offer. Bytes are those of all attributes of the iteration's spans; times are those between the ends of iterations, in
processor time of the event loop's thread.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import anyio
from opentelemetry.sdk.trace import SpanProcessor

from bench.iteration import catalogue
from pellucid import Agent, Limits, Message, ModelRequest, ModelResponse, TelemetryOptions, ToolCall, semconv
from pellucid.testing import FunctionModel
from pellucid_exporters.recorder.providers import make_tracer_provider

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

ITERATIONS = 200
TOOLS = 100
BLOCK = 20


class Recorded(SpanProcessor):
    """Adds up what the spans of each iteration carry. Attributes: sizes: bytes by iteration."""

    def __init__(self) -> None:
        self.sizes: defaultdict[int, int] = defaultdict(int)

    def on_end(self, span: ReadableSpan) -> None:
        """Count the attributes of one span."""
        attributes = span.attributes or {}
        iteration = attributes.get(semconv.ITERATION)
        if isinstance(iteration, int):
            self.sizes[iteration] += sum(len(name) + len(str(value).encode()) for name, value in attributes.items())


class Asking:
    """A model that calls a tool each time until it is out of iterations.

    Attributes:
        asked: When it was, in seconds of processor time.
    """

    name = "asking"
    provider_name = "bench"

    def __init__(self, iterations: int) -> None:
        self._iterations = iterations
        self.asked: list[float] = []

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Answer."""
        self.asked.append(time.thread_time())
        if len(self.asked) < self._iterations:
            call = ToolCall("tool_1", {"a": f"x{len(self.asked):09}"}, f"call_{len(self.asked):09}")
            return ModelResponse(message=Message("assistant", [call]), finish_reason="tool_call")
        return ModelResponse(message=Message("assistant", "done"))

    stream = FunctionModel.stream


def blocks(values: list[float], size: int = BLOCK) -> list[float]:
    """Return the median of each block."""
    return [statistics.median(values[start : start + size]) for start in range(0, len(values), size)]


async def measure(iterations: int = ITERATIONS, tools: int = TOOLS) -> tuple[list[float], list[float]]:
    """Return the bytes and the microseconds of each iteration but the last, which only answers."""
    recorded = Recorded()
    tracers = make_tracer_provider(None, shutdown_on_exit=False)
    tracers.add_span_processor(recorded)
    model = Asking(iterations)
    limits = Limits(max_iterations=iterations)
    agent = Agent(
        "growth",
        model=model,
        tools=catalogue(tools),
        telemetry=TelemetryOptions(tracer_provider=tracers),
        limits=limits,
    )
    gc.collect()
    await agent.run("go")
    times = [(later - earlier) * 1e6 for earlier, later in zip(model.asked, model.asked[1:], strict=False)]
    return [float(recorded.sizes[n]) for n in range(1, iterations)], times


def main() -> None:
    """Print bytes and microseconds per iteration in blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--tools", type=int, default=TOOLS)
    given = parser.parse_args()
    sizes, times = anyio.run(measure, given.iterations, given.tools)
    print(f"{given.iterations} iterations, {given.tools} tools; medians of blocks of {BLOCK}\n")
    print(f"{'iterations':>12} {'bytes':>8} {'µs':>8}")
    for number, (size, taken) in enumerate(zip(blocks(sizes), blocks(times), strict=True)):
        print(f"{f'{number * BLOCK + 1}-{(number + 1) * BLOCK}':>12} {size:8.0f} {taken:8.0f}")
    tenth = len(times) // 10
    print(f"\nlast tenth to first tenth: {statistics.median(times[-tenth:]) / statistics.median(times[:tenth]):.2f}")


if __name__ == "__main__":
    main()
