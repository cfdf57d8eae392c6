"""Reasons why runs stopped, and messages that requests left out, in `pellucid runs` and `show`."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Budget, Context, Limits, Message, ModelRequest, ModelResponse, Tool, ToolCall, Usage
from pellucid.budgets.accounts import MemoryAccounts
from pellucid.models import Price, PriceTable
from pellucid.testing import FunctionModel
from pellucid_commands.inspection import runs, show
from pellucid_commands.store.command import COMMAND as STORE
from pellucid_exporters import FileReader, StoreReader
from support.local_store import storing
from support.runs import within

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid.cli import Command

pytestmark = pytest.mark.anyio


async def answer(request: ModelRequest) -> ModelResponse:
    """Call the tool as long as it is offered."""
    message = Message("assistant", [ToolCall("look", {})] if request.tools else "done")
    return ModelResponse(message=message, usage=Usage(input_tokens=900 * len(request.messages), output_tokens=100))


async def look(arguments: object, ctx: object) -> str:
    """Return a large result."""
    return "x" * 4_000


async def fill(path: Path, options: dict[str, Any]) -> str:
    """Run an agent into a limit; return the id of the run."""
    with storing(path) as telemetry:
        agent = Agent(
            "a",
            model=FunctionModel(answer, name="metered"),
            tools=[Tool(name="look", description="Look.", run=look)],
            prices=PriceTable({"metered": Price(input=1.0, output=1.0)}),
            settings={"max_tokens": 200},
            telemetry=telemetry,
            **options,
        )
        return (await within(agent.run("go"))).run_id


def call(command: Command, *arguments: str) -> int:
    """Run a command; return the exit code."""
    parser = ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("reason", "options", "said"),
    [
        ("max_cost", {"limits": Limits(max_cost=0.01, max_iterations=99)}, "max_cost: $0.0084 of $0.01"),
        ("max_tokens", {"limits": Limits(max_tokens=9_000, max_iterations=99)}, "max_tokens: 8,400 of 9,000"),
        ("max_model_calls", {"limits": Limits(max_model_calls=3)}, "max_model_calls: 3 of 3"),
        ("max_iterations", {"limits": Limits(max_iterations=2)}, "max_iterations"),
        (
            "budget",
            {"budget": Budget("tenant-7", model_calls=4, per="day", store=MemoryAccounts())},
            "budget tenant-7, model_calls: 4 of 4",
        ),
    ],
)
async def test_why_a_run_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reason: str, options: dict[str, Any], said: str
) -> None:
    """`show` has the stop reason, the budget, the figure and the limit; `runs --stop-reason` finds the run."""
    path = str(tmp_path / "store.db")
    run_id = await fill(tmp_path / "store.db", options)
    assert call(show.COMMAND, run_id, "--store", path) == 0
    [root] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("   0 ")]
    assert root.endswith(f"  {said}")
    assert call(runs.COMMAND, "--stop-reason", reason, "--json", "--store", path) == 0
    [row] = json.loads(capsys.readouterr().out)["runs"]
    assert (row["run_id"], row["stop_reason"]) == (run_id, reason)
    assert call(runs.COMMAND, "--stop-reason", "stop", "--store", path) == 1
    with pytest.raises(SystemExit):
        call(runs.COMMAND, "--stop-reason", "boredom", "--store", path)


async def test_an_export_has_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of an export are found by their stop reason, as in the store."""
    run_id = await fill(tmp_path / "store.db", {"limits": Limits(max_iterations=2)})
    lines = tmp_path / "runs.jsonl"
    assert call(STORE, "export", "--store", str(tmp_path / "store.db")) == 0
    lines.write_text(capsys.readouterr().out)
    for reader in (StoreReader(tmp_path / "store.db"), FileReader(lines)):
        assert [run.run_id for run in reader.runs(stop_reason="max_iterations")] == [run_id]
        assert reader.runs(stop_reason="budget") == []


async def test_what_a_request_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` has the number of messages at each request that leaves some out."""
    path = tmp_path / "store.db"
    context = Context(window=8_000)
    run_id = await fill(path, {"limits": Limits(max_iterations=12), "context": context})
    expected = [
        span.attributes["pellucid.compose.left_out"]
        for span in StoreReader(path).spans(run_id)
        if span.phase == "compose"
    ]
    assert call(show.COMMAND, run_id, "--store", str(path)) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "compose_request" in line]
    assert expected[-1] > 1
    for line, number in zip(lines, expected, strict=True):
        assert ("left out" in line) == (number > 0)
        assert number in (0, 1) or line.endswith(f"{number} messages left out")
