"""Durable runs with damaged, foreign, extreme and contradictory input."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, CheckpointError, Decision, Limits, Reliability, Tool, ToolCall, ToolResult
from pellucid.durable_runs import DurableRuns, RunState
from pellucid.errors import ConfigError, StoreUnavailable
from pellucid.testing import FunctionModel, ScriptedModel
from support.runs import within

if TYPE_CHECKING:
    from pellucid import ToolContext
    from pellucid.durable import RunStore
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def nothing(arguments: Any, ctx: ToolContext) -> str:
    """Do nothing."""
    return f"{ctx.tool_call_id} done"


DO = Tool(name="do", run=nothing)
OWED = Tool(name="owed", run=nothing, execution="external-dispatch", pending="wait")
PAY = Tool(name="pay", run=nothing, needs_approval=True)


def results(state: RunState) -> dict[str, Any]:
    """Return the results in a conversation, by ids of calls."""
    parts = [part for message in state.messages for part in message.parts if isinstance(part, ToolResult)]
    return {part.id or "": part.response for part in parts}


async def damage(store: RunStore, statement: str, **parameters: Any) -> None:
    """Change the rows of a store, as nothing in it does."""
    database: Any = store._database

    def change(transaction: Any) -> None:
        style = "%(\\1)s" if type(database).__name__ == "PostgresDatabase" else ":\\1"
        import re

        transaction._execute(re.sub(r":(\w+)", style, statement), parameters)

    await anyio.to_thread.run_sync(database.write, change)


async def ended(runs: DurableRuns, run_id: str) -> RunState:
    """Work until the run has ended; decide and settle what it waits for."""
    with anyio.fail_after(60):
        while not (state := await runs.status(run_id)).is_over:
            await runs.work_until_idle()
            state = await runs.status(run_id)
            await runs.decide(run_id, [Decision(item.approval_id, approved=True) for item in state.approvals])
            for call in state.external:
                await runs.settle(call.id, output=1)
    return state


@pytest.mark.parametrize("call_id", ["a\x00b", "\ud800", "x" * 9000, "ü" * 3000])
@pytest.mark.parametrize("tool", [DO, OWED, PAY])
async def test_ids_of_calls(store: RunStore, call_id: str, tool: Tool) -> None:
    """Any text that a model makes the id of a call is one."""
    model = FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall(tool.name, {}, call_id))
    agent = Agent("a", model=model, tools=[DO, OWED, PAY])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    state = await ended(runs, run_id)
    assert (state.status, state.error) == ("completed", None)


@pytest.mark.parametrize("value", [math.nan, math.inf, "\ud800", "\x00", {"a": {1: math.nan}}, b"\xff", 10**400])
async def test_results_that_are_hardly_json(store: RunStore, value: Any) -> None:
    """A result that a run without a store accepts is one of a durable run, too."""

    async def odd(arguments: Any, ctx: ToolContext) -> Any:
        return value

    def agent() -> Agent[str]:
        return Agent("a", model=ScriptedModel(ToolCall("odd", {}, "c"), "x"), tools=[Tool(name="odd", run=odd)])

    plain = await agent().run("go")
    assert plain.output == "x"
    runs = DurableRuns(store, [agent()])
    state = await ended(runs, await runs.submit("a", "go"))
    assert (state.status, state.error) == ("completed", None)


@pytest.mark.parametrize("value", [math.nan, "\ud800", "\x00"])
async def test_arguments_that_are_hardly_json(store: RunStore, value: Any) -> None:
    """Arguments that a run without a store accepts are those of a durable run, too."""
    for tool in (DO, OWED, PAY):
        model = FunctionModel(
            lambda request: "x" if len(request.messages) > 1 else ToolCall(tool.name, {"a": value}, "c")  # noqa: B023
        )
        agent = Agent("a", model=model, tools=[tool])
        runs = DurableRuns(store, [agent])
        state = await ended(runs, await runs.submit("a", "go"))
        assert (tool.name, state.status, state.error) == (tool.name, "completed", None)


@pytest.mark.parametrize("kind", [float, bytes, complex])
async def test_outputs_that_are_hardly_json(store: RunStore, kind: Any) -> None:
    """The output is stored as JSON, or the run says that it is not."""
    text = {float: "NaN", bytes: '"x"', complex: '"1+2j"'}[kind]
    agent: Agent[Any] = Agent("a", model=ScriptedModel(f'{{"result": {text}}}'), output=kind)
    runs = DurableRuns(store, [agent])
    state = await ended(runs, await runs.submit("a", "go"))
    assert state.status == "completed", state.error


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE runs SET checkpoint = '{' WHERE id = :id",
        "UPDATE runs SET checkpoint = '{}' WHERE id = :id",
        "UPDATE runs SET request = '[' WHERE id = :id",
        "UPDATE runs SET request = '[]', checkpoint = NULL WHERE id = :id",
        "UPDATE runs SET trace = '[1]', checkpoint = NULL WHERE id = :id",
        "UPDATE calls SET payload = '{' WHERE run_id = :id",
        "UPDATE calls SET payload = '[]' WHERE run_id = :id",
        "UPDATE calls SET status = 'completed', payload = NULL WHERE run_id = :id",
        "UPDATE journal SET value = '{', seq = 1000 WHERE run_id = :id",
        "UPDATE journal SET value = '[]', seq = 1000 + seq WHERE run_id = :id",
        "UPDATE journal SET value = '{\"step\": \"answer\"}', seq = 1000 + seq WHERE run_id = :id",
    ],
)
async def test_damaged_rows(store: RunStore, change: str) -> None:
    """A run whose rows are damaged fails, with a text that says so; the worker goes on with others."""
    model = FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall("pay", {}, "c"))
    agent = Agent("a", model=model, tools=[PAY])
    runs = DurableRuns(store, [agent])
    await runs.submit(agent, "go", run_id="bad")
    await within(runs.work_until_idle())
    [request] = (await runs.status("bad")).approvals
    await runs.decide("bad", [Decision(request.approval_id, approved=True)])
    await damage(store, change, id="bad")
    good = await runs.submit(agent, "go")
    with anyio.fail_after(30):
        await runs.work_until_idle()
    assert (await runs.status(good)).status == "waiting"
    rows = {run.id: run.status for run in await store.list_runs()}
    assert rows["bad"] == "failed"
    state = await runs.status("bad")
    assert state.error is not None
    print(state.error_type, state.error)
    assert "bad" in state.error


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


async def test_long_names(store: RunStore) -> None:
    """Ids, keys and names that no index could hold are refused at once, with their limit."""
    agent = Agent("a", model=ScriptedModel("x"))
    runs = DurableRuns(store, [agent])
    with anyio.fail_after(5):
        for options in ({"run_id": "x" * 5000}, {"idempotency_key": "x" * 5000}, {"run_id": ""}, {"run_id": "a\x00"}):
            with pytest.raises(ConfigError):
                await runs.submit(agent, "go", **options)  # type: ignore[arg-type]


async def test_decisions_for_other_runs(store: RunStore) -> None:
    """A decision counts for the run whose approval it names, and for no other."""
    model = FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall("pay", {}, "c"))
    agent = Agent("a", model=model, tools=[PAY])
    runs = DurableRuns(store, [agent])
    for run_id in ("one", "two"):
        await runs.submit(agent, "go", run_id=run_id)
    await within(runs.work_until_idle())
    [request] = (await runs.status("one")).approvals
    [outcome] = await runs.decide("two", [Decision(request.approval_id, approved=True)])
    assert outcome.outcome == "unknown"
    [outcome] = await runs.decide("three", [Decision(request.approval_id, approved=True)])
    assert outcome.outcome == "unknown"
    assert len((await runs.status("one")).approvals) == 1


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
                while not any(entry.key.startswith("result") for entry in await store.journal(run_id)):
                    await anyio.sleep(0.01)
                stop.cancel()

            tasks.start_soon(interrupt)
            with stop:
                await runs.work_until_idle()
    state = await ended(runs, run_id)
    assert results(state) == {"c1": "done", "c2": "quick"}


async def test_a_failing_write_in_the_background(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails in a sub-agent in the background ends the pass, too; the model reads nothing of it."""
    from dataclasses import replace

    inner = Agent(
        "clerk",
        model=FunctionModel(lambda request: "inner" if len(request.messages) > 1 else ToolCall("job", {}, "i")),
        tools=[Tool(name="job", run=nothing, execution="external-dispatch")],
        description="Asks.",
    )
    clerk = replace(inner.as_tool(), execution="same-invocation")
    model = FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall("clerk", {"input": "?"}, "c"))
    agent = Agent("a", model=model, tools=[clerk])
    runs = DurableRuns(store, [agent], lease=0.5)
    register, failures = store.register, [1]

    async def fail_once(*arguments: Any, **options: Any) -> Any:
        if failures:
            failures.pop()
            raise StoreUnavailable("test")
        return await register(*arguments, **options)

    monkeypatch.setattr(store, "register", fail_once)
    state = await ended(runs, await runs.submit(agent, "go"))
    assert not failures
    assert "was not written" not in str(results(state))


