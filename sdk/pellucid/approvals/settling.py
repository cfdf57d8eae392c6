"""Outcomes of what a paused run waits for: decisions about its approval requests, and results of its external calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pellucid.approvals.decisions import ApprovalRequest, Decision
from pellucid.approvals.external import EndedCall, ExternalRequest, ExternalResult
from pellucid.errors import CheckpointError
from pellucid.types import JSONObject

Outcome: TypeAlias = Literal["approved", "denied", "expired", "withdrawn"]

_NONE: Final[Mapping[str, EndedCall]] = {}


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


def settle_results(
    requests: Sequence[ExternalRequest],
    results: Iterable[ExternalResult],
    now: float,
    ended: Mapping[str, EndedCall] = _NONE,
) -> tuple[list[ExternalResult], list[ExternalResult]]:
    """Return the results that settle calls, and those that come too late; calls past their deadline expire.

    A result that a call has already changes nothing. The results of calls in `ended`, by result id, come too late.

    Raises:
        CheckpointError: a result is for an unknown call, or differs from the one that the call has.
    """
    known = {request.result_id: request for request in requests}
    settled: dict[str, ExternalResult] = {}
    for request in requests:
        if (known_result := request.result or _expired(request, now)) is not None:
            settled[request.result_id] = known_result
    late: list[ExternalResult] = []
    for result in results:
        if result.result_id in ended and result.result_id not in known:
            if ended[result.result_id].digest != result.digest:
                late.append(result)
            continue
        if result.result_id not in known:
            raise CheckpointError(_unknown(result.result_id, known))
        first = settled.setdefault(result.result_id, result)
        if first.status == "expired" and result.status != "expired":
            late.append(result)
        elif first.digest != result.digest:
            raise CheckpointError(
                f"call {result.result_id!r} of tool {known[result.result_id].tool_name!r} has another result already, "
                f"which is kept"
            )
    return [result for result_id, result in settled.items() if known[result_id].result is None], late


def _expired(request: ExternalRequest, now: float) -> ExternalResult | None:
    """Return the result of a call that has expired."""
    if request.expires_at is None or not request.expires(now):
        return None
    error = expired_text(request.expires_at - request.dispatched_at)
    return ExternalResult(result_id=request.result_id, status="expired", error=error, settled_at=request.expires_at)


def expired_text(seconds: float) -> str:
    """Return what the model reads of a call that has expired."""
    return f"The call expired: there was no result within {seconds:.6g} s."


def _unknown(result_id: str, known: Mapping[str, ExternalRequest]) -> str:
    waiting = ", ".join(map(repr, known)) or "no result"
    return f"unknown result id {result_id!r}; this checkpoint is waiting for {waiting}"
