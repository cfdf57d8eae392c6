"""`/metrics` is scraped while many runs are under way."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from pellucid import Agent, DiscoveryProvider, Tool, ToolCall
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.options import Prometheus
from support.metrics_proto import PROTOBUF, decode, native_buckets
from support.openmetrics import OPENMETRICS, fetch_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import Metric

    from pellucid_exporters.telemetry import Telemetry

RUNS = 200
HISTOGRAMS = {
    "gen_ai_invoke_agent_duration_seconds": "invoke_agent",
    "pellucid_tool_discovery_duration_seconds": "discover_tools",
    "gen_ai_execute_tool_duration_seconds": "execute_tool",
    "gen_ai_client_operation_duration_seconds": "chat",
}


def counts_in_text(families: Iterable[Metric]) -> dict[str, float]:
    """Return how many measurements each histogram counts; its buckets must agree with its count."""
    found: dict[str, float] = {}
    for family in families:
        counted = last = 0.0
        for sample in family.samples:
            if sample.name == f"{family.name}_count":
                counted += sample.value
            elif sample.labels.get("le") == "+Inf":
                last += sample.value
        if family.name in HISTOGRAMS:
            assert counted == last
            found[family.name] = counted
    return found


def counts_in_protobuf(body: bytes) -> dict[str, float]:
    """Return the same from protobuf; native buckets agree with the count, and no classic one is ahead of it."""
    found: dict[str, float] = {}
    for name, family in decode(body).items():
        if name in HISTOGRAMS:
            histograms = [metric.histogram for metric in family.metric]
            for each in histograms:
                assert sum(native_buckets(each).values()) + each.zero_count == each.sample_count
                cumulative = [bucket.cumulative_count for bucket in each.bucket]
                assert cumulative == sorted(cumulative)
                assert cumulative[-1] <= each.sample_count
            found[name] = sum(each.sample_count for each in histograms)
    return found


def read(url: str, accept: str) -> dict[str, float]:
    """Scrape once; the answer must be complete."""
    body = fetch_bytes(url, accept)
    if accept == PROTOBUF:
        return counts_in_protobuf(body)
    if accept == OPENMETRICS:
        return counts_in_text(parse_openmetrics(body.decode()))  # type: ignore[no-untyped-call]  # no types
    return counts_in_text(parse_text(body.decode()))


class Scraper(threading.Thread):
    """Scrapes again and again until told to stop. Attributes: answers: what was read; faults: what went wrong."""

    def __init__(self, url: str, accept: str) -> None:
        super().__init__(daemon=True)
        self.answers: list[dict[str, float]] = []
        self.faults: list[BaseException] = []
        self.done = threading.Event()
        self._url = url
        self._accept = accept

    def run(self) -> None:
        """Scrape."""
        while not self.done.is_set() or not self.answers:
            try:
                self.answers.append(read(self._url, self._accept))
            except BaseException as error:  # noqa: BLE001  (belongs to the test)
                self.faults.append(error)
                return


@pytest.mark.anyio
async def test_scrapes_during_many_runs() -> None:
    """Each scrape in each format is whole, counts never fall, and in the end they are those of the spans."""
    telemetry = configure("shop", prometheus=Prometheus(port=0), set_global=False)
    spans = InMemorySpanExporter()
    telemetry.tracer_provider.add_span_processor(SimpleSpanProcessor(spans))
    url = telemetry.prometheus_url
    assert url is not None
    scrapers = [Scraper(url, accept) for accept in (PROTOBUF, OPENMETRICS, "text/plain") for _ in range(2)]
    try:
        for scraper in scrapers:
            scraper.start()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for _ in range(RUNS):
                    tasks.start_soon(run_agent, telemetry)
            for scraper in scrapers:
                scraper.done.set()
                await anyio.to_thread.run_sync(scraper.join)
        for scraper in scrapers:
            assert scraper.faults == []
            for earlier, later in zip(scraper.answers, scraper.answers[1:], strict=False):
                assert all(later[name] >= count for name, count in earlier.items())
        names = [span.name.split(" ")[0] for span in spans.get_finished_spans()]
        expected = {histogram: names.count(name) for histogram, name in HISTOGRAMS.items()}
        assert expected["gen_ai_invoke_agent_duration_seconds"] == RUNS
        for accept in (PROTOBUF, OPENMETRICS, "text/plain"):
            assert await anyio.to_thread.run_sync(read, url, accept) == expected
    finally:
        telemetry.shutdown()


async def run_agent(telemetry: Telemetry) -> None:
    """Run an agent that calls a tool of a hub."""

    async def search(arguments: dict[str, Any], ctx: object) -> str:
        await anyio.sleep(0.002)
        return "nothing"

    provider = DiscoveryProvider(FakeHub([Tool(name="search", run=search)], latency=0.005), id="hub")
    model = ScriptedModel(ToolCall("search", {}), "done")
    await Agent("main", model=model, providers=[provider], telemetry=telemetry).run("go")
    await provider.aclose()
