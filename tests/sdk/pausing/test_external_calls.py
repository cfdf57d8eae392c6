"""Calls whose work another process does, with the checkpoint kept by the application."""

from __future__ import annotations

import json
import math
import random
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    BlobPart,
    ConfigError,
    Decision,
    ExternalResult,
    Limits,
    Message,
    ModelError,
    Reliability,
    RunTimeout,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
    dump_messages,
    load_messages,
)
from pellucid.context import ExternalCall
from pellucid.errors import AlreadyResumed, CheckpointError, PolicyHalt
from pellucid.events import AsyncToolContinued, AsyncToolExpired, AsyncToolLate
from pellucid.reliability import Rule, retry
from pellucid.testing import FunctionModel, ScriptedModel
from support.runs import attributes, within

if TYPE_CHECKING:
    from pellucid import PermissionRequest, RunResult, ToolContext
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


class Queue:
    """Jobs that a tool hands to another process.

    Attributes:
        jobs: Data with which the other process returns each result, in the order of the argument `n`.
        numbers: Argument `n` of each job, by result id.
    """

    def __init__(self) -> None:
        self.jobs: list[ExternalCall] = []
        self.numbers: dict[str, int] = {}

    def tool(self, **options: Any) -> Tool:
        """Return a tool that enqueues."""

        async def enqueue(arguments: Any, ctx: ToolContext) -> None:
            assert ctx.external is not None
            self.jobs.append(ctx.external)
            self.jobs.sort(key=lambda job: self.numbers.setdefault(job.result_id, arguments.get("n", 0)))

        return Tool(name="job", run=enqueue, execution="external-dispatch", **options)

    def result(self, number: int, output: Any = "done", **more: Any) -> ExternalResult:
        """Return the result of a job."""
        return ExternalResult(result_id=self.jobs[number].result_id, **({"output": output} | more))


def stored(result: RunResult[Any]) -> Any:
    """Return the checkpoint of a run as a database returns it."""
    assert result.checkpoint is not None
    return json.loads(json.dumps(result.checkpoint))


def answers(result: RunResult[Any]) -> list[Any]:
    """Return the results of `async_status` calls, in order."""
    return [part.response for part in parts(result) if part.name == "async_status"]


def results(result: RunResult[Any]) -> list[Any]:
    """Return the results of all other calls, in order."""
    return [part.response for part in parts(result) if part.name != "async_status"]


def parts(result: RunResult[Any]) -> list[ToolResult]:
    """Return the tool results of a conversation."""
    return [part for message in result.messages for part in message.parts if isinstance(part, ToolResult)]


def pending(telemetry: Captured) -> float:
    """Return the number of pending calls."""
    return sum(point.value for point in telemetry.metrics if point.name == "pellucid.external.pending")


JOBS = [ToolCall("job", {"n": 1}, "c1"), ToolCall("job", {"n": 2}, "c2")]


async def test_results_enter_the_conversation_in_the_order_of_the_calls() -> None:
    """Results enter the conversation in the order of the calls."""
    for _ in range(10):
        queue = Queue()
        agent = Agent("a", model=ScriptedModel(JOBS, "I wait.", "sum"), tools=[queue.tool()])
        paused = await within(agent.run("go"))
        given = [queue.result(1, "second"), queue.result(0, "first")]
        result = await within(agent.resume(stored(paused), results=given))
        assert [answer["result"] for answer in answers(result)] == ["first", "second"]


