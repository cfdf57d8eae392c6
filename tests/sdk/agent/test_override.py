"""Overrides of an agent's options, as tests of applications make them."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pellucid import Agent, ConfigError, Tool, ToolCall, semconv, skill_scoped_tools, static_tools, tool
from pellucid.models import OpenAIModel
from pellucid.testing import ScriptedModel, no_model_calls
from pellucid_exporters.testing import Captured
from support.hubs import named
from support.runs import within

pytestmark = pytest.mark.anyio


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def real_agent() -> Agent:
    """Return an agent as applications have it at import."""
    model = OpenAIModel("gpt-6-sol", api_key="none", base_url="http://127.0.0.1:1")
    return Agent("real", model=model, description="Answers.", limits=None)


async def test_runs_of_other_threads_are_overridden(telemetry: Captured) -> None:
    """An override holds for runs in other threads that began before the block."""
    agent, begun, go, done = real_agent(), threading.Event(), threading.Event(), threading.Event()
    outputs: list[str] = []

    def serve() -> None:
        begun.set()
        go.wait()
        outputs.append(agent.run_sync("hi").output)
        done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, serve)
        await anyio.to_thread.run_sync(begun.wait)
        with agent.override(model=ScriptedModel("over")):
            go.set()
            await anyio.to_thread.run_sync(done.wait)
    assert outputs == ["over"]
    assert telemetry.span("chat").name == "chat scripted"


async def test_blocks_are_nested() -> None:
    """A nested override keeps the options of the outer one, and all options are restored afterwards."""
    agent, offered = real_agent(), ScriptedModel(ToolCall("add", {"a": 1, "b": 2}), "3", "plain")
    with agent.override(model=offered):
        with agent.override(providers=[static_tools([add])]):
            await within(agent.run("1 + 2?"))
        await within(agent.run("hi"))
    assert [[each.name for each in request.tools] for request in offered.requests] == [["add"], ["add"], []]
    assert "gpt-6-sol" in repr(agent)


async def test_it_ends_in_any_order() -> None:
    """Overlapping overrides may end in any order, and each removes its own options."""
    agent = real_agent()
    first, second = agent.override(model=ScriptedModel("first")), agent.override(model=ScriptedModel("second"))
    with first:
        second.__enter__()
    assert (await within(agent.run("hi"))).output == "second"
    second.__exit__(None, None, None)
    assert "gpt-6-sol" in repr(agent)


async def test_a_tool_that_is_an_agent_is_overridden() -> None:
    """An override holds for a tool that was made of the agent before."""
    helper = real_agent()
    outer = Agent("outer", model=ScriptedModel(ToolCall("real", {"input": "x"}), "done"), tools=[helper.as_tool()])
    model = ScriptedModel("over")
    with helper.override(model=model):
        assert (await within(outer.run("hi"))).output == "done"
    assert len(model.requests) == 1


def test_a_block_is_no_decorator() -> None:
    """Neither `override` nor `no_model_calls` can be used as a decorator."""
    assert not callable(real_agent().override(model=ScriptedModel("x")))
    assert not callable(no_model_calls())


async def test_listeners_stay() -> None:
    """Listeners of the agent hear the runs inside an override."""
    agent, heard = real_agent(), list[str]()
    agent.on("run.completed", lambda event: heard.append(event.name))
    with agent.override(model=ScriptedModel("x")):
        await within(agent.run("hi"))
    assert heard == ["run.completed"]


async def test_other_options_are_those_at_its_creation(telemetry: Captured) -> None:
    """Options that are not overridden are those with which the agent was made."""
    tools = named("first")
    providers: Any = iter([skill_scoped_tools("s", [])])
    agent = Agent("a", model=ScriptedModel("x"), tools=tools, providers=providers)
    tools += named("second")
    with agent.override(model=ScriptedModel("y")):
        await within(agent.run("hi"))
    assert telemetry.span("discover_tools skill-scoped:s").attributes[semconv.DISCOVERY_TOOL_COUNT] == 0
    assert telemetry.span("discover_tools static").attributes[semconv.DISCOVERY_TOOL_COUNT] == 1


def test_bad_options_are_refused() -> None:
    """`override` refuses broken options and those that cannot be replaced."""
    agent = real_agent()
    broken = Tool(name="t", description="T", input_schema={"type": 7}, run=lambda _, __: None)
    with pytest.raises(Exception, match="'t'"), agent.override(tools=[broken]):
        pass
    with pytest.raises(TypeError, match=r"Agent\.override\(\) got an unexpected keyword argument 'output'"):
        agent.override(output=int)  # type: ignore[call-arg]
    assert "gpt-6-sol" in repr(agent)


async def read(agent: Agent) -> None:
    """Read all events of a run."""
    async with agent.stream("hi") as events:
        async for _ in events:
            pass


async def test_a_guard_refuses_calls_of_models(telemetry: Captured) -> None:
    """`no_model_calls` fails a run before anything is sent, streamed or not, with what to do."""
    agent = real_agent()
    with no_model_calls():
        with pytest.raises(ConfigError, match=r"OpenAIModel\('gpt-6-sol'.*no_model_calls\(\) is active.*override"):
            await within(agent.run("hi"))
        with pytest.raises(ConfigError, match="no_model_calls"):
            await within(read(agent))
    assert len(telemetry.find("chat")) == 2
    with pytest.raises(Exception, match="onnect"):
        await within(agent.run("hi"))
