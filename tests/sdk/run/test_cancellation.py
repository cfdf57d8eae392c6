from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from pellucid import (
    Agent,
    CancelToken,
    Limits,
    ModelError,
    RunCancelled,
    RunTimeout,
    Tool,
    ToolCall,
    ToolResult,
    semconv,
)
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters.testing import check_telemetry
from support.clock import SOON, pass_time
from support.runs import CANCELLED, COMPLETED, TIMEOUT, ending, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import DiscoveryContext, ToolContext
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

PHASES = {
    "discovery": "discover_tools slow",
    "inference": "chat function",
    "tool": "execute_tool work",
    "thread": "execute_tool work",
    "tools": "execute_tool work",
}


class Stuck:
    """An agent that waits forever in one phase, and may shield itself from being cancelled.

    With limits, time passes once the phase is reached: what is limited to `SOON` ends then, and not before.
    """

    def __init__(self, phase: str, *, shielded: bool = False, limits: Limits | None = None) -> None:
        self.phase = phase
        self.shielded = shielded
        self.is_limited = limits is not None
        self.missing = 3 if phase == "tools" else 1
        self.id = "slow"
        self.reached = anyio.Event()
        self.release = anyio.Event()
        self.release_thread = threading.Event()
        self.reached_thread = threading.Event()
        run = self.block if phase == "thread" else self.work
        self.tools = [Tool(name="work", run=run)]
        model = FunctionModel(self.answer)
        self.agent = Agent("a", model=model, providers=[self], limits=limits or Limits())

    async def wait(self) -> None:
        """Tell that the phase is reached, and never return unless released."""
        self.reached.set()
        self.reached_thread.set()
        self.missing -= 1
        if self.is_limited and not self.missing:
            pass_time()
        with anyio.CancelScope(shield=self.shielded):
            await self.release.wait()

    def block(self, arguments: Any, ctx: ToolContext) -> None:
        """Block a thread."""
        self.reached_thread.set()
        if self.is_limited:
            anyio.from_thread.run_sync(pass_time)
        assert self.release_thread.wait(60)

    async def work(self, arguments: Any, ctx: ToolContext) -> str:
        """Be the tool."""
        await self.wait()
        return "late"

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Be the provider."""
        if self.phase == "discovery":
            await self.wait()
        return self.tools

    async def answer(self, request: Any) -> Any:
        """Be the model."""
        if self.phase == "inference":
            await self.wait()
        return [ToolCall("work") for _ in range(3)] if self.phase == "tools" else ToolCall("work")

    async def until_reached(self) -> None:
        """Wait until the phase is reached."""
        await within(anyio.to_thread.run_sync(self.reached_thread.wait, 10))


@pytest.fixture(params=PHASES)
def phase(request: pytest.FixtureRequest) -> str:
    """Return each phase that can wait."""
    name: str = request.param
    return name


def assert_ended(telemetry: Captured, phase: str, how: tuple[str, str, str | None]) -> None:
    """The phase and the run ended in one way, everything before them well, and nothing came after."""
    check_telemetry(telemetry)
    stuck = {PHASES[phase], "invoke_agent a"}
    for span in telemetry.spans:
        assert ending(span) == (how if span.name in stuck else COMPLETED)
    assert telemetry.events[-1].name == "run.failed"


@pytest.mark.parametrize("shielded", [False, True])
async def test_a_cancelled_token_ends_the_run_at_every_phase(
    telemetry: Captured, phase: str, *, shielded: bool
) -> None:
    """It is cancelled from another thread; what shields itself is left behind, with its spans ended."""
    stuck, token = Stuck(phase, shielded=shielded), CancelToken()
    raised: list[RunCancelled] = []

    async def run() -> None:
        try:
            await stuck.agent.run("x", signal=token)
        except RunCancelled as error:
            raised.append(error)

    try:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await stuck.until_reached()
                await anyio.to_thread.run_sync(token.cancel, "shift is over")
    finally:
        stuck.release.set()
        stuck.release_thread.set()
    [error] = raised
    assert error.reason == "shift is over"
    assert str(error) == "run of agent 'a' was cancelled: shift is over"
    assert_ended(telemetry, phase, CANCELLED)


@pytest.mark.parametrize("shielded", [False, True])
async def test_a_cancelled_scope_ends_the_run_at_every_phase(
    telemetry: Captured, phase: str, *, shielded: bool
) -> None:
    """Native cancellation propagates as the event loop's own, and cancels everything below."""
    stuck = Stuck(phase, shielded=shielded)
    raised: list[BaseException] = []

    async def run() -> None:
        try:
            await stuck.agent.run("x")
        except BaseException as error:
            raised.append(error)
            raise

    try:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await stuck.until_reached()
                tasks.cancel_scope.cancel()
        assert [type(error) for error in raised] == [anyio.get_cancelled_exc_class()]
    finally:
        stuck.release.set()
        stuck.release_thread.set()
    assert_ended(telemetry, phase, CANCELLED)