async def test_the_model_goes_on_and_the_run_waits_for_the_results(telemetry: Captured) -> None:
    """A run waits until all results are there, and all its passes, calls and waits are one trace."""
    queue = Queue()
    model = ScriptedModel(JOBS, "I wait.", "sum")
    agent = Agent("a", model=model, tools=[queue.tool(expires_in=60.0)])
    paused = await within(agent.run("go"))
    assert (paused.status, paused.stop_reason) == ("awaiting_tools", "awaiting_tools")
    assert not paused.output
    requests = {request.result_id: request for request in paused.external}
    assert [requests[job.result_id].arguments for job in queue.jobs] == [{"n": 1}, {"n": 2}]
    job, request = queue.jobs[0], requests[queue.jobs[0].result_id]
    assert job.complete_path == f"/async-tools/{job.result_id}/complete"
    assert (job.complete_url, job.token) == (None, None)
    assert request.expires_at == request.dispatched_at + 60.0
    assert job.expires_at == datetime.fromtimestamp(request.expires_at, UTC)
    assert job.headers["traceparent"].split("-")[1] == paused.trace_id
    half = await within(agent.resume(stored(paused), results=[queue.result(1, {"sum": 3})]))
    assert (half.status, len(half.external), len(model.requests)) == ("awaiting_tools", 1, 2)
    whole = await within(agent.resume(stored(half), results=[queue.result(0, output=None, error="no luck")]))
    assert (whole.status, whole.output) == ("completed", "sum")
    found = {
        answer["resultId"]: (answer["status"], answer.get("result"), answer.get("error")) for answer in answers(whole)
    }
    outcomes = [("failed", None, "no luck"), ("completed", {"sum": 3}, None)]
    assert [found[job.result_id] for job in queue.jobs] == outcomes
    waits = telemetry.find("await_tool job")
    assert [attributes(span)["pellucid.async_tool.status"] for span in waits] == ["completed", "failed"]
    assert {span.context.trace_id for span in telemetry.spans} == {int(paused.trace_id, 16)}
    passes = telemetry.find("invoke_agent a")
    linked = [{link.context.span_id for link in span.links} for span in passes]
    assert linked[1] == {passes[0].context.span_id, waits[0].context.span_id}
    continued = [event.result_ids for event in telemetry.events if isinstance(event, AsyncToolContinued)]
    assert [set(result_ids) for result_ids in continued] == [{job.result_id for job in queue.jobs}]


async def test_results_are_delivered_in_the_last_iteration(telemetry: Captured) -> None:
    """A run that paused in its last iteration has one more answer with the results."""
    queue = Queue()
    model = ScriptedModel(ToolCall("job"), "I wait.", "sum")
    agent = Agent("a", model=model, tools=[queue.tool()], limits=Limits(max_iterations=2))
    paused = await within(agent.run("go"))
    whole = await within(agent.resume(stored(paused), results=[queue.result(0, 3)]))
    assert (whole.status, whole.output) == ("limit_reached", "sum")
    assert [answer["result"] for answer in answers(whole)] == [3]


async def test_a_result_can_take_the_place_of_the_call(telemetry: Captured) -> None:
    """With `pending="wait"` a run pauses after the message, and the model reads only the results."""
    queue = Queue()
    model = ScriptedModel(JOBS, "sum")
    agent = Agent("a", model=model, tools=[queue.tool(pending="wait")])
    paused = await within(agent.run("go"))
    assert (paused.status, len(paused.messages)) == ("awaiting_tools", 2)
    half = await within(agent.resume(stored(paused), results=[queue.result(1, {"sum": 3})]))
    whole = await within(agent.resume(stored(half), results=[queue.result(0, "first")]))
    assert results(whole) == ["first", {"sum": 3}]
    assert [len(request.messages) for request in model.requests] == [1, 3]
    assert "async_status" not in str(model.requests[1])


async def test_a_call_that_cannot_be_enqueued_has_failed(telemetry: Captured) -> None:
    """A call that could not be enqueued has failed for the model, and the run does not wait for it."""

    async def enqueue(arguments: Any, ctx: ToolContext) -> None:
        raise ToolError("the queue is full")

    tool = Tool(name="job", run=enqueue, execution="external-dispatch")
    result = await within(Agent("a", model=ScriptedModel(ToolCall("job"), "done"), tools=[tool]).run("go"))
    assert (result.status, results(result)) == ("completed", ["the queue is full"])
    assert not telemetry.find("await_tool job")


