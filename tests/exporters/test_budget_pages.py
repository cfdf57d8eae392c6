"""What pages and commands show of budgets that runs share."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import TYPE_CHECKING

import httpx
import pytest

from pellucid import Agent, Budget
from pellucid.budgets.accounts import MemoryAccounts
from pellucid.testing import FunctionModel
from pellucid_commands.inspection import top
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.alerts import evaluate
from pellucid_exporters.viewer import create_viewer_app
from support.local_store import storing
from support.runs import within

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_a_budget_that_is_low(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page of a run has the share that is spent; from 80 % on `top` has a line, until the period is over."""
    path = tmp_path / "store.db"
    budget = Budget("tenant-7", model_calls=5, per="day", store=MemoryAccounts())
    with storing(path) as telemetry:
        agent = Agent("a", model=FunctionModel(lambda request: "hi"), budget=budget, telemetry=telemetry)
        for calls in range(1, 5):
            await within(agent.run("go"))
            telemetry.flush(10)
            reader = StoreReader(path)
            fired = [alert.summary for alert in evaluate(reader, time.time_ns())]
            assert len(fired) == (calls == 4)
    [summary] = fired
    assert "Budget tenant-7" in summary
    assert "80% of its model_calls" in summary
    capsys.readouterr()
    top.run(Namespace(store=path, window=60, json=False, once=True, replays=False, interval=1))
    assert "pellucid runbook BudgetNearlySpent" in capsys.readouterr().out
    transport = httpx.ASGITransport(create_viewer_app(reader))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        page = (await http.get(f"/runs/{reader.runs()[0].run_id}/")).text
    assert "<dt>Budget</dt><dd>tenant-7 <small>80% spent</small>" in page
    tomorrow = time.time_ns() + 1
    assert [alert for alert in evaluate(reader, tomorrow + 86_400 * 10**9) if alert.name == "BudgetNearlySpent"] == []
