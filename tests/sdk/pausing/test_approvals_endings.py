"""Approvals that a halt, a cancellation, a rule or a deadline ends."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pellucid import Agent, CancelToken, Limits, RunCancelled, RunTimeout, ToolCall, tool
from pellucid.errors import AlreadyResumed, CheckpointError, PolicyHalt, ReliabilityFailFast
from pellucid.reliability import Reliability, Rule, fail_fast
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import Captured, capture
from support.approvals import LOOK, OTHER, REFUND, decide, events, look, passed_on, pending, ran, refund, unanswered
from support.clock import SOON, outlast, pass_time
from support.runs import TIMEOUT, cancel_itself, ending, everything, results, within

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@tool(needs_approval=True)
async def keep(data: Any = None) -> str:
    """Keep anything."""
    ran.append(data)
    return "kept"


def shop(*steps: Any, **options: Any) -> Agent:
    """Return an agent with tools that need approval and one that does not."""
    return Agent("shop", model=ScriptedModel(*steps), **{"tools": [refund, keep, look], **options})


def asking(predicate: Any) -> Any:
    """Return a tool whose predicate says whether a person has to approve."""

    async def pay() -> str:
        ran.append("paid")
        return "paid"

    return tool(needs_approval=predicate, description="Pays.")(pay)


PAY = ToolCall("pay", {}, "p1")


# --- what was asked and can no longer be decided ----------------------------------------------------------------------


async def test_a_halt_withdraws_what_still_waits(telemetry: Captured) -> None:
    """A halt withdraws the calls that still wait, and the run cannot be resumed again."""
    waits = await within(shop([REFUND, OTHER]).run("x"))
    halts = shop(policy=lambda request: "halt" if request.stage == "dispatch" else "allow")
    with pytest.raises(PolicyHalt) as caught:
        await within(halts.resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert unanswered(caught.value) == ([], [])
    with pytest.raises(AlreadyResumed):
        await within(shop().resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    told = [(event.tool_call_id, event.outcome) for event in events(telemetry, "approval.decided")]
    assert (told, pending(telemetry)) == ([("r1", "approved"), ("r2", "withdrawn")], 0)
    [withdrawn] = [event for event in telemetry.find("invoke_agent")[1].events if event.name == "approval.decided"]
    assert (withdrawn.attributes or {})["pellucid.approval.outcome"] == "withdrawn"


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_cancellation_withdraws_what_still_waits(telemetry: Captured, stubborn: bool) -> None:
    """A cancellation withdraws the calls that still wait, even if a tool ignores it."""
    signal, release = CancelToken(), anyio.Event()

    @tool(name="refund", needs_approval=True)
    async def slow(order: str, amount: float) -> str:
        """Refund slowly."""
        signal.cancel("enough")
        with anyio.CancelScope(shield=stubborn):
            while not release.is_set():
                try:
                    await release.wait()
                except BaseException:
                    if not stubborn:
                        raise
        return "late"

    waits = await within(shop([REFUND, OTHER]).run("x"))
    later = shop(tools=[slow])
    with pytest.raises(RunCancelled):
        await within(later.resume(passed_on(waits.checkpoint), decisions=decide(waits, True), signal=signal))
    assert [event.outcome for event in events(telemetry, "approval.decided")] == ["approved", "withdrawn"]
    assert pending(telemetry) == 0
    release.set()


async def test_a_rule_that_ends_the_run_withdraws_what_an_agent_asked_that_is_a_tool(telemetry: Captured) -> None:
    """A rule that ends the run withdraws the requests of its sub-agent."""
    asked = anyio.Event()

    @tool
    async def boom() -> str:
        """Fail."""
        await asked.wait()
        raise OSError("x")

    clerk = Agent("clerk", model=ScriptedModel(REFUND), tools=[refund], description="Refunds.")
    rule = Rule(when=lambda s: s.tool_name == "boom" and s.error is not None, then=fail_fast(), kind="k")
    calls = [ToolCall("clerk", {"input": "x"}), ToolCall("boom")]
    clerk.on("approval.requested", lambda event: asked.set())
    rules = Reliability(post_decide=[rule])
    boss = Agent("boss", model=ScriptedModel(calls), tools=[clerk.as_tool(), boom], reliability=rules)
    with pytest.raises(ReliabilityFailFast):
        await within(boss.run("x"))
    assert [event.outcome for event in events(telemetry, "approval.decided")] == ["withdrawn"]
    assert pending(telemetry) == 0


# --- before it is known whether somebody has to be asked --------------------------------------------------------------


@pytest.mark.parametrize("calls", [[PAY], [PAY, LOOK]], ids=["alone", "with another"])
async def test_what_decides_about_a_call_and_hangs_is_seen(telemetry: Captured, calls: list[ToolCall]) -> None:
    """A predicate or policy that hangs ends with the deadline, and its call's span is a timeout."""

    async def hangs(*_: Any) -> bool:
        await outlast()

    def policy(request: Any) -> Any:
        return "allow" if request.stage == "offer" or request.tool_name == "look" else hangs()

    for options in ({"tools": [asking(hangs), look]}, {"tools": [asking(False), look], "policy": policy}):
        with pytest.raises(RunTimeout):
            await within(shop(calls, **options, limits=Limits(timeout=SOON)).run("x"))
    assert [ending(span) for span in telemetry.find("execute_tool pay")] == [TIMEOUT, TIMEOUT]


