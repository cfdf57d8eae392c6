"""Calls that run in the background while the model goes on."""

from __future__ import annotations

import math
import os
import random
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    CancelToken,
    ConfigError,
    Limits,
    RunCancelled,
    RunTimeout,
    TextPart,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
    tool,
)
from pellucid.events import AsyncToolContinued, AsyncToolExpired, AsyncToolLate, AsyncToolSettled
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters.testing import capture, check_telemetry
from support.clock import SOON, outlast, pass_time
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid import ModelRequest, RunResult, ToolContext
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


def slow(run: Callable[..., Any], **options: Any) -> Tool:
    """Return a tool in the background."""
    return Tool(name="slow", run=run, execution="same-invocation", **options)


def waits_long(request: ModelRequest) -> str:
    """Wait for the call longer than it may take."""
    pass_time()
    return "wait"


def answers(result: RunResult[Any]) -> list[Any]:
    """Return the results of `async_status` calls, in order."""
    parts = [part for message in result.messages for part in message.parts if isinstance(part, ToolResult)]
    return [part.response for part in parts if part.name == "async_status"]


def statuses(telemetry: Captured) -> list[Any]:
    """Return the statuses of the waits that have ended."""
    return [attributes(span)["pellucid.async_tool.status"] for span in telemetry.find("await_tool slow")]


def pending(telemetry: Captured) -> float:
    """Return the number of pending calls."""
    return sum(point.value for point in telemetry.metrics if point.name == "pellucid.external.pending")


def asks(action: str = "status") -> Callable[[ModelRequest], ToolCall]:
    """Return a step that asks about the call that the conversation started first."""

    def step(request: ModelRequest) -> ToolCall:
        responses: list[Any] = [
            part.response for message in request.messages for part in message.parts if isinstance(part, ToolResult)
        ]
        return ToolCall("async_status", {"resultId": responses[0]["resultId"], "action": action})

    return step


async def test_the_model_goes_on_and_gets_the_result_when_it_is_there(telemetry: Captured) -> None:
    """The result of a background call enters the conversation once, and the run waits for it."""
    release = anyio.Event()

    async def run(arguments: Any, ctx: ToolContext) -> str:
        await release.wait()
        return f"sum {arguments['x']}"

    @tool
    async def other() -> str:
        """Let the call in the background end."""
        release.set()
        return "ok"

    model = ScriptedModel(ToolCall("slow", {"x": 1}, "c1"), ToolCall("other"), "I wait.", "done")
    result = await within(Agent("a", model=model, tools=[slow(run), other]).run("go"))
    pending: Any = result.messages[2].parts[0]
    result_id = pending.response["resultId"]
    assert pending.response == {
        "resultId": result_id,
        "toolName": "slow",
        "toolCallId": "c1",
        "status": "running",
        "statusReference": {"tool": "async_status", "resultId": result_id},
    }
    assert result.output == "done"
    assert answers(result) == [{"resultId": result_id, "toolName": "slow", "status": "completed", "result": "sum 1"}]
    assert [message.role for message in result.messages[-3:]] == ["assistant", "tool", "assistant"]
    assert len(result.messages[-3].tool_calls[0].id or "") <= 40  # the limit of OpenAI
    offered = [[definition.name for definition in request.tools] for request in model.requests]
    assert offered == [["slow", "other"], *[["slow", "other", "async_status"]] * 2, ["slow", "other"]]
    wait, call = telemetry.span("await_tool slow"), telemetry.span("execute_tool slow")
    assert wait.parent is not None
    assert call.context is not None
    assert wait.parent.span_id == call.context.span_id
    assert [event.result_ids for event in telemetry.events if isinstance(event, AsyncToolContinued)] == [(result_id,)]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_result_that_the_model_asked_for_is_not_delivered_again(telemetry: Captured, *, streamed: bool) -> None:
    """A result that the model read with `async_status` is not delivered again."""
    release, settled = anyio.Event(), anyio.Event()

    async def run(arguments: Any, ctx: ToolContext) -> str:
        await release.wait()
        return "there"

    async def model(request: ModelRequest) -> Any:
        if len(request.messages) == 3:
            release.set()
            await settled.wait()
            return asks()(request)
        return ToolCall("slow") if len(request.messages) == 1 else "done"

    agent = Agent("a", model=FunctionModel(model), tools=[slow(run)])
    agent.on("async_tool.settled", lambda event: settled.set())
    if streamed:
        async with agent.stream("go") as events:
            async for _ in events:
                pass
        result = events.result
    else:
        result = await within(agent.run("go"))
    assert [answer["status"] for answer in answers(result)] == ["completed"]
    assert result.output == "done"


