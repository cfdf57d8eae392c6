"""Async policies: many questions at once, a time limit, and the end with the run."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from pellucid import Agent, CancelToken, ConfigError, Limits, RunCancelled, RunTimeout, Tool, ToolCall, ToolResult
from pellucid.errors import PolicyHalt
from pellucid.testing import ScriptedModel
from support.clock import SOON, outlast, pass_time
from support.runs import CANCELLED, TIMEOUT, cancel_itself, ending, within

if TYPE_CHECKING:
    from pellucid import DiscoveryContext, PermissionRequest, Policy
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

AT_ONCE = 32


async def nothing(arguments: Any, ctx: object) -> str:
    """Do nothing."""
    return "done"


def tools(count: int) -> list[Tool]:
    """Return tools called `t0`, `t1` and so on."""
    return [Tool(name=f"t{number}", run=nothing) for number in range(count)]


def agent(policy: Policy, *steps: Any, count: int = 4, **options: Any) -> Agent:
    """Return an agent with some tools and a policy."""
    return Agent("a", model=ScriptedModel(*steps), tools=tools(count), policy=policy, **options)


def offered(of: Agent) -> list[list[str]]:
    """Return the names of the tools that each request offered."""
    return [[definition.name for definition in request.tools] for request in of._setup.model.requests]  # type: ignore[attr-defined]


def denials(telemetry: Captured) -> list[Any]:
    """Return the events that tell of denials."""
    return [event for event in telemetry.events if event.name == "tool.denied"]


async def test_many_questions_are_asked_at_once_but_not_all() -> None:
    """At most 32 questions wait for an answer at a time, and the offer keeps the order of the catalogue."""
    waiting, most = 0, 0
    full = anyio.Event()

    async def policy(request: PermissionRequest) -> str:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        if waiting == AT_ONCE:
            full.set()
        await full.wait()
        await anyio.lowlevel.checkpoint()
        waiting -= 1
        return "deny" if request.tool_name.endswith("7") else "allow"

    asked = agent(policy, "done", count=100)
    await within(asked.run("x"))
    assert most == AT_ONCE
    assert offered(asked) == [[f"t{number}" for number in range(100) if number % 10 != 7]]


async def test_denials_are_told_in_the_order_of_the_catalogue(telemetry: Captured) -> None:
    """Events of denials are in the order of the catalogue, whichever answer comes first."""
    answered = [anyio.Event() for _ in range(5)]
    answered[4].set()

    async def policy(request: PermissionRequest) -> str:
        number = int(request.tool_name[1:])
        await answered[number + 1].wait()
        answered[number].set()
        return "deny"

    await within(agent(policy, "done").run("x"))
    assert [event.tool_name for event in denials(telemetry)] == ["t0", "t1", "t2", "t3"]


async def test_a_policy_may_answer_at_once_or_later() -> None:
    """A policy may return each answer directly or as an awaitable."""

    async def later(answer: str) -> str:
        await anyio.lowlevel.checkpoint()
        return answer

    def policy(request: PermissionRequest) -> Any:
        number = int(request.tool_name[1:])
        answer = "deny" if number in (1, 2) else "allow"
        return later(answer) if number % 2 else answer

    asked = agent(policy, "done", count=7)
    await within(asked.run("x"))
    assert offered(asked) == [["t0", "t3", "t4", "t5", "t6"]]


async def test_a_sync_policy_is_asked_in_the_task_of_the_run() -> None:
    """A sync policy is asked in the task in which the providers are asked."""
    found: set[int] = set()

    class Here:
        id = "here"

        def list_tools(self, ctx: DiscoveryContext) -> list[Tool]:
            found.add(anyio.get_current_task().id)
            return tools(100)

    def policy(request: PermissionRequest) -> str:
        found.add(anyio.get_current_task().id)
        return "allow"

    asked = Agent("a", model=ScriptedModel(ToolCall("t1"), "done"), providers=[Here()], policy=policy)
    await within(asked.run("x"))
    assert len(found) == 1


async def test_the_first_halt_of_the_catalogue_ends_the_run(telemetry: Captured) -> None:
    """The first halt in the order of the catalogue ends the run, and no further questions are asked."""
    later_halted = anyio.Event()
    asked: list[str] = []

    async def policy(request: PermissionRequest) -> str:
        asked.append(request.tool_name)
        if request.tool_name == "t2":
            await later_halted.wait()
        if request.tool_name == "t5":
            later_halted.set()
        return {"t0": "deny", "t2": "halt", "t3": "deny", "t5": "halt"}.get(request.tool_name, "allow")

    with pytest.raises(PolicyHalt, match="tool 't2'"):
        await within(agent(policy, "never", count=500).run("x"))
    assert [(event.tool_name, event.permission) for event in denials(telemetry)] == [("t0", "deny"), ("t2", "halt")]
    assert len(asked) <= AT_ONCE


@pytest.mark.parametrize("shielded", [False, True])
async def test_what_is_not_answered_in_time_is_denied(telemetry: Captured, *, shielded: bool) -> None:
    """Questions that are not answered in time are denied, and the other answers count."""
    release, over = anyio.Event(), anyio.Event()

    async def policy(request: PermissionRequest) -> str:
        if request.tool_name == "t1":
            await anyio.wait_all_tasks_blocked()
            pass_time()
            with anyio.CancelScope(shield=shielded):
                await release.wait()
            over.set()
        return "allow"

    slow = agent(policy, "done", count=3, limits=Limits(policy_timeout=SOON))
    await within(slow.run("x"))
    assert offered(slow) == [["t0", "t2"]]
    [event] = denials(telemetry)
    assert (event.tool_name, event.stage, event.permission, event.error_type) == ("t1", "offer", "deny", "timeout")
    assert event.reason.startswith("the policy did not answer in time: TimeoutError: no answer within 20 s")
    release.set()
    if shielded:
        with anyio.fail_after(60):
            await over.wait()


async def test_the_limit_is_for_all_questions_together(telemetry: Captured) -> None:
    """The time limit of a policy holds for all questions of an offer together."""
    questions = 0

    async def policy(request: PermissionRequest) -> str:
        nonlocal questions
        questions += 1
        if questions == 1:
            pass_time()
        await anyio.sleep_forever()
        return "allow"

    asked = agent(policy, "done", count=200, limits=Limits(policy_timeout=SOON))
    await within(asked.run("x"))
    assert offered(asked) == [[]]
    assert [event.tool_name for event in denials(telemetry)] == [f"t{number}" for number in range(200)]
    assert {event.error_type for event in denials(telemetry)} == {"timeout"}


async def test_a_call_that_is_not_judged_in_time_is_not_run(telemetry: Captured) -> None:
    """A call on which the policy does not decide in time is not run, and the run goes on."""

    async def policy(request: PermissionRequest) -> str:
        if request.stage == "dispatch":
            await outlast()
        return "allow"

    result = await within(agent(policy, ToolCall("t0"), "done", limits=Limits(policy_timeout=SOON)).run("x"))
    [refused] = [part for message in result.messages for part in message.parts if isinstance(part, ToolResult)]
    assert refused.is_error
    assert "was not run: the policy did not answer in time." in str(refused.response)
    assert ending(telemetry.span("execute_tool t0")) == ("failed", "ERROR", "permission_denied")
    [event] = denials(telemetry)
    assert (event.stage, event.error_type) == ("dispatch", "timeout")


@pytest.mark.parametrize("count", [1, 100])
async def test_a_policy_whose_own_task_was_cancelled_denies(
    telemetry: Captured, anyio_backend_name: str, count: int
) -> None:
    """A policy whose own task was cancelled denies."""

    async def policy(request: PermissionRequest) -> str:
        await cancel_itself(anyio_backend_name)

    asked = agent(policy, "done", count=count)
    result = await within(asked.run("x"))
    assert (result.output, offered(asked)) == ("done", [[]])
    assert len(denials(telemetry)) == count
    assert {event.error_type for event in denials(telemetry)} == {"pellucid.background.ForeignCancellation"}


@pytest.mark.parametrize(
    ("by", "count", "stage"),
    [
        *product(["scope", "token"], [1, 100], ["offer", "dispatch"]),
        ("deadline", 100, "offer"),
        ("deadline", 1, "dispatch"),
    ],
)
async def test_a_policy_that_waits_ends_with_the_run(telemetry: Captured, by: str, count: int, stage: str) -> None:
    """All waiting questions end with the run, and none of them is a denial."""
    token, scope = CancelToken(), anyio.CancelScope()
    begun = stopped = 0

    async def policy(request: PermissionRequest) -> str:
        nonlocal begun, stopped
        if request.stage != stage:
            return "allow"
        begun += 1
        if by == "scope":
            scope.cancel()
        if by == "token":
            token.cancel()
        if by == "deadline" and begun == 1:
            pass_time()
        try:
            await anyio.sleep_forever()
        finally:
            stopped += 1
        return "allow"

    asked = agent(policy, ToolCall("t0"), count=count, limits=Limits(timeout=SOON if by == "deadline" else None))
    with anyio.fail_after(60):
        if by == "scope":
            with scope:
                await asked.run("x")
        else:
            with pytest.raises(RunCancelled if by == "token" else RunTimeout):
                await asked.run("x", signal=token)
    assert begun == stopped > 0
    assert denials(telemetry) == []
    phase = "compose_request" if stage == "offer" else "execute_tool t0"
    assert ending(telemetry.span(phase)) == (TIMEOUT if by == "deadline" else CANCELLED)


async def test_a_run_that_is_cancelled_before_the_policy_begins_leaves_nothing_unawaited() -> None:
    """The coroutine of a policy is closed if the run is cancelled before it begins."""
    with anyio.CancelScope() as scope:

        async def later() -> str:
            return "allow"

        def policy(request: PermissionRequest) -> Any:
            scope.cancel()
            return later()

        await within(agent(policy, "never").run("x"))
    assert scope.cancelled_caught


def test_a_time_limit_that_makes_no_sense_is_refused() -> None:
    """A negative `policy_timeout` is refused."""
    with pytest.raises(ConfigError, match="policy_timeout"):
        Limits(policy_timeout=-1)
