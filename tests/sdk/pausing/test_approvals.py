from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from pellucid import (
    Agent,
    CancelToken,
    CapturePolicy,
    Decision,
    DiscoveryError,
    Identity,
    Limits,
    RunCancelled,
    Skill,
    ToolCall,
    ToolContext,
    ToolRegistry,
    Verdict,
    semconv,
    tool,
)
from pellucid.errors import AlreadyResumed, CheckpointError, PolicyHalt
from pellucid.providers import DiscoveryProvider
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import capture
from support.approvals import LOOK, OTHER, REFUND, decide, events, look, passed_on, ran, refund
from support.runs import attributes, ending, everything, iteration, results, span_id, within

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid import PermissionRequest
    from pellucid.types import JSONObject
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def shop(*steps: Any, **options: Any) -> Agent:
    """Return an agent with a tool that needs approval and one that does not."""
    return Agent("shop", model=ScriptedModel(*steps), **{"tools": [refund, look], **options})


async def test_a_call_that_needs_approval_waits_and_its_siblings_run_first(telemetry: Captured) -> None:
    """A call that needs approval ends the run with a request, and the other calls of the message are made."""
    waits = await within(shop([REFUND, LOOK]).run("refund A"))
    assert (waits.status, waits.stop_reason) == ("awaiting_approval", "awaiting_approval")
    assert not waits.output
    [request] = waits.approvals
    assert (request.tool_name, request.tool_call_id, request.arguments) == ("refund", "r1", REFUND.arguments)
    assert (request.expires_at, request.reason) == (None, None)
    assert ran == ["A"]
    assert telemetry.tree() == [("invoke_agent shop", iteration("look"))]
    root = telemetry.span("invoke_agent")
    assert ending(root) == ("completed", "UNSET", None)
    [told] = [event for event in root.events if event.name == "approval.requested"]
    assert dict(told.attributes or {}) == {
        semconv.APPROVAL_ID: request.approval_id,
        semconv.TOOL_NAME: "refund",
        semconv.TOOL_CALL_ID: "r1",
    }
    [event] = events(telemetry, "approval.requested")
    assert (event.approval_id, event.provider_id, event.arguments) == (request.approval_id, "static", REFUND.arguments)
    assert (event.reason, event.error_type) == (None, None)
    assert telemetry.value(semconv.APPROVAL_PENDING, gen_ai_tool_name="refund") == 1


async def test_an_approved_call_is_made_when_the_run_is_resumed_elsewhere(telemetry: Captured) -> None:
    """Another agent resumes a run from its JSON in the same trace, and the results are in the order of the calls."""
    waits = await within(shop([REFUND, LOOK]).run("refund A"))
    later = shop("Refunded.")
    done = await within(later.resume(passed_on(waits.checkpoint), decisions=decide(waits, True, decided_by="ann")))
    assert (done.status, done.output, done.iterations) == ("completed", "Refunded.", 2)
    assert ran == ["A", ("A", 50)]
    assert [(each.id, each.response) for each in results(done)] == [("r1", "refunded 50.0"), ("l1", "paid")]
    assert later._setup.model.requests[0].messages == done.messages[:-1]  # type: ignore[attr-defined]
    resumed = [("discover_tools static", []), ("execute_tool refund", []), *iteration()]
    assert telemetry.tree() == [("invoke_agent shop", [*iteration("look"), ("invoke_agent shop", resumed)])]
    first, second = telemetry.find("invoke_agent")
    assert attributes(second)[semconv.RESUMED_FROM] == waits.run_id != done.run_id
    assert [f"{link.context.span_id:016x}" for link in second.links] == [span_id(first)]
    assert (done.trace_id, waits.trace_id) == (waits.trace_id, telemetry.events[0].trace_id)
    made = attributes(telemetry.span("execute_tool refund"))
    assert (made[semconv.APPROVAL_OUTCOME], made[semconv.APPROVAL_DECIDED_BY]) == ("approved", "ann")
    assert made[semconv.ITERATION] == 1
    [event] = events(telemetry, "approval.decided")
    assert (event.outcome, event.edited, event.decided_by, event.tool_call_id) == ("approved", False, "ann", "r1")
    assert made[semconv.APPROVAL_WAITED] == pytest.approx(event.waited_ms / 1e3)
    assert made[semconv.APPROVAL_WAITED] > 0
    assert telemetry.value(semconv.APPROVAL_PENDING, gen_ai_tool_name="refund") == 0
    assert telemetry.histogram(semconv.APPROVAL_WAIT, gen_ai_tool_name="refund").count == 1