async def test_content_too_large_for_an_answer_is_delivered(telemetry: Captured) -> None:
    """Content within the limit reaches the model, even if the answer of `async_status` exceeds the limit."""
    settled = anyio.Event()

    async def run(arguments: Any, ctx: ToolContext) -> Any:
        return (TextPart("x" * 900),)

    async def model(request: ModelRequest) -> Any:
        if len(request.messages) == 3:
            await settled.wait()
            return asks()(request)
        return ToolCall("slow") if len(request.messages) == 1 else "done"

    agent = Agent("a", model=FunctionModel(model), tools=[slow(run)], limits=Limits(max_result_bytes=1000))
    agent.on("async_tool.settled", lambda event: settled.set())
    result = await within(agent.run("go"))
    assert "at most 1,000 can be passed on" in answers(result)[0]
    assert answers(result)[1][1:] == (TextPart("x" * 900),)


async def test_the_status_of_a_delivered_result_can_be_asked_for(telemetry: Captured) -> None:
    """`async_status` is no longer offered after the delivery, but still answers."""

    async def run(arguments: Any, ctx: ToolContext) -> str:
        return "there"

    model = ScriptedModel(ToolCall("slow"), "wait", asks(), "done")
    result = await within(Agent("a", model=model, tools=[slow(run)]).run("go"))
    assert [answer["result"] for answer in answers(result)] == ["there", "there"]
    assert [definition.name for definition in model.requests[2].tools] == ["slow"]


async def test_the_model_can_stop_a_call(telemetry: Captured) -> None:
    """The model can stop a background call, whose status is then `cancelled`."""

    async def run(arguments: Any, ctx: ToolContext) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    model = ScriptedModel(ToolCall("slow"), asks(), asks("stop"), "done")
    result = await within(Agent("a", model=model, tools=[slow(run)]).run("go"))
    assert [answer["status"] for answer in answers(result)] == ["running", "cancelled"]
    assert statuses(telemetry) == ["cancelled"]


async def test_an_unknown_call_is_named(telemetry: Captured) -> None:
    """The error about an unknown `resultId` names the known ones."""

    async def run(arguments: Any, ctx: ToolContext) -> str:
        await anyio.wait_all_tasks_blocked()
        return "there"

    model = ScriptedModel(ToolCall("slow"), ToolCall("async_status", {"resultId": "x"}), "wait", "done")
    result = await within(Agent("a", model=model, tools=[slow(run)]).run("go"))
    assert "Unknown resultId 'x'. Known ones: async_tool_" in answers(result)[0]


@pytest.mark.parametrize(
    ("failure", "text"), [(ToolError("no luck"), "no luck"), (OSError("down"), "The tool failed. OSError: down")]
)
async def test_a_failure_is_a_result(telemetry: Captured, failure: Exception, text: str) -> None:
    """The model reads the failure of a background call as its result."""

    async def run(arguments: Any, ctx: ToolContext) -> str:
        raise failure

    result = await within(Agent("a", model=ScriptedModel(ToolCall("slow"), "wait", "done"), tools=[slow(run)]).run("x"))
    [answer] = answers(result)
    assert (answer["status"], answer["error"]) == ("failed", text)
    assert statuses(telemetry) == ["failed"]