async def test_a_repeated_dispatch_has_the_same_id(telemetry: Captured) -> None:
    """A dispatch that a rule repeats has the same result id."""
    queue, failures = Queue(), [OSError("down")]
    enqueue = queue.tool().run

    async def flaky(arguments: Any, ctx: ToolContext) -> None:
        await enqueue(arguments, ctx)
        if failures:
            raise failures.pop()

    rule = Rule(when=lambda s: s.operation == "tool" and s.attempt < 3, then=retry(backoff=0), kind="again")
    tool = Tool(name="job", run=flaky, execution="external-dispatch", idempotent=True)
    model = ScriptedModel(ToolCall("job"), "wait", "done")
    agent = Agent("a", model=model, tools=[tool], reliability=Reliability([rule]))
    paused = await within(agent.run("go"))
    assert len(queue.jobs) == 2
    assert len({job.result_id for job in queue.jobs}) == 1
    assert len(paused.external) == 1
    assert (await within(agent.resume(stored(paused), results=[queue.result(0)]))).status == "completed"


@pytest.mark.parametrize("first", ["decision", "result", "both"])
@pytest.mark.parametrize("pending", ["continue", "wait"])
async def test_approvals_and_external_calls_are_one_group(telemetry: Captured, first: str, pending: str) -> None:
    """The model is called when all approvals and external calls of a group are settled, in any order."""
    queue = Queue()

    async def pay(arguments: Any, ctx: ToolContext) -> str:
        return "paid"

    tools = [queue.tool(pending=pending), Tool(name="pay", run=pay, needs_approval=True)]
    model = ScriptedModel([ToolCall("job", {}, "c1"), ToolCall("pay", {}, "c2")], "done")
    agent = Agent("a", model=model, tools=tools)
    paused = await within(agent.run("go"))
    assert (paused.status, len(paused.approvals), len(paused.external)) == ("awaiting_approval", 1, 1)
    decisions, outcomes = [Decision(paused.approvals[0].approval_id, approved=True)], [queue.result(0, "worked")]
    if first == "both":
        result = await within(agent.resume(stored(paused), decisions=decisions, results=outcomes))
    else:
        half: Any = {"decisions": decisions} if first == "decision" else {"results": outcomes}
        rest: Any = {"results": outcomes} if first == "decision" else {"decisions": decisions}
        result = await within(agent.resume(stored(paused), **half))
        assert result.status == ("awaiting_tools" if first == "decision" else "awaiting_approval")
        assert len(model.requests) == 1
        result = await within(agent.resume(stored(result), **rest))
    assert (result.status, result.output, len(model.requests)) == ("completed", "done", 2)
    assert "paid" in results(result)
    assert ("worked" in results(result)) == (pending == "wait")
    assert [answer["result"] for answer in answers(result)] == (["worked"] if pending == "continue" else [])


async def test_a_call_past_its_deadline_expires_and_its_result_is_late(telemetry: Captured) -> None:
    """A call expires at its deadline, and its late result is an event."""
    queue = Queue()
    agent = Agent("a", model=ScriptedModel(ToolCall("job"), "wait", "done"), tools=[queue.tool(expires_in=1e-9)])
    paused = await within(agent.run("go"))
    result = await within(agent.resume(stored(paused), results=[queue.result(0)]))
    assert answers(result)[0]["status"] == "expired"
    kinds = [type(event) for event in telemetry.events if isinstance(event, AsyncToolExpired | AsyncToolLate)]
    assert kinds == [AsyncToolExpired, AsyncToolLate]
    agent = Agent("a", model=ScriptedModel(ToolCall("job"), "wait", "done"), tools=[queue.tool(expires_in=1e-9)])
    again = await within(agent.resume(stored(await within(agent.run("go")))))
    assert (again.status, answers(again)[0]["status"]) == ("completed", "expired")


