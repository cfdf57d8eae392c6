"""Checks of the hubs of one framework: `python program.py EXAMPLE` prints the results as JSON, or fails.

It runs below every Python that a framework is tried with.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import runpy
import sys
import threading
import time
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pellucid import semconv
from pellucid_instrumentation import Hubs, ObservedHub, instrument, uninstrument

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.http_hub import HttpHub, http_hub

WITHIN = 60
PATTERNS: Hubs = {"*127.0.0.1*": "catalogue", "*mcp_server_time*": "clock", "*": ObservedHub(objective=0.5)}


class Telemetry:
    """Spans and measurements of the process, kept in memory."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        trace.set_tracer_provider(tracers)
        self._reader = InMemoryMetricReader()
        self._data: Any = None
        metrics.set_meter_provider(MeterProvider([self._reader]))

    def collect(self) -> None:
        """Read all metrics. The SDK returns each exemplar once."""
        self._data = self._reader.get_metrics_data()

    def take_spans(self) -> list[ReadableSpan]:
        """Return the spans since the last call."""
        spans = list(self._spans.get_finished_spans())
        self._spans.clear()
        return spans

    def points(self, metric: semconv.Metric, hub: str = "catalogue") -> list[Any]:
        """Return the points of a metric for a hub."""
        found = [
            point
            for resource in (self._data.resource_metrics if self._data is not None else ())
            for scope in resource.scope_metrics
            for one in scope.metrics
            if one.name == metric.name
            for point in one.data.data_points
        ]
        return [point for point in found if point.attributes.get(semconv.PROVIDER_ID) == hub]

    def count(self, metric: semconv.Metric) -> int:
        """Return the number of measurements for the hub over HTTP."""
        return sum(point.count for point in self.points(metric))

    def value(self, metric: semconv.Metric) -> float:
        """Return the value of a gauge or counter, 0 without one."""
        return max((point.value for point in self.points(metric)), default=0.0)


def ask(example: str, url: str) -> None:
    """Run the agent of an example once."""
    done = runpy.run_path(example)["main"](url)
    if inspect.iscoroutine(done):
        asyncio.run(done)


def check(telemetry: Telemetry, hub: HttpHub, example: str) -> dict[str, Any]:
    """Compare one run with the requests that the server received."""
    hub.requests.clear()
    before = {metric.name: telemetry.count(metric) for metric in (semconv.MCP_CONNECT_DURATION, semconv.TOOL_DURATION)}
    ask(example, hub.url)
    telemetry.collect()
    spans, requests = telemetry.take_spans(), Counter(hub.requests)
    listings = [span for span in of_hub(spans) if span.name == "discover_tools catalogue"]
    calls = [span for span in of_hub(spans) if span.name != "discover_tools catalogue"]
    assert len(listings) == requests["tools/list"], (len(listings), requests)
    assert len(calls) == requests["tools/call"] == 1, ([span.name for span in calls], requests)
    assert sum(span.name == "execute_tool search" for span in spans) <= 1, [span.name for span in spans]
    connects = telemetry.count(semconv.MCP_CONNECT_DURATION) - before[semconv.MCP_CONNECT_DURATION.name]
    assert connects == requests["initialize"], (connects, requests)
    assert telemetry.count(semconv.TOOL_DURATION) - before[semconv.TOOL_DURATION.name] == 1
    ids = {span.context.span_id for span in spans}
    for metric in (semconv.DISCOVERY_DURATION, semconv.TOOL_DURATION):
        exemplars = [exemplar for point in telemetry.points(metric) for exemplar in point.exemplars]
        assert exemplars, metric.name
        assert ids & {exemplar.span_id for exemplar in exemplars}, metric.name
    roots = {span.context.trace_id for span in spans if "rooms" in span.name}
    return {
        "discover_tools": len(listings),
        "in the trace of the run": sum(span.context.trace_id in roots for span in listings),
        "connects": connects,
        "span of the call": calls[0].name,
        "spans": sorted({span.name for span in spans}),
    }


def of_hub(spans: list[ReadableSpan]) -> list[ReadableSpan]:
    """Return the spans with the id of the hub over HTTP."""
    return [span for span in spans if (span.attributes or {}).get(semconv.PROVIDER_ID) == "catalogue"]


def check_hanging(telemetry: Telemetry, hub: HttpHub, example: str) -> float:
    """Let the hub hang until its age is seen, and return the age."""
    hub.delays["tools/list"] = WITHIN
    runner = threading.Thread(target=ask, args=(example, hub.url), daemon=True)
    runner.start()
    deadline = time.monotonic() + WITHIN
    while (age := telemetry.value(semconv.DISCOVERY_INFLIGHT_AGE)) < 0.2:
        assert time.monotonic() < deadline, "no age was seen"
        time.sleep(0.05)
        telemetry.collect()
    assert not of_hub(telemetry.take_spans())
    hub.delays.clear()
    hub.released.set()
    runner.join(WITHIN)
    telemetry.take_spans()
    return age


def state() -> Any:
    """Return what instrumenting changes in the MCP SDK."""
    from mcp import ClientSession
    from mcp.client import stdio, streamable_http

    functions: Any = (stdio.stdio_client, streamable_http.streamable_http_client)
    return dict(vars(ClientSession)), [function.__closure__[0].cell_contents for function in functions]


def refuse(_endpoint: object) -> Any:
    """Raise, as a hook of an application may."""
    raise ZeroDivisionError


def main() -> None:
    """Run all checks."""
    example = sys.argv[1]
    telemetry = Telemetry()
    logging.getLogger("pellucid").setLevel(logging.CRITICAL)
    found: dict[str, Any] = {
        "versions": {name: version for name in sys.argv[2:] if (version := _version(name)) is not None}
    }
    with http_hub() as hub:
        assert "mcp" not in sys.modules
        instrument(PATTERNS)  # before the framework is imported
        found["after"] = check(telemetry, hub, example)
        uninstrument()
        before = state()
        ask(example, hub.url)
        spans = telemetry.take_spans()
        assert not of_hub(spans)
        found["before"] = {"spans": sorted({span.name for span in spans})}
        instrument(PATTERNS)  # after it was imported
        check(telemetry, hub, example)
        found["age"] = round(check_hanging(telemetry, hub, example), 2)
        uninstrument()
        assert state() == before
        instrument(refuse)
        hub.requests.clear()
        ask(example, hub.url)
        assert Counter(hub.requests)["tools/call"] == 1
        uninstrument()
    print(json.dumps(found))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