async def test_a_call_expires_at_its_deadline_and_a_late_result_is_an_event(telemetry: Captured) -> None:
    """A background call expires at its deadline, and its late result is an event."""
    release = anyio.Event()
    late = anyio.Event()

    async def run(arguments: Any, ctx: ToolContext) -> str:
        while not release.is_set():
            with anyio.CancelScope(shield=True), suppress(anyio.get_cancelled_exc_class()):
                await release.wait()
        return "late"

    @tool
    async def other() -> str:
        """Let the call in the background end."""
        release.set()
        await late.wait()
        return "ok"

    model = ScriptedModel(ToolCall("slow"), waits_long, ToolCall("other"), "done")
    agent = Agent("a", model=model, tools=[slow(run, expires_in=SOON), other])
    agent.on("async_tool.late", lambda event: late.set())
    result = await within(agent.run("x"))
    assert [answer["status"] for answer in answers(result)] == ["expired"]
    assert [type(event) for event in telemetry.events if isinstance(event, AsyncToolExpired | AsyncToolLate)] == [
        AsyncToolExpired,
        AsyncToolLate,
    ]
    assert attributes(telemetry.span("await_tool slow"))["error.type"] == "timeout"
    [point] = [point for point in telemetry.metrics if point.name == "pellucid.external.late"]
    assert point.value == 1


async def test_a_result_right_after_the_deadline_is_late(telemetry: Captured) -> None:
    """A result right after the deadline is late."""

    async def run(arguments: Any, ctx: ToolContext) -> str:
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep_forever()
        return "late"

    model = ScriptedModel(ToolCall("slow"), waits_long, "done")
    result = await within(Agent("a", model=model, tools=[slow(run, expires_in=SOON)]).run("x"))
    assert [answer["status"] for answer in answers(result)] == ["expired"]
    assert [type(event) for event in telemetry.events if isinstance(event, AsyncToolExpired | AsyncToolLate)] == [
        AsyncToolExpired,
        AsyncToolLate,
    ]


async def test_the_text_of_a_failure_is_cut(telemetry: Captured) -> None:
    """The text of a background call's failure is cut to `max_result_bytes`."""

    async def run(arguments: Any, ctx: ToolContext) -> str:
        raise ToolError("x" * 5000)

    model, limits = ScriptedModel(ToolCall("slow"), "wait", "done"), Limits(max_result_bytes=1000)
    result = await within(Agent("a", model=model, tools=[slow(run)], limits=limits).run("x"))
    assert "[cut: 5,000 bytes in all" in answers(result)[0]["error"]


async def test_a_heartbeat_keeps_a_call_alive(telemetry: Captured) -> None:
    """A heartbeat or progress keeps a background call alive, and without either it expires."""
    beats = 0

    async def run(arguments: Any, ctx: ToolContext) -> str:
        nonlocal beats
        while beats < 3:
            pass_time(0.4 * SOON)
            beats += 1
            if beats % 2:
                ctx.heartbeat()
            else:
                ctx.progress(beats)
            await anyio.wait_all_tasks_blocked()
        await outlast()

    model = ScriptedModel(ToolCall("slow"), "wait", "done")
    result = await within(Agent("a", model=model, tools=[slow(run, heartbeat=SOON)]).run("x"))
    assert beats == 3
    assert [answer["status"] for answer in answers(result)] == ["expired"]


async def test_results_are_delivered_before_the_last_answer(telemetry: Captured) -> None:
    """A run that reaches a limit delivers the results that are there before its last answer."""
    settled = anyio.Event()

    async def run(arguments: Any, ctx: ToolContext) -> str:
        return "there"

    @tool
    async def other() -> str:
        """Wait until the call in the background has ended."""
        await settled.wait()
        return "ok"

    model = ScriptedModel(ToolCall("slow"), ToolCall("other"), "done")
    agent = Agent("a", model=model, tools=[slow(run), other], limits=Limits(max_iterations=2))
    agent.on("async_tool.settled", lambda event: settled.set())
    result = await within(agent.run("go"))
    assert (result.status, result.output) == ("limit_reached", "done")
    assert [answer["result"] for answer in answers(result)] == ["there"]