@pytest.mark.parametrize(("output", "late"), [("done", 0), ("other", 1)], ids=["the same result", "another result"])
async def test_a_result_of_a_call_that_has_ended_is_late(telemetry: Captured, output: str, late: int) -> None:
    """Another result of a call that has ended is an event and changes nothing; the same result is ignored."""
    queue = Queue()
    inner = Agent("inner", model=ScriptedModel(ToolCall("job"), "wait", "inner"), tools=[queue.tool()], description="d")
    steps: list[Any] = [
        ToolCall("inner", {"input": "?"}),
        ToolCall("job", {"n": 1}),
        "wait",
        ToolCall("job", {"n": 2}),
        "wait",
    ]
    agent = Agent("a", model=ScriptedModel(*steps, "done"), tools=[queue.tool(), inner.as_tool()])
    paused = await within(agent.run("go"))
    for number in range(2):
        paused = await within(agent.resume(stored(paused), results=[queue.result(number)]))
        assert paused.status == "awaiting_tools"
    given = [queue.result(0, output), queue.result(1, output), queue.result(2)]
    result = await within(agent.resume(stored(paused), results=given))
    assert (result.status, [answer["result"] for answer in answers(result)]) == ("completed", ["done", "done"])
    events = [event.tool_call_id for event in telemetry.events if isinstance(event, AsyncToolLate)]
    assert len(events) == len({*events}) == 2 * late


async def test_the_result_of_a_stopped_call_is_late(telemetry: Captured) -> None:
    """The result of a call that the model has stopped is an event."""
    queue = Queue()

    def stop(_request: object) -> ToolCall:
        return ToolCall("async_status", {"resultId": queue.jobs[0].result_id, "action": "stop"})

    agent = Agent("a", model=ScriptedModel(JOBS, stop, "wait", "done"), tools=[queue.tool()])
    paused = await within(agent.run("go"))
    result = await within(agent.resume(stored(paused), results=[queue.result(0), queue.result(1)]))
    assert [answer["status"] for answer in answers(result)] == ["cancelled", "completed"]
    assert [event.status for event in telemetry.events if isinstance(event, AsyncToolLate)] == ["completed"]


async def test_a_wait_ends_when_its_result_was_there(telemetry: Captured) -> None:
    """The span of a wait ends when the result was there or the call expired, not when the run resumes."""
    queue = Queue()
    agent = Agent("a", model=ScriptedModel(JOBS, "wait", "done"), tools=[queue.tool(expires_in=1e-9)])
    paused = await within(agent.run("go"))
    first, second = paused.external
    given = ExternalResult(result_id=first.result_id, output=1, settled_at=first.dispatched_at - 3600)
    agent = Agent("a", model=ScriptedModel("done"), tools=[queue.tool()])
    checkpoint = stored(paused)
    checkpoint["external"][0]["deadline"] = None
    await within(agent.resume(checkpoint, results=[given]))
    ends = {attributes(span)["gen_ai.tool.call.id"]: span.end_time for span in telemetry.find("await_tool")}
    assert ends[first.tool_call_id] == int(first.dispatched_at * 1e9)  # no wait is negative, whatever the clocks say
    assert second.expires_at is not None
    assert ends[second.tool_call_id] == pytest.approx(int(second.expires_at * 1e9), abs=1000)


async def test_results_that_do_not_fit_are_refused(telemetry: Captured) -> None:
    """Results with an unknown id or a contradiction are refused, and the checkpoint can still be resumed."""
    queue = Queue()
    agent = Agent("a", model=ScriptedModel(JOBS, "wait", "done"), tools=[queue.tool()])
    paused = await within(agent.run("go"))
    with pytest.raises(CheckpointError, match="unknown result id 'x'; this checkpoint is waiting for 'async_tool_"):
        await within(agent.resume(stored(paused), results=[ExternalResult(result_id="x")]))
    with pytest.raises(CheckpointError, match="has another result already"):
        await within(agent.resume(stored(paused), results=[queue.result(0, 1), queue.result(0, 2)]))
    half = await within(agent.resume(stored(paused), results=[queue.result(0, 1), queue.result(0, 1)]))
    with pytest.raises(CheckpointError, match="has another result already"):
        await within(agent.resume(stored(half), results=[queue.result(0, 2), queue.result(1)]))
    whole = await within(agent.resume(stored(half), results=[queue.result(0, 1), queue.result(1)]))
    assert {answer["result"] for answer in answers(whole)} == {1, "done"}


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ({"dispatched_at": math.nan}, "a time of external call 'async_tool_.*' is out of range"),
        ({"dispatched_at": math.inf}, "a time of external call 'async_tool_.*' is out of range"),
        ({"deadline": 1e300}, "a time of external call 'async_tool_.*' is out of range"),
        ({"result_id": "other", "result": {"result_id": "x"}}, "the result of external call 'other' has another id"),
        ({"trace": None}, "external.0.trace"),
        ({}, "two external calls have the same result id"),
    ],
)
async def test_damaged_calls_are_refused(telemetry: Captured, damage: Any, text: str) -> None:
    """A checkpoint with damaged calls is refused with the fault."""
    queue = Queue()
    paused = await within(Agent("a", model=ScriptedModel(ToolCall("job"), "wait"), tools=[queue.tool()]).run("go"))
    checkpoint = stored(paused)
    checkpoint["external"] = [{**call, **damage} for call in checkpoint["external"]] * (1 if damage else 2)
    with pytest.raises(CheckpointError, match=f"the checkpoint is damaged: {text}"):
        await within(Agent("a", model=ScriptedModel("done")).resume(checkpoint))


