"""Faults under reliability rules and circuit breakers: the same for discovery, model calls and tools."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
import pytest

from pellucid import (
    Agent,
    CancelToken,
    DiscoveryContext,
    DiscoveryProvider,
    Limits,
    PellucidError,
    Reliability,
    RunCancelled,
    RunTimeout,
    Tool,
    ToolCall,
    ToolResult,
    semconv,
)
from pellucid.errors import CircuitOpen, ReliabilityFailFast
from pellucid.events import ToolsDiscoveryFailed
from pellucid.reliability import CircuitBreaker, Rule, continue_, retry
from pellucid.testing import FakeHub, FunctionModel
from support.clock import SOON, Clock, pass_time
from support.hubs import named
from support.reliability import breaking, changes, decisions, rules, states, told
from support.runs import ending, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import ModelRequest
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

Operation: TypeAlias = Literal["discovery", "inference", "tool"]
OPERATIONS: dict[Operation, str] = {
    "discovery": "discover_tools work",
    "inference": "chat work",
    "tool": "execute_tool work",
}
"""Each operation, and the name of its spans."""


@pytest.fixture(params=OPERATIONS)
def operation(request: pytest.FixtureRequest) -> Operation:
    """Return each operation."""
    name: Operation = request.param
    return name


class Work:
    """An agent of which one operation fails until it works. Attributes: calls: how often that was called."""

    def __init__(self, operation: Operation, reliability: Reliability | None, *, deadline: float | None = None) -> None:
        self.operation = operation
        self.works = False
        self.calls = 0
        self.id = "work"
        self.agent = Agent(
            "a",
            model=FunctionModel(self.answer, name="work" if operation == "inference" else "model"),
            tools=[Tool(name="work", run=self.run_tool, idempotent=True)] if operation == "tool" else [],
            providers=[self] if operation == "discovery" else [],
            reliability=reliability,
            limits=Limits(timeout=deadline),
        )

    async def do(self) -> None:
        """Fail until the work is told to succeed."""
        self.calls += 1
        await anyio.lowlevel.checkpoint()
        if not self.works:
            raise OSError("down")

    async def list_tools(self, ctx: DiscoveryContext) -> list[Tool]:
        """Work as the provider."""
        await self.do()
        return []

    async def answer(self, request: ModelRequest) -> Any:
        """Work as the model."""
        if self.operation == "inference":
            await self.do()
        is_asked = self.operation == "tool" and request.messages[-1].role == "user"
        return ToolCall("work", {}) if is_asked else "hi"

    async def run_tool(self, arguments: Any, ctx: object) -> str:
        """Work as the tool."""
        await self.do()
        return "worked"

    async def ended(self) -> str:
        """Run the agent, and return how the operation ended."""
        try:
            result = await self.agent.run("go")
        except PellucidError as error:
            return "refused" if isinstance(error, CircuitOpen) else "failed"
        failures = [
            str(part.response)
            for message in result.messages
            for part in message.parts
            if isinstance(part, ToolResult) and part.is_error
        ]
        if failures:
            return "refused" if "is not called after repeated failures" in failures[0] else "failed"
        return "worked"


async def at_once(work: Work, runs: int = 100) -> dict[str, int]:
    """Run the agent many times at once, and return how many runs ended in each way."""
    ends: list[str] = []

    async def run() -> None:
        ends.append(await work.ended())

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(runs):
                tasks.start_soon(run)
    return {end: ends.count(end) for end in sorted(set(ends))}


# --- circuit breakers -------------------------------------------------------------------------------------------------


async def test_of_a_hundred_callers_one_probes(telemetry: Captured, operation: Operation) -> None:
    """A hundred failures at a time open a circuit once, and a half-open circuit lets one of a hundred calls through."""
    time = Clock()
    work = Work(operation, breaking(time, failures=5))
    ends = await at_once(work)
    assert sum(ends.values()) == 100
    assert "worked" not in ends
    assert (changes(telemetry), states(telemetry)) == (["circuit.opened"], [2])
    time.now += 10.0
    work.calls = 0
    assert await at_once(work) == {"failed": 1, "refused": 99}
    assert (work.calls, states(telemetry)) == (1, [2])
    assert changes(telemetry)[1:] == ["circuit.half_opened", "circuit.opened"]
    time.now += 10.0
    work.calls, work.works = 0, True
    ends = await at_once(work)
    assert ends.keys() <= {"worked", "refused"}
    assert ends["worked"] == work.calls
    assert (changes(telemetry)[3:], states(telemetry)) == (["circuit.half_opened", "circuit.closed"], [0])


async def test_the_gauge_shows_no_breaker_that_is_gone(telemetry: Captured) -> None:
    """The gauge of a circuit is 0 when it has closed, and disappears when its rules are no longer used."""
    time = Clock()
    reliability = breaking(time, failures=1)
    works = [Work(operation, reliability) for operation in OPERATIONS]
    for work in works:
        assert await within(work.ended()) == "failed"
    assert states(telemetry) == [2, 2, 2]
    time.now += 10.0
    for work in works:
        work.works = True
        assert await within(work.ended()) == "worked"
    assert states(telemetry) == [0, 0, 0]
    del reliability, work, works
    await anyio.wait_all_tasks_blocked()  # so that the event loop has let go of what has just ended
    gc.collect()
    assert states(telemetry) == []


# --- rules ------------------------------------------------------------------------------------------------------------


async def test_without_rules_everything_is_called_once(telemetry: Captured, operation: Operation) -> None:
    """Without rules, a failing operation is called once and fails, with one span and no decision."""
    work = Work(operation, None)
    assert await within(work.ended()) == "failed"
    assert (work.calls, len(telemetry.find(OPERATIONS[operation]))) == (1, 1)
    assert decisions(telemetry) == {}


async def test_a_rule_that_would_try_for_ever_is_stopped(telemetry: Captured, operation: Operation) -> None:
    """A rule that always retries is stopped after fifty attempts, and the run fails."""
    greedy = Rule(when=lambda s: s.operation == operation, then=retry(), kind="greedy")
    work = Work(operation, rules(greedy))
    with pytest.raises(ReliabilityFailFast) as caught:
        await within(work.agent.run("go"))
    assert (caught.value.kind, work.calls) == ("max_attempts", 50)
    assert "down" in str(caught.value)
    assert told(telemetry)[-1] == ("failed_fast", "max_attempts", 50)
    assert decisions(telemetry) == {
        (operation, "retry", "greedy"): 49,
        (operation, "fail_fast", "max_attempts"): 1,
    }


@pytest.mark.parametrize("fails_closed", [True, False])
@pytest.mark.parametrize("asked", ["before", "after"])
async def test_a_rule_that_raises(telemetry: Captured, operation: Operation, asked: str, *, fails_closed: bool) -> None:
    """A rule that raises is counted, and either ends the run or, without `fails_closed`, is skipped."""
    broken = Rule(when=lambda s: s.operation == operation and 1 / 0, then=continue_(), kind="broken")
    options: dict[str, Any] = {"fails_closed": fails_closed}
    reliability = rules(broken, **options) if asked == "after" else rules(pre_check=[broken], **options)
    work = Work(operation, reliability)
    work.works = True
    if fails_closed:
        with pytest.raises(ReliabilityFailFast, match="could not be evaluated") as caught:
            await within(work.agent.run("go"))
        assert isinstance(caught.value.cause, ZeroDivisionError)
        assert work.calls == (0 if asked == "before" else 1)
        assert decisions(telemetry) == {(operation, "fail_fast", "broken"): 1}
    else:
        assert await within(work.ended()) == "worked"
    counted = [point for point in telemetry.metrics if point.name == "pellucid.telemetry.errors"]
    assert {point.attributes["pellucid.telemetry.part"] for point in counted} == {"reliability"}


# --- waits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["token", "deadline", "scope"])
async def test_a_wait_is_ended_with_its_run(telemetry: Captured, operation: Operation, how: str) -> None:
    """The cancellation or the deadline of a run ends the wait for a retry at once, and nothing is called again."""
    waiting = anyio.Event()

    async def sleep(seconds: float) -> None:
        waiting.set()
        if how == "deadline":
            pass_time()
        await anyio.sleep_forever()

    again = Rule(when=lambda s: s.error is not None, then=retry(backoff=0.001), kind="again")
    work = Work(operation, Reliability([again], sleep=sleep), deadline=SOON if how == "deadline" else None)
    token = CancelToken()
    raised: list[BaseException] = []

    async def run() -> None:
        try:
            await work.agent.run("go", signal=token)
        except BaseException as error:
            raised.append(error)
            if not isinstance(error, PellucidError):
                raise

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await waiting.wait()
            if how == "token":
                token.cancel()
            elif how == "scope":
                tasks.cancel_scope.cancel()
    expected = {"token": RunCancelled, "deadline": RunTimeout, "scope": anyio.get_cancelled_exc_class()}[how]
    assert [type(error) for error in raised] == [expected]
    assert work.calls == 1
    outcome = "timeout" if how == "deadline" else "cancelled"
    assert ending(telemetry.span("invoke_agent"))[0] == outcome
    # A model's attempt is a span of its own, which has ended before the wait.
    assert ending(telemetry.span(OPERATIONS[operation]))[0] == ("failed" if operation == "inference" else outcome)
    assert told(telemetry) == [("retried", "again", 1)]


async def test_retries_of_those_who_wait_for_one_fetch_share_another_one(telemetry: Captured) -> None:
    """The back-off does not refuse a retry that a rule asks for, and callers of one failed fetch share the next one."""
    fails = anyio.Event()

    class Slow(FakeHub):
        async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            await fails.wait()
            return await super().fetch_catalog(ctx)

    hub = Slow(named("found"), faults=[OSError("down")], latency=0.01)
    provider = DiscoveryProvider(hub, id="hub", clock=Clock())
    again = Rule(when=lambda s: s.attempt < 2, then=retry(backoff=0.0, honour_retry_after=False), kind="again")
    agent = Agent("a", model=FunctionModel(lambda request: "hi"), providers=[provider], reliability=rules(again))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(agent.run, "go")
            await anyio.wait_all_tasks_blocked()
            fails.set()
    assert len(hub.calls) == 2
    failures = [event for event in telemetry.events if isinstance(event, ToolsDiscoveryFailed)]
    assert sorted((event.error_type, event.cache) for event in failures) == [("OSError", "joined"), ("OSError", "miss")]


async def test_one_of_many_who_wait_for_a_fetch_leaves_while_rules_try_again(telemetry: Captured) -> None:
    """Cancelling two of the runs that share a fetch leaves the others with its tools."""
    time, fetching, lets_go = Clock(), anyio.Event(), anyio.Event()

    class Second(FakeHub):
        async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            if self.calls:
                fetching.set()
                await lets_go.wait()
            return await super().fetch_catalog(ctx)

    hub = Second(named("found"), faults=[OSError("down")])
    provider = DiscoveryProvider(hub, id="hub", clock=time)
    again = Rule(when=lambda s: s.error is not None and s.attempt < 9, then=retry(), kind="again")
    reliability = rules(again, time=time, breaker=CircuitBreaker(failures=2))
    agent = Agent("a", model=FunctionModel(lambda request: "hi"), providers=[provider], reliability=reliability)
    scopes = [anyio.CancelScope() for _ in range(5)]
    outputs: list[str] = []

    async def run(scope: anyio.CancelScope) -> None:
        with scope:
            outputs.append((await agent.run("go")).output)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for scope in scopes:
                tasks.start_soon(run, scope)
            await fetching.wait()
            await anyio.wait_all_tasks_blocked()
            leaving = [scopes[index] for index in (0, 3)]
            for scope in leaving:
                scope.cancel()
            await anyio.wait_all_tasks_blocked()
            lets_go.set()
    assert (outputs, len(hub.calls), hub.cancelled) == (["hi"] * 3, 2, 0)
    assert changes(telemetry) == []
    in_runs = [span for span in telemetry.find("discover_tools hub") if semconv.RUN_ID in span.attributes]
    assert sorted(ending(span)[0] for span in in_runs) == ["cancelled"] * 2 + ["completed"] * 3
    attempts = [each for each in told(telemetry) if each[0] == "recovered"]
    assert len(attempts) == 3