@pytest.mark.parametrize("shielded", [False, True])
async def test_a_deadline_ends_the_run_at_every_phase(telemetry: Captured, phase: str, *, shielded: bool) -> None:
    """A deadline is an error of the run and of the phase that was under way, which the message names."""
    stuck = Stuck(phase, shielded=shielded, limits=Limits(timeout=SOON))
    try:
        message = f"run of agent 'a' did not finish within its deadline of 20 s; under way: {PHASES[phase]}$"
        with pytest.raises(RunTimeout, match=message):
            await within(stuck.agent.run("x"))
    finally:
        stuck.release.set()
        stuck.release_thread.set()
    assert_ended(telemetry, phase, TIMEOUT)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancelled_task_ends_the_run_at_every_phase(telemetry: Captured, phase: str) -> None:
    """`Task.cancel()` of asyncio does what cancelling a scope does."""
    stuck = Stuck(phase)
    task = asyncio.get_running_loop().create_task(stuck.agent.run("x"))
    try:
        await stuck.until_reached()
        task.cancel()
        with anyio.fail_after(60), pytest.raises(asyncio.CancelledError):
            await task
    finally:
        stuck.release.set()
        stuck.release_thread.set()
    assert_ended(telemetry, phase, CANCELLED)


async def test_what_was_left_behind_does_no_harm_when_it_returns(telemetry: Captured) -> None:
    """A tool that comes back after its run is over changes no telemetry and disturbs nobody."""
    stuck = Stuck("tool", shielded=True, limits=Limits(timeout=SOON))
    with pytest.raises(RunTimeout):
        await within(stuck.agent.run("x"))
    before = (list(telemetry.spans), list(telemetry.events), list(telemetry.logs))
    stuck.release.set()
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    assert (telemetry.spans, telemetry.events, telemetry.logs) == before
    assert telemetry.histogram(semconv.TOOL_DURATION).count == 1
    check_telemetry(telemetry)


async def test_a_token_cancelled_before_the_run_stops_it_before_the_first_phase(telemetry: Captured) -> None:
    """No provider and no model is asked."""
    model, token = ScriptedModel(), CancelToken()
    token.cancel()
    with pytest.raises(RunCancelled):
        await within(Agent("a", model=model).run("x", signal=token))
    assert model.requests == []
    assert {ending(span) for span in telemetry.spans} <= {CANCELLED}
    check_telemetry(telemetry)


class Stopping:
    """An agent with a part that stops its run without waiting for anything: by its token, or by using up its time."""

    def __init__(self, part: str, token: CancelToken | None) -> None:
        self.part = part
        self.token = token
        self.id = "own"
        self.reached: list[str] = []
        self.agent = Agent(
            "a",
            model=FunctionModel(lambda request: self.reach("model", ToolCall("work"))),
            tools=[Tool(name="work", run=self.work)],
            providers=[self],
            limits=Limits(timeout=None if token is not None else 0.1),
        )

    def reach(self, part: str, value: Any) -> Any:
        """Stop if this is the part."""
        self.reached.append(part)
        if part == self.part and self.token is not None:
            self.token.cancel("enough")
        elif part == self.part:
            while datetime.now(UTC) < self.end:
                pass
        return value

    def list_tools(self, ctx: DiscoveryContext) -> Any:
        """Be the provider."""
        self.end = (ctx.expires_at or datetime.now(UTC)) + timedelta(milliseconds=1)  # also on the loop's clock
        return self.reach("provider", [])

    async def work(self, arguments: Any, ctx: ToolContext) -> Any:
        """Be the tool."""
        return self.reach("tool", "done")


@pytest.mark.parametrize(("part", "reached"), [("provider", 1), ("model", 2), ("tool", 3)])
async def test_no_phase_starts_in_a_run_that_was_cancelled(telemetry: Captured, part: str, reached: int) -> None:
    """Also where nothing has waited since, so that the event loop could not cancel anything yet."""
    token = CancelToken()
    stopping = Stopping(part, token)
    with pytest.raises(RunCancelled, match="enough"):
        await within(stopping.agent.run("x", signal=token), 30)
    assert stopping.reached == ["provider", "model", "tool"][:reached]
    assert ending(telemetry.span("invoke_agent a")) == CANCELLED


