"""Bounds of the series that a process makes."""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver import MCPServer

from pellucid import Agent, Tool, ToolCall, semconv
from pellucid.errors import ConfigError
from pellucid.mcp import MCPProvider
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters import MetricLimits, Otlp, Prometheus, configure
from pellucid_exporters.top_values import TopValues
from pellucid_instrumentation import instrument_server
from support.metrics_proto import PROTOBUF, decode, labels_of
from support.openmetrics import fetch_bytes
from support.otlp_receiver import otlp_receiver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pellucid_exporters import Telemetry

HAS_LIMITS = tuple(map(int, version("opentelemetry-sdk").split(".")[:2])) >= (1, 45)
needs_limits = pytest.mark.skipif(not HAS_LIMITS, reason="OpenTelemetry limits series from 1.45 on")


async def find_nothing(arguments: dict[str, Any], ctx: object) -> str:
    """Find nothing."""
    return "nothing"


def call_tools(telemetry: Telemetry, names: Sequence[str], *, agent: str = "a") -> None:
    """Run an agent that calls one tool after the other."""
    calls = [ToolCall(name, id=str(number)) for number, name in enumerate(names)]
    model = FunctionModel(lambda request: "done" if request.messages[-1].role == "tool" else calls)
    tools = [Tool(name=name, run=find_nothing) for name in dict.fromkeys(names)]
    Agent(agent, model=model, tools=tools, telemetry=telemetry).run_sync("go")


def of_tools(telemetry: Telemetry) -> Mapping[str, int]:
    """Return how many calls are counted for each tool."""
    assert telemetry.prometheus_url is not None
    family = decode(fetch_bytes(telemetry.prometheus_url, PROTOBUF))["gen_ai_execute_tool_duration_seconds"]
    return {labels_of(each).get("gen_ai_tool_name", ""): each.histogram.sample_count for each in family.metric}


@pytest.fixture
def limited(request: pytest.FixtureRequest) -> Iterator[Telemetry]:
    """Serve metrics with the limits that the test names."""
    telemetry = configure("shop", prometheus=Prometheus(port=0), metric_limits=request.param, set_global=False)
    yield telemetry
    telemetry.shutdown()


@pytest.mark.parametrize("limited", [MetricLimits(tools=2)], indirect=True)
def test_the_first_tools_have_series(limited: Telemetry) -> None:
    """Others share one, with every call."""
    call_tools(limited, ["a", "b", "c", "d", "c"])
    assert of_tools(limited) == {"a": 1, "b": 1, "_OTHER": 3}


@pytest.mark.parametrize("limited", [MetricLimits(tools="top:2")], indirect=True)
def test_a_tool_that_is_called_more_often_gets_a_series(limited: Telemetry) -> None:
    """The call that makes it one of the most frequent ones is the first in it; no counter decreases."""
    call_tools(limited, ["a", "b", "a", "c", "c", "c", "b", "c"])
    assert of_tools(limited) == {"a": 2, "b": 1, "c": 3, "_OTHER": 2}


@pytest.mark.parametrize("limited", [MetricLimits(agents=1)], indirect=True)
def test_agents_may_be_bounded(limited: Telemetry) -> None:
    """As tools are."""
    for name in ("one", "two", "three"):
        call_tools(limited, ["a"], agent=name)
    assert limited.prometheus_url is not None
    family = decode(fetch_bytes(limited.prometheus_url, PROTOBUF))["gen_ai_invoke_agent_duration_seconds"]
    found = {labels_of(each)["gen_ai_agent_name"]: each.histogram.sample_count for each in family.metric}
    assert found == {"one": 1, "_OTHER": 2}


@pytest.mark.parametrize("limited", [MetricLimits(without={semconv.AGENT_NAME})], indirect=True)
def test_labels_can_be_left_out(limited: Telemetry) -> None:
    """The series of all agents are one, with all that they counted."""
    for name in ("one", "two"):
        call_tools(limited, ["a"], agent=name)
    assert of_tools(limited) == {"a": 2}
    assert limited.prometheus_url is not None
    assert b"gen_ai_agent_name" not in fetch_bytes(limited.prometheus_url, "text/plain")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("limited", [MetricLimits(without={semconv.MCP_SERVER_VERSION})], indirect=True)
