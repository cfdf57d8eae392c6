"""Approvals of agents that are tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Decision, Limits, ToolCall, ToolContext, ToolError, semconv
from pellucid.errors import AlreadyResumed
from pellucid.providers import DiscoveryProvider
from pellucid.reliability import Reliability, Rule, fallback
from pellucid.testing import FakeHub, ScriptedModel
from support.approvals import decide, events, passed_on, pending, ran, refund, unanswered
from support.runs import attributes, ending, results, within

if TYPE_CHECKING:
    from pellucid import ModelRequest, PermissionRequest
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


REFUND = ToolCall("refund", {"order": "A", "amount": 50}, "r1")
OTHER = ToolCall("refund", {"order": "B", "amount": 70}, "r2")
DELEGATE = ToolCall("clerk", {"input": "refund A"}, "c1")


def team(outer: list[Any], inner: list[Any], *, clerk: Any = None, **options: Any) -> Agent:
    """Return an agent whose tools are one that needs approval, and an agent that has it."""
    settings = {"tools": [refund], "description": "Refunds.", **(clerk or {})}
    below = Agent("clerk", model=ScriptedModel(*inner), **settings)
    model = ScriptedModel(*outer, strict=options.pop("strict", True))
    return Agent("boss", model=model, **{"tools": [below.as_tool(), refund], **options})


async def test_a_nested_agent_that_goes_on_is_one_call_as_before(telemetry: Captured) -> None:
    """To wait must not use up `max_tool_calls`: what was approved would not be made."""
    limits = Limits(max_tool_calls=3)  # the nested agent's, and its two
    waits = await within(team([DELEGATE], [[REFUND, OTHER]], limits=limits).run("x"))
    still = await within(team([], [], limits=limits).resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    again = team(["closing"], ["done"], limits=limits)
    done = await within(again.resume(passed_on(still.checkpoint), decisions=decide(still, True)))
    assert [each.response for each in results(done)] == ["done"]
    assert (ran, pending(telemetry)) == ([("A", 50), ("B", 70)], 0)


async def test_a_nested_agent_that_cannot_go_on_waits_again(telemetry: Captured) -> None:
    """Its hub is down: nothing was run, no approval is lost, its sibling is done; its span says what is wrong."""
    waits = await within(team([[DELEGATE, OTHER]], [REFUND]).run("x"))
    hub = DiscoveryProvider(FakeHub([refund], faults=[OSError("down")]), id="hub")
    down = team([], [], clerk={"tools": [], "providers": [hub]})
    still = await within(down.resume(passed_on(waits.checkpoint), decisions=decide(waits, True, True)))
    assert (still.status, still.approvals, ran) == ("awaiting_approval", waits.approvals[:1], [("B", 70)])
    failed = telemetry.find("execute_tool clerk")[1]
    assert ending(failed) == ("failed", "ERROR", "OSError")
    assert attributes(failed)[semconv.APPROVAL_OUTCOME] == "awaiting"
    assert pending(telemetry) == 1
    decisions = decide(still, True)
    done = await within(team(["fine"], ["done"]).resume(passed_on(still.checkpoint), decisions=decisions))
    assert (done.output, ran, pending(telemetry)) == ("fine", [("B", 70), ("A", 50)], 0)


async def test_changed_arguments_that_do_not_fit_below_can_be_corrected(telemetry: Captured) -> None:
    """They are no result that the model reads as if the tool had failed."""
    waits = await within(team([DELEGATE], [REFUND]).run("x"))
    wrong = decide(waits, True, arguments={"amount": 1})
    still = await within(team([], []).resume(passed_on(waits.checkpoint), decisions=wrong))
    assert (still.status, still.approvals) == ("awaiting_approval", waits.approvals)
    assert "do not fit the schema" in str(telemetry.find("execute_tool clerk")[1].status.description)
    right = decide(still, True, arguments={"order": "A", "amount": 1})
    done = await within(team(["fine"], ["done"]).resume(passed_on(still.checkpoint), decisions=right))
    assert (done.output, ran) == ("fine", [("A", 1)])


async def test_a_nested_agent_that_is_gone_waits_for_nobody(telemetry: Captured) -> None:
    """The model is told that the tool was removed; what was asked below cannot be decided any more."""
    waits = await within(team([DELEGATE], [REFUND]).run("x"))
    decisions = decide(waits, True)
    done = await within(team(["fine"], [], tools=[refund]).resume(passed_on(waits.checkpoint), decisions=decisions))
    assert "was removed since it was offered" in str(results(done)[0].response)
    assert [event.outcome for event in events(telemetry, "approval.decided")] == ["withdrawn"]
    assert (ran, pending(telemetry)) == ([], 0)


async def test_what_did_not_go_on_does_not_do_so_under_a_later_call_of_the_same_id() -> None:
    """Models repeat ids; a call that was refused when the run went on is over."""
    refuses = [True]

    def policy(request: PermissionRequest) -> str:
        return "deny" if request.stage == "dispatch" and request.tool_name == "clerk" and refuses[0] else "allow"

    def again(request: ModelRequest) -> ToolCall:
        refuses[0] = False
        return DELEGATE

    waits = await within(team([DELEGATE], [REFUND]).run("x"))
    later = team([again, "fine"], ["fresh"], policy=policy, strict=False)
    done = await within(later.resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert ([each.response for each in results(done)][1], ran) == ("fresh", [])


async def test_a_nested_checkpoint_that_was_resumed_by_itself_is_resumed_once(telemetry: Captured) -> None:
    """Whoever does it second is told, at whatever level."""
    waits = await within(team([DELEGATE], [REFUND]).run("x"))
    kept = passed_on(waits.checkpoint)
    clerk = Agent("clerk", model=ScriptedModel("done"), tools=[refund])
    await within(clerk.resume(kept["nested"]["c1"], decisions=decide(waits, True)))
    done = await within(team(["fine"], []).resume(kept, decisions=decide(waits, True)))
    assert (done.status, results(done)[0].is_error) == ("completed", True)
    assert (ran, pending(telemetry)) == ([("A", 50)], 0)
    waits = await within(team([DELEGATE], [REFUND]).run("x"))
    kept = passed_on(waits.checkpoint)
    await within(team(["fine"], ["done"]).resume(kept, decisions=decide(waits, True)))
    with pytest.raises(AlreadyResumed):
        await within(clerk.resume(kept["nested"]["c1"], decisions=decide(waits, True)))
    assert len(ran) == 2


async def test_rules_do_not_judge_a_call_that_waits() -> None:
    """A rule about results must not put another in the place of what has not come to anything yet."""
    rule = Rule(
        when=lambda s: s.tool_name == "clerk" and s.response != "done",
        then=fallback(lambda s: "no"),
        kind="k",
        on="any",
    )
    options = {"reliability": Reliability(post_decide=[rule])}
    waits = await within(team([DELEGATE], [REFUND], **options).run("x"))
    assert waits.status == "awaiting_approval"
    later = team(["fine"], ["done"], **options)
    done = await within(later.resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert [each.response for each in results(done)] == ["done"]


async def test_an_agent_tool_that_nobody_can_resume_asks_nobody(telemetry: Captured) -> None:
    """Called outside of a run, it fails, and leaves no request behind."""
    clerk = Agent("clerk", model=ScriptedModel(REFUND), tools=[refund], description="Refunds.")
    with pytest.raises(ToolError, match="needs an approval or an external result, which cannot be requested here"):
        await within(clerk.as_tool().run({"input": "x"}, ToolContext()))
    assert events(telemetry, "approval.requested") == []


async def test_several_agents_wait_at_several_depths_and_go_on_one_by_one(telemetry: Captured) -> None:
    """Ids of calls may be the same at each depth; every call is made once and has one result."""

    def build(outer: list[Any], middle: list[Any], inner: list[Any]) -> Agent:
        low = Agent("low", model=ScriptedModel(*inner), tools=[refund], description="Low.")
        mid = Agent("mid", model=ScriptedModel(*middle), tools=[low.as_tool(), refund], description="Mid.")
        return Agent("top", model=ScriptedModel(*outer), tools=[mid.as_tool(), refund])

    two = [ToolCall("mid", {"input": "x"}, "c1"), ToolCall("mid", {"input": "y"}, "c2"), REFUND]
    deeper = [ToolCall("low", {"input": "x"}, "c1"), OTHER]
    now = await within(build([two], [deeper, OTHER], [[REFUND, OTHER]]).run("x"))
    assert len(now.approvals) == 5
    for left in (4, 3, 2, 1, 0):
        go_on = build(["all"], ["middle"], ["inner"])
        now = await within(go_on.resume(passed_on(now.checkpoint), decisions=decide(now, True)))
        assert (len(now.approvals), pending(telemetry)) == (left, left)
    assert (now.output, len(ran), unanswered(now)) == ("all", 5, ([], []))


async def test_decisions_may_be_any_iterable() -> None:
    """A generator is read once, and not lost on the way down."""
    waits = await within(team([DELEGATE], [REFUND]).run("x"))
    decisions: Any = (Decision(each.approval_id, True) for each in waits.approvals)
    done = await within(team(["fine"], ["done"]).resume(passed_on(waits.checkpoint), decisions=decisions))
    assert (done.output, ran) == ("fine", [("A", 50)])


async def test_the_model_is_told_that_what_an_agent_was_asked_was_changed() -> None:
    """Also when that agent comes to wait in turn, and answers later."""
    waits = await within(team([[DELEGATE, REFUND]], [], policy=asks_about_clerk).run("x"))
    decisions = decide(waits, True, arguments={"input": "refund B"})
    options = {"policy": asks_about_clerk}
    more = await within(team([], [OTHER], **options).resume(passed_on(waits.checkpoint), decisions=decisions))
    left = await within(team([], [], **options).resume(passed_on(more.checkpoint), decisions=decide(more, None, True)))
    last = team(["fine"], ["done"], **options)
    done = await within(last.resume(passed_on(left.checkpoint), decisions=decide(left, True)))
    note = 'Note: a person changed the arguments before they approved, to {"input": "refund B"}.'
    assert results(done)[0].response == f"done\n\n{note}"


def asks_about_clerk(request: PermissionRequest) -> str:
    """Let a person decide about calls of the agent that is a tool."""
    return "ask" if request.stage == "dispatch" and request.tool_name == "clerk" else "allow"
