"""Checks of asynchronous calls whose spans, events and metrics disagree, by `check_telemetry`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, ExternalResult, Tool, ToolCall, semconv
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import Captured, capture, check_telemetry
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.anyio

DISPATCHED, EXPIRED, CONTINUED, LATE = (f"async_tool.{name}" for name in ("dispatched", "expired", "continued", "late"))


async def nothing(arguments: Any, ctx: object) -> None:
    """Do nothing."""


async def one_of_each() -> Captured:
    """Return the telemetry of a call that expired, and whose result came late."""
    tools = [
        Tool(name="owed", run=nothing, execution="external-dispatch", pending="wait", expires_in=0.001),
        Tool(name="asked", run=nothing, needs_approval=True),
    ]
    agent = Agent("a", model=ScriptedModel([ToolCall("owed"), ToolCall("asked")], "end"), tools=tools)
    with capture() as telemetry:
        waits = await within(agent.run("go"))
        result = ExternalResult(result_id=waits.external[0].result_id, output="late")
        while (waits := await within(agent.resume(json.loads(json.dumps(waits.checkpoint))))).external:
            pass  # until its deadline
        await within(agent.resume(json.loads(json.dumps(waits.checkpoint)), results=[result]))
        telemetry.is_checked = False
    return telemetry


def without(name: str) -> Callable[[Captured], None]:
    """Return a function that drops the events of a name."""

    def change(telemetry: Captured) -> None:
        telemetry.events[:] = [event for event in telemetry.events if event.name != name]

    return change


def again(name: str) -> Callable[[Captured], None]:
    """Return a function that emits the events of a name twice."""

    def change(telemetry: Captured) -> None:
        telemetry.events += [event for event in telemetry.events if event.name == name]

    return change


@pytest.fixture(autouse=True)
def _metrics_put_back() -> Iterator[None]:
    original = Captured.metrics
    yield
    Captured.metrics = original  # type: ignore[method-assign]  # see `stored`


def stored(telemetry: Captured) -> None:
    """Let a store count more late results than there were."""
    points = telemetry.metrics
    late = next(point for point in points if point.name == semconv.EXTERNAL_LATE.name)
    labels = {**late.attributes, semconv.DURABLE_KIND: "external", semconv.DURABLE_SETTLEMENT: "late"}
    points.append(replace(late, name=semconv.DURABLE_SETTLEMENTS.name, value=2, attributes=labels))
    type(telemetry).metrics = property(lambda self: points)  # type: ignore[method-assign,assignment]  # put back above


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without(DISPATCHED), "notes async_tool.dispatched 1 times; 0 were emitted"),
        (again(DISPATCHED), "notes async_tool.dispatched 1 times; 2 were emitted"),
        (without(EXPIRED), "notes async_tool.expired 1 times; 0 were emitted"),
        (without(LATE), "has 1 late results, of which 0 were emitted"),
        (again(LATE), "has 1 late results, of which 2 were emitted"),
        (stored, "the store received 2"),
    ],
    ids=["no dispatch", "two dispatches", "no expiry", "no late result", "two late results", "more in the store"],
)
async def test_what_does_not_agree_is_found(change: Callable[[Captured], None], said: str) -> None:
    """`check_telemetry` finds a missing or repeated event of an asynchronous call, and a wrong count of late ones."""
    telemetry = await one_of_each()
    check_telemetry(telemetry)
    change(telemetry)
    with pytest.raises(AssertionError, match=said):
        check_telemetry(telemetry)


async def test_a_result_that_a_run_gets_twice_is_found() -> None:
    """`check_telemetry` finds a result that the model of a run reads twice."""
    model = ScriptedModel(ToolCall("job"), "wait", "end")
    with capture() as telemetry:
        await within(
            Agent("a", model=model, tools=[Tool(name="job", run=nothing, execution="same-invocation")]).run("go")
        )
        telemetry.is_checked = False
    check_telemetry(telemetry)
    again(CONTINUED)(telemetry)
    with pytest.raises(AssertionError, match="continued 2 times with the result async_tool_"):
        check_telemetry(telemetry)
