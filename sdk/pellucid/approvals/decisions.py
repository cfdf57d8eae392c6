"""Approvals: what a person is asked before a tool call is made, and what they decide."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Literal, TypeAlias

from pellucid.errors import CheckpointError, ConfigError
from pellucid.types import JSONObject

Outcome: TypeAlias = Literal["approved", "denied", "expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A tool call that waits for a person to decide.

    Attributes:
        approval_id: What a `Decision` refers to.
        tool_call_id: The model's id of the call.
        tool_name: Name of the tool.
        arguments: What the tool would get. They are whole, for those who decide, and not redacted.
        expires_at: Seconds since the epoch; from then on it is too late. None: never.
        requested_at: Seconds since the epoch.
        reason: Why it is asked, if a policy has said so.
    """

    approval_id: str
    tool_call_id: str
    tool_name: str
    arguments: JSONObject
    expires_at: float | None = None
    requested_at: float = 0.0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided.

    Attributes:
        approval_id: That of the request.
        approved: Whether the call may be made.
        reason: Told to the model if it is denied.
        arguments: What the tool gets instead of what the model sent. They have to fit its schema; the model is told.
        decided_by: Who decided; recorded in telemetry.

    Raises:
        ConfigError: one of these is of another type; what is not a clear yes approves nothing.
    """

    approval_id: str
    approved: bool
    reason: str | None = None
    arguments: JSONObject | None = None
    decided_by: str | None = None

    def __post_init__(self) -> None:
        for name, kinds, wanted in (
            ("approval_id", str, "the id of an ApprovalRequest"),
            ("approved", bool, "True or False"),
            ("reason", (str, NoneType), "a text, or None"),
            ("arguments", (dict, NoneType), "a dictionary, or None for what the model sent"),
            ("decided_by", (str, NoneType), "a text, or None"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kinds):
                raise ConfigError(f"Decision({name}={value!r}): must be {wanted}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What came of a request.

    Attributes:
        at: When, in seconds since the epoch.
        decision: None if it has expired.
    """

    request: ApprovalRequest
    outcome: Outcome
    at: float
    decision: Decision | None = None

    @property
    def waited(self) -> float:
        """Seconds from the request to the decision."""
        return max(0.0, self.at - self.request.requested_at)

    @property
    def edited(self) -> JSONObject | None:
        """The arguments that take the place of the model's, if the call was approved with others."""
        return self.decision.arguments if self.decision is not None else None

    @property
    def note(self) -> str | None:
        """What the model reads of arguments that were changed."""
        if self.edited is None:
            return None
        return f"Note: a person changed the arguments before they approved, to {json.dumps(self.edited)}."

    @property
    def refusal(self) -> str | None:
        """What the model reads of a call that is not made; None if it was approved."""
        if self.outcome == "expired":
            return "Not run: nobody approved of this call in time. Do not call it again unless you are asked to."
        if self.outcome == "approved":
            return None
        reason = self.decision.reason if self.decision is not None else None
        said = f": {reason}" if reason else ""
        return f"Not run: a person denied this call{said}. Do not call it again unless you are asked to."


def settle(
    requests: Sequence[ApprovalRequest], decisions: Sequence[Decision], now: float
) -> tuple[Mapping[str, Settled], Sequence[ApprovalRequest]]:
    """Return what is settled now, by id of the approval, and what goes on waiting.

    A request that has expired is settled, whatever was decided of it: it was decided too late.

    Raises:
        CheckpointError: a decision is of no request or makes no sense, two are of one, or nothing is settled by them.
    """
    waiting = {request.approval_id: request for request in requests}
    decided: dict[str, Decision] = {}
    for decision in decisions:
        if decision.approval_id not in waiting:
            raise CheckpointError(
                f"there is no approval {decision.approval_id!r} in this checkpoint; it waits for {', '.join(waiting)}"
            )
        if decision.approval_id in decided:
            raise CheckpointError(f"there are two decisions for approval {decision.approval_id!r}; give one")
        if fault := _fault(decision):
            raise CheckpointError(f"approval {decision.approval_id!r} {fault}")
        decided[decision.approval_id] = decision
    settled: dict[str, Settled] = {}
    for key, request in waiting.items():
        made = decided.get(key)
        if request.expires_at is not None and now >= request.expires_at:
            settled[key] = Settled(request=request, outcome="expired", at=now)
        elif made is not None:
            settled[key] = Settled(
                request=request, outcome="approved" if made.approved else "denied", at=now, decision=made
            )
    if not settled:
        raise CheckpointError(f"nothing is decided; give a Decision for at least one of {', '.join(waiting)}")
    return settled, [request for key, request in waiting.items() if key not in settled]


def _fault(decision: Decision) -> str | None:
    """Return what is wrong with a decision."""
    if decision.arguments is None:
        return None
    if not decision.approved:
        return "is denied, and yet its arguments are changed"
    try:
        json.dumps(decision.arguments, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"has changed arguments that are no JSON: {error}"
    return None