async def test_every_change_of_a_checkpoint_is_accepted_or_refused() -> None:
    """A damaged checkpoint raises `CheckpointError` or is accepted."""
    queue, chance = Queue(), random.Random(5)

    def create() -> Agent:
        def answer(request: Any) -> Any:
            calls = [*JOBS, ToolCall("inner", {"input": "x"}, "c3")]
            return calls if len(request.messages) == 1 else "done"

        model = FunctionModel(lambda request: ToolCall("job", {"n": 3}) if len(request.messages) == 1 else "done")
        inner = Agent("inner", model=model, tools=[queue.tool(pending="wait")], description="d")
        return Agent("a", model=FunctionModel(answer), tools=[queue.tool(pending="wait"), inner.as_tool()])

    paused = await within(create().run("go"))
    half = stored(await within(create().resume(stored(paused), results=[queue.result(0)])))
    for number in range(200):
        checkpoint = json.loads(json.dumps({**half, "id": f"{number:032x}"}))
        requests = [*checkpoint["external"], *checkpoint["nested"]["c3"]["external"]]
        request = chance.choice(requests)
        request[chance.choice(list(request))] = chance.choice([None, -1, "x", [], {"a": 1}, True, math.nan, 1e308])
        with suppress(CheckpointError):
            await within(create().resume(checkpoint, results=[queue.result(1)]))


@pytest.mark.parametrize("kind", ["job", "slow"])
async def test_asking_for_a_result_can_need_approval(telemetry: Captured, kind: str) -> None:
    """A call of `async_status` that needs approval runs when the run is resumed."""
    queue = Queue()

    async def work(arguments: Any, ctx: ToolContext) -> str:
        return "done"

    def ask(request: Any) -> ToolCall:
        return ToolCall("async_status", {"resultId": request.messages[2].parts[0].response["resultId"]}, "s1")

    agent = Agent(
        "a",
        model=ScriptedModel(ToolCall(kind), ask, "end"),
        tools=[queue.tool(), Tool(name="slow", run=work, execution="same-invocation")],
        policy=lambda request: "ask" if (request.stage, request.tool_name) == ("dispatch", "async_status") else "allow",
    )
    paused = await within(agent.run("go"))
    decisions = [Decision(paused.approvals[0].approval_id, approved=True)]
    given = [queue.result(0)] if kind == "job" else []
    result = await within(agent.resume(stored(paused), decisions=decisions, results=given))
    assert [answer["result"] for answer in answers(result)] == ["done"]


@pytest.mark.parametrize("pending", ["continue", "wait"])
@pytest.mark.parametrize("more", [{"output": "x" * 5000}, {"output": None, "status": "cancelled"}])
async def test_a_repeated_result_changes_nothing(telemetry: Captured, pending: str, more: Any) -> None:
    """A repeated result changes nothing while other calls are pending."""
    queue = Queue()
    steps: list[Any] = [JOBS, *(["wait"] if pending == "continue" else []), "done"]
    limits = Limits(max_result_bytes=1000)
    agent = Agent("a", model=ScriptedModel(*steps), tools=[queue.tool(pending=pending)], limits=limits)
    paused = await within(agent.run("go"))
    first = queue.result(0, **more)
    half = await within(agent.resume(stored(paused), results=[first, first]))
    again = await within(agent.resume(stored(half), results=[first]))
    assert [request.result_id for request in again.external] == [queue.jobs[1].result_id]
    whole = await within(agent.resume(stored(again), results=[queue.result(1), first]))
    assert whole.output == "done"
    continued = [event.result_ids for event in telemetry.events if isinstance(event, AsyncToolContinued)]
    assert [set(result_ids) for result_ids in continued] == [{job.result_id for job in queue.jobs}]


