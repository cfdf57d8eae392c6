"""Durable runs that are cancelled, interrupted, stuck or end their workers, and stores that are away."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import anyio
import pytest

from pellucid import Agent, Limits, Reliability, Tool, ToolCall
from pellucid.durable import DurableRuns
from pellucid.errors import ErrorKind, StoreUnavailable
from pellucid.reliability import CircuitBreaker, Rule, retry
from pellucid.testing import FunctionModel, ScriptedModel
from support.clock import SOON, outlast, pass_time
from support.durable_agents import OWED, PAY, ended, nothing, results
from support.runs import within

if TYPE_CHECKING:
    from pellucid import ToolContext
    from pellucid.durable import RunStore
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def test_cancelled_while_it_comes_to_wait(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is cancelled as its pass ends is cancelled, and its events say so and nothing else."""
    agent = Agent("a", model=ScriptedModel([ToolCall("owed", {}, "c")]), tools=[OWED])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    end_pass = store.end_pass

    async def cancel_first(*arguments: Any, **options: Any) -> Any:
        assert (await runs.cancel(run_id, "enough")).outcome == "requested"
        return await end_pass(*arguments, **options)

    monkeypatch.setattr(store, "end_pass", cancel_first)
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.error) == ("cancelled", "enough")
    types = [event.type async for event in runs.events(run_id) if event.type.startswith("run.")]
    assert types == ["run.cancelled"]


async def test_a_limit_of_calls_after_an_interruption(store: RunStore) -> None:
    """Calls that are run again after an interruption count once."""
    stop = anyio.CancelScope()
    ready = anyio.Event()

    async def wait(arguments: Any, ctx: ToolContext) -> str:
        if not ready.is_set():
            ready.set()
            await anyio.sleep_forever()
        return "done"

    async def quick(arguments: Any, ctx: ToolContext) -> str:
        await ready.wait()
        return "quick"

    tools = [Tool(name="wait", run=wait, idempotent=True), Tool(name="quick", run=quick)]
    model = ScriptedModel([ToolCall("wait", {}, "c1"), ToolCall("quick", {}, "c2")], "x")
    agent = Agent("a", model=model, tools=tools, limits=Limits(max_tool_calls=2))
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def interrupt() -> None:
                while not any(entry.key.startswith("result") for entry in await store.journal(run_id)):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                stop.cancel()

            tasks.start_soon(interrupt)
            with stop:
                await runs.work_until_idle()
    state = await ended(runs, run_id)
    assert results(state) == {"c1": "done", "c2": "quick"}


