"""Tools and helpers for tests of approvals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pellucid import Decision, ToolCall, semconv, tool
from support.runs import results

if TYPE_CHECKING:
    from pellucid import RunResult
    from pellucid.errors import PolicyHalt
    from pellucid.types import JSONObject
    from pellucid_exporters.testing import Captured


ran: list[Any] = []
"""Records of what the tools have done; each module empties the list before a test."""


@tool(needs_approval=True)
async def refund(order: str, amount: float = 10) -> str:
    """Refund an order."""
    ran.append((order, amount))
    return f"refunded {amount}"


@tool
async def look(order: str) -> str:
    """Look up an order."""
    ran.append(order)
    return "paid"


REFUND = ToolCall("refund", {"order": "A", "amount": 50}, "r1")
OTHER = ToolCall("refund", {"order": "B", "amount": 70}, "r2")
LOOK = ToolCall("look", {"order": "A"}, "l1")


def passed_on(checkpoint: JSONObject | None) -> Any:
    """Return a checkpoint as another process reads it."""
    assert checkpoint is not None
    return json.loads(json.dumps(checkpoint))


def decide(waits: RunResult[Any], *answers: bool | None, **more: Any) -> list[Decision]:
    """Return decisions for the approvals of a result, in order; none where the answer is None."""
    given = zip(waits.approvals, answers, strict=False)
    return [Decision(request.approval_id, answer, **more) for request, answer in given if answer is not None]


def unanswered(run: RunResult[Any] | PolicyHalt) -> tuple[list[str | None], list[str]]:
    """Return ids of calls without exactly one result, and of results without a call."""
    calls = [call.id for message in run.messages for call in message.tool_calls]
    answers = [result.id for result in results(run)]
    return [each for each in calls if answers.count(str(each)) != 1], [each for each in answers if each not in calls]


def events(telemetry: Captured, name: str) -> list[Any]:
    """Return the events of a name."""
    return [event for event in telemetry.events if event.name == name]


def pending(telemetry: Captured, tool: str = "refund") -> float:
    """Return how many calls of a tool wait, as the metric says."""
    return telemetry.value(semconv.APPROVAL_PENDING, gen_ai_tool_name=tool)