@pytest.mark.parametrize("pending", ["continue", "wait"])
@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"output": "x" * 5000}, "[cut: 5,000 bytes in all"),
        ({"error": "x" * 5000, "output": None}, "[cut: 5,000 bytes in all"),
        ({"output": ("a", 1)}, "['a', 1]"),
    ],
)
async def test_results_are_bounded_and_plain(telemetry: Captured, pending: str, more: Any, text: str) -> None:
    """External results are cut and turned into JSON like results of any tool."""
    queue = Queue()
    steps: list[Any] = [ToolCall("job"), *(["wait"] if pending == "continue" else []), "done"]
    limits = Limits(max_result_bytes=1000)
    agent = Agent("a", model=ScriptedModel(*steps), tools=[queue.tool(pending=pending)], limits=limits)
    paused = await within(agent.run("go"))
    whole = await within(agent.resume(stored(paused), results=[queue.result(0, **more)]))
    assert text in str((answers(whole) or results(whole))[0])
    assert load_messages(dump_messages(whole.messages)) == whole.messages


@pytest.mark.parametrize("pending", ["continue", "wait"])
async def test_sub_agents_wait_at_any_depth(telemetry: Captured, pending: str) -> None:
    """Runs around a sub-agent wait for its external call, at any depth."""
    queue = Queue()
    steps: list[Any] = [ToolCall("job", {}, "j1"), *(["wait"] if pending == "continue" else []), "inner done"]
    inner = Agent("inner", model=ScriptedModel(*steps), tools=[queue.tool(pending=pending)], description="d")
    middle = Agent(
        "middle", model=ScriptedModel(ToolCall("inner", {"input": "x"}, "i1"), "middle done"), tools=[inner.as_tool()],
        description="d",
    )  # fmt: skip
    outer = Agent(
        "outer", model=ScriptedModel(ToolCall("middle", {"input": "x"}, "m1"), "done"), tools=[middle.as_tool()]
    )
    paused = await within(outer.run("go"))
    assert (paused.status, [request.tool_call_id for request in paused.external]) == ("awaiting_tools", ["j1"])
    again = await within(outer.resume(stored(paused)))
    assert (again.status, len(again.external)) == ("awaiting_tools", 1)
    result = await within(outer.resume(stored(again), results=[queue.result(0)]))
    assert (result.status, result.output, results(result)) == ("completed", "done", ["middle done"])


async def test_the_model_can_ask_and_stop(telemetry: Captured) -> None:
    """The model can ask for the status of an external call and stop it, and a stopped call is not awaited."""
    queue = Queue()

    def step(action: str) -> Any:
        return lambda request: ToolCall("async_status", {"resultId": queue.jobs[0].result_id, "action": action})

    agent = Agent("a", model=ScriptedModel(ToolCall("job"), step("status"), step("stop"), "done"), tools=[queue.tool()])
    result = await within(agent.run("go"))
    assert (result.status, [answer["status"] for answer in answers(result)]) == ("completed", ["running", "cancelled"])
    assert "delivered automatically" in answers(result)[0]["note"]


@pytest.mark.parametrize(
    "output", ["worked", BlobPart(content="aGk=", modality="image", mime_type="image/png")], ids=["text", "image"]
)
async def test_results_of_background_calls_survive_a_pause(telemetry: Captured, output: Any) -> None:
    """The result of a background call survives a pause in the checkpoint."""
    queue = Queue()

    async def work(arguments: Any, ctx: ToolContext) -> Any:
        return output

    tools = [queue.tool(pending="wait"), Tool(name="slow", run=work, execution="same-invocation")]
    model = ScriptedModel([ToolCall("slow", {}, "c1"), ToolCall("job", {}, "c2")], "done")
    agent = Agent("a", model=model, tools=tools)
    paused = await within(agent.run("go"))
    assert [request.tool_name for request in paused.external] == ["job"]
    result = await within(agent.resume(stored(paused), results=[queue.result(0)]))
    (answer,) = answers(result)
    assert (answer["result"] == output) if output == "worked" else (answer[-1] == output)


