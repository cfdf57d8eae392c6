"""Questions that MCP servers asked a person in recorded calls."""

from __future__ import annotations

from collections.abc import Iterator

from pellucid import semconv
from pellucid.approvals.elicitation import Elicitation
from pellucid.events import ApprovalRequested
from pellucid_replay.tape import TapedSpan


def asked_in(span: TapedSpan) -> Iterator[tuple[str, str]]:
    """Yield the ids of calls and approvals of the questions of a call."""
    for event in span.events:
        if event["name"] == ApprovalRequested.name:
            attributes = event["attributes"]
            yield attributes[semconv.TOOL_CALL_ID], attributes[semconv.APPROVAL_ID]


def questions_of(span: TapedSpan, provider_id: str) -> dict[str, Elicitation]:
    """Return the questions of a call by the server's keys; without their texts and schemas, which are not recorded."""
    own = f"{span.get(semconv.TOOL_CALL_ID)}:"
    question = Elicitation(provider_id=provider_id, mode="url", message="")
    return {call_id.removeprefix(own): question for call_id, _ in asked_in(span)}
