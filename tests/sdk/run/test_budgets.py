"""Limits of the cost, tokens and model calls of a run, with its sub-agents and resumed passes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    ConfigError,
    Decision,
    Limits,
    Message,
    ModelError,
    ModelResponse,
    Reliability,
    Tool,
    ToolCall,
    Usage,
    semconv,
)
from pellucid.models import FallbackModel, Price, PriceTable
from pellucid.reliability import Rule, retry
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters.testing import check_telemetry
from support.runs import attributes, ending, results, within

if TYPE_CHECKING:
    from pellucid import ModelRequest, RunResult
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

PRICES = PriceTable({"metered": Price(input=1.0, output=8.0)})
ENDLESS = 10**6
"""Tokens of an answer that goes on until it is cut off."""


def metered(call: ToolCall | None = None, *, wanted: int = 300, last: str = "That is it.") -> FunctionModel:
    """Return a model that calls a tool as long as it is offered some, and reports its tokens as a vendor does.

    A message takes fewer tokens than it is estimated to, and an answer as many as are wanted, or `max_tokens`.
    """
    written: dict[str, int] = {}

    def answer(request: ModelRequest) -> ModelResponse:
        sizes = [written.get(json.dumps(message.to_dict()), 5) for message in request.messages]
        size = min(wanted, request.settings.get("max_tokens", wanted))
        is_cut, calls = size < wanted, call is not None and bool(request.tools)
        text = f"Part {len(written)}. {'' if calls else last}"
        message = Message("assistant", [call] if call is not None and calls else text)
        response = ModelResponse(
            message=message,
            usage=Usage(input_tokens=sum(sizes), output_tokens=size),
            finish_reason="length" if is_cut and not calls else "tool_call" if calls else "stop",
        )
        written[json.dumps(message.to_dict())] = size
        return response

    return FunctionModel(answer, name="metered")


class Counted:
    """A tool that counts its calls."""

    def __init__(self, text: str = "ok", **options: Any) -> None:
        self.calls = 0
        self._text = text
        self.tool = Tool(name="look", description="Look.", run=self.run, **options)

    async def run(self, arguments: Any, ctx: Any) -> str:
        """Return the text."""
        self.calls += 1
        return self._text


def looking(model: FunctionModel, limits: Limits, *tools: Tool, **options: Any) -> Agent:
    """Return an agent that looks until it is stopped."""
    tools = tools or (Counted().tool,)
    return Agent("a", model=model, tools=tools, limits=limits, **{"prices": PRICES, **options})


def bounded(name: str, value: float) -> Limits:
    """Return one of the limits, where no other is in its way."""
    limits: dict[str, Any] = {name: value, "max_iterations": 99}
    return Limits(**limits)


LOOK = ToolCall("look", {})


def used(result: RunResult, limit: str, model: FunctionModel) -> float:
    """Return what a run has used of a limit."""
    tokens = (result.usage.input_tokens or 0) + (result.usage.output_tokens or 0)
    return {"max_cost": result.usage.cost or 0.0, "max_tokens": tokens, "max_model_calls": len(model.requests)}[limit]


async def start(agent: Agent, way: str) -> RunResult:
    """Run an agent, or read its stream to the end."""
    if way == "run":
        return await within(agent.run("go"))
    with anyio.fail_after(60):
        async with agent.stream("go") as events:
            async for _ in events:
                pass
    return events.result


@pytest.mark.parametrize("way", ["run", "stream"])
@pytest.mark.parametrize(("name", "value"), [("max_cost", 0.02), ("max_tokens", 6_000), ("max_model_calls", 4)])
async def test_a_run_stops_at_its_limit(telemetry: Captured, name: str, value: float, way: str) -> None:
    """A run stops below its limit, closing answer included, and its span has the limit and the amount used."""
    model = metered(LOOK)
    result = await start(looking(model, bounded(name, value)), way)
    assert (result.status, result.stop_reason) == ("limit_reached", name)
    assert str(result.output).endswith("That is it.")
    assert 0.6 * value < used(result, name, model) <= value
    assert [bool(request.tools) for request in model.requests] == [True] * (len(model.requests) - 1) + [False]
    found = attributes(telemetry.span("invoke_agent"))
    assert found[semconv.STOP_REASON] == name
    assert found[semconv.LIMIT_VALUE] == value
    assert found[semconv.LIMIT_USED] == pytest.approx(used(result, name, model))
    assert len(results(result)) == len([call for message in result.messages for call in message.tool_calls])
    check_telemetry(telemetry)


@pytest.mark.parametrize("wanted", [20, 300, ENDLESS])
async def test_no_limit_is_exceeded_whatever_it_is(wanted: int) -> None:
    """Runs with many different limits of tokens and dollars stay within them if answers obey `max_tokens`."""
    for step in range(1, 40):
        model = metered(LOOK, wanted=wanted)
        settings: Any = {"max_tokens": 5_000}
        limits = Limits(max_tokens=137 * step, max_iterations=20)
        result = await within(looking(model, limits, settings=settings).run("go"))
        assert used(result, "max_tokens", model) <= 137 * step
        model = metered(LOOK, wanted=wanted)
        limits = Limits(max_cost=0.0007 * step, max_iterations=20)
        result = await within(looking(model, limits, settings=settings).run("go"))
        assert used(result, "max_cost", model) <= 0.0007 * step


async def test_a_run_within_its_limits_has_no_trace_of_them(telemetry: Captured) -> None:
    """A run that stays within its limits completes with its own settings, and its span has no limit."""
    model = ScriptedModel(LOOK, "done", name="metered")
    limits = Limits(max_cost=5, max_tokens=10**6, max_model_calls=50)
    result = await within(looking(model, limits, settings={"max_tokens": 700}).run("go"))
    assert (result.status, result.output) == ("completed", "done")
    assert [request.settings for request in model.requests] == [{"max_tokens": 700}] * 2
    assert semconv.LIMIT_VALUE not in attributes(telemetry.span("invoke_agent"))


async def test_max_tokens_of_a_call_is_what_remains(telemetry: Captured) -> None:
    """A call is sent the remaining tokens as `max_tokens`, unless models cannot write as much or a setting is lower."""
    model = metered(wanted=50)
    assert (await within(looking(model, Limits(max_tokens=1_000)).run("go"))).status == "completed"
    [request] = model.requests
    most = request.settings["max_tokens"]
    assert 300 < most < 1_000
    assert attributes(telemetry.span("chat"))[semconv.REQUEST_MAX_TOKENS] == most
    for limit, sent in ((100_000, {}), (100_000, {"max_tokens": 8_000})):
        model = metered(wanted=50)
        await within(looking(model, Limits(max_tokens=limit), settings=sent).run("go"))
        assert model.requests[0].settings == sent
    model = metered(wanted=50)
    await within(looking(model, Limits(max_tokens=10_000), settings={"max_tokens": 8_000}).run("go"))
    assert 4_096 < model.requests[0].settings["max_tokens"] < 5_000


async def test_no_tool_is_run_once_the_limit_is_reached(telemetry: Captured) -> None:
    """A tool call in the answer that reaches the limit is refused with the reason, and a closing answer follows."""
    look, model = Counted(), metered(LOOK, wanted=ENDLESS, last="")
    result = await within(looking(model, Limits(max_tokens=3_000), look.tool).run("go"))
    assert look.calls == 0
    [refused] = results(result)
    assert refused.is_error
    assert "max_tokens" in str(refused.response)
    assert ending(telemetry.span("execute_tool")) == ("failed", "ERROR", "max_tokens")
    assert (result.status, result.stop_reason, len(model.requests)) == ("limit_reached", "max_tokens", 2)
    assert str(result.output).startswith("Part 1")
    check_telemetry(telemetry)


@pytest.mark.parametrize(("output", "expected"), [(None, ""), (int, None)])
async def test_a_closing_answer_that_does_not_fit(telemetry: Captured, output: Any, expected: Any) -> None:
    """A run ends without a closing answer if what remains of its limit does not suffice for one."""
    look, model = Counted("word " * 20_000), metered(LOOK)
    result = await within(looking(model, Limits(max_tokens=5_000), look.tool, output=output).run("go"))
    assert (result.status, result.stop_reason, result.output) == ("limit_reached", "max_tokens", expected)
    assert (look.calls, len(model.requests), result.iterations) == (1, 1, 1)
    assert [message.role for message in result.messages] == ["user", "assistant", "tool"]
    check_telemetry(telemetry)
    model = metered(LOOK)
    none = await within(looking(model, Limits(max_tokens=10), output=output).run("go"))
    assert (none.status, none.stop_reason, none.output) == ("limit_reached", "max_tokens", expected)
    assert (model.requests, len(none.messages)) == ([], 1)
    check_telemetry(telemetry)


@pytest.mark.parametrize(("output", "expected"), [(None, "Part 0. That is it."), (int, None)])
async def test_an_answer_that_the_limit_cuts_off(output: Any, expected: Any) -> None:
    """A text that the limit cuts off is the output, but None if the agent has an output type."""
    model = metered(wanted=ENDLESS)
    agent = Agent("a", model=model, limits=Limits(max_tokens=1_000), output=output)
    result = await within(agent.run("go"))
    assert (result.status, result.stop_reason, result.output) == ("limit_reached", "max_tokens", expected)
    assert len(model.requests) == 1
    own = await within(Agent("a", model=metered(wanted=ENDLESS), settings={"max_tokens": 50}).run("go"))
    assert (own.status, own.stop_reason) == ("completed", "length")


async def test_the_last_call_is_kept_for_the_closing_answer() -> None:
    """`max_model_calls=1` allows one call without tools, and an agent without tools just answers."""
    model = metered(LOOK)
    result = await within(looking(model, Limits(max_model_calls=1)).run("go"))
    assert (result.status, result.stop_reason) == ("limit_reached", "max_model_calls")
    assert [request.tools for request in model.requests] == [()]
    plain = await within(Agent("a", model=ScriptedModel("hi"), limits=Limits(max_model_calls=1)).run("go"))
    assert (plain.status, plain.output) == ("completed", "hi")


async def test_what_no_vendor_counts_is_estimated() -> None:
    """A run whose model reports no usage is stopped by an estimate."""
    model = FunctionModel(lambda request: LOOK if request.tools else "done")
    look = Counted("x" * 4_000)
    result = await within(looking(model, Limits(max_tokens=20_000, max_iterations=99), look.tool).run("go"))
    assert (result.stop_reason, result.output, result.usage) == ("max_tokens", "done", Usage())
    assert 3 < look.calls < 7


async def test_attempts_count_as_calls() -> None:
    """Failed attempts count against `max_model_calls`, whether a rule repeats them or another model follows."""

    def fail(request: ModelRequest) -> str:
        raise ModelError("metered", "down", error_kind="unavailable")

    failing = FunctionModel(fail, name="metered")
    rule = Rule(when=lambda s: s.error is not None, then=retry(backoff=0.0), kind="again")
    agent = Agent("a", model=failing, limits=Limits(max_model_calls=3), reliability=Reliability([rule]))
    result = await within(agent.run("go"))
    assert (result.status, result.stop_reason, result.output) == ("limit_reached", "max_model_calls", "")
    assert len(failing.requests) == 3
    both = FallbackModel(FunctionModel(fail, name="metered"), ScriptedModel("second"))
    result = await within(Agent("a", model=both, limits=Limits(max_model_calls=2)).run("go"))
    assert (result.status, result.output) == ("completed", "second")
    result = await within(Agent("a", model=both, limits=Limits(max_model_calls=1)).run("go"))
    assert (result.status, result.output) == ("limit_reached", "")


async def test_an_attempt_that_timed_out_counts_as_an_estimate() -> None:
    """An attempt that timed out counts as an estimate, so that the next attempt has fewer tokens left."""
    asked: list[int] = []

    async def hang(request: ModelRequest) -> str:
        asked.append(request.settings["max_tokens"])
        await anyio.sleep_forever()
        raise AssertionError

    def answer(request: ModelRequest) -> str:
        asked.append(request.settings["max_tokens"])
        return "whole"

    both = FallbackModel(FunctionModel(hang), FunctionModel(answer, name="other"))
    limits = Limits(max_tokens=3_000, model_timeout=5)  # the other one answers without waiting
    result = await within(Agent("a", model=both, limits=limits).run("word " * 800))
    assert result.output == "whole"
    assert 900 < asked[0] - asked[1] < 1_100


# --- prices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["run", "stream"])
async def test_an_unknown_price_is_refused(way: str) -> None:
    """`max_cost` is refused before any call if the price of the model is unknown, and the error names the remedy."""
    model = ScriptedModel("hi", name="new")
    with pytest.raises(ConfigError, match=r"price of model 'new' of pellucid\.testing.*prices=") as refused:
        await start(looking(model, Limits(max_cost=1)), way)
    assert "Agent 'a'" in str(refused.value)
    assert model.requests == []
    others = Limits(max_tokens=10**6, max_model_calls=5)
    assert (await start(looking(model, others), way)).output == "hi"


async def test_unknown_prices_of_others_are_refused() -> None:
    """`max_cost` is refused if the price of a fallback model or sub-agent is unknown, or if the price table fails."""
    model = metered()
    second = FallbackModel(model, ScriptedModel(name="new"))
    helper = Agent("helper", model=ScriptedModel(name="new"), description="d").as_tool()

    def fails(*facts: Any) -> float:
        raise LookupError("no table")

    for agent, name in (
        (looking(second, Limits(max_cost=1)), "'a'"),  # type: ignore[arg-type]  # a model like any other
        (looking(model, Limits(max_cost=1), helper), "'helper'"),
        (looking(model, Limits(max_cost=1), prices=fails), "'a'"),
    ):
        with pytest.raises(ConfigError, match=r"Limits\(max_cost=1\) needs the price") as refused:
            await within(agent.run("go"))
        assert f"Agent {name}" in str(refused.value)
    assert model.requests == []


# --- sub-agents -------------------------------------------------------------------------------------------------------


def helper(model: FunctionModel, look: Counted, name: str = "helper", limits: Limits | None = None) -> Tool:
    """Return an agent that looks until it is stopped, as a tool."""
    options: Any = {"limits": limits or Limits(max_iterations=99), "prices": PRICES}
    return Agent(name, model=model, description="Helps.", tools=[look.tool], **options).as_tool()


@pytest.mark.parametrize(("name", "value"), [("max_cost", 0.03), ("max_tokens", 12_000), ("max_model_calls", 6)])
async def test_sub_agents_count(telemetry: Captured, name: str, value: float) -> None:
    """A sub-agent stops with a closing answer at the limit of its caller, which then gives a closing answer too."""
    inner, asking = metered(LOOK), metered(ToolCall("helper", {"input": "x"}))
    result = await within(looking(asking, bounded(name, value), helper(inner, Counted())).run("go"))
    assert (result.status, result.stop_reason) == ("limit_reached", name)
    assert str(result.output).endswith("That is it.")
    assert str(results(result)[0].response).endswith("That is it.")
    asked = FunctionModel(lambda request: "")
    asked.requests = [*inner.requests, *asking.requests]
    assert 0.6 * value < used(result, name, asked) <= value
    nested = attributes(telemetry.span("invoke_agent helper"))
    assert (nested[semconv.STOP_REASON], nested[semconv.LIMIT_VALUE]) == (name, value)
    check_telemetry(telemetry)


async def test_the_own_limit_of_a_sub_agent(telemetry: Captured) -> None:
    """A sub-agent's own limit ends only the sub-agent, and its caller goes on."""
    asking = ScriptedModel(ToolCall("helper", {"input": "x"}), "done", name="metered")
    tight = helper(metered(LOOK), Counted(), limits=Limits(max_tokens=10))
    result = await within(looking(asking, Limits(max_tokens=10**6), tight).run("go"))
    assert (result.status, result.output) == ("completed", "done")
    assert "max_tokens" in str(results(result)[0].response)
    assert ending(telemetry.span("execute_tool helper")) == ("failed", "ERROR", "max_tokens")


