"""Limits of how deeply runs are nested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    CancelToken,
    ConfigError,
    DiscoveryContext,
    Limits,
    RunCancelled,
    RunTimeout,
    Tool,
    ToolCall,
    tool,
)
from pellucid.events import RunStarted
from pellucid.testing import FunctionModel, ScriptedModel
from support.clock import SOON, pass_time
from support.runs import ending, results, within

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid import ModelRequest
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


class Late:
    """A provider of tools that are made after the agent."""

    id = "late"

    def __init__(self) -> None:
        self.tools: list[Tool] = []

    def list_tools(self, ctx: DiscoveryContext) -> list[Tool]:
        """Return the tools."""
        return self.tools


def calling(name: str, said: list[str]) -> FunctionModel:
    """Return a model that calls a tool, notes its result, and answers."""

    def answer(request: ModelRequest) -> Any:
        if not (given := request.messages[-1].tool_results):
            return ToolCall(name, {"input": "again"})
        said.append(str(given[0].response))
        return "done"

    return FunctionModel(answer)


def mirror(said: list[str], make: Callable[[Agent], Tool] = Agent.as_tool, **options: Any) -> Agent:
    """Return an agent whose only tool runs it again."""
    late = Late()
    agent = Agent("mirror", model=calling("mirror", said), providers=[late], description="d", **options)
    late.tools.append(make(agent))
    return agent


def in_code(agent: Agent) -> Tool:
    """Return a tool whose code runs the agent."""

    @tool(name="mirror")
    async def run(input: str) -> str:  # noqa: A002
        """Run it."""
        return (await agent.run(input)).output

    return run


def in_thread(agent: Agent) -> Tool:
    """Return a tool whose code runs the agent in a thread."""

    @tool(name="mirror")
    def run(input: str) -> str:  # noqa: A002
        """Run it."""
        return agent.run_sync(input).output

    return run


def in_stream(agent: Agent) -> Tool:
    """Return a tool whose code streams the agent."""

    @tool(name="mirror")
    async def run(input: str) -> str:  # noqa: A002
        """Run it."""
        async with agent.stream(input) as events:
            async for _ in events:
                pass
            return events.result.output

    return run


@pytest.mark.parametrize("make", [Agent.as_tool, in_code, in_thread, in_stream])
async def test_an_agent_that_calls_itself_is_refused_at_its_limit(
    telemetry: Captured, make: Callable[[Agent], Tool]
) -> None:
    """An agent that calls itself is refused at `max_depth`, and the model reads the limit and the chain."""
    said: list[str] = []
    agent = mirror(said, make, limits=Limits(max_depth=2))
    assert (await within(agent.run("x"))).output == "done"
    assert len(telemetry.find("invoke_agent mirror")) == 3
    assert "Agent 'mirror' was not run: agent 'mirror' allows at most 2 runs nested in each other" in said[0]
    assert "(Limits.max_depth=2), and these are: mirror > mirror > mirror." in said[0]
    assert said[1:] == ["done", "done"]
    types = [ending(span)[2] for span in telemetry.find("execute_tool mirror")]
    assert sorted(map(str, types)) == ["None", "None", "nested_too_deep"]


async def test_eight_runs_are_nested_by_default(telemetry: Captured) -> None:
    """Eight runs may be nested by default, also if the code of tools runs them."""
    said: list[str] = []
    assert (await within(mirror(said, in_code).run("x"))).output == "done"
    assert len(telemetry.find("invoke_agent mirror")) == 9


async def test_the_tightest_limit_of_the_chain_holds() -> None:
    """The lowest `max_depth` of the agents in a chain holds for all of them."""
    said: list[str] = []
    inner = Agent("inner", model=ScriptedModel("hi"), description="d")
    middle = Agent("middle", model=calling("inner", said), tools=[inner.as_tool()], description="d")
    outer = Agent("outer", model=calling("middle", said), tools=[middle.as_tool()], limits=Limits(max_depth=1))
    assert (await within(outer.run("x"))).output == "done"
    assert "agent 'outer' allows at most 1 runs nested in each other (Limits.max_depth=1)" in said[0]
    assert "outer > middle." in said[0]
    assert said[1] == "done"


async def test_no_nested_runs_can_be_allowed() -> None:
    """`max_depth=0` refuses every nested run, and a negative depth is an error."""
    said: list[str] = []
    assert (await within(mirror(said, limits=Limits(max_depth=0)).run("x"))).output == "done"
    assert "these are: mirror." in said[0]
    with pytest.raises(ConfigError, match="max_depth"):
        Limits(max_depth=-1)


async def test_a_run_after_another_is_not_nested() -> None:
    """A tool may run any number of agents one after the other at depth 1."""
    inner = Agent("inner", model=FunctionModel(lambda request: "hi"), description="d")

    @tool
    async def many() -> str:
        """Run them."""
        return " ".join([(await inner.run("x")).output for _ in range(20)])

    agent = Agent("outer", model=ScriptedModel(ToolCall("many"), "done"), tools=[many], limits=Limits(max_depth=1))
    result = await within(agent.run("x"))
    assert [each.is_error for each in results(result)] == [False]


@pytest.mark.parametrize("how", ["deadline", "cancelled"])
@pytest.mark.parametrize("is_stubborn", [False, True], ids=["obedient", "stubborn"])
async def test_no_nested_run_is_open_after_the_outer_one(telemetry: Captured, how: str, *, is_stubborn: bool) -> None:
    """The spans of all nested runs end with the outermost run, even if the innermost model ignores the cancellation."""
    token, release = CancelToken(), anyio.Event()

    async def hang(request: ModelRequest) -> str:
        if how == "cancelled":
            token.cancel()
        else:
            pass_time()
        with anyio.CancelScope(shield=is_stubborn):
            await release.wait()
        return "late"

    agent = Agent("c", model=FunctionModel(hang), description="d")
    for name, inner in (("b", "c"), ("a", "b")):
        model = ScriptedModel(ToolCall(inner, {"input": "x"}))
        agent = Agent(name, model=model, tools=[agent.as_tool()], description="d")
    limits = Limits(timeout=SOON if how == "deadline" else None)
    outer = Agent("outer", model=ScriptedModel(ToolCall("a", {"input": "x"})), tools=[agent.as_tool()], limits=limits)
    with pytest.raises(RunTimeout if how == "deadline" else RunCancelled):
        await within(outer.run("x", signal=token))
    ended = {span.name for span in telemetry.find("invoke_agent")}
    release.set()
    started = {f"invoke_agent {event.agent}" for event in telemetry.events if isinstance(event, RunStarted)}
    assert ended == started
    outermost = telemetry.span("invoke_agent outer").end_time
    assert outermost is not None
    for span in telemetry.spans:
        assert span.end_time is not None
        assert span.end_time <= outermost
