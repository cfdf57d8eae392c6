"""Budgets that durable runs are submitted with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Budget, ConfigError, Decision
from pellucid.durable import DurableRuns
from pellucid.messages import ToolCall
from pellucid.testing import ScriptedModel
from support.durable_agents import PAY
from support.runs import within

if TYPE_CHECKING:
    from pellucid.durable import RunStore
    from support.stores import Location

pytestmark = pytest.mark.anyio


async def test_it_counts_in_every_pass(store: RunStore, location: Location) -> None:
    """Another process reads the budget from the store; the run counts against it before and after an approval."""
    budget = Budget("tenant-7", model_calls=2, per="month", store=store)
    run_id = await DurableRuns(store, []).submit("agent", "go", budget=budget)
    model = ScriptedModel([ToolCall("pay", {})], "done", "never")
    async with location.open() as other:
        runs = DurableRuns(other, [Agent("agent", model=model, tools=[PAY])])
        await within(runs.work_until_idle())
        state = await runs.status(run_id)
        assert (await budget.read()).spent.model_calls == 1
        await runs.decide(run_id, [Decision(state.approvals[0].approval_id, approved=True)])
        await within(runs.work_until_idle())
        assert (await runs.status(run_id)).output == "done"
        assert (await budget.read()).spent.model_calls == 2
        refused = await runs.submit("agent", "go", budget=[Budget("tenant-7", model_calls=2, per="month", store=other)])
        await within(runs.work_until_idle())
        assert (await runs.status(refused)).stop_reason == "budget"
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    ("budget", "said"),
    [(Budget("tenant-7", model_calls=1), "store of these runs"), (lambda ctx: None, "give a Budget"), (5, "give a")],
)
async def test_what_cannot_be_kept(store: RunStore, budget: Any, said: str) -> None:
    """A budget of another store, and what is none, is refused with the remedy, and nothing is submitted."""
    with pytest.raises(ConfigError, match=said):
        await DurableRuns(store, []).submit("agent", "go", budget=budget)
    assert (await store.list_runs()).runs == ()
