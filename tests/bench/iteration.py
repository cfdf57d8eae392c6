"""Costs of telemetry for users: the processor time of one iteration, beside the same spans and histograms by hand.

Run it with `make bench`, or `make bench ARGS=profile` for the share of each part. Every variant drives the same work: a
model that asks for one trivial async tool, twenty times, and then answers; each answer is a new message with usage.
Variants that export send OTLP to a process of its own. Each sample is as many runs as fill a batch of spans, and a
flush; variants take turns, so that a busy machine slows all of them; medians are compared. Only the ratios carry over
to another machine.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, get_args

import anyio
import anyio.lowlevel
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from bench.by_hand import ByHand
from bench.lightly_by_hand import LightlyByHand
from bench.profiles import profile
from bench.sink import sink
from pellucid import (
    Agent,
    CapturePolicy,
    DiscoveryProvider,
    Limits,
    Message,
    ModelRequest,
    ModelResponse,
    TelemetryOptions,
    Tool,
    ToolCall,
    Usage,
    static_tools,
)
from pellucid.telemetry import Pipeline
from pellucid.telemetry.capture import CaptureMode
from pellucid.testing import FunctionModel
from pellucid_exporters import configure
from pellucid_exporters.options import Otlp

ITERATIONS = 20
RUNS = 6
"""Runs of a sample: they make 500 spans; exporters send 512 at a time."""

SIZES = (10, 100, 1000)
YARDSTICK = "by hand, with new content only"
"""Variant that records the same as Pellucid: content once, with digests and the same attributes."""
INTERVAL = 86_400.0
"""Seconds between exports of metrics: each flush makes one."""


@dataclass(frozen=True)
class Variant:
    """A way to do the work. Attributes: run: one run; flush: waits until what it recorded was sent."""

    run: Callable[[], Awaitable[None]]
    flush: Callable[[], object] = lambda: None


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

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Answer with a new message."""
        number = len(request.messages)
        usage = Usage(input_tokens=100 + number, output_tokens=10)
        if number >= 2 * ITERATIONS:
            return ModelResponse(message=Message("assistant", "done"), usage=usage)
        call = ToolCall("tool_1", {"a": f"x{number}"}, f"call_{number}")
        return ModelResponse(message=Message("assistant", [call]), usage=usage, finish_reason="tool_call")

    stream = FunctionModel.stream


class Hub:
    """A hub that answers in the next turn of the event loop."""

    def __init__(self, size: int) -> None:
        self.tools = catalogue(size)

    async def fetch_catalog(self, ctx: object) -> list[Tool]:
        """Return the tools."""
        await anyio.lowlevel.checkpoint()
        return self.tools


def ours(
    size: int, telemetry: Pipeline, flush: Callable[[], object] = lambda: None, *, asks_hub: bool = False
) -> Variant:
    """Return a run of Pellucid, whose tools are its own, or come from a hub that each iteration asks."""
    hub = DiscoveryProvider(Hub(size), id="hub", ttl=0.0, objective=5.0)
    agent = Agent(
        "bench",
        model=Answering(),
        providers=[hub if asks_hub else static_tools(catalogue(size))],
        telemetry=telemetry,
        limits=Limits(max_iterations=ITERATIONS + 1),
    )

    async def run() -> None:
        result = await agent.run("go")
        assert result.iterations == ITERATIONS + 1  # the last one answers

    return Variant(run, flush)


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


