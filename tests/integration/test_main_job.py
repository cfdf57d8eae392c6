"""The main job: a real run on real hubs, traced, measured, logged and shown, as a collector and Prometheus see it."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, DiscoveryProvider, RunResult, Tool, ToolCall, semconv
from pellucid.mcp import MCPProvider
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.options import Otlp, Prometheus
from support.openmetrics import scrape, values
from support.otlp_receiver import attributes_of, otlp_receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid_exporters import Telemetry
    from support.otlp_receiver import Receiver

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

DISCOVERY = "pellucid_tool_discovery_duration_seconds"
CLIENT, INTERNAL = 3, 1


async def search(arguments: dict[str, Any], ctx: object) -> str:
    """Find nothing."""
    return "nothing"


@contextmanager
def observed(protocol: str) -> Iterator[tuple[Telemetry, Receiver]]:
    """A pipeline to a collector and to `/metrics`, without global state."""
    with otlp_receiver(protocol) as receiver:
        otlp = Otlp(endpoint=receiver.endpoint, protocol=protocol)  # type: ignore[arg-type]  # a parameter of the test
        telemetry = configure("main-job", otlp=otlp, prometheus=Prometheus(port=0), set_global=False)
        try:
            yield telemetry, receiver
        finally:
            telemetry.shutdown()


async def run_agent(telemetry: Telemetry) -> RunResult:
    """Run an agent on an MCP server in a process of its own and on a cached hub."""
    hub = FakeHub([Tool(name="search", run=search)], latency=0.03)
    tickets = DiscoveryProvider(hub, id="tickets", objective=0.01)
    async with MCPProvider.stdio(sys.executable, "-m", "mcp_server_time", id="time", objective=5.0) as clock:
        model = ScriptedModel(
            [ToolCall("get_current_time", {"timezone": "UTC"}), ToolCall("search", {"password": "hunter2"})],
            lambda request: f"It is {request.messages[-1].to_dict()}.",
        )
        agent = Agent("main", model=model, providers=[clock, tickets], telemetry=telemetry)
        return await agent.run("What time is it?")


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
async def test_a_collector_gets_the_whole_run(protocol: str) -> None:
    """Every phase arrives as one span with kind, parent and times right, with metrics and logs; no secret does."""
    with anyio.fail_after(60), observed(protocol) as (telemetry, receiver):
        result = await run_agent(telemetry)
        assert await anyio.to_thread.run_sync(telemetry.flush, 20)
        assert receiver.faults == []
        assert receiver.unresolved_parents() == []
        spans = receiver.spans
        assert Counter(span.name for span in spans) == {
            "invoke_agent main": 1,
            "discover_tools time": 2,
            "discover_tools tickets": 2,
            "compose_request": 2,
            "chat scripted": 2,
            "execute_tool get_current_time": 1,
            "execute_tool search": 1,
        }
        assert {span.trace_id.hex() for span in spans} == {result.trace_id}
        root = next(span for span in spans if span.name == "invoke_agent main")
        for span in spans:
            assert span.kind == (CLIENT if span.name.startswith("chat") else INTERNAL)
            assert span is root or span.parent_span_id == root.span_id
            assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= root.end_time_unix_nano
        names = {metric.name for metric in receiver.metrics}
        assert {semconv.DISCOVERY_DURATION.name, semconv.DISCOVERY_OBJECTIVE.name, semconv.TOOL_DURATION.name} <= names
        logged = Counter(attributes_of(record)["outcome"] for record in receiver.logs)
        assert logged == {"completed": len(spans)}
        assert {record.span_id for record in receiver.logs} == {span.span_id for span in spans}
        assert "hunter2" not in str(receiver.requests)


async def test_each_bucket_leads_to_the_discovery_that_fell_into_it() -> None:
    """`/metrics` has, for each hub, buckets with an exemplar whose trace holds a `discover_tools` span of that time."""
    with anyio.fail_after(60), observed("http/protobuf") as (telemetry, receiver):
        await run_agent(telemetry)
        families = await anyio.to_thread.run_sync(scrape, telemetry.prometheus_url)
        assert await anyio.to_thread.run_sync(telemetry.flush, 20)
        spans = {span.span_id.hex(): span for span in receiver.spans}
        bounds = semconv.DISCOVERY_DURATION.buckets
        seen = Counter[str]()
        for sample in families[DISCOVERY].samples:
            if sample.exemplar is None:
                continue
            span = spans[sample.exemplar.labels["span_id"]]
            hub = sample.labels["pellucid_provider_id"]
            seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
            assert span.trace_id.hex() == sample.exemplar.labels["trace_id"]
            assert span.name == f"discover_tools {hub}"
            assert sample.exemplar.value == pytest.approx(seconds, abs=1e-9)
            upper = [*bounds, math.inf][bisect_left(bounds, seconds)]
            assert float(sample.labels["le"]) == upper
            seen[hub] += 1
        assert seen.keys() == {"time", "tickets"}
        objectives = values(families["pellucid_tool_discovery_objective_seconds"])
        assert sorted(objectives.values()) == [0.01, 5.0]


async def test_a_hub_that_hangs_is_seen_while_it_hangs() -> None:
    """The age of the oldest fetch in flight grows from scrape to scrape, and is 0 once nobody waits any longer."""
    with anyio.fail_after(60), observed("http/protobuf") as (telemetry, _receiver):
        hub = FakeHub(latency=math.inf)
        provider = DiscoveryProvider(hub, id="stuck", objective=0.1)
        agent = Agent("main", model=ScriptedModel("never"), providers=[provider], telemetry=telemetry)

        async def age() -> float:
            families = await anyio.to_thread.run_sync(scrape, telemetry.prometheus_url)
            labels = (("pellucid_provider_id", "stuck"),)
            name = "pellucid_tool_discovery_inflight_age_seconds"
            return values(families[name]).get((name, labels), 0.0) if name in families else 0.0

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run, "hello")
            while (first := await age()) == 0:
                await anyio.lowlevel.checkpoint()
            second = await age()
            assert 0 < first < second
            tasks.cancel_scope.cancel()
        while hub.cancelled == 0:
            await anyio.lowlevel.checkpoint()
        assert await age() == 0
