"""Pages and commands that show budgets which runs share."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import TYPE_CHECKING

import httpx
import pytest

from pellucid import Agent, Budget, Limits, Message, ModelRequest, ModelResponse, Tool, ToolCall, Usage
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
    """A budget alerts from 80 % on, in `top` until the period is over, and the page of a run has its share."""
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
    top.run(Namespace(store=path, window=60, json=False, once=True, replays=False, kind=None, interval=1))
    assert "pellucid runbook BudgetNearlySpent" in capsys.readouterr().out
    transport = httpx.ASGITransport(create_viewer_app(reader))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        page = (await http.get(f"/runs/{reader.runs()[0].run_id}/")).text
    assert "<dt>Budget</dt><dd>tenant-7 <small>80% spent</small>" in page
    tomorrow = time.time_ns() + 1
    assert [alert for alert in evaluate(reader, tomorrow + 86_400 * 10**9) if alert.name == "BudgetNearlySpent"] == []


async def test_a_budget_that_is_overspent(tmp_path: Path) -> None:
    """The alert on a budget has the share that is spent, even above 100 %, without what is reserved."""
    path, counts = tmp_path / "store.db", iter([500] * 18 + [1_200])

    async def answer(request: ModelRequest) -> ModelResponse:
        output = next(counts)
        message = Message("assistant", [ToolCall("look", {})] if output == 500 else "done")
        return ModelResponse(message=message, usage=Usage(input_tokens=0, output_tokens=output))

    async def look(arguments: object, ctx: object) -> str:
        telemetry.flush(10)
        fired.extend(alert.summary for alert in evaluate(StoreReader(path), time.time_ns()))
        return "ok"

    fired: list[str] = []
    budget = Budget("team", tokens=10_000, per="day", store=MemoryAccounts())
    with storing(path) as telemetry:
        agent = Agent(
            "a",
            model=FunctionModel(answer),
            tools=[Tool(name="look", description="Look.", run=look)],
            budget=budget,
            settings={"max_tokens": 16},
            limits=Limits(max_iterations=30),
            telemetry=telemetry,
        )
        await within(agent.run("go"))
        await look(None, None)
    assert len(fired) == 3
    assert all("80%" in summary for summary in fired[:2])
    assert "102%" in fired[2]