async def test_the_one_who_resumes_is_linked_too(telemetry: Captured) -> None:
    """The span in which a run is resumed is linked, and the run stays in its own trace."""
    waits = await within(shop(REFUND).run("x"))
    with telemetry.tracer_provider.get_tracer("app").start_as_current_span("POST /approvals") as request:
        done = await within(shop("done").resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
        linked = telemetry.find("invoke_agent")[1].links
        assert linked[1].context == request.get_span_context()
    assert done.trace_id == waits.trace_id != f"{request.get_span_context().trace_id:032x}"


async def test_a_denial_is_told_to_the_model_with_its_reason(telemetry: Captured) -> None:
    """A denied call is not made, and the model reads the reason."""
    waits = await within(shop(REFUND).run("x"))
    decisions = decide(waits, False, reason="too much", decided_by="bob")
    done = await within(shop("Sorry.").resume(passed_on(waits.checkpoint), decisions=decisions))
    assert (done.output, ran) == ("Sorry.", [])
    [result] = results(done)
    assert result.is_error
    assert "a person denied this call: too much" in str(result.response)
    assert ending(telemetry.span("execute_tool refund")) == ("failed", "ERROR", "approval_denied")
    [event] = events(telemetry, "approval.decided")
    assert (event.outcome, event.reason, event.decided_by) == ("denied", "too much", "bob")


async def test_arguments_may_be_changed_by_the_one_who_approves(telemetry: Captured) -> None:
    """The tool gets the arguments that the person changed, and the model reads that they were changed."""
    waits = await within(shop(REFUND).run("x"))
    decisions = decide(waits, True, arguments={"order": "A", "amount": 20})
    done = await within(shop("done").resume(passed_on(waits.checkpoint), decisions=decisions))
    assert ran == [("A", 20)]
    [result] = results(done)
    assert str(result.response).startswith("refunded 20.0\n\nNote: a person changed the arguments")
    assert '{"order": "A", "amount": 20}' in str(result.response)
    assert json.loads(attributes(telemetry.span("execute_tool refund"))[semconv.TOOL_CALL_ARGUMENTS])["amount"] == 20
    assert events(telemetry, "approval.decided")[0].edited


async def test_changed_arguments_that_do_not_fit_are_refused_before_anything_runs() -> None:
    """Changed arguments that do not fit the schema are refused before any call, and the run can still be resumed."""
    waits = await within(shop([REFUND, OTHER]).run("x"))
    wrong = [decide(waits, True)[0], Decision(waits.approvals[1].approval_id, True, arguments={"amount": "hunter2"})]
    with pytest.raises(CheckpointError, match="do not fit the schema of tool 'refund'") as caught:
        await within(shop("never").resume(passed_on(waits.checkpoint), decisions=wrong))
    assert "hunter2" not in str(caught.value)
    assert ran == []
    await within(shop("done").resume(passed_on(waits.checkpoint), decisions=decide(waits, True, True)))
    assert sorted(ran) == [("A", 50), ("B", 70)]


async def test_a_decision_that_comes_too_late_does_not_count(telemetry: Captured) -> None:
    """A decision after the approval has expired does not count, and the model reads that it expired."""
    limits = Limits(approval_timeout=0)
    waits = await within(shop(REFUND, limits=limits).run("x"))
    assert waits.approvals[0].expires_at == waits.approvals[0].requested_at
    done = await within(shop("done").resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert ran == []
    assert "Not run: approval expired" in str(results(done)[0].response)
    assert ending(telemetry.span("execute_tool refund")) == ("failed", "ERROR", "approval_expired")
    assert events(telemetry, "approval.decided")[0].outcome == "expired"


async def test_an_expired_run_goes_on_without_any_decision() -> None:
    """A run whose approvals have expired can be resumed without a decision."""
    waits = await within(shop(REFUND, limits=Limits(approval_timeout=0)).run("x"))
    assert (await within(shop("done").resume(passed_on(waits.checkpoint)))).output == "done"


async def test_what_is_not_decided_goes_on_waiting(telemetry: Captured) -> None:
    """A decided call is made at once, and the model is asked when all calls are decided."""
    waits = await within(shop([REFUND, OTHER]).run("x"))
    still = await within(shop().resume(passed_on(waits.checkpoint), decisions=decide(waits, None, True)))
    assert (still.status, ran) == ("awaiting_approval", [("B", 70)])
    assert still.approvals == waits.approvals[:1]
    done = await within(shop("done").resume(passed_on(still.checkpoint), decisions=decide(still, True)))
    assert (done.status, ran) == ("completed", [("B", 70), ("A", 50)])
    assert [each.id for each in results(done)] == ["r1", "r2"]
    assert len(events(telemetry, "approval.requested")) == len(events(telemetry, "approval.decided")) == 2


async def test_a_run_is_resumed_once() -> None:
    """A second attempt to resume a run raises `AlreadyResumed`, and the tool has run once."""
    waits = await within(shop(REFUND).run("x"))
    await within(shop("done").resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    with pytest.raises(AlreadyResumed, match="was already resumed"):
        await within(shop("done").resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert ran == [("A", 50)]


async def test_of_many_who_resume_at_the_same_time_one_does() -> None:
    """One of many concurrent attempts to resume a run succeeds, and the tool runs once."""
    waits = await within(shop(REFUND).run("x"))
    outcomes: list[str] = []

    async def resume() -> None:
        try:
            done = await shop("done").resume(passed_on(waits.checkpoint), decisions=decide(waits, True))
            outcomes.append(done.status)
        except AlreadyResumed:
            outcomes.append("already")

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(resume)
    assert (sorted(outcomes), ran) == (["already"] * 19 + ["completed"], [("A", 50)])


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            lambda first: [Decision("approval_x", True)],
            "unknown approval 'approval_x'; this checkpoint is waiting for",
        ),
        (lambda first: [Decision(first, True), Decision(first, False)], "duplicate decision for approval"),
        (lambda first: [Decision(first, False, arguments={"order": "B"})], "is denied, but its arguments"),
        (lambda first: [], "no decision was given"),
    ],
    ids=["unknown", "duplicate", "changed and denied", "none"],
)
async def test_decisions_that_make_no_sense_are_refused(made: Callable[[str], list[Decision]], text: str) -> None:
    """Invalid decisions are refused before any call, and the run can still be resumed."""
    waits = await within(shop(REFUND).run("x"))
    with pytest.raises(CheckpointError, match=text):
        await within(shop().resume(passed_on(waits.checkpoint), decisions=made(waits.approvals[0].approval_id)))
    assert ran == []
    await within(shop("done").resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))


