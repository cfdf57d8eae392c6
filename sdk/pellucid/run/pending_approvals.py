"""Approvals that a run is waiting for."""

from __future__ import annotations

from collections.abc import Iterable

from pellucid.approvals.decisions import ApprovalRequest
from pellucid.run.outcomes import Paused


class PendingApprovals:
    """Approvals that a run is waiting for.

    Attributes:
        expected: Requests that only this run can apply a decision to, by id: if it ends otherwise, they are withdrawn.
        paused: Results and waiting calls of the message in which the run paused, if it did.
        requested: What the run waits for, once its events have said so.
    """

    __slots__ = ("expected", "paused", "requested")

    def __init__(self) -> None:
        self.expected: dict[str, ApprovalRequest] = {}
        self.paused: Paused | None = None
        self.requested: tuple[ApprovalRequest, ...] = ()

    def expect(self, requests: Iterable[ApprovalRequest]) -> None:
        """Register requests that this run has to apply the decisions of."""
        self.expected.update({request.approval_id: request for request in requests})

    def release(self, requests: Iterable[ApprovalRequest]) -> None:
        """Forget requests that were decided, or that another run waits for."""
        for request in requests:
            self.expected.pop(request.approval_id, None)