@contextmanager
def variants(endpoint: str) -> Iterator[dict[str, Variant]]:
    """Yield what is compared."""
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces"), max_queue_size=100_000))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{endpoint}/v1/metrics"), INTERVAL * 1000)
    meters = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    configured: list[Any] = []

    def by_hand(kind: type[ByHand] = ByHand, **options: bool) -> Variant:
        hand = kind(tracers, meters, Answering(), catalogue(10), noop, **options)
        return Variant(hand.run, lambda: (tracers.force_flush(), meters.force_flush()))

    def exporting(size: int, *, logs: bool = True, asks_hub: bool = False, **options: Any) -> Variant:
        otlp = Otlp(endpoint=endpoint, metric_interval=INTERVAL, logs=logs)
        telemetry = configure("bench", otlp=otlp, **options, set_global=False)
        configured.append(telemetry)
        return ours(size, telemetry, lambda: telemetry.flush(60.0), asks_hub=asks_hub)

    try:
        found = {
            YARDSTICK: by_hand(content=True, whole_history=False),
            "by hand, few attributes, no digests": by_hand(LightlyByHand, content=True, whole_history=False),
            "by hand, the whole history each time": by_hand(content=True),
            "by hand, without content": by_hand(content=False),
        }
        for size in SIZES:
            found[f"configure(otlp=...), {size} tools"] = exporting(size)
            found[f"without logs, {size} tools"] = exporting(size, logs=False)
        found["a request to a hub, 10 tools"] = exporting(10, asks_hub=True)
        for size in (SIZES[0], SIZES[-1]):
            found[f"recorder=sdk, {size} tools"] = exporting(size, recorder="sdk")
            found[f"recorder=sdk, without logs, {size} tools"] = exporting(size, recorder="sdk", logs=False)
        for mode in get_args(CaptureMode):
            policy = CapturePolicy(mode)
            found[f"without logs, capture={mode}, 10 tools"] = exporting(10, logs=False, capture=policy)
        unsampled = TelemetryOptions(tracer_provider=TracerProvider(sampler=ALWAYS_OFF), meter_provider=meters)
        found["not sampled, without logs, 10 tools"] = ours(10, unsampled, meters.force_flush)
        found["no telemetry configured, 10 tools"] = ours(10, TelemetryOptions())
        found["no telemetry configured, 1000 tools"] = ours(1000, TelemetryOptions())
        found["bare loop"] = Variant(bare_loop)
        yield found
    finally:
        for telemetry in configured:
            telemetry.shutdown(10.0)
        tracers.shutdown()
        meters.shutdown()


async def sample_of(variant: Variant) -> tuple[float, float]:
    """Return the processor times of one iteration in µs, of the loop's thread and of all threads."""
    gc.collect()  # what one variant leaves must not slow the garbage collection of the next
    everything, loop = time.process_time(), time.thread_time()
    for _ in range(RUNS):
        await variant.run()
    loop = time.thread_time() - loop
    variant.flush()
    everything = time.process_time() - everything
    iterations = RUNS * (ITERATIONS + 1)
    return loop / iterations * 1e6, everything / iterations * 1e6


async def measure(samples: int, compared: dict[str, Variant]) -> dict[str, tuple[float, float]]:
    """Return the median processor times of one iteration by variant, in µs: of the loop's thread, of all threads."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in compared}
    for sample in range(samples + 1):
        for name, variant in compared.items():
            times = await sample_of(variant)
            if sample:  # the first one only warms up
                taken[name].append(times)
    return {
        name: (statistics.median(loop for loop, _ in values), statistics.median(both for _, both in values))
        for name, values in taken.items()
    }


def show(found: dict[str, tuple[float, float]], samples: int) -> None:
    """Print the costs, and their ratios to the same telemetry by hand."""
    yardstick, bare = found[YARDSTICK], found["bare loop"]
    print(
        f"Processor time of one iteration in µs, medians of {samples} samples of {RUNS * (ITERATIONS + 1)}\n"
        f"Python {platform.python_version()}, opentelemetry-sdk {version('opentelemetry-sdk')}\n\n"
        f"{'':42} {'loop':>7} {'by hand':>8} {'all':>8} {'by hand':>8} {'bare loop':>10}\n"
        f"{'':42} {'thread':>7} {'= 1':>8} {'threads':>8} {'= 1':>8} {'= 1':>10}"
    )
    for name, (loop, everything) in found.items():
        print(
            f"{name:42} {loop:7.0f} {loop / yardstick[0]:8.2f} {everything:8.0f} {everything / yardstick[1]:8.2f}"
            f" {loop / bare[0]:10.1f}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["costs", "profile"], default="costs")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--only", default="", help="measure variants whose names contain this, and the yardsticks")
    options = parser.parse_args()
    with sink() as endpoint, variants(endpoint) as every:
        yardsticks = (YARDSTICK, "bare loop")
        compared = {name: variant for name, variant in every.items() if options.only in name or name in yardsticks}
        if options.what == "profile":
            for name in ("no telemetry configured, 10 tools", "configure(otlp=...), 10 tools"):
                profile(name, every[name])
        else:
            show(anyio.run(measure, options.samples, compared), options.samples)


if __name__ == "__main__":
    main()