async def test_a_tool_may_say_of_each_call_whether_it_needs_approval() -> None:
    """A predicate of a tool, sync or async, decides about approval by the arguments and the identity."""

    async def big(arguments: JSONObject, ctx: ToolContext) -> bool:
        await anyio.lowlevel.checkpoint()
        return bool(arguments["amount"] > 60) or ctx.identity is None

    async def pay(amount: float) -> str:
        ran.append(amount)
        return "paid"

    for predicate in (big, lambda arguments, ctx: arguments["amount"] > 60):
        ran.clear()
        asking = tool(needs_approval=predicate, description="Pays.")(pay)
        calls = [ToolCall("pay", {"amount": 50}), ToolCall("pay", {"amount": 70})]
        waits = await within(shop(calls, tools=[asking]).run("x", identity=Identity(principal="ann")))
        assert (ran, [request.arguments["amount"] for request in waits.approvals]) == ([50], [70])


async def test_a_tool_that_cannot_say_whether_it_needs_approval_needs_it(telemetry: Captured) -> None:
    """A call needs approval if the predicate raises, and the event has the type of the exception."""

    @tool(needs_approval=lambda arguments, ctx: arguments["amuont"] > 10)
    def pay(amount: float) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    waits = await within(shop(ToolCall("pay", {"amount": 50}), tools=[pay]).run("x"))
    assert (waits.status, ran) == ("awaiting_approval", [])
    assert events(telemetry, "approval.requested")[0].error_type == "KeyError"


