"""Methods of `DurableRuns` on runs that have ended."""

from __future__ import annotations

import logging

from pellucid.durable.store import Retry, RunStore, Submission
from pellucid.types import JSONObject

_log = logging.getLogger("pellucid.durable_runs")


def note_ended(submission: Submission) -> None:
    """Tell in the log if a run that is submitted again has failed, or was cancelled: it stays so."""
    run = submission.run
    if not submission.is_new and run.status in ("failed", "cancelled"):
        _log.warning(
            "durable_run.ended_before run_id=%s status=%s the run of this id or key is not started again; "
            "`await runs.retry(%r)` continues it, and another key starts another run",
            run.id,
            run.status,
            run.id,
        )


class RetryMethods:
    """Part of `DurableRuns`."""

    _store: RunStore

    async def retry(self, run_id: str, reason: str | None = None) -> Retry:
        """Continue a run that failed, was given up or was cancelled, from its journal.

        One that is retrying is due at once, and one that waits for a worker of its version for any worker.

        Nothing that has a result runs again, and idempotency keys are the same. The model reads of calls that were
        cancelled with the run that they were. Attempts and expired leases are counted anew.

        Args:
            run_id: Id of the run.
            reason: Why, for the event `run.retried`.

        Raises:
            ConversationBusy: another run of the conversation has not ended.
        """
        event: JSONObject = {"type": "run.retried"}
        if reason is not None:
            event["reason"] = reason
        return await self._store.retry(run_id, [event])
