from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    CancelToken,
    ConfigError,
    DiscoveryContext,
    Identity,
    Limits,
    Message,
    ModelResponse,
    Reliability,
    RunCancelled,
    RunTimeout,
    TelemetryOptions,
    Tool,
    ToolCall,
    ToolContext,
    Usage,
    semconv,
    tool,
)
from pellucid.reliability import Rule, Situation, fail_fast
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters.testing import capture, check_telemetry
from support.clock import SOON, outlast, pass_time
from support.runs import CANCELLED, TIMEOUT, attributes, ending, iteration, results, span_id, within

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid import ModelRequest
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

ASK = ToolCall("helper", {"input": "help"})


def helper(*steps: Any, **options: Any) -> Tool:
    """Return an agent as a tool."""
    return Agent("helper", model=ScriptedModel(*steps), description="Helps.", **options).as_tool()


def outer(*steps: Any, tools: list[Tool], **options: Any) -> Agent:
    """Return an agent that has agents as tools."""
    return Agent("outer", model=ScriptedModel(*steps), tools=tools, **options)


def response(content: str | ToolCall, *, tokens: int) -> ModelResponse:
    """Return an answer that took tokens."""
    parts = content if isinstance(content, str) else [content]
    return ModelResponse(message=Message("assistant", parts), usage=Usage(input_tokens=tokens, cost=tokens / 1000))


async def hang(request: ModelRequest) -> str:
    """Never answer."""
    await anyio.sleep_forever()
    raise AssertionError


async def test_its_run_is_nested_in_the_call(telemetry: Captured) -> None:
    """The spans of a sub-agent are below those of the call in one trace, and its answer is the result."""
    result = await within(outer(ASK, "done", tools=[helper("sure")]).run("x"))
    call = ("execute_tool helper", [("invoke_agent helper", iteration())])
    assert telemetry.tree() == [("invoke_agent outer", [*iteration(), call, *iteration()])]
    assert [each.response for each in results(result)] == ["sure"]
    assert len({span.get_span_context().trace_id for span in telemetry.spans}) == 1


async def test_usage_adds_up_once(telemetry: Captured) -> None:
    """The result has the usage of all nested runs, and each span and metric has only its own."""
    inner = Agent("inner", model=ScriptedModel(response("deep", tokens=1)), description="d").as_tool()
    middle = Agent(
        "middle",
        model=ScriptedModel(response(ToolCall("inner", {"input": "x"}), tokens=10), response("mid", tokens=20)),
        description="d",
        tools=[inner],
    ).as_tool()
    top = outer(response(ToolCall("middle", {"input": "x"}), tokens=100), response("done", tokens=200), tools=[middle])
    result = await within(top.run("x"))
    assert result.usage.input_tokens == 331
    assert math.isclose(result.usage.cost or 0, 0.331)
    own = {span.name: attributes(span)[semconv.USAGE_INPUT_TOKENS] for span in telemetry.find("invoke_agent")}
    assert own == {"invoke_agent inner": 1, "invoke_agent middle": 30, "invoke_agent outer": 300}
    assert sum(point.value for point in telemetry.metrics if point.name == semconv.TOKEN_USAGE.name) == 331


async def test_events_of_both_are_heard_at_their_telemetry(telemetry: Captured) -> None:
    """A listener or stream of the caller gets no events of a nested run; listeners of shared telemetry get both."""
    inner = Agent("helper", model=ScriptedModel(ToolCall("nothing"), "sure"), description="d")
    shared: list[Any] = []
    pipeline = TelemetryOptions(
        tracer_provider=telemetry.tracer_provider,
        meter_provider=telemetry.meter_provider,
        log_sinks=telemetry.log_sinks,
        listeners=[*telemetry.listeners, ("*", shared.append)],
    )
    caller = outer(ASK, "done", tools=[inner.as_tool()], telemetry=pipeline)
    of_caller: list[Any] = []
    of_both: list[Any] = []
    caller.on("*", of_caller.append)
    for each in (caller, inner):
        each.on("*", of_both.append)
    with anyio.fail_after(60):
        async with caller.stream("x") as events:
            streamed = [event async for event in events]
    assert {event.agent for event in (*of_caller, *streamed)} == {"outer"}
    assert shared == of_both
    assert {event.agent for event in shared} == {"outer", "helper"}
    assert len({event.run_id for event in shared}) == 2
    assert len({event.trace_id for event in shared}) == 1
    told = [(event.agent, event.name) for event in shared if event.name.startswith(("run.", "tool."))]
    assert told == [
        ("outer", "run.started"),
        ("outer", "tool.started"),
        ("helper", "run.started"),
        ("helper", "tool.started"),
        ("helper", "tool.failed"),
        ("helper", "run.completed"),
        ("outer", "tool.completed"),
        ("outer", "run.completed"),
    ]