async def test_a_policy_may_leave_a_call_to_a_person(telemetry: Captured) -> None:
    """A tool for which the policy answers `ask` is offered, and its call waits with the reason until it is approved."""

    def policy(request: PermissionRequest) -> Verdict:
        return Verdict("ask", "costs money") if request.tool_name == "look" else Verdict("allow")

    waits = await within(shop(LOOK, policy=policy).run("x"))
    assert [(request.tool_name, request.reason) for request in waits.approvals] == [("look", "costs money")]
    done = await within(shop("done", policy=policy).resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert (done.output, ran) == ("done", ["A"])
    assert attributes(telemetry.span("execute_tool look"))[semconv.PERMISSION] == "ask"
    assert events(telemetry, "tool.denied") == []


async def test_a_permission_that_was_withdrawn_while_it_waited_counts() -> None:
    """A call that was approved is denied if the policy denies it when the run is resumed."""
    waits = await within(shop(REFUND).run("x"))
    frozen = shop("done", policy=lambda request: "deny" if request.stage == "dispatch" else "allow")
    done = await within(frozen.resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert ran == []
    assert "Permission denied" in str(results(done)[0].response)


@pytest.mark.parametrize("stage", ["offer", "dispatch"])
async def test_a_halt_leaves_no_call_without_a_result(stage: str) -> None:
    """A run that a halt ends has a result for every call, before or after it was resumed."""

    def halts(request: PermissionRequest) -> str:
        return "halt" if request.stage == stage and request.tool_name == "look" else "allow"

    calls = [REFUND, LOOK]
    if stage == "dispatch":
        with pytest.raises(PolicyHalt) as caught:
            await within(shop(calls, policy=halts).run("x"))
    else:
        waits = await within(shop(calls).run("x"))
        with pytest.raises(PolicyHalt) as caught:
            await within(shop(policy=halts).resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert [each.id for each in results(caught.value)] == ["r1", "l1"]
    assert [each for each in ran if each != "A"] == []


async def test_a_cancelled_run_asks_nobody(telemetry: Captured) -> None:
    """A run that is cancelled while a sibling runs emits no request for approval."""
    signal = CancelToken()

    @tool
    async def slow() -> str:
        """Wait."""
        signal.cancel("enough")
        await anyio.sleep_forever()
        return ""

    with pytest.raises(RunCancelled):
        await within(shop([REFUND, ToolCall("slow")], tools=[refund, slow]).run("x", signal=signal))
    assert events(telemetry, "approval.requested") == []


async def test_a_stream_tells_of_requests_and_of_what_came_of_them() -> None:
    """`stream` and `resume_stream` give the events of approvals, and the result has the checkpoint."""
    async with shop(REFUND).stream("x") as asking:
        names = [event.name async for event in asking]
    assert names[-2:] == ["approval.requested", "run.completed"]
    waits = asking.result
    decisions = decide(waits, True)
    async with shop("done").resume_stream(passed_on(waits.checkpoint), decisions=decisions) as going:
        names = [event.name async for event in going]
    assert names[names.index("tool.started") + 1] == "approval.decided"
    assert (going.result.output, ran) == ("done", [("A", 50)])


async def test_sync_callers_resume_too() -> None:
    """`resume_sync` resumes a run as `resume` does."""
    waits = await within(shop(REFUND).run("x"))
    resume = shop("done").resume_sync
    assert resume(passed_on(waits.checkpoint), decisions=decide(waits, True)).output == "done"


async def test_what_fails_before_any_call_can_be_resumed_again() -> None:
    """A run can be resumed again after a failure before any call."""
    hub = FakeHub([refund])
    waits = await within(shop(REFUND, tools=[], providers=[DiscoveryProvider(hub, id="hub")]).run("x"))
    later = shop("done", tools=[], providers=[DiscoveryProvider(FakeHub([refund], faults=[OSError("down")]), id="hub")])
    with pytest.raises(DiscoveryError):
        await within(later.resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    again = shop("done", tools=[], providers=[DiscoveryProvider(hub, id="hub")])
    assert (await within(again.resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))).output == "done"


async def test_a_tool_that_is_gone_when_it_is_approved_has_a_result_that_says_so(telemetry: Captured) -> None:
    """An approved call of a tool that is gone gets a result that says so."""
    waits = await within(shop(REFUND).run("x"))
    later = shop("done", tools=[look])
    done = await within(later.resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert "was removed since it was offered" in str(results(done)[0].response)
    assert ending(telemetry.span("execute_tool"))[2] == "tool_removed"


async def test_limits_hold_for_a_run_as_a_whole() -> None:
    """The limits of iterations and calls hold for all passes of a run together."""
    limits = Limits(max_iterations=1, max_tool_calls=2)
    waits = await within(shop([LOOK, REFUND], limits=limits).run("x"))
    done = await within(
        shop("closing", limits=limits).resume(passed_on(waits.checkpoint), decisions=decide(waits, True))
    )
    assert (done.status, done.stop_reason, done.iterations) == ("limit_reached", "max_tool_calls", 1)
    few = Limits(max_tool_calls=1)
    waits = await within(shop([LOOK, REFUND], limits=few).run("x"))
    done = await within(shop("closing", limits=few).resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert "limit of 1 tool calls" in str(results(done)[1].response)


async def test_a_resumed_run_is_on_behalf_of_the_same_identity_unless_another_is_given() -> None:
    """A resumed run has the identity of the first pass, unless another one is given."""
    seen: list[Any] = []

    @tool(needs_approval=True)
    async def whoami(ctx: ToolContext) -> str:
        """Say who asks."""
        seen.append((ctx.identity, ctx.deps))
        return "you"

    ann, bob = Identity(tenant="t", principal="ann", conversation_id="c"), Identity(principal="bob")
    for given, expected in ((None, ann), (bob, bob)):
        waits = await within(shop(ToolCall("whoami"), tools=[whoami]).run("x", identity=ann))
        later = shop("done", tools=[whoami])
        decisions = decide(waits, True)
        await within(later.resume(passed_on(waits.checkpoint), decisions=decisions, identity=given, deps=7))
        assert seen.pop() == (expected, 7)


async def test_secrets_in_arguments_reach_the_one_who_decides_and_no_telemetry() -> None:
    """A request for approval has the arguments unmasked, and telemetry has no secret of them."""

    @tool(needs_approval=True)
    async def login(password: str) -> str:
        """Log in."""
        return "in"

    for mode in ("redacted", "metadata"):
        with capture(capture=CapturePolicy(mode)) as telemetry:
            waits = await within(shop(ToolCall("login", {"password": "hunter2"}), tools=[login]).run("x"))
            decisions = decide(waits, False, reason="no", decided_by="ann")
            await within(shop("done", tools=[login]).resume(passed_on(waits.checkpoint), decisions=decisions))
        assert waits.approvals[0].arguments == {"password": "hunter2"}
        assert "hunter2" not in everything(telemetry)
        assert ("ann" in everything(telemetry)) is (mode == "redacted")


async def test_lazy_tools_and_skills_that_are_active_stay_so() -> None:
    """Tools and skills that were activated in the message that waits are active in the resumed run."""

    @tool
    async def page(text: str) -> str:
        """Page somebody."""
        ran.append(text)
        return "paged"

    skill = Skill("returns", "How to take things back.", "Ask first.", tools=[page])
    registry = ToolRegistry([look], registry_mode="lazy")
    options: dict[str, Any] = {"tools": [refund], "providers": [registry], "skills": [skill]}
    calls = [
        ToolCall("load_skill", {"skill_id": "returns"}, "s"),
        ToolCall("tool_search", {"name": "look"}, "t"),
        REFUND,
    ]
    waits = await within(shop(calls, **options).run("x"))
    later = shop([ToolCall("page", {"text": "hi"}), LOOK], "done", **options)
    done = await within(later.resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert (done.output, ran[0], sorted(ran[1:])) == ("done", ("A", 50), ["A", "hi"])


async def test_a_call_id_that_is_used_twice_is_asked_for_once() -> None:
    """A call id that is used twice asks for one approval, and the second call is refused."""
    waits = await within(shop([REFUND, ToolCall("refund", {"order": "B"}, "r1")]).run("x"))
    assert [request.arguments for request in waits.approvals] == [REFUND.arguments]
    done = await within(shop("done").resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert (done.output, ran) == ("done", [("A", 50)])
    assert "you used the call id 'r1' for several calls" in str(results(done)[0].response)


async def test_invalid_arguments_are_refused_without_asking_anybody() -> None:
    """A call with invalid arguments is refused without a request for approval."""
    done = await within(shop(ToolCall("refund", {"amount": "x"}), "done").run("x"))
    assert (done.status, results(done)[0].is_error) == ("completed", True)


async def test_an_agent_that_is_a_tool_waits_with_the_one_that_calls_it(telemetry: Captured) -> None:
    """A sub-agent's requests wait with its caller, and a resumed run does not repeat what it has done."""

    def team(outer: list[Any], inner: list[Any]) -> Agent:
        clerk = Agent("clerk", model=ScriptedModel(*inner), tools=[refund, look], description="Refunds.")
        return Agent("boss", model=ScriptedModel(*outer), tools=[clerk.as_tool(), look])

    delegate = ToolCall("clerk", {"input": "refund A"}, "c1")
    waits = await within(team([[delegate, ToolCall("look", {"order": "B"}, "l2")]], [LOOK, [REFUND, OTHER]]).run("x"))
    assert (waits.status, [request.tool_call_id for request in waits.approvals]) == ("awaiting_approval", ["r1", "r2"])
    assert sorted(ran) == ["A", "B"]
    assert attributes(telemetry.span("execute_tool clerk"))[semconv.APPROVAL_OUTCOME] == "awaiting"
    still = await within(team([], []).resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert (still.status, [request.tool_call_id for request in still.approvals]) == ("awaiting_approval", ["r2"])
    decisions = decide(still, False)
    done = await within(team(["All done."], ["Half done."]).resume(passed_on(still.checkpoint), decisions=decisions))
    assert (done.output, sorted(map(str, ran))) == ("All done.", ["('A', 50.0)", "A", "B"])
    assert [(each.id, each.response) for each in results(done)] == [("c1", "Half done."), ("l2", "paid")]
    assert len(events(telemetry, "approval.requested")) == len(events(telemetry, "approval.decided")) == 2
    assert {each.trace_id for each in (waits, still, done)} == {done.trace_id}