@pytest.mark.parametrize("limits", [Limits(max_iterations=1), Limits(max_tool_calls=1)])
async def test_a_run_that_reaches_a_limit_waits_for_its_calls(telemetry: Captured, limits: Limits) -> None:
    """A run that reaches a limit waits for its background calls before the closing answer."""

    async def run(arguments: Any, ctx: ToolContext) -> str:
        await anyio.sleep(0.05)
        return "there"

    agent = Agent("a", model=ScriptedModel(ToolCall("slow"), "done"), tools=[slow(run)], limits=limits)
    result = await within(agent.run("x"))
    assert (result.status, result.output) == ("limit_reached", "done")
    assert [answer["result"] for answer in answers(result)] == ["there"]


@pytest.mark.parametrize("ending", ["cancelled", "deadline", "failed"])
async def test_calls_end_with_their_run(ending: str) -> None:
    """Background calls are cancelled when their run is cancelled, fails or reaches its deadline."""
    token, stopped = CancelToken(), anyio.Event()

    async def run(arguments: Any, ctx: ToolContext) -> str:
        if ending == "cancelled":
            token.cancel("enough")
        if ending == "deadline":
            pass_time()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        raise AssertionError

    def model(request: ModelRequest) -> Any:
        if ending == "failed" and request.messages[-1].role == "tool":
            raise OSError("down")
        return ToolCall("slow") if request.tools and request.messages[-1].role == "user" else "answer"

    limits = Limits(timeout=SOON if ending == "deadline" else None)
    with capture() as telemetry:
        agent = Agent("a", model=FunctionModel(model), tools=[slow(run)], limits=limits, telemetry=telemetry)
        with pytest.raises((RunCancelled, RunTimeout, Exception)):
            await within(agent.run("x", signal=token))
        await within(stopped.wait())
        assert statuses(telemetry) == ["cancelled"]
        check_telemetry(telemetry)


@pytest.mark.parametrize("stubborn", ["model", "tool"])
async def test_calls_end_with_a_run_that_is_abandoned(stubborn: str) -> None:
    """A model or tool that ignores the end of its run changes neither spans nor the number of pending calls."""
    token, release, ended = CancelToken(), anyio.Event(), anyio.Event()

    async def ignore_cancellation() -> None:
        while not release.is_set():
            with anyio.CancelScope(shield=True), suppress(anyio.get_cancelled_exc_class()):
                await release.wait()

    async def run(arguments: Any, ctx: ToolContext) -> str:
        try:
            await (ignore_cancellation() if stubborn == "tool" else anyio.sleep_forever())
        finally:
            ended.set()
        return "late"

    async def model(request: ModelRequest) -> Any:
        if len(request.messages) == 1:
            return ToolCall("slow")
        token.cancel("enough")
        if stubborn == "model":
            await ignore_cancellation()
        return "answer"

    with capture() as telemetry:
        agent = Agent("a", model=FunctionModel(model), tools=[slow(run)], telemetry=telemetry)
        with pytest.raises(RunCancelled):
            await within(agent.run("x", signal=token))
        assert statuses(telemetry) == ["cancelled"]
        assert pending(telemetry) == 0
        check_telemetry(telemetry)
        release.set()
        await within(ended.wait())
        assert statuses(telemetry) == ["cancelled"]
        check_telemetry(telemetry)


async def test_a_run_waits_for_the_tasks_of_stopped_calls(telemetry: Captured) -> None:
    """A run waits until a call that the model stopped has cleaned up."""
    cleaned = anyio.Event()

    async def run(arguments: Any, ctx: ToolContext) -> str:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            cleaned.set()
        raise AssertionError

    await within(Agent("a", model=ScriptedModel(ToolCall("slow"), asks("stop"), "done"), tools=[slow(run)]).run("go"))
    assert cleaned.is_set()


