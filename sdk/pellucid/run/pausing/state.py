"""State of a run that waits, or was resumed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from opentelemetry.trace import SpanContext

from pellucid.approvals.checkpoint import Resumption
from pellucid.approvals.decisions import ApprovalRequest
from pellucid.run.journal import Folded
from pellucid.run.outcomes import Paused
from pellucid.run.pausing.async_state import AsyncCalls
from pellucid.run.state import Run
from pellucid.run.unpaused import Unpaused


class Pending(Unpaused):
    """Calls that a run waits for.

    Attributes:
        expected: Approval requests whose decisions only this run can apply, by id; withdrawn if the run ends first.
        paused: Results and waiting calls of the message at which the run paused, if it did.
        requested: Approval requests that the run is waiting for, once their events were emitted.
        calls: Asynchronous tool calls.
        folded: State in which the run was interrupted, if it was.
        links: Spans that the run links to, besides those of the run that it resumes.
        recorded: Ids of results whose waits an earlier pass of a durable run has recorded.
    """

    def __init__(self) -> None:
        self.expected: dict[str, ApprovalRequest] = {}
        self.paused: Paused | None = None
        self.requested: Sequence[ApprovalRequest] = ()
        self.calls = AsyncCalls()
        self.resumption: Resumption | None = None
        self.folded: Folded | None = None
        self.links: Sequence[SpanContext] = ()
        self.recorded: Collection[str] = ()
        self.is_interrupted = False

    def expect(self, requests: Iterable[ApprovalRequest]) -> None:
        """Register requests whose decisions this run must apply."""
        self.expected.update({request.approval_id: request for request in requests})

    def decided(self, requests: Iterable[ApprovalRequest]) -> None:
        """Remove requests that were decided, or that another run waits for."""
        for request in requests:
            self.expected.pop(request.approval_id, None)


def pending(run: Run) -> Pending:
    """Return what a run waits for, which can pause."""
    assert isinstance(run.pausing, Pending)  # `pausing_of` made it so
    return run.pausing
