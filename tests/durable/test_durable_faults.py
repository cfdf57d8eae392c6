"""Durable runs with damaged, foreign, extreme and contradictory input."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, Decision, Tool, ToolCall
from pellucid.durable import DurableRuns
from pellucid.durable.store.values import digest_of, dump
from pellucid.errors import CheckpointError, ConfigError, StoreUnavailable
from pellucid.testing import FunctionModel, ScriptedModel
from support.durable_agents import DO, OWED, PAY, ended, results
from support.runs import within

if TYPE_CHECKING:
    from pellucid import ToolContext
    from pellucid.durable import RunStore
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def damage(store: RunStore, statement: str, **parameters: Any) -> None:
    """Change the rows of a store, as nothing in it does."""
    database: Any = store._database

    def change(transaction: Any) -> None:
        style = "%(\\1)s" if type(database).__name__ == "PostgresDatabase" else ":\\1"
        transaction._execute(re.sub(r":(id)", style, statement), parameters)

    await anyio.to_thread.run_sync(database.write, change)


@pytest.mark.parametrize("call_id", ["a\x00b", "\ud800", "".join(map(str, range(3000)))])
@pytest.mark.parametrize("tool", [DO, OWED, PAY])
async def test_ids_of_calls(store: RunStore, call_id: str, tool: Tool) -> None:
    """Any text is the id of a call if a model says so."""
    model = FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall(tool.name, {}, call_id))
    agent = Agent("a", model=model, tools=[DO, OWED, PAY])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    state = await ended(runs, run_id)
    assert (state.status, state.error) == ("completed", None)


@pytest.mark.parametrize("value", [math.nan, -math.inf, ["\ud800", math.nan], {"a": {"b": math.inf}}])
def test_numbers_that_are_not_json_are_refused(value: Any) -> None:
    """A number that JSON does not have is refused in a column and in a digest."""
    for encode in (dump, digest_of):
        with pytest.raises(ValueError, match="not JSON compliant"):
            encode(value)
    assert dump({"a": "\ud800"}) == '{"a":"\\ud800"}'


@pytest.mark.parametrize("value", [math.nan, math.inf, "\ud800", "\x00", {"a": {1: math.nan}}, b"\xff", 10**400])
async def test_results_that_are_hardly_json(store: RunStore, value: Any) -> None:
    """A result that a run without a store accepts is one of a durable run, too."""

    async def odd(arguments: Any, ctx: ToolContext) -> Any:
        return value

    def agent() -> Agent:
        return Agent("a", model=ScriptedModel(ToolCall("odd", {}, "c"), "x"), tools=[Tool(name="odd", run=odd)])

    plain = await agent().run("go")
    assert plain.output == "x"
    runs = DurableRuns(store, [agent()])
    state = await ended(runs, await runs.submit("a", "go"))
    assert (state.status, state.error) == ("completed", None)


@pytest.mark.parametrize("value", ["\ud800", "\x00"])
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
    """An output is stored as JSON, or the run says that it is none."""
    text = {float: "NaN", bytes: '"x"', complex: '"1+2j"'}[kind]
    agent: Agent[Any, Any] = Agent("a", model=ScriptedModel(f'{{"result": {text}}}'), output=kind)
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
        'UPDATE journal SET value = \'{"step": "answer"}\', seq = 1000 + seq WHERE run_id = :id',
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
    rows = {run.run_id: run.status for run in (await store.list_runs()).runs}
    assert rows["bad"] == "failed"
    state = await runs.status("bad")
    assert state.error is not None
    assert "bad" in state.error


async def test_no_secret_of_a_damaged_row_is_shown(store: RunStore, caplog: pytest.LogCaptureFixture) -> None:
    """A secret in a damaged row is shown neither in the state of the run nor in the log."""
    agent = Agent("a", model=ScriptedModel(ToolCall("pay", {}, "c")), tools=[PAY])
    runs = DurableRuns(store, [agent])
    await runs.submit(agent, "go", run_id="bad")
    await within(runs.work_until_idle())
    [request] = (await runs.status("bad")).approvals
    await runs.decide("bad", [Decision(request.approval_id, approved=True)])
    await damage(
        store, """UPDATE runs SET checkpoint = '{"version": "password=hunter2222"}' WHERE id = :id""", id="bad"
    )
    await within(runs.work_until_idle())
    state = await runs.status("bad")
    assert state.error is not None
    assert state.error.startswith("run 'bad' cannot continue: CheckpointError: the checkpoint has version")
    assert "hunter2222" not in state.error + caplog.text
    assert "durable_run.failed run 'bad' cannot continue" in caplog.text


async def test_long_names(store: RunStore) -> None:
    """Ids and keys that no index could hold are refused at once."""
    agent = Agent("a", model=ScriptedModel("x"))
    runs = DurableRuns(store, [agent])
    with anyio.fail_after(5):
        for options in ({"run_id": "x" * 5000}, {"idempotency_key": "x" * 5000}, {"run_id": "a\x00"}):
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


async def test_a_fault_of_the_store_in_the_end(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error while a run ends fails that run, and not the worker."""
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