@pytest.mark.parametrize("limits", [Limits(max_iterations=1), Limits(max_tool_calls=1)])
async def test_a_run_that_reaches_a_limit_waits_for_its_calls(telemetry: Captured, limits: Limits) -> None:
    """A run that reaches a limit waits for its external calls before the closing answer."""
    queue = Queue()
    model = ScriptedModel(ToolCall("job"), "done")
    agent = Agent("a", model=model, tools=[queue.tool()], limits=limits)
    paused = await within(agent.run("go"))
    assert (paused.status, len(model.requests)) == ("awaiting_tools", 1)
    result = await within(agent.resume(stored(paused), results=[queue.result(0)]))
    assert result.output == "done"
    assert [answer["result"] for answer in answers(result)] == ["done"]


async def test_calls_of_a_run_that_fails_are_cancelled(telemetry: Captured) -> None:
    """External calls of a run that fails are cancelled with their waits."""
    agent = Agent("a", model=ScriptedModel(ToolCall("job"), OSError("down")), tools=[Queue().tool()])
    with pytest.raises(ModelError, match="down"):
        await within(agent.run("go"))
    assert attributes(telemetry.span("await_tool job"))["pellucid.async_tool.status"] == "cancelled"


async def test_a_refused_resumption_settles_nothing(telemetry: Captured) -> None:
    """A second attempt to resume a checkpoint settles no call."""
    queue = Queue()
    agent = Agent("a", model=ScriptedModel(ToolCall("job"), "wait", "done"), tools=[queue.tool()])
    paused = await within(agent.run("go"))
    await within(agent.resume(stored(paused), results=[queue.result(0)]))
    with pytest.raises(AlreadyResumed):
        await within(agent.resume(stored(paused), results=[queue.result(0)]))
    assert len(telemetry.find("await_tool job")) == 1
    assert pending(telemetry) == 0


@pytest.mark.parametrize("obstacle", ["deadline", "conversation"])
async def test_calls_of_a_run_that_cannot_pause_are_cancelled(telemetry: Captured, obstacle: str) -> None:
    """External calls are cancelled if the run ends without a checkpoint."""
    queue = Queue()

    async def never(arguments: Any, ctx: ToolContext) -> None:
        await anyio.sleep_forever()

    tools = [queue.tool(), Tool(name="never", run=never, execution="same-invocation")]
    approved = Tool(name="pay", run=never, needs_approval=True)
    calls = [ToolCall("job", {}, "c1"), ToolCall("pay", {}, "c2")]
    calls += [ToolCall("never", {}, "c3")] if obstacle == "deadline" else []
    limits = Limits(timeout=2.0 if obstacle == "deadline" else None)
    agent = Agent("a", model=ScriptedModel(calls), tools=[*tools, approved], limits=limits)
    history = [Message("user", "x"), Message("assistant", [ToolCall("q", {"x": object()}, "q1")])]
    history.append(Message("tool", [ToolResult("q1", "x")]))
    with pytest.raises(RunTimeout if obstacle == "deadline" else CheckpointError):
        await within(agent.run("go", history=history if obstacle == "conversation" else ()))
    assert attributes(telemetry.span("await_tool job"))["pellucid.async_tool.status"] == "cancelled"
    assert pending(telemetry) == 0


