"""Approval requests for tool calls, and the decisions about them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Literal, TypeAlias

from pellucid.errors import CheckpointError, ConfigError
from pellucid.types import JSONObject

Outcome: TypeAlias = Literal["approved", "denied", "expired", "withdrawn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A tool call that waits for a person to decide.

    Attributes:
        approval_id: Id for a `Decision` to refer to.
        tool_call_id: The model's id of the call.
        tool_name: Name of the tool.
        arguments: Arguments for the tool, complete and not redacted.
        expires_at: Expiry, in seconds since the epoch; None if it never expires.
        requested_at: Seconds since the epoch.
        reason: Reason given by the permission policy, if any.
        input_schema: JSON Schema of the arguments, which changed ones must fit; None unless the run is durable. Of an
            elicitation, that of the answer.
        elicitation: `form` or `url` if the tool's server asks a person for input, with the `reason` as question; None
            for the approval of a call. A form is answered by `Decision(arguments=)`.
        url: Address that a person must open, of an elicitation by `url`.
        annotations: Annotations of the tool, such as its `title`, with the names of MCP; None if it has none.
            These are hints: its provider may lie.
    """

    approval_id: str
    tool_call_id: str
    tool_name: str
    arguments: JSONObject
    expires_at: float | None = None
    requested_at: float = 0.0
    reason: str | None = None
    input_schema: JSONObject | None = None
    elicitation: Literal["form", "url"] | None = None
    url: str | None = None
    annotations: JSONObject | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A person's decision about an approval request.

    Attributes:
        approval_id: Id of the request.
        approved: Whether the call may run.
        reason: Reason for a denial, for the model.
        arguments: Arguments that replace the model's. They must fit the tool's schema; a note in the result tells the
            model. For an elicitation, the answer, which must fit its schema.
        decided_by: Person who decided; recorded in telemetry.

    Raises:
        ConfigError: a value has another type; only `True` approves.
    """

    approval_id: str
    approved: bool
    reason: str | None = None
    arguments: JSONObject | None = None
    decided_by: str | None = None

    def __post_init__(self) -> None:
        for name, kinds, expected in (
            ("approval_id", str, "the id of an ApprovalRequest"),
            ("approved", bool, "True or False"),
            ("reason", (str, NoneType), "a text, or None"),
            ("arguments", (dict, NoneType), "a dictionary, or None for the model's arguments"),
            ("decided_by", (str, NoneType), "a text, or None"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kinds):
                raise ConfigError(f"Decision({name}={value!r}): must be {expected}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Outcome of an approval request.

    Attributes:
        at: Time of the outcome, in seconds since the epoch.
        decision: The decision; None if the request expired or was withdrawn.
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
        """Arguments that replace the model's, if the call was approved with others."""
        return self.decision.arguments if self.decision is not None else None

    @property
    def note(self) -> str | None:
        """Note for the model about changed arguments; None if they were not changed."""
        if self.edited is None:
            return None
        return f"Note: a person changed the arguments before they approved, to {json.dumps(self.edited)}."

    @property
    def error(self) -> str | None:
        """Error text for the result of a call that must not run; None if it was approved."""
        if self.decision is None:
            return "Not run: approval expired. Do not retry unless asked to."
        if self.decision.approved:
            return None
        suffix = f": {self.decision.reason}" if self.decision.reason else ""
        return f"Not run: a person denied this call{suffix}. Do not retry unless asked to."


def settle(
    requests: Sequence[ApprovalRequest], decisions: Sequence[Decision], now: float
) -> tuple[Mapping[str, Settled], Sequence[ApprovalRequest]]:
    """Return the settled requests, by approval id, and the requests that stay pending.

    An expired request is settled as expired, even if there is a decision: the decision is too late.

    Raises:
        CheckpointError: a decision is invalid or about an unknown request, or two are about the same request.
    """
    waiting = {request.approval_id: request for request in requests}
    decided: dict[str, Decision] = {}
    for decision in decisions:
        if decision.approval_id not in waiting:
            raise CheckpointError(
                f"unknown approval {decision.approval_id!r}; "
                f"this checkpoint is waiting for {', '.join(map(repr, waiting))}"
            )
        if decision.approval_id in decided:
            raise CheckpointError(f"duplicate decision for approval {decision.approval_id!r}; pass one decision")
        if fault := _fault(decision):
            raise CheckpointError(f"approval {decision.approval_id!r} {fault}")
        decided[decision.approval_id] = decision
    settled: dict[str, Settled] = {}
    for key, request in waiting.items():
        answer = decided.get(key)
        if request.expires_at is not None and now >= request.expires_at:
            settled[key] = Settled(request=request, outcome="expired", at=now)
        elif answer is not None:
            outcome: Outcome = "approved" if answer.approved else "denied"
            settled[key] = Settled(request=request, outcome=outcome, at=now, decision=answer)
    return settled, [request for key, request in waiting.items() if key not in settled]


def _fault(decision: Decision) -> str | None:
    """Return the fault of a decision, or None."""
    if decision.arguments is None:
        return None
    if not decision.approved:
        return "is denied, but its arguments are changed"
    try:
        json.dumps(decision.arguments, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"has changed arguments that are not JSON: {error}"
    return None
