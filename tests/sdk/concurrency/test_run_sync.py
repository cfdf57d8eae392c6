from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import (
    Agent,
    ModelError,
    Tool,
    ToolCall,
    ToolContext,
    tool,
)
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters.testing import check_telemetry
from support.runs import iteration

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = ToolCall("add", {"a": 1, "b": 2})


def test_run_sync_works_without_a_loop(telemetry: Captured) -> None:
    """A plain function can run an agent."""
    assert Agent("a", model=ScriptedModel(ADD, "3"), tools=[add]).run_sync("Add.").output == "3"
    check_telemetry(telemetry)


async def test_run_sync_works_inside_a_running_loop(telemetry: Captured) -> None:
    """It waits in place, and the trace is the caller's."""
    with telemetry.tracer_provider.get_tracer("application").start_as_current_span("outer"):
        assert Agent("a", model=ScriptedModel("x")).run_sync("y").output == "x"
    assert telemetry.tree() == [("outer", [("invoke_agent a", iteration())])]


def test_run_sync_works_after_a_loop_was_closed() -> None:
    """A loop that came and went leaves nothing behind."""
    agent = Agent("a", model=FunctionModel(lambda request: "x"))
    assert asyncio.run(agent.run("y")).output == "x"
    assert agent.run_sync("y").output == "x"
    assert asyncio.run(agent.run("y")).output == "x"


def test_run_sync_works_from_several_threads(telemetry: Captured) -> None:
    """Runs of different threads happen at the same time."""
    together = threading.Barrier(4, timeout=60)

    @tool
    def meet() -> str:
        """Wait for the others."""
        together.wait()
        return "met"

    def run(_: int) -> str:
        return Agent("a", model=ScriptedModel(ToolCall("meet"), "done"), tools=[meet]).run_sync("x").output

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == ["done"] * 4
    assert len(telemetry.find("invoke_agent")) == 4
    check_telemetry(telemetry)


@pytest.mark.parametrize("is_async", [False, True])
def test_run_sync_works_inside_a_tool(telemetry: Captured, *, is_async: bool) -> None:
    """An agent that is a tool of another is a part of its trace."""
    inner = Agent("inner", model=ScriptedModel("42"))

    def ask(arguments: Any, ctx: ToolContext) -> str:
        return inner.run_sync("x").output

    async def ask_later(arguments: Any, ctx: ToolContext) -> str:
        return ask(arguments, ctx)

    expert = Tool(name="ask", run=ask_later if is_async else ask)
    outer = Agent("outer", model=ScriptedModel(ToolCall("ask"), "done"), tools=[expert])
    assert outer.run_sync("x").output == "done"
    [(_, phases)] = telemetry.tree()
    assert phases[3] == ("execute_tool ask", [("invoke_agent inner", iteration())])
    check_telemetry(telemetry)


def test_run_sync_raises_what_the_run_raises() -> None:
    """Errors come as they are."""
    with pytest.raises(ModelError, match="nope"):
        Agent("a", model=ScriptedModel(ValueError("nope"))).run_sync("x")