async def test_a_nested_agent_with_telemetry_of_its_own_is_heard_there(telemetry: Captured) -> None:
    """Events of a nested agent with its own telemetry are emitted there and not at the caller's."""
    telemetry.is_checked = False  # the spans are here, the events are not
    here: list[Any] = []
    there: list[Any] = []
    inner = helper("sure", telemetry=TelemetryOptions(listeners=[("*", there.append)]))
    await within(outer(ASK, "done", tools=[inner], telemetry=TelemetryOptions(listeners=[("*", here.append)])).run("x"))
    assert {event.agent for event in here} == {"outer"}
    assert {event.agent for event in there} == {"helper"}


async def test_what_a_failed_run_has_used_counts(telemetry: Captured) -> None:
    """The usage of a failed nested run counts in the caller's result."""
    failing = helper(response(ToolCall("nothing"), tokens=7), OSError("down"))
    result = await within(outer(response(ASK, tokens=1), "done", tools=[failing]).run("x"))
    assert result.usage.input_tokens == 8


async def test_a_failure_is_a_tool_error_with_its_own_type(telemetry: Captured) -> None:
    """The calling model reads the failure of a nested run as a tool error with its own type, and goes on."""
    result = await within(outer(ASK, "done", tools=[helper(OSError("down"))]).run("x"))
    [failed] = results(result)
    assert failed.is_error
    assert "call of model 'scripted' failed" in str(failed.response)
    types = {span.name: ending(span)[2] for span in telemetry.spans}
    assert types["execute_tool helper"] == types["invoke_agent helper"] == "OSError"
    assert result.output == "done"


@pytest.mark.parametrize("how", ["policy", "rule"])
async def test_what_ends_the_nested_run_does_not_end_the_caller(telemetry: Captured, how: str) -> None:
    """A policy that halts or a rule that fails fast ends only the nested run, and the calling model reads an error."""
    rule = Rule(when=lambda s: True, then=fail_fast(), kind="budget")
    options: dict[str, Any] = (
        {"policy": lambda request: "halt"} if how == "policy" else {"reliability": Reliability(pre_check=[rule])}
    )

    @tool
    async def look() -> str:
        """Look around."""
        return "seen"

    result = await within(outer(ASK, "done", tools=[helper("never", tools=[look], **options)]).run("x"))
    assert result.output == "done"
    assert results(result)[0].is_error
    types = {span.name: ending(span)[2] for span in telemetry.spans}
    assert types["execute_tool helper"] == types["invoke_agent helper"] is not None


async def test_identity_deps_and_token_pass_down() -> None:
    """Identity, deps and signal of the caller are passed to the nested run."""
    seen: list[Any] = []

    @tool
    async def look(ctx: ToolContext) -> str:
        """Look around."""
        seen.extend([ctx.identity, ctx.deps, ctx.signal])
        return "seen"

    who, deps, token = Identity(tenant="t"), object(), CancelToken()
    agent = outer(ASK, "done", tools=[helper(ToolCall("look"), "ok", tools=[look])])
    await within(agent.run("x", identity=who, deps=deps, signal=token))
    assert seen == [who, deps, token]


async def test_a_typed_answer_is_passed_on_as_data() -> None:
    """The calling model reads a typed answer of a sub-agent as JSON."""
    counting = Agent("helper", model=ScriptedModel('{"result": 7}'), output=int, description="Counts.").as_tool()
    [counted] = results(await within(outer(ASK, "done", tools=[counting]).run("x")))
    assert counted.response == 7


