"""Durable runs whose spending on models is limited: all passes count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Limits, Message, ModelResponse, Tool, ToolCall, Usage, semconv
from pellucid.durable import DurableRuns
from pellucid.models import Price, PriceTable
from pellucid.testing import FunctionModel
from support.durable_agents import PAY, Stop, ended
from support.runs import attributes, within

if TYPE_CHECKING:
    from pellucid import ModelRequest, ToolContext
    from pellucid.durable import RunStore
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

LIMITS: dict[str, Any] = {"max_cost": 0.005, "max_tokens": 5_000, "max_model_calls": 5}


def asking(tool: str) -> FunctionModel:
    """Return a model that calls a tool as long as it is offered some, and takes 1,000 tokens each time."""

    def answer(request: ModelRequest) -> ModelResponse:
        message = Message("assistant", [ToolCall(tool, {})] if request.tools else "closing")
        return ModelResponse(message=message, usage=Usage(input_tokens=900, output_tokens=100))

    return FunctionModel(answer, name="asking")


def limited(model: FunctionModel, name: str, tool: Tool) -> Agent:
    """Return an agent with one of the limits; a token costs as much as any other."""
    prices = PriceTable({"asking": Price(input=1.0, output=1.0)})
    return Agent("a", model=model, tools=[tool], prices=prices, limits=Limits(**{name: LIMITS[name]}))


@pytest.mark.parametrize("name", LIMITS)
async def test_a_run_that_waits_between_its_passes(store: RunStore, telemetry: Captured, name: str) -> None:
    """Each pass of a run that waits in between has what the passes before have left."""
    model = asking("pay")
    runs = DurableRuns(store, [agent := limited(model, name, PAY)])
    state = await ended(runs, await runs.submit(agent, "go"))
    assert (state.status, state.stop_reason, state.output) == ("completed", name, "closing")
    assert len(model.requests) == (5 if name == "max_model_calls" else 4)
    assert len(telemetry.find("invoke_agent")) > 3
    assert attributes(telemetry.find("invoke_agent")[-1])[semconv.LIMIT_VALUE] == LIMITS[name]


@pytest.mark.parametrize("name", LIMITS)
async def test_a_run_whose_worker_is_stopped(store: RunStore, name: str) -> None:
    """A run whose worker was stopped goes on with what the stopped pass had left, by its journal."""
    stop, model, calls = Stop(), asking("look"), 0

    async def look(arguments: Any, ctx: ToolContext) -> str:
        nonlocal calls
        calls += 1
        if calls == 2:
            await stop.now()
        return "ok"

    runs = DurableRuns(store, [agent := limited(model, name, Tool(name="look", run=look, idempotent=True))])
    run_id = await runs.submit(agent, "go")
    await stop.work(runs)
    assert len(model.requests) == 2
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.stop_reason, state.output) == ("completed", name, "closing")
    assert len(model.requests) == (5 if name == "max_model_calls" else 4)