async def test_a_store_that_is_away_for_longer_than_the_lease(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool is stopped when the lease has ended, also while the worker still tries to renew it."""
    stopped: list[float] = []

    async def slow(arguments: Any, ctx: ToolContext) -> str:
        started = anyio.current_time()
        try:
            await anyio.sleep(20)
        except anyio.get_cancelled_exc_class():
            stopped.append(anyio.current_time() - started)
            raise
        return "done"

    async def away(claim: Any) -> Any:
        await anyio.sleep(10)
        raise StoreUnavailable("test")

    agent = Agent("a", model=ScriptedModel(ToolCall("slow", {}, "c"), "x"), tools=[Tool(name="slow", run=slow)])
    runs = DurableRuns(store, [agent], lease=0.6)
    await runs.submit(agent, "go")
    monkeypatch.setattr(store, "renew", away)
    with anyio.fail_after(60):
        await runs.work_until_idle()
    assert stopped
    assert stopped[0] < 5


async def test_a_fault_of_the_store_in_the_end(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no one expected while a run ends fails that run, and not the worker."""
    agent = Agent("a", model=FunctionModel(lambda request: "x"))
    runs = DurableRuns(store, [agent])
    finish = store.finish

    async def fail(claim: Any, status: str, *arguments: Any, **options: Any) -> Any:
        if claim.run.id == "bad" and status == "completed":
            raise TypeError("not JSON")
        return await finish(claim, status, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "finish", fail)
    for run_id in ("bad", "good"):
        await runs.submit(agent, "go", run_id=run_id)
    await within(runs.work_until_idle())
    assert (await runs.status("bad")).status == "failed"
    assert (await runs.status("good")).status == "completed"