@pytest.mark.parametrize("how", ["token", "native"])
async def test_cancelling_the_caller_cancels_it(telemetry: Captured, how: str) -> None:
    """Cancelling the caller cancels the nested run, and all open spans of both end as cancelled."""
    token = CancelToken()
    with anyio.CancelScope() as scope:

        async def stop(request: ModelRequest) -> str:
            if how == "token":
                token.cancel("enough")
            else:
                scope.cancel()
            return await hang(request)

        inner = Agent("helper", model=FunctionModel(stop), description="d").as_tool()
        agent = outer(ASK, tools=[inner])
        if how == "token":
            with pytest.raises(RunCancelled, match="enough"):
                await within(agent.run("x", signal=token))
        else:
            await within(agent.run("x"))
    stopped = ("invoke_agent outer", "execute_tool helper", "invoke_agent helper", "chat function")
    endings = {span.name: ending(span) for span in telemetry.spans}
    assert [endings[name] for name in stopped] == [CANCELLED] * 4


async def test_the_deadline_of_the_caller_holds_for_it(telemetry: Captured) -> None:
    """The caller's deadline ends both runs as timeouts, and tools of the nested run know the deadline."""
    seen: list[datetime | None] = []

    @tool
    async def wait(ctx: ToolContext) -> str:
        """Wait."""
        seen.append(ctx.expires_at)
        await outlast()

    agent = outer(ASK, tools=[helper(ToolCall("wait"), tools=[wait])], limits=Limits(timeout=SOON))
    with pytest.raises(RunTimeout):
        await within(agent.run("x"))
    stopped = ("invoke_agent outer", "execute_tool helper", "invoke_agent helper", "execute_tool wait")
    endings = {span.name: ending(span) for span in telemetry.spans}
    assert [endings[name] for name in stopped] == [TIMEOUT] * 4
    assert seen != [None]


async def test_a_wrapper_may_give_it_less_time() -> None:
    """The deadline in the context of the call holds for a nested run, even if the caller has more time."""

    @tool
    async def slow() -> str:
        """Take longer than there is time."""
        pass_time()
        return "slow"

    unhurried = helper(ToolCall("slow"), "done", tools=[slow])

    async def hurry(arguments: Any, ctx: ToolContext) -> Any:
        return await unhurried.run(arguments, replace(ctx, expires_at=datetime.now(UTC) + timedelta(seconds=SOON / 2)))

    agent = outer(ASK, "done", tools=[replace(unhurried, run=hurry)], limits=Limits(timeout=1_000.0))
    assert "did not finish within the deadline" in str(results(await agent.run("x"))[0].response)


async def test_its_own_deadline_is_a_tool_error(telemetry: Captured) -> None:
    """A nested run that exceeds its own deadline is a tool error for the calling model."""
    slow = Agent("helper", model=FunctionModel(hang), description="d", limits=Limits(timeout=0.01)).as_tool()
    result = await within(outer(ASK, "done", tools=[slow]).run("x"))
    assert "did not finish within its deadline of 0.01 s" in str(results(result)[0].response)
    assert ending(telemetry.span("execute_tool helper")) == TIMEOUT


async def test_a_timeout_of_the_call_stops_it(telemetry: Captured) -> None:
    """The timeout of a call cancels the nested run."""
    slow = Agent("helper", model=FunctionModel(lambda _: outlast()), description="d").as_tool(timeout=SOON)
    result = await within(outer(ASK, "done", tools=[slow]).run("x"))
    assert results(result)[0].is_error
    assert ending(telemetry.span("execute_tool helper")) == TIMEOUT
    assert ending(telemetry.span("invoke_agent helper")) == CANCELLED


async def test_one_that_does_not_let_itself_be_stopped_is_left_behind_first(telemetry: Captured) -> None:
    """A nested run that ignores cancellation ends its span before that of the call, and its usage counts."""
    release = anyio.Event()

    async def stubborn(request: ModelRequest) -> ModelResponse:
        if request.messages[-1].role == "user":
            return response(ToolCall("nothing"), tokens=3)
        pass_time()
        with anyio.CancelScope(shield=True):
            await release.wait()
        return response("late", tokens=4)

    inner = Agent("helper", model=FunctionModel(stubborn), description="d").as_tool(timeout=SOON)
    result = await within(outer(ASK, "done", tools=[inner]).run("x"))
    release.set()
    assert result.usage.input_tokens == 3
    [run], [call] = telemetry.find("invoke_agent helper"), telemetry.find("execute_tool helper")
    assert run.end_time is not None
    assert call.end_time is not None
    assert run.end_time <= call.end_time


