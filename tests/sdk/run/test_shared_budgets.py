"""Budgets that many runs share: in memory, in SQLite and in PostgreSQL; with sub-agents, streams and resumed runs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from pellucid import (
    Agent,
    Budget,
    ConfigError,
    Decision,
    Identity,
    Limits,
    Message,
    ModelError,
    ModelResponse,
    Tool,
    ToolCall,
    Usage,
    semconv,
)
from pellucid.budgets import Amounts, BudgetError, Need
from pellucid.budgets.accounts import MemoryAccounts
from pellucid.durable import DurableRuns, RunStore, open_store
from pellucid.errors import StoreUnavailable
from pellucid.events import BudgetLow
from pellucid.models import Price, PriceTable
from pellucid.semconv import budgets as names
from pellucid.testing import FunctionModel
from pellucid_exporters.testing import check_telemetry
from support.clock import Clock
from support.runs import attributes, results, within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from pellucid import ModelRequest, RunResult
    from pellucid.budgets import BudgetStore, Reservation
    from pellucid_exporters.testing import Captured
    from support.postgres_server import PostgresServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

CALL = 1_000
"""Tokens of a model call of these tests; each costs a millionth of a dollar."""


def metered(*names: str) -> FunctionModel:
    """Return a model that calls tools as long as it is offered some, and answers otherwise."""

    async def answer(request: ModelRequest) -> ModelResponse:
        await anyio.lowlevel.checkpoint()
        calls = [ToolCall(name, {"input": "x"}) for name in names] if request.tools else []
        message = Message("assistant", calls or "done")
        return ModelResponse(message=message, usage=Usage(input_tokens=CALL - 100, output_tokens=100))

    return FunctionModel(answer, name="metered")


def agent_of(model: FunctionModel, *tools: Tool, name: str = "a", **options: Any) -> Agent:
    """Return an agent whose answers take at most 1,000 tokens."""
    options = {"limits": Limits(max_iterations=99), "settings": {"max_tokens": 1_000}, **options}
    prices = PriceTable({"metered": Price(input=1.0, output=1.0)})
    return Agent(name, model=model, tools=tools, prices=prices, description="Helps.", **options)


async def look(arguments: Any, ctx: Any) -> str:
    """Find something."""
    return "ok"


LOOK = Tool(name="look", description="Look.", run=look)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def accounts(
    request: pytest.FixtureRequest, anyio_backend: str, tmp_path: Path, postgres: Callable[[], PostgresServer]
) -> AsyncIterator[BudgetStore]:
    """Return an empty store of accounts."""
    if request.param == "memory":
        yield MemoryAccounts()
        return
    url, options = f"sqlite:///{tmp_path}/budgets.db", {"synchronous": "normal"}
    if request.param == "postgres":
        url, options = (
            postgres().url,
            {"schema": f"budget_{tmp_path.name[-20:].lower().strip('_')}_{anyio_backend}"[:47]},
        )
        options["schema"] = "".join(sign if sign.isalnum() else "_" for sign in options["schema"])
    async with open_store(url, **options) as store:
        yield store


async def spent(budget: Budget) -> Amounts:
    """Return the spent amounts of a budget that has no reservations."""
    state = await budget.read()
    assert state.reserved == Amounts()
    return state.spent


LIMITS: list[dict[str, Any]] = [{"cost": 0.006}, {"tokens": 6_000}, {"model_calls": 6}]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: next(iter(limit)))
async def test_runs_share_what_there_is(telemetry: Captured, accounts: BudgetStore, limit: dict[str, Any]) -> None:
    """A run ends when it reaches the shared budget, and a later run is refused before its model is called."""
    budget = Budget("team", **limit, per="day", store=accounts)
    model = metered("look")
    agent = agent_of(model, LOOK, budget=budget)
    first = await within(agent.run("go"))
    assert (first.status, first.stop_reason, first.budget, first.output) == ("limit_reached", "budget", "team", "done")
    used = await spent(budget)
    assert used.model_calls == len(model.requests)
    assert used.tokens == CALL * used.model_calls
    assert used.cost == pytest.approx(used.tokens / 1e6)
    [(name, value)] = limit.items()
    assert 0.5 * value < getattr(used, name) <= value * (1 + 1e-9)
    calls = len(model.requests)
    for _ in range(3):
        last = await within(agent.run("go"))
    assert (last.status, last.stop_reason, last.output) == ("limit_reached", "budget", "")
    assert len(model.requests) <= calls + 1
    found = attributes(telemetry.find("invoke_agent")[-1])
    assert found[semconv.STOP_REASON] == "budget"
    assert (found[names.BUDGET_REACHED], found[names.BUDGET_KIND]) == ("team", name)
    assert found[semconv.LIMIT_VALUE] == value
    assert found[names.BUDGET_NAMES] == ("team",)
    assert found[names.BUDGET_USED][0] == pytest.approx(getattr(await spent(budget), name) / value)
    assert attributes(telemetry.find("chat")[0])[names.BUDGET_NAMES] == ("team",)
    check_telemetry(telemetry)


def obedient(request: ModelRequest) -> ModelResponse:
    """Answer with 300 tokens, or as many as are allowed."""
    size = min(300, request.settings["max_tokens"])
    return ModelResponse(message=Message("assistant", "done"), usage=Usage(input_tokens=5, output_tokens=size))


async def test_a_thousand_runs_never_overspend(accounts: BudgetStore) -> None:
    """A thousand runs at a time never exceed their shared budget, and each call is counted once."""
    runs = 1_000 if isinstance(accounts, MemoryAccounts) else 150
    limit = runs / 2 * 305
    budget = Budget("crowd", tokens=int(limit), store=accounts)
    model, outcomes = FunctionModel(obedient, name="metered"), list[str]()
    agent = agent_of(model, budget=budget)

    async def run() -> None:
        result = await agent.run("go")
        outcomes.append(result.status)

    with anyio.fail_after(110):
        async with anyio.create_task_group() as tasks:
            for _ in range(runs):
                tasks.start_soon(run)
    used = await spent(budget)
    assert used.model_calls == len(model.requests)
    assert (len(outcomes), set(outcomes)) == (runs, {"completed", "limit_reached"})
    assert 0 < used.tokens <= limit
    while (await within(agent.run("go"))).status == "completed":
        pass
    assert limit - 300 < (await spent(budget)).tokens <= limit


def test_several_event_loops_and_threads() -> None:
    """Runs in several threads with their own event loops share one account in memory."""
    budget = Budget("threads", model_calls=40)
    agent = agent_of(metered(), budget=budget)

    async def run() -> list[str]:
        return [(await agent.run("go")).status for _ in range(10)]

    def work(backend: str) -> list[str]:
        return anyio.run(run, backend=backend)

    with ThreadPoolExecutor(6) as threads:
        futures = [threads.submit(work, backend) for backend in ("asyncio", "trio") * 3]
        statuses = [status for future in futures for status in future.result(60)]
    assert (statuses.count("completed"), statuses.count("limit_reached")) == (40, 20)
    assert agent.run_sync("go").stop_reason == "budget"


async def test_a_store_in_another_event_loop(store: RunStore) -> None:
    """`run_sync` in a thread uses the budget and the sessions of a store that another event loop opened."""
    budget = Budget("sync", model_calls=30, store=store)
    agent = agent_of(metered(), budget=budget)
    session = agent.session("sync", store=store)

    def work() -> list[str]:
        with ThreadPoolExecutor(4) as threads:
            return [result.output for result in threads.map(agent.run_sync, ["go"] * 20)]

    with anyio.fail_after(60):
        assert await anyio.to_thread.run_sync(work) == ["done"] * 20
        assert (await anyio.to_thread.run_sync(session.run_sync, "go")).output == "done"
        assert (await session.run("go")).output == "done"
    assert len(await session.messages()) == 4
    assert (await spent(budget)).model_calls == 22


async def test_the_longest_answer_is_what_remains(accounts: BudgetStore) -> None:
    """`max_tokens` of a call is capped at the rest of the budget, and an answer that it cuts off ends at the limit."""
    budget = Budget("rest", tokens=700, store=accounts)

    def answer(request: ModelRequest) -> ModelResponse:
        size = request.settings["max_tokens"]
        return ModelResponse(
            message=Message("assistant", "part"),
            usage=Usage(input_tokens=10, output_tokens=size),
            finish_reason="length",
        )

    model = FunctionModel(answer, name="metered")
    result = await within(agent_of(model, budget=budget).run("go"))
    assert 600 < model.requests[0].settings["max_tokens"] < 700
    assert (result.status, result.stop_reason, result.output) == ("limit_reached", "budget", "part")
    assert (await spent(budget)).tokens == 10 + model.requests[0].settings["max_tokens"]


async def test_a_reservation_holds_what_others_may_not_use(accounts: BudgetStore) -> None:
    """A call in flight reserves the most that it may use, and afterwards only its usage counts."""
    budget = Budget("flight", tokens=3_000, store=accounts)
    entered, leave = anyio.Event(), anyio.Event()

    async def slowly(request: ModelRequest) -> ModelResponse:
        entered.set()
        await leave.wait()
        return ModelResponse(message=Message("assistant", "slow"), usage=Usage(input_tokens=50, output_tokens=50))

    slow = agent_of(FunctionModel(slowly, name="metered"), budget=budget, settings={"max_tokens": 2_990})
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow.run, "go")
            await entered.wait()
            assert (await budget.read()).reserved.tokens > 2_990
            refused = await agent_of(metered(), budget=budget).run("go")
            leave.set()
    assert (refused.stop_reason, refused.output) == ("budget", "")
    assert (await spent(budget)).tokens == 100
    assert (await within(agent_of(metered(), budget=budget).run("go"))).output == "done"


async def test_refusals_are_events_and_metrics(telemetry: Captured) -> None:
    """A refusal is an event with the budget, the limit and the figures, and gauges show the amounts."""
    budget = Budget("refusing", model_calls=1, tokens=10**6, store=MemoryAccounts())
    agent, heard = agent_of(metered(), budget=budget), list[BudgetLow]()
    agent.on(BudgetLow, heard.append)
    assert (await within(agent.run("go"))).status == "completed"
    assert (await within(agent.run("go"))).stop_reason == "budget"
    [low, low_again, event] = heard
    assert [each.is_refused for each in heard] == [False, False, True]
    assert (low.spent, low_again.spent) == (1, 1)
    assert event.period == ""
    assert (event.budget, event.limit, event.value, event.spent, event.reserved) == ("refusing", "model_calls", 1, 1, 0)
    span = telemetry.find("invoke_agent")[-1]
    assert [item.name for item in span.events] == ["budget.low", "budget.low"]
    labels = {"pellucid_budget_name": "refusing", "pellucid_budget_kind": "model_calls"}
    assert telemetry.value(names.BUDGET_SPENT, **labels) == 1
    assert telemetry.value(names.BUDGET_RESERVED, **labels) == 0
    assert telemetry.value(names.BUDGET_MOST, **labels) == 1
    assert telemetry.value(names.BUDGET_REFUSED, **labels) == 1
    check_telemetry(telemetry)


# --- what counts ------------------------------------------------------------------------------------------------------


async def test_sub_agents_count_once(accounts: BudgetStore) -> None:
    """A sub-agent's calls count against its own and its caller's budget, and once if both have the same."""
    both, outer = Budget("both", model_calls=50, store=accounts), Budget("outer", model_calls=7, store=accounts)
    inner = agent_of(metered("look"), LOOK, name="helper", budget=[both], limits=Limits(max_iterations=2))
    model = metered("helper")
    result = await within(agent_of(model, inner.as_tool(), budget=(both, outer)).run("go"))
    assert (result.status, result.stop_reason) == ("limit_reached", "budget")
    assert (await spent(both)).model_calls == (await spent(outer)).model_calls == 7


async def test_a_sub_agent_that_reaches_its_own(accounts: BudgetStore) -> None:
    """A sub-agent that reaches its own budget ends, and its caller reads the reason and goes on."""
    inner = agent_of(metered(), name="helper", budget=Budget("none", tokens=0, store=accounts))
    result = await within(agent_of(metered("helper"), inner.as_tool(), limits=Limits(max_iterations=1)).run("go"))
    assert "budget" in str(results(result)[0].response)
    assert result.output == "done"


async def test_a_stream_counts(accounts: BudgetStore) -> None:
    """A streamed answer is settled like any other, and a call whose reader leaves is counted."""
    budget = Budget("stream", model_calls=2, store=accounts)
    agent = agent_of(metered(), budget=budget)
    with anyio.fail_after(60):
        async with agent.stream("go") as events:
            assert [event async for event in events]
        async with agent.stream("go") as events:
            async for event in events:
                if event.name == "inference.started":
                    break
        async with agent.stream("go") as events:
            assert [event async for event in events]
    assert events.result.stop_reason == "budget"
    assert (await spent(budget)).model_calls == 2


async def test_a_resumed_run_counts(accounts: BudgetStore) -> None:
    """The budgets of the agent and of the call count in each pass of a resumed run."""
    budget, own = Budget("agent", model_calls=10, store=accounts), Budget("run", model_calls=10, store=accounts)
    pay = Tool(name="pay", description="Pay.", run=look, needs_approval=True)
    agent = agent_of(metered("pay"), pay, budget=budget, limits=Limits(max_iterations=2))
    result = await within(agent.run("go", budget=own))
    while result.checkpoint is not None:
        decisions = [Decision(request.approval_id, approved=True) for request in result.approvals]
        checkpoint = json.loads(json.dumps(result.checkpoint))
        result = await within(agent.resume(checkpoint, decisions=decisions, budget=own))
    assert (await spent(budget)).model_calls == (await spent(own)).model_calls == 3


async def test_a_durable_run_counts(store: RunStore) -> None:
    """A worker finds the budget of a durable run by its identity, and an empty budget of one tenant stops no other."""

    def of_tenant(ctx: Any) -> Budget:
        return Budget(f"tenant:{ctx.identity.tenant}", model_calls=1, per="month", store=store)

    runs = DurableRuns(store, [agent := agent_of(metered(), budget=of_tenant)])
    stops = []
    for number, tenant in enumerate(("one", "one", "two")):
        await runs.submit(agent, "go", identity=Identity(tenant=tenant), run_id=f"run-{number}")
        await within(runs.work_until_idle())
        stops.append((await runs.status(f"run-{number}")).stop_reason)
    assert stops == ["stop", "budget", "stop"]


async def test_a_call_that_the_vendor_refused_costs_nothing(accounts: BudgetStore) -> None:
    """A call that the vendor refused counts as a call without cost, and its reservation is released."""

    def fail(request: ModelRequest) -> str:
        raise ModelError("metered", "down", error_kind="unavailable")

    budget = Budget("failing", cost=1, store=accounts)
    with pytest.raises(ModelError):
        await within(agent_of(FunctionModel(fail, name="metered"), budget=budget).run("go"))
    assert await spent(budget) == Amounts(0, 0, 1)


async def test_a_cancelled_call_is_settled(accounts: BudgetStore) -> None:
    """A cancelled call counts what it had sent as an estimate, and nothing stays reserved."""
    budget = Budget("cancelled", tokens=10_000, store=accounts)
    entered = anyio.Event()

    async def hang(request: ModelRequest) -> str:
        entered.set()
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent_of(FunctionModel(hang, name="metered"), budget=budget).run, "word " * 400)
            await entered.wait()
            tasks.cancel_scope.cancel()
    assert 400 < (await spent(budget)).tokens < 1_000


# --- periods and expiry -----------------------------------------------------------------------------------------------


async def test_a_period_turns() -> None:
    """A calendar period in UTC starts with nothing spent."""
    clock = Clock()
    accounts = MemoryAccounts(clock)
    for per, length in (("hour", 3_600), ("day", 86_400), ("month", 31 * 86_400)):
        budget: Any = Budget("turning", model_calls=1, per=per, store=accounts)  # type: ignore[arg-type]  # of a tuple
        agent = agent_of(metered(), budget=budget)
        stops = [(await within(agent.run("go"))).stop_reason for _ in range(2)]
        clock.now += length
        stops.append((await within(agent.run("go"))).stop_reason)
        assert stops == ["stop", "budget", "stop"]
    assert (await Budget("turning", model_calls=1, per="day", store=accounts).read()).period == "1970-02-02"


async def test_a_period_turns_in_a_database(store: RunStore, location: Any) -> None:
    """Rows of an earlier period do not count and are purged, and rows of a budget without periods stay."""
    daily, lasting = (Budget("turning", model_calls=1, per=per, store=store) for per in ("day", None))
    agent = agent_of(metered(), budget=[daily, lasting])
    assert (await within(agent.run("go"))).stop_reason == "stop"
    location.execute("UPDATE budgets SET period = '2001-02-03', updated_at = updated_at - 1000 WHERE period <> ''")
    assert await spent(daily) == Amounts()
    assert (await spent(lasting)).model_calls == 1
    location.execute("UPDATE budgets SET updated_at = updated_at - 1000")
    await store.purge(500)
    location.execute("UPDATE budgets SET model_calls = 0 WHERE period <> ''")
    assert (await spent(lasting)).model_calls == 1
    assert (await within(agent.run("go"))).stop_reason == "budget"


async def reserve(accounts: BudgetStore, reservation_id: str, lasts: float) -> Reservation:
    """Reserve 60 of 100 tokens."""
    amounts = Amounts(0, 60, 1)
    return await accounts.reserve_budget(reservation_id, "kept", None, (None, 100, None), Need(amounts, amounts), lasts)


async def test_an_expired_reservation_counts_as_spent(accounts: BudgetStore) -> None:
    """An expired reservation counts as spent and estimated until it is settled late with the real usage."""
    assert (await reserve(accounts, "killed", 0.0)).granted is not None
    assert (await reserve(accounts, "next", 60.0)).limit == "tokens"
    state = await accounts.read_budget("kept", None)
    assert (state.spent, state.estimated, state.reserved) == (Amounts(0, 60, 1), Amounts(0, 60, 1), Amounts())
    settled = await accounts.settle_budget("killed", Amounts(0, 25, 1))
    assert settled is not None
    assert (settled.spent, settled.estimated) == (Amounts(0, 25, 1), Amounts())
    assert await accounts.settle_budget("killed", Amounts(0, 25, 1)) is None
    assert (await reserve(accounts, "next", 60.0)).granted is not None


async def test_an_estimate_that_is_corrected(accounts: BudgetStore) -> None:
    """Runs go on after an estimate that closed their budget is corrected."""
    budget = Budget("kept", tokens=2_000, store=accounts)
    agent, need = agent_of(metered(), budget=budget), Amounts(0, 2_000, 1)
    await accounts.reserve_budget("slow", "kept", None, budget.limits, Need(need, need), 0.0)
    assert [(await within(agent.run("go"))).stop_reason for _ in range(2)] == ["budget"] * 2
    await accounts.settle_budget("slow", Amounts(0, 10, 1))
    assert (await within(agent.run("go"))).stop_reason == "stop"


# --- options and failures ---------------------------------------------------------------------------------------------


async def test_a_function_of_the_context(accounts: BudgetStore) -> None:
    """A budget function may be async, gets identity and deps, and may return several budgets or none."""
    asked: list[tuple[Any, Any]] = []

    async def of_tenant(ctx: Any) -> Any:
        asked.append((ctx.identity, ctx.deps))
        if ctx.identity is None:
            return None
        return [Budget(f"t:{ctx.identity.tenant}", model_calls=ctx.deps, store=accounts)]

    agent = agent_of(metered("look"), LOOK, budget=of_tenant, limits=Limits(max_iterations=3))
    stops = [
        (await within(agent.run("go", identity=identity, deps=2))).stop_reason
        for identity in (None, Identity(tenant="a"), Identity(tenant="b"))
    ]
    assert stops == ["max_iterations", "budget", "budget"]
    assert [deps for _, deps in asked] == [2, 2, 2]
    assert (await spent(Budget("t:a", tokens=1, store=accounts))).model_calls == 2


@pytest.mark.parametrize(
    ("function", "problem"),
    [(lambda ctx: 1 / 0, "failed: "), (lambda ctx: "tenant", "returned str instead of a Budget")],
)
async def test_a_function_that_fails(function: Any, problem: str) -> None:
    """A budget function that fails ends the run before any model call, with an error that names it and has the run."""
    model = metered()
    with pytest.raises(BudgetError, match=problem) as failed:
        await within(agent_of(model, budget=function).run("go"))
    assert "<lambda>" in str(failed.value)
    assert [message.text for message in vars(failed.value)["messages"]] == ["go"]
    assert model.requests == []


class Broken(MemoryAccounts):
    """A store that fails at the step it is told to."""

    fails_at = ""

    async def reserve_budget(self, *args: Any, **options: Any) -> Reservation:
        """Fail, or reserve."""
        self._check("reserve")
        return await super().reserve_budget(*args, **options)

    async def settle_budget(self, *args: Any) -> Any:
        """Fail, or settle."""
        self._check("settle")
        return await super().settle_budget(*args)

    def _check(self, operation: str) -> None:
        if operation in self.fails_at:
            raise StoreUnavailable("budgets.db")


async def test_a_store_that_fails_before_a_call() -> None:
    """A store that fails before a call ends the run with an error that names the budget and has the conversation."""
    accounts, model = Broken(), metered("look")
    budget = Budget("guarded", tokens=10**6, store=accounts)

    async def breaks(arguments: Any, ctx: Any) -> str:
        accounts.fails_at = "reserve"
        return "broken"

    agent = agent_of(model, Tool(name="look", description="Look.", run=breaks), budget=budget)
    with pytest.raises(BudgetError, match=r"'guarded' could not be asked.*budgets\.db") as failed:
        await within(agent.run("go"))
    error: Any = failed.value
    assert [message.role for message in error.messages] == ["user", "assistant", "tool"]
    assert (error.usage.input_tokens, len(model.requests)) == (CALL - 100, 1)
    assert isinstance(error.__cause__, StoreUnavailable)
    accounts.fails_at = ""
    assert (await spent(budget)).model_calls == 1


async def test_a_store_that_fails_after_a_call(caplog: pytest.LogCaptureFixture) -> None:
    """An answer is kept if the store fails after the call, and its reservation is settled before the next one."""
    accounts = Broken()
    accounts.fails_at = "settle"
    budget = Budget("later", tokens=10**6, store=accounts)
    agent = agent_of(metered(), budget=budget)
    assert (await within(agent.run("go"))).output == "done"
    assert "budget.not_settled name=later" in caplog.text
    assert (await budget.read()).reserved.tokens > 1_000
    with pytest.raises(BudgetError, match="later"):
        await within(agent.run("go"))
    accounts.fails_at = ""
    assert (await within(agent.run("go"))).output == "done"
    assert (await spent(budget)).tokens == 2 * CALL


async def test_an_unknown_price() -> None:
    """A budget in dollars is refused for a model without a known price, also if a function returns it."""
    budget = Budget("dollars", cost=2)
    for option in (budget, lambda ctx: budget):
        agent = Agent("a", model=FunctionModel(lambda request: "x", name="new"), budget=option)
        with pytest.raises(ConfigError, match=r"Budget\('dollars', cost=2\) needs the price of model 'new'"):
            await within(agent.run("go"))
    agent = Agent("a", model=FunctionModel(lambda request: "x", name="new"), budget=Budget("t", tokens=10**6))
    assert (await within(agent.run("go"))).output == "x"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("",), "1 to 255 printable"),
        ((None,), "1 to 255 printable"),
        (("x",), "no limit"),
        (("x", {"cost": -1}), "cost=-1"),
        (("x", {"tokens": 1.5}), "whole number"),
        (("x", {"cost": float("nan")}), "cost=nan"),
        (("x", {"cost": 1, "per": "week"}), "'hour', 'day' or 'month'"),
        (("x", {"cost": 1, "store": "sqlite:///x.db"}), "must be an open store"),
    ],
)
def test_values_that_are_refused(arguments: Any, problem: str) -> None:
    """The error about a wrong value names the budget, the value and the remedy."""
    name, options = arguments if len(arguments) == 2 else (*arguments, {})
    with pytest.raises(ConfigError, match=problem):
        Budget(name, **options)


async def test_an_option_that_is_no_budget() -> None:
    """An option that is no `Budget` is refused when the agent is made and when the run starts."""
    with pytest.raises(ConfigError, match=r"budget=20 is not a Budget"):
        agent_of(metered(), budget=20)
    wrong: Any = 20
    with pytest.raises(ConfigError, match=r"budget=20 of a run is not a Budget"):
        await within(agent_of(metered()).run("go", budget=wrong))


async def result_of(agent: Agent) -> RunResult:
    """Run an agent."""
    return await within(agent.run("go"))


async def test_budgets_and_limits_together() -> None:
    """The tighter of a budget and a limit ends the run, and the budget keeps its count."""
    budget = Budget("wide", model_calls=100, store=MemoryAccounts())
    tight = agent_of(metered("look"), LOOK, budget=budget, limits=Limits(max_model_calls=3))
    result = await result_of(tight)
    assert (result.stop_reason, result.budget) == ("max_model_calls", None)
    assert (await spent(budget)).model_calls == 3
