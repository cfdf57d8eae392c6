"""A refund waits for a person: one process pauses the run and exits, another resumes it after the decision."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from pellucid import Agent, Decision, ToolCall, tool
from pellucid.approvals import FileClaims
from pellucid.testing import ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.console import Console


@tool
async def order(number: str) -> dict[str, object]:
    """Look up an order."""
    return {"number": number, "paid": 500}


@tool(needs_approval=lambda arguments, ctx: arguments["amount"] > 100)  # noqa: PLR2004
async def refund(number: str, amount: float) -> str:
    """Refund an order."""
    return f"{amount:g} refunded for {number}"


def ask(place: Path) -> None:
    """Run until a person has to decide, and store the checkpoint."""
    calls = [ToolCall("order", {"number": "A-17"}), ToolCall("refund", {"number": "A-17", "amount": 500})]
    agent = Agent("support", model=ScriptedModel(calls), tools=[order, refund])
    result = agent.run_sync("I want my money back for A-17.")
    print(f"{result.status}: {[(each.tool_name, each.arguments) for each in result.approvals]}")
    (place / "checkpoint.json").write_text(json.dumps(result.checkpoint))


def go_on(place: Path) -> None:
    """Approve a smaller amount, and resume."""
    agent = Agent("support", model=ScriptedModel("You get 300 back."), tools=[order, refund])
    checkpoint = json.loads((place / "checkpoint.json").read_text())
    [asked] = checkpoint["approvals"]
    less = {**asked["arguments"], "amount": 300}
    decision = Decision(asked["approval_id"], approved=True, arguments=less, decided_by="ann")
    claims = FileClaims(place / "claims")  # no two processes resume the same checkpoint
    print(agent.resume_sync(checkpoint, decisions=[decision], claims=claims).output)


def main() -> None:
    """Run the step named on the command line; without one, run both, each in its own process."""
    if len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as place:
            for step in ("ask", "go_on"):
                subprocess.run([sys.executable, __file__, step, place], check=True)  # noqa: S603
        return
    telemetry = configure("approvals-example", console=Console(stream=sys.stdout))
    {"ask": ask, "go_on": go_on}[sys.argv[1]](Path(sys.argv[2]))
    telemetry.shutdown()


if __name__ == "__main__":
    main()