async def test_a_failing_write_in_the_background(
    store: RunStore, location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails in a sub-agent in the background ends the pass, too; the model reads nothing of it."""
    inner = Agent(
        "clerk",
        model=FunctionModel(lambda request: "inner" if len(request.messages) > 1 else ToolCall("job", {}, "i")),
        tools=[Tool(name="job", run=nothing, execution="external-dispatch")],
        description="Asks.",
    )
    clerk = replace(inner.as_tool(), execution="same-invocation")
    model = FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall("clerk", {"input": "?"}, "c"))
    agent = Agent("a", model=model, tools=[clerk])
    runs = DurableRuns(store, [agent])
    register, failures = store.register, [1]

    async def fail_once(*arguments: Any, **options: Any) -> Any:
        if failures:
            failures.pop()
            raise StoreUnavailable("test")
        return await register(*arguments, **options)

    monkeypatch.setattr(store, "register", fail_once)
    state = await ended(runs, await runs.submit(agent, "go"), location)
    assert not failures
    assert "was not written" not in str(results(state))


async def test_a_store_that_is_away_for_longer_than_the_lease(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool is stopped when the lease has ended, also while the worker still tries to renew it."""
    renew, started, stopped = store.renew, anyio.Event(), anyio.Event()

    async def slow(arguments: Any, ctx: ToolContext) -> str:
        started.set()
        pass_time(SOON / 2)
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return "done"

    async def away(claim: Any) -> Any:
        if started.is_set():
            await outlast()
        return await renew(claim)

    agent = Agent("a", model=ScriptedModel(ToolCall("slow", {}, "c"), "x"), tools=[Tool(name="slow", run=slow)])
    runs = DurableRuns(store, [agent], lease=SOON)
    await runs.submit(agent, "go")
    monkeypatch.setattr(store, "renew", away)
    with anyio.fail_after(60):
        while not stopped.is_set():
            await runs.work_until_idle()


async def test_a_run_that_ends_its_workers(
    store: RunStore, location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose leases expire one after the other without a new step fails; one that gets on does not."""
    starts: dict[str, int] = {}
    worker = anyio.CancelScope()

    async def end_the_worker(arguments: Any, ctx: ToolContext) -> str:
        starts[ctx.tool_call_id] = starts.get(ctx.tool_call_id, 0) + 1
        if ctx.tool_call_id == "bad" or starts[ctx.tool_call_id] == 1:
            worker.cancel()
            await anyio.sleep_forever()
        return "done"

    async def release(claim: Any) -> None:
        """Do nothing, as a process that was killed."""

    def answer(request: Any) -> Any:
        number = len(request.messages) // 2
        if request.messages[0].text == "good" and number == 3:
            return "x"
        return ToolCall("end", {}, "bad" if request.messages[0].text == "bad" else f"good-{number}")

    monkeypatch.setattr(store, "release", release)
    tool = Tool(name="end", run=end_the_worker, idempotent=True)
    agent = Agent("a", model=FunctionModel(answer), tools=[tool])
    runs = DurableRuns(store, [agent], max_expired_leases=2)
    with anyio.fail_after(60):
        for name in ("bad", "good"):
            await runs.submit(agent, name, run_id=name)
            while not (await runs.status(name)).is_over:
                with anyio.CancelScope() as worker:
                    await runs.work_until_idle()
                location.end_leases()
    state = await runs.status("bad")
    assert (state.status, state.error_type) == ("failed", "given_up")
    assert starts["bad"] <= 4
    assert state.error is not None
    assert state.error.startswith("run 'bad' was given up: 4 leases in a row expired without a new step")
    assert state.error.endswith("continue the run with `await runs.retry('bad')` or `pellucid durable retry bad`")
    assert [event.type async for event in runs.events("bad")][-1] == "run.failed"
    assert (await runs.status("good")).output == "x"


async def test_a_sub_agent_that_cannot_resume(store: RunStore) -> None:
    """A run whose sub-agent cannot apply what it waited for fails, instead of beginning the same pass for ever."""
    lists: list[int] = []

    class Hub:
        id = "hub"

        async def list_tools(self, ctx: Any) -> Any:
            lists.append(1)
            if len(lists) > 1:
                raise OSError("away")
            return [PAY]

    inner = Agent("clerk", model=ScriptedModel(ToolCall("pay", {}, "i"), "inner"), providers=[Hub()])
    clerk = inner.as_tool(description="Pays.")
    agent = Agent("a", model=ScriptedModel(ToolCall("clerk", {"input": "?"}, "c"), "x"), tools=[clerk])
    runs = DurableRuns(store, [agent])
    state = await ended(runs, await runs.submit(agent, "go"))
    assert state.status == "failed"
    assert "could not resume" in str(state.error)
    assert len(lists) == 2


async def test_a_breaker_does_not_count_the_store(
    store: RunStore, location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that was not written opens no circuit of the tool that it was about."""
    register, failures = store.register, [1, 1, 1]

    async def fail(*arguments: Any, **options: Any) -> Any:
        if failures:
            failures.pop()
            raise StoreUnavailable("test")
        return await register(*arguments, **options)

    monkeypatch.setattr(store, "register", fail)
    model = FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall("owed", {}, "c"))
    rules = Reliability(breaker=CircuitBreaker(failures=1, cooldown=3600, on=get_args(ErrorKind)))
    agent = Agent("a", model=model, tools=[OWED], reliability=rules)
    runs = DurableRuns(store, [agent])
    state = await ended(runs, await runs.submit(agent, "go"), location)
    assert (state.status, results(state), failures) == ("completed", {"c": 1}, [])


async def test_keys_of_calls(store: RunStore) -> None:
    """A call has one key, also when it is retried or made again by another process, and no two calls have the same."""
    keys: list[tuple[str, str]] = []
    stop = anyio.CancelScope()

    async def work(arguments: Any, ctx: ToolContext) -> str:
        keys.append((ctx.tool_call_id, ctx.idempotency_key))
        if len(keys) == 1:
            raise OSError("again")
        if len(keys) == 2:
            stop.cancel()
            await anyio.sleep_forever()
        return "done"

    tool = Tool(name="work", run=work, idempotent=True)
    inner = Agent(
        "clerk",
        model=FunctionModel(lambda request: "i" if len(request.messages) > 1 else ToolCall("work", {}, "c")),
        tools=[tool],
        description="Works.",
    )
    steps: list[Any] = [
        ToolCall("work", {}, "c"),
        ToolCall("work", {}, "c"),
        ToolCall("clerk", {"input": "?"}, "c"),
        "x",
    ]
    model = FunctionModel(lambda request: steps[len(request.messages) // 2])
    again = Rule(when=lambda situation: situation.error is not None, then=retry(), kind="again")
    agent = Agent("a", model=model, tools=[tool, inner.as_tool()], reliability=Reliability([again]))
    runs = DurableRuns(store, [agent])
    for run_id in ("one", "two"):
        await runs.submit(agent, "go", run_id=run_id)
    with anyio.fail_after(60), stop:
        await runs.work_until_idle(concurrency=1)
    for run_id in ("one", "two"):
        assert (await ended(runs, run_id)).status == "completed"
    assert [call_id for call_id, _ in keys] == ["c"] * 8
    first, *others = [key for _, key in keys]
    assert [first, first, *dict.fromkeys(others[1:])] == [first, *others]
    assert len(set(others)) == 6