async def test_no_phase_starts_after_the_deadline(telemetry: Captured) -> None:
    """A provider that uses up the time is the last one that is asked."""
    stopping = Stopping("provider", None)
    with pytest.raises(RunTimeout, match=r"within its deadline of 0\.1 s"):
        await within(stopping.agent.run("x"), 30)
    assert "model" not in stopping.reached
    assert ending(telemetry.span("invoke_agent a")) == TIMEOUT


async def test_a_token_cancelled_after_the_run_changes_nothing(telemetry: Captured) -> None:
    """The run does not listen to it any longer."""
    token = CancelToken()
    result = await within(Agent("a", model=ScriptedModel("done")).run("x", signal=token))
    token.cancel()
    assert result.output == "done"
    assert {ending(span) for span in telemetry.spans} == {COMPLETED}


async def test_one_token_cancels_all_of_its_runs(telemetry: Captured) -> None:
    """Each of them raises."""
    token = CancelToken()
    reached = anyio.Event()
    waiting = 0

    async def wait(request: Any) -> str:
        nonlocal waiting
        waiting += 1
        if waiting == 5:
            reached.set()
        await anyio.sleep_forever()
        return "never"

    agent = Agent("a", model=FunctionModel(wait))
    cancelled = []

    async def run() -> None:
        with pytest.raises(RunCancelled):
            await agent.run("x", signal=token)
        cancelled.append(1)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(run)
            await reached.wait()
            token.cancel()
    assert len(cancelled) == 5
    check_telemetry(telemetry)


async def test_a_tool_sees_that_its_run_was_cancelled() -> None:
    """`ctx.signal` is the caller's token, for code that must be told."""
    token = CancelToken()
    seen = threading.Event()

    def work(arguments: Any, ctx: ToolContext) -> str:
        assert ctx.signal is not None
        ctx.signal.cancel("enough")
        assert ctx.signal.cancelled
        seen.set()
        return "ok"

    agent = Agent("a", model=ScriptedModel(ToolCall("work")), tools=[Tool(name="work", run=work)])
    with pytest.raises(RunCancelled, match="enough"):
        await within(agent.run("x", signal=token))
    assert await within(anyio.to_thread.run_sync(seen.wait, 10))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_tool_whose_own_task_was_cancelled_is_a_failing_tool(telemetry: Captured) -> None:
    """A cancellation that nobody asked the run for does not end it: the model gets a result."""

    async def broken(arguments: Any, ctx: ToolContext) -> str:
        raise asyncio.CancelledError

    agent = Agent("a", model=ScriptedModel(ToolCall("t"), "done"), tools=[Tool(name="t", run=broken)])
    result = await within(agent.run("x"))
    [part] = result.messages[2].parts
    assert isinstance(part, ToolResult)
    assert part.is_error
    assert ending(telemetry.span("execute_tool"))[0] == "failed"
    check_telemetry(telemetry)


async def test_a_deadline_that_passes_while_a_tool_cleans_up_is_a_timeout(telemetry: Captured) -> None:
    """A tool may await while it is being stopped."""
    cleaned = []

    async def careful(arguments: Any, ctx: ToolContext) -> str:
        pass_time()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                cleaned.append(1)
        return "never"

    agent = Agent(
        "a", model=ScriptedModel(ToolCall("t")), tools=[Tool(name="t", run=careful)], limits=Limits(timeout=SOON)
    )
    with pytest.raises(RunTimeout):
        await within(agent.run("x"))
    assert cleaned == [1]
    assert ending(telemetry.span("execute_tool")) == TIMEOUT
    check_telemetry(telemetry)


async def test_a_model_that_shields_itself_from_its_timeout_is_left_behind(telemetry: Captured) -> None:
    """`Limits.model_timeout` holds whatever the model's library does."""
    stuck = Stuck("inference", shielded=True, limits=Limits(model_timeout=SOON))
    try:
        with pytest.raises(TimeoutError):
            await within(stuck.agent.run("x"))
    finally:
        stuck.release.set()
    assert_ended(telemetry, "inference", TIMEOUT)