async def test_agents_that_lead_back_to_themselves_are_stopped(telemetry: Captured) -> None:
    """An agent that calls itself is refused at the ninth run, and all other runs come to their answers."""

    def again(request: ModelRequest) -> Any:
        return "done" if request.messages[-1].role == "tool" else ToolCall("mirror", {"input": "again"})

    class Itself:
        id = "itself"

        def list_tools(self, ctx: DiscoveryContext) -> list[Tool]:
            return tools

    agent = Agent("mirror", model=FunctionModel(again), providers=[Itself()], description="d")
    tools = [agent.as_tool()]
    assert (await within(agent.run("x"))).output == "done"
    types = [ending(span)[2] for span in telemetry.find("execute_tool mirror")]
    assert sorted(map(str, types)) == ["None"] * 8 + ["nested_too_deep"]


async def test_its_telemetry_goes_where_the_callers_goes() -> None:
    """A nested run is in the telemetry of its caller unless it has its own."""
    with capture() as default, capture() as mine:
        default.is_checked = mine.is_checked = False
        await within(outer(ASK, "done", tools=[helper("ok")], telemetry=default).run("x"))
        await within(outer(ASK, "done", tools=[helper("ok", telemetry=mine)], telemetry=default).run("x"))
    assert len(default.find("invoke_agent helper")) == 1
    assert len(mine.find("invoke_agent helper")) == 1
    check_telemetry(default)


async def test_it_is_a_tool_like_any_other() -> None:
    """A sub-agent's tool has the agent's name and description unless others are given, and works outside of a run."""
    agent = Agent("Our helper!", model=ScriptedModel("hi"), description="Helps.")
    assert (agent.as_tool().name, agent.as_tool().description) == ("Our_helper_", "Helps.")
    mine = agent.as_tool("ask", "Asks.")
    assert (mine.name, mine.description, mine.input_schema["required"]) == ("ask", "Asks.", ["input"])
    assert await within(mine.run({"input": "x"}, ToolContext())) == "hi"
    with pytest.raises(ConfigError, match="needs a description"):
        Agent("b", model=ScriptedModel()).as_tool()


async def test_several_run_at_the_same_time(telemetry: Captured) -> None:
    """Several sub-agents run at the same time; results are in the order of the calls, and all usage counts."""
    both: list[str] = []
    met = anyio.Event()

    def meeting(name: str) -> Callable[[ModelRequest], Any]:
        async def answer(request: ModelRequest) -> ModelResponse:
            both.append(name)
            if len(both) == 2:
                met.set()
            await met.wait()
            return response(name, tokens=5)

        return answer

    tools = [Agent(n, model=FunctionModel(meeting(n)), description="d").as_tool() for n in ("one", "two")]
    calls = [ToolCall(name, {"input": "x"}) for name in ("one", "two")]
    result = await within(outer(calls, "done", tools=tools).run("x"))
    assert [each.response for each in results(result)] == ["one", "two"]
    assert result.usage.input_tokens == 10
    runs = {span_id(span) for span in telemetry.find("invoke_agent")}
    assert len(runs) == 3
    assert math.isclose(result.usage.cost or 0, 0.01)


async def test_tool_calls_of_nested_runs_count_against_the_limit_of_the_caller(telemetry: Captured) -> None:
    """Tool calls of nested runs count against `max_tool_calls` of the caller."""

    @tool
    async def step() -> str:
        """Do something."""
        return "done"

    calls = [ToolCall("step", {}, f"s{number}") for number in range(3)]
    asked = outer(ASK, "closing", tools=[helper(calls, "helped", tools=[step])], limits=Limits(max_tool_calls=3))
    result = await within(asked.run("x"))
    assert (result.status, result.stop_reason) == ("limit_reached", "max_tool_calls")
    endings = [ending(span)[2] for span in telemetry.find("execute_tool step")]
    assert sorted(endings, key=str) == [None, None, "max_tool_calls"]


async def test_rules_of_the_caller_see_what_nested_runs_have_used() -> None:
    """Reliability rules of the caller see the usage of nested runs."""
    seen: list[int] = []

    def is_spent(situation: Situation) -> bool:
        seen.append(situation.usage.input_tokens)
        return False

    inner = Agent("helper", model=FunctionModel(lambda request: response("helped", tokens=40)), description="Helps.")
    answers = [response(ASK, tokens=10), response("done", tokens=10)]
    model = FunctionModel(lambda request: answers.pop(0))
    rules = Reliability(pre_check=[Rule(when=is_spent, then=fail_fast(), kind="budget")])
    await within(Agent("outer", model=model, tools=[inner.as_tool()], reliability=rules).run("x"))
    assert max(seen) == 50
