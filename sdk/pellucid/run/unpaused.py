"""State of pauses for a run that waits for nobody."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import SpanContext

from pellucid.telemetry import Boundary
from pellucid.tools.catalog import Catalog

if TYPE_CHECKING:
    from pellucid.approvals.checkpoint import Checkpoint, Resumption
    from pellucid.approvals.external import ExternalRequest
    from pellucid.run.outcomes import Paused


class Unpaused:
    """Pauses of a run that waits for nobody. `pellucid.run.pausing.pausing` has those of others.

    Attributes:
        resumption: State from which the run started, if it was resumed.
        is_interrupted: Whether another process continues the run.
    """

    resumption: Resumption | None = None
    is_interrupted = False

    @property
    def awaits_results(self) -> bool:
        """True if other processes owe results."""
        return False

    def in_trace(self, run: Any) -> AbstractContextManager[Sequence[SpanContext]]:
        """Continue the trace of the run that this one resumes; yield the links of the new span."""
        return nullcontext(())

    def deliver(self, run: Any, b: Boundary) -> bool:
        """Add the results that the model does not have to the conversation; return whether there were any."""
        return False

    async def next_results(self, run: Any, b: Boundary) -> bool:
        """Wait for results of calls in the background and deliver them; return False if there are none to wait for."""
        return False

    async def narrow(self, run: Any, b: Boundary, catalog: Catalog) -> Catalog:
        """Return the tools to offer now.

        Raises:
            ToolNameCollision, PolicyHalt: as `Selection.narrow`.
        """
        narrowed: Catalog = await run.selection.narrow(b, catalog, run.conversation.messages)
        return narrowed

    def owner(self, call_id: str) -> str:
        """Return the id of the call that starts a nested run: its result id, if it is a call in the background."""
        return call_id

    async def end(self, run: Any) -> Paused | None:
        """Wait for calls in the background, and pause the run if other processes owe results; return the pause.

        Raises:
            ToolError: results are owed, and the run cannot be resumed.
        """
        return None

    def in_result(self, run: Any, b: Boundary) -> dict[str, Any]:
        """Return those fields of `RunResult` that only a paused run has.

        Raises:
            CheckpointError: something in the conversation cannot be turned into JSON.
        """
        return {}

    async def stop(self, run: Any) -> None:
        """Cancel the calls in the background of a run that ends, and wait for their tasks."""

    def conclude(self, run: Any, b: Boundary) -> None:
        """Withdraw what a run that has ended waits for."""

    def hand_over(self, outer: Any) -> None:
        """Hand what a nested run waits for to its outer run."""

    def release(self, checkpoint: Checkpoint) -> None:
        """Release the approvals and external calls of a paused nested run that another run has resumed."""

    def requests(self) -> list[ExternalRequest]:
        """Return the asynchronous calls whose results the model does not have, for a checkpoint."""
        return []


UNPAUSED: Final = Unpaused()
"""The pauses of all runs that wait for nobody."""