async def test_a_provider_that_shields_itself_from_its_timeout_is_left_behind(telemetry: Captured) -> None:
    """`Limits.discovery_timeout` holds whatever the hub's library does."""
    stuck = Stuck("discovery", shielded=True, limits=Limits(discovery_timeout=SOON))
    try:
        with pytest.raises(TimeoutError):
            await within(stuck.agent.run("x"))
    finally:
        stuck.release.set()
    assert_ended(telemetry, "discovery", TIMEOUT)


async def test_a_run_that_never_waits_can_be_cancelled() -> None:
    """A model and tools that never yield to the loop do not keep a cancellation from arriving."""

    async def work(arguments: Any, ctx: ToolContext) -> str:
        return "again"

    model = FunctionModel(lambda request: ToolCall("work"))
    agent = Agent(
        "a", model=model, tools=[Tool(name="work", run=work)], limits=Limits(max_iterations=10**9, timeout=0.1)
    )
    with pytest.raises(RunTimeout):
        await within(agent.run("x"))


@pytest.mark.parametrize("by", ["token", "deadline"])
async def test_a_run_that_is_stopped_says_so_whatever_fails_then(telemetry: Captured, by: str) -> None:
    """Caller and span agree: what fails in a run that is stopped does not make a failure of it."""
    token = CancelToken()

    class Hub:
        id = "hub"

        async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            if by == "token":
                token.cancel("enough")
                raise ConnectionError("away")
            pass_time()
            try:
                await anyio.sleep_forever()
            finally:
                raise ConnectionError("away")

    limits = Limits(timeout=SOON if by == "deadline" else None)
    agent = Agent("a", model=ScriptedModel("x"), providers=[Hub()], limits=limits)
    with pytest.raises(RunCancelled if by == "token" else RunTimeout):
        await within(agent.run("x", signal=token))
    assert ending(telemetry.span("invoke_agent")) == (CANCELLED if by == "token" else TIMEOUT)


async def test_a_run_that_is_over_cannot_be_cancelled(telemetry: Captured) -> None:
    """Whoever cancels when told of the end changes neither result nor span."""
    token = CancelToken()
    agent = Agent("a", model=ScriptedModel("hello"))
    agent.on("run.completed", lambda event: token.cancel("too late"))
    result = await within(agent.run("x", signal=token))
    assert result.output == "hello"
    assert ending(telemetry.span("invoke_agent")) == COMPLETED


@pytest.mark.parametrize("ends", ["answers", "fails"])
@pytest.mark.parametrize("steps", range(8))
async def test_caller_and_span_agree_when_a_run_ends_as_it_is_cancelled(
    telemetry: Captured, ends: str, steps: int
) -> None:
    """Whichever comes first: a result is not lost whose span says that the run completed."""
    token = CancelToken()

    async def answer(request: Any) -> str:
        token.cancel("now")
        for _ in range(steps):
            await anyio.lowlevel.cancel_shielded_checkpoint()
        if ends == "fails":
            raise ConnectionError("away")
        return "hello"

    agent = Agent("a", model=FunctionModel(answer))
    outcome = COMPLETED
    try:
        assert (await within(agent.run("x", signal=token))).output == "hello"
    except RunCancelled:
        outcome = CANCELLED
    assert ending(telemetry.span("invoke_agent")) == outcome


async def test_a_run_that_has_failed_cannot_be_cancelled(telemetry: Captured) -> None:
    """Whoever cancels when told of the failure gets the failure all the same, as the span does."""
    token = CancelToken()
    agent = Agent("a", model=ScriptedModel(ConnectionError("away")))
    agent.on("run.failed", lambda event: token.cancel("too late"))
    with pytest.raises(ModelError, match="away"):
        await within(agent.run("x", signal=token))
    assert ending(telemetry.span("invoke_agent"))[0] == "failed"


def test_a_token_cancels_a_sync_run(telemetry: Captured) -> None:
    """`run_sync` returns at once, though a thread of its tool goes on."""
    token, reached, released = CancelToken(), threading.Event(), threading.Event()

    def block(arguments: Any, ctx: ToolContext) -> None:
        reached.set()
        assert released.wait(60)

    def cancel() -> None:
        assert reached.wait(60)
        token.cancel("stop")

    canceller = threading.Thread(target=cancel)
    canceller.start()
    agent = Agent("a", model=ScriptedModel(ToolCall("block")), tools=[Tool(name="block", run=block)])
    with pytest.raises(RunCancelled, match="stop"):
        agent.run_sync("x", signal=token)
    released.set()
    canceller.join(60)
    check_telemetry(telemetry)
