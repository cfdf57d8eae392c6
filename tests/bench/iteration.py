"""What one iteration costs, compared with the same telemetry written by hand, in one process and interleaved.

Run it with `make bench`. Every variant drives the same work: a model that asks for one trivial async tool, twenty
times, and then answers. Each sample is one whole run; variants take turns, so that a busy machine slows all of them;
medians are compared. Only the ratios carry over to another machine.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Any, TextIO, get_args

import anyio
import structlog
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from bench.by_hand import ByHand
from pellucid import (
    Agent,
    CapturePolicy,
    Limits,
    Message,
    ModelRequest,
    ModelResponse,
    TelemetryOptions,
    Tool,
    ToolCall,
)
from pellucid.telemetry.capture import CaptureMode
from pellucid.testing import FunctionModel

ITERATIONS = 20
SIZES = (10, 100, 1000)
Variant = Callable[[], Awaitable[None]]


class NoExport(SpanExporter):
    """Takes spans and does nothing with them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


async def noop(arguments: dict[str, Any], ctx: object) -> str:
    """Do nothing."""
    return "ok"


def catalogue(size: int) -> list[Tool]:
    """Return tools with a description and a schema of a usual size."""
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "description": f"The {name} to use."} for name in ("a", "b", "c")},
    }
    return [
        Tool(name=f"tool_{n}", description=f"Do the {n}th thing, carefully. " * 4, input_schema=schema, run=noop)
        for n in range(size)
    ]


class Answering:
    """The scripted model: a tool call, twenty times, then a text. It keeps nothing, unlike the doubles for tests."""

    name = "scripted"
    provider_name = "bench"

    def __init__(self) -> None:
        self.call = ModelResponse(
            message=Message("assistant", [ToolCall("tool_1", {"a": "x"}, "call_1")]), finish_reason="tool_call"
        )
        self.done = ModelResponse(message=Message("assistant", "done"))

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Answer."""
        return self.call if len(request.messages) < 2 * ITERATIONS else self.done

    stream = FunctionModel.stream


def ours(size: int, telemetry: TelemetryOptions) -> Variant:
    """Return a run of Pellucid."""
    agent = Agent(
        "bench",
        model=Answering(),
        tools=catalogue(size),
        telemetry=telemetry,
        limits=Limits(max_iterations=ITERATIONS + 1),
    )

    async def run() -> None:
        result = await agent.run("go")
        assert result.iterations == ITERATIONS + 1  # the last one answers

    return run


async def bare_loop() -> None:
    """Do the same work without Pellucid and without telemetry."""
    model = Answering()
    tools: dict[str, Callable[..., Awaitable[str]]] = {"tool_1": noop}
    messages = [Message("user", "go")]
    while True:
        response = await model.generate(ModelRequest(messages=messages))
        messages.append(response.message)
        if not response.message.tool_calls:
            return
        for call in response.message.tool_calls:
            messages.append(Message("tool", await tools[call.name](call.arguments, None)))  # noqa: PERF401  (awaits)


def variants(tracers: TracerProvider) -> dict[str, tuple[Variant, bool]]:
    """Return what is compared, and whether structlog writes lines meanwhile."""
    meters = MeterProvider(metric_readers=[InMemoryMetricReader()])
    on = TelemetryOptions(tracer_provider=tracers, meter_provider=meters)
    found: dict[str, tuple[Variant, bool]] = {}
    for size in SIZES:
        by_hand = ByHand(tracers, meters, Answering(), catalogue(size), noop, content=True)
        found[f"by hand, with content, {size} tools"] = (by_hand.run, False)
        found[f"pellucid, spans, metrics, content and logs, {size} tools"] = (ours(size, on), True)
    common = (tracers, meters, Answering(), catalogue(10), noop)
    logging = ByHand(*common, content=True, logs=True)
    found["by hand, with content and logs, 10 tools"] = (logging.run, True)
    only_new = ByHand(*common, content=True, whole_history=False, logs=True)
    found["by hand, with new content only and logs, 10 tools"] = (only_new.run, True)
    found["by hand, without content, 10 tools"] = (ByHand(*common, content=False).run, False)
    for mode in get_args(CaptureMode):
        telemetry = TelemetryOptions(tracer_provider=tracers, meter_provider=meters, capture=CapturePolicy(mode))
        found[f"pellucid, capture={mode}, without logs, 10 tools"] = (ours(10, telemetry), False)
    sampled_out = TelemetryOptions(tracer_provider=TracerProvider(sampler=ALWAYS_OFF), meter_provider=meters)
    found["pellucid, sampled out, without logs, 10 tools"] = (ours(10, sampled_out), False)
    found["bare loop, no telemetry"] = (bare_loop, False)
    found["pellucid, no OpenTelemetry SDK installed, 10 tools"] = (ours(10, TelemetryOptions()), False)
    return found


def logging_to(stream: TextIO | None) -> None:
    """Have structlog write JSON lines to a stream, or leave it as an application that set up nothing has it."""
    structlog.reset_defaults()
    if stream is not None:
        structlog.configure(
            processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
            logger_factory=structlog.WriteLoggerFactory(stream),
        )


async def measure(samples: int, sink: TextIO) -> dict[str, float]:
    """Return the median processor time of one iteration by variant, in microseconds."""
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(NoExport(), max_queue_size=100_000))
    compared = variants(tracers)
    taken: dict[str, list[float]] = {name: [] for name in compared}
    for _ in range(samples + 1):
        for name, (run, logs) in compared.items():
            logging_to(sink if logs else None)
            # What one variant leaves in the queue must not slow the garbage collection of the next.
            tracers.force_flush()
            gc.collect()
            began = time.thread_time()
            await run()
            taken[name].append((time.thread_time() - began) / (ITERATIONS + 1) * 1e6)
    logging_to(None)
    return {name: statistics.median(values[1:]) for name, values in taken.items()}  # the first one only warms up


def main() -> None:
    """Print the costs and their ratios to the same telemetry by hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=40)
    samples = parser.parse_args().samples
    with open("/dev/null", "w", encoding="utf-8") as sink:  # noqa: PTH123  (a stream, not a path, is what is wanted)
        found = anyio.run(measure, samples, sink)
    yardstick = found["by hand, with content, 10 tools"]
    bare = found["bare loop, no telemetry"]
    print(
        f"one iteration, processor time of the loop's thread, median of {samples} interleaved samples of "
        f"{ITERATIONS + 1} iterations\n"
        f"Python {platform.python_version()}, opentelemetry-sdk {version('opentelemetry-sdk')}\n"
    )
    print(f"{'':58} {'µs':>8} {'of by hand':>11} {'of bare':>9}")
    for name, cost in found.items():
        print(f"{name:58} {cost:8.0f} {cost / yardstick:11.2f} {cost / bare:9.0f}")


if __name__ == "__main__":
    main()
