"""The version of an agent: on the span and the metrics of its runs, and nowhere without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, ConfigError, ToolCall, semconv
from pellucid.testing import FunctionModel, ScriptedModel
from support.runs import within

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio]

OF_RUNS = (semconv.AGENT_DURATION.name, semconv.INFERENCE_CALLS.name, semconv.TOOL_CALLS.name)


def versions(telemetry: Captured, name: str) -> set[Any]:
    """Return the versions with which a metric was recorded; None for no label."""
    return {point.attributes.get(semconv.AGENT_VERSION) for point in telemetry.metrics if point.name == name}


async def test_a_version_is_on_spans_and_metrics_of_runs(telemetry: Captured) -> None:
    """Also of a run that fails; of a sub-agent it is its own."""
    inner = Agent("clerk", model=ScriptedModel("done"), version="7", description="Works.")
    agent = Agent(
        "a", model=ScriptedModel(ToolCall("clerk", {"input": "x"}), "done"), tools=[inner.as_tool()], version="1.4.0"
    )
    await within(agent.run("x"))
    for name, version in (("a", "1.4.0"), ("clerk", "7")):
        assert telemetry.span(f"invoke_agent {name}").attributes[semconv.AGENT_VERSION] == version
    assert [versions(telemetry, name) for name in OF_RUNS] == [{"1.4.0", "7"}] * 3


async def test_without_a_version_there_is_none(telemetry: Captured) -> None:
    """Neither an attribute nor a label, not even an empty one."""
    await within(Agent("a", model=ScriptedModel("done")).run("x"))
    assert semconv.AGENT_VERSION not in telemetry.span("invoke_agent a").attributes
    assert [versions(telemetry, name) for name in OF_RUNS] == [{None}] * 3


async def test_versions_of_metrics_are_bounded(telemetry: Captured) -> None:
    """An application that makes one up for each run does not make a time series for each."""
    for number in range(80):
        await within(Agent("a", model=FunctionModel(lambda _: "done"), version=f"v{number}").run("x"))
    found = versions(telemetry, semconv.AGENT_DURATION.name)
    assert len(found) == 65
    assert {f"v{number}" for number in range(64)} < found


async def test_an_override_may_change_the_version(telemetry: Captured) -> None:
    """Such as the canary of a release."""
    agent = Agent("a", model=ScriptedModel("done", "done"), version="1")
    with agent.override(version="2-canary"):
        await within(agent.run("x"))
    await within(agent.run("x"))
    found = [span.attributes[semconv.AGENT_VERSION] for span in telemetry.find("invoke_agent a")]
    assert found == ["2-canary", "1"]


@pytest.mark.parametrize("version", [1, 1.4, ("1",)])
def test_a_version_is_a_text(version: Any) -> None:
    """Anything else is refused when the agent is made."""
    with pytest.raises(ConfigError, match=r"version=.* is not a text"):
        Agent("a", model=ScriptedModel("x"), version=version)