async def test_limits_are_those_of_servers_too(limited: Telemetry) -> None:
    """A label that only the metrics of instrumented MCP servers have can be left out."""
    server = MCPServer("shop", version="7.1")
    instrument_server(server, telemetry=limited)
    async with MCPProvider.connect(server, id="hub") as provider:
        await Agent("a", model=ScriptedModel("x"), providers=[provider], telemetry=limited).run("go")
    assert limited.prometheus_url is not None
    text = fetch_bytes(limited.prometheus_url, "text/plain").decode()
    assert 'mcp_server_operation_duration_seconds_count{mcp_method_name="tools/list"' in text
    assert 'version="7.1"' not in text


@needs_limits
@pytest.mark.parametrize("limited", [MetricLimits(series=3)], indirect=True)
def test_an_overflow_is_counted_and_logged_once(limited: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """By the name of the instrument, from the scrape after the one that finds it; what has no series is not lost."""
    call_tools(limited, ["a", "b", "c", "d", "e"])
    assert limited.prometheus_url is not None
    assert of_tools(limited) == {"a": 1, "b": 1, "c": 1, "": 2}
    for _ in range(2):
        text = fetch_bytes(limited.prometheus_url, "text/plain").decode()
        overflow = 'pellucid_telemetry_overflows_total{pellucid_metric_name="gen_ai.execute_tool.duration"} 1.0'
        assert overflow in text
    [line] = [each for each in caplog.records if "limit of series" in each.message]
    assert (line.levelno, "gen_ai.execute_tool.duration" in line.message) == (logging.WARNING, True)


@needs_limits
def test_an_overflow_is_counted_in_metrics_that_are_sent() -> None:
    """The export after the one that finds it has the counter."""
    with otlp_receiver("http/protobuf") as receiver:
        otlp = Otlp(endpoint=receiver.endpoint, traces=False, logs=False, metric_interval=3600)
        telemetry = configure("shop", otlp=otlp, metric_limits=MetricLimits(series=3), set_global=False)
        call_tools(telemetry, ["a", "b", "c", "d"])
        assert telemetry.flush()
        assert telemetry.flush()
        names = [metric.name for metric in receiver.metrics]
        telemetry.shutdown()
    assert semconv.TELEMETRY_OVERFLOWS.name in names


@needs_limits
def test_our_instruments_have_room() -> None:
    """5,000 label sets are no overflow without any option, although OpenTelemetry's own limit is 2,000."""
    telemetry = configure("shop", prometheus=Prometheus(port=0), set_global=False)
    counter = telemetry.meter_provider.get_meter(semconv.SCOPE).create_counter(semconv.DURABLE_CLAIMS.name, "{run}")
    for number in range(5000):
        counter.add(1, {semconv.AGENT_NAME: f"agent-{number}"})
    assert telemetry.prometheus_url is not None
    text = fetch_bytes(telemetry.prometheus_url, "text/plain").decode()
    telemetry.shutdown()
    assert text.count("\npellucid_durable_claims_total{") == 5000
    assert "otel_metric_overflow" not in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"series": 0}, r"MetricLimits\(series=0\): must be a number above 0"),
        ({"tools": "200"}, r"MetricLimits\(tools='200'\): use a number above 0, or 'top:' and one, such as 'top:200'"),
        ({"agents": -1}, r"MetricLimits\(agents=-1\): use a number above 0"),
        ({"without": "gen_ai.agent.name"}, "give a collection, such as {'gen_ai.agent.name'}"),
        ({"without": {"agent"}}, "no instrument has the label 'agent'; the labels are .*gen_ai.agent.name"),
    ],
)
def test_wrong_limits_are_refused(options: dict[str, Any], said: str) -> None:
    """With the option, the value and what it may be."""
    with pytest.raises(ConfigError, match=said):
        MetricLimits(**options)


@given(st.lists(st.sampled_from("abcdefgh"), max_size=200), st.integers(1, 4))
def test_there_are_never_more_than_twice_as_many_values(used: list[str], most: int) -> None:
    """Whatever is used."""
    values = TopValues(most)
    kept = {value for value in used if (values.get(value) or values.add(value)) is not None}
    assert len(kept) <= 2 * most