async def test_decisions_are_checked_before_any_is_stored(store: RunStore) -> None:
    """Changed arguments that do not fit the tool's schema are refused when decided, with all decisions of that call."""
    ran: list[Any] = []

    async def pay(arguments: Any, ctx: ToolContext) -> str:
        ran.append(arguments)
        return "paid"

    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
    tool = Tool(name="pay", run=pay, needs_approval=True, input_schema=schema)
    inner = Agent("clerk", model=ScriptedModel(ToolCall("pay", {"amount": 3}, "i"), "inner"), tools=[tool])
    calls = [ToolCall("pay", {"amount": 1}, "c1"), ToolCall("clerk", {"input": "?"}, "c2")]
    agent = Agent("a", model=ScriptedModel(calls, "x"), tools=[tool, inner.as_tool(description="Pays.")])
    run_id = await DurableRuns(store, [agent]).submit(agent, "go")
    await within(DurableRuns(store, [agent]).work_until_idle())
    runs = DurableRuns(store, [])  # a process without the agent
    first, second = (await runs.status(run_id)).approvals
    good = Decision(first.approval_id, approved=True, arguments={"amount": 2})
    for bad in (
        Decision(second.approval_id, approved=True, arguments={"amount": "much"}),
        Decision(second.approval_id, approved=True, arguments={"amount": math.nan}),
        Decision(second.approval_id, approved=False, arguments={"amount": 1}),
    ):
        with pytest.raises(CheckpointError, match=second.approval_id):
            await runs.decide(run_id, [good, bad])
    assert len((await runs.status(run_id)).approvals) == 2
    decisions = [good, Decision(second.approval_id, approved=True, arguments={"amount": 4})]
    assert [outcome.outcome for outcome in await runs.decide(run_id, decisions)] == ["settled", "settled"]
    state = await ended(DurableRuns(store, [agent]), run_id)
    assert (state.status, state.error) == ("completed", None)
    assert sorted(arguments["amount"] for arguments in ran) == [2, 4]


async def test_messages_of_a_waiting_run(store: RunStore) -> None:
    """The conversation of a run can be read while it waits."""
    agent = Agent("a", model=ScriptedModel(ToolCall("pay", {}, "c"), "x"), tools=[PAY])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    assert (await runs.status(run_id)).messages == ()
    await within(runs.work_until_idle())
    user, answer = (await runs.status(run_id)).messages
    assert (user.text, answer.tool_calls[0].name) == ("go", "pay")


@pytest.mark.parametrize("tool", [DO, OWED, PAY])
@pytest.mark.parametrize("value", [math.nan, [1, -math.inf]])
async def test_arguments_that_json_does_not_have(store: RunStore, tool: Tool, value: Any) -> None:
    """Arguments that are not JSON are refused to the model, and the run goes on, also if it would have paused."""
    model = FunctionModel(
        lambda request: ToolCall(tool.name, {"x": value}, "c") if len(request.messages) == 1 else "sorry"
    )
    agent = Agent("a", model=model, tools=[tool])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "go")
    await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.output) == ("completed", "sorry")
    assert "are not JSON" in results(state)["c"]
    assert state.messages[1].tool_calls[0].arguments == json.dumps({"x": value})


@pytest.mark.usefixtures("anyio_backend")
async def test_a_full_disk(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is named, nothing is written, and the store goes on once there is room."""
    is_full = True

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = _connect(*arguments, **options)
        connection.execute(f"PRAGMA max_page_count = {1 if is_full else 100_000}")  # of the size that it has, at least
        return connection

    _connect = sqlite3.connect
    async with location.open() as store:
        await store.submit("before", "agent", "x")
    if location.server is None:
        monkeypatch.setattr("sqlite3.connect", connect)
    else:
        body = "BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full'; END"
        location.execute(
            f"CREATE FUNCTION fill() RETURNS trigger AS '{body.replace(chr(39), chr(39) * 2)}' LANGUAGE plpgsql"
        )
        location.execute("CREATE TRIGGER fill BEFORE INSERT ON runs EXECUTE FUNCTION fill()")
    async with location.open() as store:
        with pytest.raises(StoreUnavailable, match="has a full disk; nothing was written"):
            await store.submit("large", "agent", "x" * 100_000)
    if location.server is not None:
        location.execute("DROP TRIGGER fill ON runs")
    is_full = False
    async with location.open() as store:
        assert await store.run("large") is None
        assert (await store.submit("large", "agent", "x" * 100_000)).is_new
