"""Metrics of the GenAI conventions: instruments, units, bounds and attributes."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import httpx
import pytest

from pellucid import Agent, ModelError, ToolCall, semconv
from pellucid.durable import DurableRuns, open_store
from pellucid.mcp import MCPProvider
from pellucid.server import create_app
from pellucid.testing import ScriptedModel
from support import scene
from support.conventions import ATTRIBUTES, METRICS, TYPES
from support.mcp_servers import modern_server
from support.runs import within

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def everything() -> None:
    """Emit each metric: of a run, of a stream, of an MCP server, of a failure, and of a request to our server."""
    await within(scene.agent().run("hi", identity=scene.WHO))
    async with scene.agent().stream("hi", identity=scene.WHO) as events:
        async for _ in events:
            pass
    async with MCPProvider.connect(modern_server(), id="hub") as provider:
        model = ScriptedModel(ToolCall("lines"), "hi")
        await within(Agent("a", model=model, providers=[provider]).run("hi"))
    with pytest.raises(ModelError):
        await within(Agent("a", model=ScriptedModel(OSError("down"))).run("hi"))
    with TemporaryDirectory() as folder:
        async with (
            open_store(f"sqlite:///{folder}/runs.db") as store,
            httpx.AsyncClient(transport=httpx.ASGITransport(create_app(DurableRuns(store, [])))) as client,
        ):
            await client.get("http://127.0.0.1/runs/none")


@pytest.mark.parametrize("name", sorted(METRICS))
async def test_a_metric_is_what_the_conventions_say(telemetry: Captured, name: str) -> None:
    """Each metric has the unit and bounds of the conventions, the required attributes and only allowed ones."""
    await everything()
    facts = METRICS[name]
    points = [point for point in telemetry.metrics if point.name == name]
    assert points
    for point in points:
        assert point.count is not None
        assert point.unit == facts.unit
        assert point.bounds == tuple(map(float, facts.bounds))
        assert facts.required <= set(point.attributes) <= facts.required | facts.allowed
        for attribute, value in point.attributes.items():
            if attribute in ATTRIBUTES:
                assert type(value) is TYPES[ATTRIBUTES[attribute]]
    assert all(type(bound) is float for bound in points[0].bounds)


async def test_every_metric_of_the_conventions_is_one_that_they_know(telemetry: Captured) -> None:
    """Each metric outside `pellucid.*` is one that the conventions define."""
    await everything()
    assert {point.name for point in telemetry.metrics if not point.name.startswith("pellucid.")} == set(METRICS)
    named = {metric.name for metric in (*semconv.METRICS, *semconv.DURABLE_METRICS)}
    assert {name for name in named if not name.startswith("pellucid.")} == set(METRICS)


async def test_failures_and_successes_are_told_apart_by_the_type_of_error(telemetry: Captured) -> None:
    """Only the duration of a failed model call has the label `error.type`."""
    await everything()
    failed = telemetry.histogram(semconv.OPERATION_DURATION, error_type="OSError")
    assert failed.count == 1
    assert failed.attributes[semconv.REQUEST_MODEL] == "scripted"
    others = [point for point in telemetry.metrics if point.name == semconv.OPERATION_DURATION.name]
    assert [semconv.ERROR_TYPE in point.attributes for point in others].count(True) == 1


async def test_tokens_are_counted_by_kind(telemetry: Captured) -> None:
    """Each call counts its input and output tokens apart, with the model that answered."""
    await within(scene.agent().run("hi"))
    for kind, tokens in (("input", 100), ("output", 10)):
        point = telemetry.histogram(semconv.TOKEN_USAGE, gen_ai_token_type=kind)
        assert (point.count, point.value) == (2, 2.0 * tokens)
        assert point.attributes[semconv.RESPONSE_MODEL] == "gpt-x-2026-08-07"


async def test_chunks_are_measured_of_streams_only(telemetry: Captured) -> None:
    """The two metrics of chunks have no measurements of answers that come whole."""
    await within(scene.agent().run("hi"))
    chunks = (semconv.TIME_TO_FIRST_CHUNK.name, semconv.TIME_PER_OUTPUT_CHUNK.name)
    assert not [point for point in telemetry.metrics if point.name in chunks]