async def test_a_predicate_that_cannot_be_stopped_runs_nothing_when_the_run_is_over() -> None:
    """A predicate that ignores the deadline runs no tool when it returns later."""
    release, left = anyio.Event(), anyio.Event()

    async def stubborn(*_: Any) -> bool:
        pass_time()
        with anyio.CancelScope(shield=True):
            while not release.is_set():
                with suppress(BaseException):
                    await release.wait()
        left.set()
        return False

    with capture(), pytest.raises(RunTimeout):
        await within(shop(PAY, tools=[asking(stubborn)], limits=Limits(timeout=SOON)).run("x"))
    release.set()
    await within(left.wait())
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    assert ran == []


async def test_a_claim_that_cannot_be_stopped_runs_nothing_when_the_run_is_over() -> None:
    """A claim that ignores the deadline runs no tool when it returns later."""
    release, left = anyio.Event(), anyio.Event()

    class Slow:
        async def claim(self, checkpoint_id: str) -> bool:
            pass_time()
            with anyio.CancelScope(shield=True):
                while not release.is_set():
                    with suppress(BaseException):
                        await release.wait()
            left.set()
            return True

    waits = await within(shop(REFUND).run("x"))
    later = shop(limits=Limits(timeout=SOON))
    with pytest.raises(RunTimeout):
        await within(later.resume(passed_on(waits.checkpoint), decisions=decide(waits, True), claims=Slow()))
    release.set()
    await within(left.wait())
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    assert ran == []


async def test_a_predicate_that_is_cancelled_by_itself_could_not_say(anyio_backend: str) -> None:
    """A call needs approval if the predicate cancels itself."""

    async def cancels(*_: Any) -> bool:
        await cancel_itself(anyio_backend)

    for calls in ([PAY], [PAY, LOOK]):
        waits = await within(shop(calls, tools=[asking(cancels), look]).run("x"))
        assert [request.tool_name for request in waits.approvals] == ["pay"]


async def test_a_policy_that_cancels_itself_denies(anyio_backend: str) -> None:
    """A call is denied if the policy cancels itself."""

    async def policy(request: Any) -> str:
        if request.stage == "dispatch" and request.tool_name == "look":
            await cancel_itself(anyio_backend)
        return "allow"

    for calls in ([LOOK], [LOOK, ToolCall("look", {"order": "B"}, "l2")]):
        done = await within(shop(calls, "done", policy=policy).run("x"))
        for result in results(done):
            assert "Permission denied: tool 'look' was not run: the policy failed" in str(result.response)
        assert ran == []


# --- decisions and arguments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{"data": object()}, {"data": float("nan")}, {"data": {1, 2}}])
async def test_changed_arguments_that_are_no_json_are_refused_before_anything_runs(arguments: Any) -> None:
    """Changed arguments that are no JSON are refused before any tool runs."""
    waits = await within(shop(ToolCall("keep", {"data": 1})).run("x"))
    with pytest.raises(CheckpointError, match="has changed arguments that are not JSON"):
        await within(shop().resume(passed_on(waits.checkpoint), decisions=decide(waits, True, arguments=arguments)))
    assert ran == []
    await within(shop("done").resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert ran == [1]


async def test_the_model_is_not_told_that_a_refused_call_was_run() -> None:
    """The model reads of a denied call that a person changed its arguments, and not that it was run."""
    waits = await within(shop(REFUND).run("x"))
    decisions = decide(waits, True, arguments={"order": "B", "amount": 1})
    denies = shop("done", policy=lambda request: "deny" if request.stage == "dispatch" else "allow")
    done = await within(denies.resume(passed_on(waits.checkpoint), decisions=decisions))
    said = str(results(done)[0].response)
    assert "Permission denied" in said
    assert 'changed the arguments before they approved, to {"order": "B", "amount": 1}' in said


@pytest.mark.parametrize("arguments", ['{"data": NaN}', '{"data": ' + "[" * 50_000 + "]" * 50_000 + "}"])
async def test_arguments_that_no_checkpoint_can_hold_are_no_arguments(arguments: str) -> None:
    """Arguments that a checkpoint cannot hold get an error, and the other calls are made."""
    done = await within(shop([LOOK, ToolCall("keep", arguments, "k1")], "done").run("x"))
    assert (done.output, ran) == ("done", ["A"])
    assert "are not JSON" in str(results(done)[1].response)


async def test_deep_arguments_can_wait() -> None:
    """A call with arguments that are nested 600 deep can wait for approval."""
    deep: Any = []
    for _ in range(600):
        deep = [deep]
    waits = await within(shop(ToolCall("keep", {"data": deep})).run("x"))
    await within(shop("done").resume(passed_on(waits.checkpoint), decisions=decide(waits, True)))
    assert ran == [deep]


async def test_secrets_in_changed_arguments_reach_no_telemetry() -> None:
    """A secret in changed arguments is in no telemetry."""
    waits = await within(shop(ToolCall("keep", {"data": 1})).run("x"))
    decisions = decide(waits, True, arguments={"data": {"password": "hunter2 hunter3; hunter4"}})
    with capture() as telemetry:
        await within(shop("done").resume(passed_on(waits.checkpoint), decisions=decisions))
    assert "hunter" not in everything(telemetry)
    assert "a person changed the arguments" in everything(telemetry)
