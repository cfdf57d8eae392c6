"""Approvals that a run is waiting for."""

from __future__ import annotations

from collections.abc import Iterable

from pellucid.approvals.decisions import ApprovalRequest
from pellucid.run.outcomes import Paused


class PendingApprovals:
    """Approvals that a run is waiting for.

    Attributes:
        expected: Requests whose decisions only this run can apply, by id; withdrawn if the run ends first.
        paused: Results and waiting calls of the message at which the run paused, if it did.
        requested: Requests that the run is waiting for, once their events were emitted.
    """

    __slots__ = ("expected", "paused", "requested")

    def __init__(self) -> None:
        self.expected: dict[str, ApprovalRequest] = {}
        self.paused: Paused | None = None
        self.requested: tuple[ApprovalRequest, ...] = ()

    def expect(self, requests: Iterable[ApprovalRequest]) -> None:
        """Register requests whose decisions this run must apply."""
        self.expected.update({request.approval_id: request for request in requests})

    def release(self, requests: Iterable[ApprovalRequest]) -> None:
        """Remove requests that were decided, or that another run waits for."""
        for request in requests:
            self.expected.pop(request.approval_id, None)