async def test_a_call_in_the_background_outlives_another_one_of_its_id(telemetry: Captured) -> None:
    """A background call goes on when another call with its id ends."""
    release = anyio.Event()

    async def help_slowly(request: ModelRequest) -> str:
        if "slowly" in str(request.messages):
            await release.wait()
        return "helped"

    inner = Agent("helper", model=FunctionModel(help_slowly), description="d").as_tool()
    tools = [inner, replace(inner, name="slow", execution="same-invocation")]

    def step(request: ModelRequest) -> str:
        release.set()
        return "wait"

    model = ScriptedModel(
        ToolCall("slow", {"input": "slowly"}, "c"),
        ToolCall("helper", {"input": "x"}, "c"),
        step,
        "end",
        strict=False,
    )
    result = await within(Agent("a", model=model, tools=tools).run("x"))
    assert [answer["result"] for answer in answers(result)] == ["helped"]


async def test_a_sub_agent_can_run_in_the_background(telemetry: Captured) -> None:
    """A sub-agent may run in the background, with its run nested in the call."""
    inner = Agent("helper", model=ScriptedModel("helped"), description="d").as_tool()
    helper = Tool(
        name="slow", run=inner.run, input_schema=inner.input_schema, description="d", execution="same-invocation"
    )
    model = ScriptedModel(ToolCall("slow", {"input": "help"}), "wait", "done")
    result = await within(Agent("a", model=model, tools=[helper]).run("x"))
    assert answers(result)[0]["result"] == "helped"
    assert telemetry.span("invoke_agent helper").parent is not None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"execution": "elsewhere"}, "unknown execution"),
        ({"pending": "wait"}, "pending='wait' needs execution='external-dispatch'"),
        ({"expires_in": 1.0}, "expires_in needs execution"),
        ({"heartbeat": 1.0, "execution": "external-dispatch"}, "heartbeat needs execution='same-invocation'"),
        ({"serial": True, "execution": "same-invocation"}, "a serial tool cannot run in the background"),
    ],
)
def test_options_without_a_meaning_are_refused(options: Any, text: str) -> None:
    """A tool refuses options that have no meaning together when it is made."""
    with pytest.raises(ConfigError, match=text):
        Tool(name="t", run=lambda arguments, ctx: None, **options)


class Generated:
    """Random background calls, and a model that asks about them or stops them."""

    def __init__(self) -> None:
        self.chance = random.Random(7)

    async def slow(self, arguments: Any, ctx: ToolContext) -> str:
        """End as the arguments say."""
        kind = arguments["kind"]
        if kind == "failing":
            raise ToolError("failed")
        if kind == "shielded":
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
        elif kind != "early":
            await anyio.sleep(math.inf if kind == "never" else self.chance.uniform(0, 0.02))
        return str(kind)

    def calls(self) -> list[ToolCall]:
        """Return the calls of one run."""
        kinds = self.chance.choices(("early", "late", "never", "shielded", "failing"), k=self.chance.randint(1, 4))
        return [ToolCall("slow", {"kind": kind}, f"c{number}") for number, kind in enumerate(kinds)]

    def answer(self, request: ModelRequest) -> Any:
        """Return the answer of the model."""
        if len(request.messages) == 1:
            return self.calls()
        if len(request.messages) == 3 and self.chance.random() < 0.3:
            return asks(self.chance.choice(("status", "stop")))(request)
        return "done"


async def test_generated_runs() -> None:
    """Each of many random background calls has one result, which is delivered once."""
    generated = Generated()

    async def one(agent: Agent, telemetry: Captured) -> None:
        result = await within(agent.run("x"))
        events = [event for event in telemetry.events if event.run_id == result.run_id]
        settled = [event.result_id for event in events if isinstance(event, AsyncToolSettled)]
        assert len(set(settled)) == len(settled) == len(result.messages[1].tool_calls)
        assert {answer["resultId"] for answer in answers(result) if answer["status"] != "running"} == set(settled)
        continued = [event.result_ids for event in events if isinstance(event, AsyncToolContinued)]
        delivered = list(chain.from_iterable(continued))
        assert len(set(delivered)) == len(delivered)
        assert result.output == "done"

    for _ in range(int(os.environ.get("PELLUCID_GENERATED_RUNS", "80")) // 20):
        with capture() as telemetry:
            agent = Agent("a", model=FunctionModel(generated.answer), tools=[slow(generated.slow, expires_in=0.03)])
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(one, agent, telemetry)
            check_telemetry(telemetry)
