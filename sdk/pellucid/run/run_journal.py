"""The journal of a run, as the run writes it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import SpanContext

from pellucid.telemetry import Boundary

if TYPE_CHECKING:
    from pellucid.approvals.external import ExternalRequest
    from pellucid.messages import ToolResult
    from pellucid.models import ModelResponse
    from pellucid.run.journal import CallAddress, Registration
    from pellucid.run.outcomes import Enqueued, Suspended, Waiting


class RunJournal:
    """Journal of a run that is not durable: nothing is written. `pellucid.run.pausing.steps` has that of a durable run.

    Attributes:
        is_durable: Whether another process can continue the run.
    """

    is_durable = False

    @property
    def run_id(self) -> str | None:
        """Id of the durable run."""
        return None

    @property
    def namespace(self) -> uuid.UUID | None:
        """Namespace of the ids of calls and approvals, if it is not that of the run's own id."""
        return None

    def is_continued_elsewhere(self) -> bool:
        """Return whether another process has claimed the run."""
        return False

    def completion_of(self, request: ExternalRequest) -> CallAddress:
        """Return address and token for a result, which only durable runs have, and when the call expires."""
        return None, None, request.expires_at

    async def write_answer(
        self, run: Any, response: ModelResponse, digest: str, *, can_repair: bool = False, stop: str | None = None
    ) -> None:
        """Write the messages since the last answer, the last of which is the model's.

        Args:
            run: The `Run`.
            response: The model's response.
            digest: Digest of the tools that the model was offered.
            can_repair: Whether the model may correct the answer if it does not fit the output type.
            stop: Reason why it is the closing answer, if it is.

        Raises:
            JournalError: the step was not written.
            CheckpointError: something in the messages cannot be turned into JSON.
        """

    async def write_begun(self, run: Any, b: Boundary, links: Iterable[SpanContext]) -> None:
        """Write the ids of the run's span, if it has any; nothing below it can have ended before.

        Raises:
            JournalError: the step was not written.
        """

    async def write_started(self, run: Any, b: Boundary, call_id: str, tool_name: str, *, can_repeat: bool) -> None:
        """Write that a tool is about to run.

        Args:
            run: The `Run`.
            b: Boundary of the call.
            call_id: Id of the call.
            tool_name: Name of the tool.
            can_repeat: Whether a pass that continues after a crash runs the tool again.

        Raises:
            JournalError: the step was not written.
        """

    async def write_result(self, run: Any, call_id: str, outcome: ToolResult | Waiting | Suspended | Enqueued) -> None:
        """Write the result of a call or the checkpoint of its sub-agent; other calls that wait are written elsewhere.

        Raises:
            JournalError: the step was not written.
            CheckpointError: something in the result cannot be turned into JSON.
        """

    async def register(self, run: Any, b: Boundary, request: ExternalRequest) -> Registration:
        """Register a call of another process before its dispatch, and write that it has started.

        Raises:
            JournalError: the call was not registered.
        """
        return "new"

    async def mark_dispatched(self, result_id: str) -> None:
        """Mark a call as dispatched."""

    def nested(self, idempotency_key: str) -> RunJournal:
        """Return the journal of a sub-agent's run, given the idempotency key of the call that starts it."""
        return self


NO_JOURNAL: Final = RunJournal()
"""The journal of all runs that are not durable."""