@pytest.mark.parametrize("ending", ["halted", "background"])
async def test_calls_of_a_paused_sub_agent_end_with_the_outer_run(telemetry: Captured, ending: str) -> None:
    """External calls of a paused sub-agent are cancelled if the outer run fails or has no checkpoint for them."""
    queue = Queue()
    has_paused = anyio.Event()
    agent = Agent("inner", model=ScriptedModel(ToolCall("job"), "wait"), tools=[queue.tool()], description="d")
    agent.on("run.completed", lambda event: has_paused.set())
    inner = replace(agent.as_tool(), execution="same-invocation" if ending == "background" else None)

    async def policy(request: PermissionRequest) -> str:
        if (request.stage, request.tool_name) != ("dispatch", "stop"):
            return "allow"
        await has_paused.wait()
        return "halt"

    async def stop(arguments: Any, ctx: ToolContext) -> None:
        raise AssertionError

    calls = [ToolCall("inner", {"input": "x"}, "c1"), *([ToolCall("stop", {}, "c2")] if ending == "halted" else [])]
    outer = Agent(
        "outer",
        model=ScriptedModel(calls, "wait", "done"),
        tools=[inner, Tool(name="stop", run=stop)],
        policy=policy,
    )
    with pytest.raises(PolicyHalt) if ending == "halted" else nullcontext():
        await within(outer.run("go"))
    assert attributes(telemetry.span("await_tool job"))["pellucid.async_tool.status"] == "cancelled"
    assert pending(telemetry) == 0


async def test_settled_calls_of_sub_agents_are_not_owed(telemetry: Captured) -> None:
    """`RunResult.external` lists only calls of sub-agents that have no result."""
    queue = Queue()
    inner = Agent("inner", model=ScriptedModel(JOBS, "wait"), tools=[queue.tool()], description="d")
    outer = Agent("outer", model=ScriptedModel(ToolCall("inner", {"input": "x"})), tools=[inner.as_tool()])
    paused = await within(outer.run("go"))
    half = await within(outer.resume(stored(paused), results=[queue.result(0)]))
    again = await within(outer.resume(stored(half)))
    for result in (half, again):
        assert [request.result_id for request in result.external] == [queue.jobs[1].result_id]


@pytest.mark.parametrize("given", ["inner", "outer", "both"])
async def test_calls_of_sub_agents_settle_once(telemetry: Captured, given: str) -> None:
    """The number of pending calls of sub-agents returns to zero, in any order of the results."""
    queue = Queue()
    tools = [queue.tool()]
    inner = Agent(
        "inner", model=ScriptedModel(ToolCall("job", {"n": 0}), "wait", "inner done"), tools=tools, description="d"
    )
    calls = [ToolCall("inner", {"input": "x"}, "i1"), ToolCall("job", {"n": 1}, "j1")]
    outer = Agent("outer", model=ScriptedModel(calls, "done"), tools=[inner.as_tool(), *tools])
    paused = await within(outer.run("go"))
    assert (len(paused.external), pending(telemetry)) == (2, 2)
    first = {"inner": [0], "outer": [1], "both": [0, 1]}[given]
    result = await within(outer.resume(stored(paused), results=[queue.result(number) for number in first]))
    while result.status == "awaiting_tools":
        owed = [request.result_id for request in result.external]
        assert (len(owed), pending(telemetry)) == (1, 1)
        result = await within(outer.resume(stored(result), results=[ExternalResult(result_id=owed[0], output="x")]))
    assert (result.output, pending(telemetry), len(telemetry.find("await_tool job"))) == ("done", 0, 2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"status": "done"}, "use one of completed, failed, expired, cancelled"),
        ({"status": "completed", "error": "x"}, "is completed and has an error"),
        ({"status": "failed"}, "failed without an error"),
    ],
)
def test_contradictory_results_are_refused(options: Any, text: str) -> None:
    """A contradictory `ExternalResult` is refused when it is made."""
    with pytest.raises(ConfigError, match=text):
        ExternalResult(result_id="x", **options)


async def test_checkpoints_without_external_calls_can_be_read_by_earlier_releases(telemetry: Captured) -> None:
    """A checkpoint has version 2 only if it has external calls."""
    queue = Queue()

    async def pay(arguments: Any, ctx: ToolContext) -> str:
        return "paid"

    plain = Agent("a", model=ScriptedModel(ToolCall("pay")), tools=[Tool(name="pay", run=pay, needs_approval=True)])
    assert stored(await within(plain.run("go")))["version"] == 1
    agent = Agent("a", model=ScriptedModel(ToolCall("job"), "wait"), tools=[queue.tool()])
    assert stored(await within(agent.run("go")))["version"] == 2
