"""Processor time of the event loop's thread by groups of modules, sampled while a variant runs."""

from __future__ import annotations

import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from types import FrameType

    from bench.iteration import Variant

RUNS = 300
INTERVAL = 0.0005
"""Seconds of processor time between two samples."""

ITERATIONS = 21

GROUPS = {
    "spans": ("pellucid_exporters/recorder/spans", "opentelemetry/sdk/trace", "opentelemetry/attributes"),
    "measurements": ("pellucid_exporters/recorder/metrics", "opentelemetry/sdk/metrics", "pellucid/run/token_metrics"),
    "OpenTelemetry API: context, ids": ("opentelemetry/",),
    "queues of exporters": ("pellucid_exporters/otlp", "opentelemetry/sdk/_shared_internal"),
    "content: masking, JSON, digests": (
        "pellucid/telemetry/recording",
        "pellucid/telemetry/sanitize",
        "pellucid/telemetry/secrets",
        "pellucid/telemetry/capture",
    ),
    "log lines": ("pellucid/telemetry/log_lines", "structlog/"),
    "events": ("pellucid/events", "pellucid/telemetry/listeners"),
    "boundaries": ("pellucid/telemetry/",),
    "discovery and catalogue": ("pellucid/run/discovery", "pellucid/providers", "pellucid/tools/catalog"),
    "arguments: checks, conversion": ("pellucid/run/calls/call", "pellucid/tools/", "jsonschema", "pydantic"),
    "timeouts and tasks": ("pellucid/concurrency", "anyio/"),
    "the model of the benchmark": ("bench/",),
    "loop": ("pellucid/",),
    "asyncio, and threads that export": ("asyncio/", "selectors"),
}
"""Groups, and the modules of each; the innermost frame decides, and the first group that has its module."""


def profile(name: str, variant: Variant) -> None:
    """Print the processor time of one iteration by groups."""
    samples: Counter[str] = Counter()

    def sample(_signal: int, frame: FrameType | None) -> None:
        samples[_group_of(frame)] += 1

    async def run() -> float:
        for _ in range(5):
            await variant.run()
        variant.flush()
        replaced = signal.signal(signal.SIGPROF, sample)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)
        try:
            began = time.thread_time()
            for _ in range(RUNS):
                await variant.run()
            return time.thread_time() - began
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, replaced)

    spent = anyio.run(run) / (RUNS * ITERATIONS) * 1e6
    print(f"{name}: {spent:.0f} µs of the loop's thread, {samples.total()} samples")
    for group, count in samples.most_common():
        print(f"{spent * count / samples.total():8.0f}  {group}")


def _group_of(frame: FrameType | None) -> str:
    """Return the group of the innermost frame that belongs to one."""
    while frame is not None:
        file = frame.f_code.co_filename
        for group, modules in GROUPS.items():
            if any(f"/{module}" in file for module in modules):
                return group
        frame = frame.f_back
    return "other"