async def test_parallel_sub_agents_exceed_it_by_their_answers_in_flight_at_most() -> None:
    """Four parallel sub-agents exceed the limit of their caller by at most the four answers in flight."""
    size, flying, most = 500, 0, 0

    def model() -> FunctionModel:
        meter = metered(LOOK, wanted=size)

        async def slowly(request: ModelRequest) -> ModelResponse:
            nonlocal flying, most
            flying += 1
            most = max(most, flying)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            flying -= 1
            return await meter.generate(request)

        return FunctionModel(slowly, name="metered")

    names = [f"helper{number}" for number in range(4)]
    tools = [helper(model(), Counted(), name) for name in names]
    asking = FunctionModel(
        lambda request: [ToolCall(name, {"input": "x"}) for name in names] if request.tools else "done", name="metered"
    )
    agent = looking(asking, Limits(max_tokens=20_000), *tools, settings={"max_tokens": 600})
    result = await within(agent.run("go"))
    assert most == 4
    assert (result.status, result.stop_reason) == ("limit_reached", "max_tokens")
    assert used(result, "max_tokens", asking) <= 20_000 + 4 * size


# --- resumed runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), [("max_cost", 0.02), ("max_tokens", 6_000), ("max_model_calls", 4)])
async def test_a_resumed_run_has_what_remains(telemetry: Captured, name: str, value: float) -> None:
    """The calls of all passes of a resumed run count against its limits, through checkpoints in JSON."""
    model, look = metered(LOOK), Counted(needs_approval=True)
    agent = looking(model, bounded(name, value), look.tool)
    result, passes = await within(agent.run("go")), 1
    while result.checkpoint is not None:
        decisions = [Decision(request.approval_id, approved=True) for request in result.approvals]
        checkpoint = json.loads(json.dumps(result.checkpoint))
        result, passes = await within(agent.resume(checkpoint, decisions=decisions)), passes + 1
    assert passes > 3
    assert (result.status, result.stop_reason) == ("limit_reached", name)
    assert 0.5 * value < used(result, name, model) <= value
    assert attributes(telemetry.spans[-1])[semconv.LIMIT_USED] == pytest.approx(used(result, name, model))
    check_telemetry(telemetry)


async def test_a_limit_that_came_after_the_checkpoint() -> None:
    """A limit that is set after the checkpoint counts the usage before it."""
    model, look = metered(LOOK, wanted=2_000), Counted(needs_approval=True)
    waits = await within(looking(model, Limits(), look.tool).run("go"))
    assert waits.checkpoint is not None
    agent, decision = looking(model, Limits(max_tokens=2_100), look.tool), waits.approvals[0].approval_id
    result = await within(agent.resume(waits.checkpoint, decisions=[Decision(decision, approved=True)]))
    assert (result.status, result.stop_reason, look.calls) == ("limit_reached", "max_tokens", 0)
