"""Scorers of durable runs: each run is scored once, when it has ended, however many passes it took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pellucid import Agent, Decision, ModelError, ToolCall, tool
from pellucid.durable import DurableRuns, RetryPolicy
from pellucid.scores import no_tool_errors, tool_called, wait_for_scores
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import capture
from support.runs import within

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@tool(needs_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


def scores(telemetry: Captured) -> list[tuple[str, object]]:
    """Return the scores, once the runs that have ended are scored."""
    assert wait_for_scores(30)
    return [(event.score, event.value) for event in telemetry.events if event.name == "score.recorded"]  # type: ignore[attr-defined]


async def test_a_durable_run_is_scored_once_at_its_end(location: Location) -> None:
    """And not when it pauses."""
    model = ScriptedModel(ToolCall("refund", {"order": 7}), "done")
    agent = Agent("shop", model=model, tools=[refund], scorers=[tool_called("refund")])
    with capture() as telemetry:
        async with location.open() as store:
            runs = DurableRuns(store, [agent])
            run_id = await runs.submit(agent, "Refund order 7.")
            await within(runs.work_until_idle())
            assert scores(telemetry) == []
            state = await runs.status(run_id)
            await runs.decide(run_id, [Decision(state.approvals[0].approval_id, approved=True)])
            await within(runs.work_until_idle())
            assert (await runs.status(run_id)).output == "done"
        assert scores(telemetry) == [("tool_called.refund", 1.0)]


async def test_a_pass_that_is_tried_again_is_not_scored(location: Location) -> None:
    """Only its run, which fails at last."""
    error = ModelError("scripted", "overloaded", error_kind="unavailable")
    agent = Agent("shop", model=ScriptedModel(error, error), scorers=[no_tool_errors, lambda status: status])
    with capture() as telemetry:
        async with location.open() as store:
            runs = DurableRuns(store, [agent], retry=RetryPolicy(backoff=0, max_attempts=2))
            run_id = await runs.submit(agent, "go")
            await within(runs.work_until_idle())
            assert (await runs.status(run_id)).status == "failed"
        assert [span.name for span in telemetry.find("invoke_agent")] == ["invoke_agent shop"] * 2
        assert scores(telemetry) == [("no_tool_errors", 1.0), ("<lambda>", None)]
