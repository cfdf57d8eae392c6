"""Runs whose pass has failed: another attempt later, or the end."""

from __future__ import annotations

import logging
from typing import Any, Literal

from pellucid import semconv
from pellucid.durable.runs.journal import StoreJournal
from pellucid.durable.runs.retries import RetryPolicy
from pellucid.durable.runs.waits import waits_of
from pellucid.durable.store import Claim, FailedPass, RunStore
from pellucid.errors import JournalError
from pellucid.failures import error_type_of
from pellucid.run.outcomes import RunResult
from pellucid.run.state import Run

_log = logging.getLogger("pellucid.durable_runs")


async def retried(
    store: RunStore,
    claim: Claim,
    journal: StoreJournal,
    run: Run,
    outcome: RunResult[Any] | Exception,
    policy: RetryPolicy | None,
) -> Literal["retrying"] | FailedPass | None:
    """Give a run back for another attempt, if its pass has failed so that one may help.

    What killed passes have left is for the next pass to record.

    Returns:
        How the pass has failed, if no attempt follows; None if it has not.
    """
    if not isinstance(outcome, Exception) or isinstance(outcome, JournalError):
        return None
    before = await store.streak(claim.run.id)
    failure = FailedPass(before.attempts + 1, error_type_of(outcome), run.scope.text_of(outcome) or "")
    delay = policy.delay(outcome, before) if policy is not None and journal.cancel_reason is None else None
    if delay is None:
        return failure
    entries = waits_of(run, claim.run.fence)
    await store.retry_later(claim, failure, delay=delay, entries=entries)
    labels = {semconv.AGENT_NAME: claim.run.agent, semconv.ERROR_TYPE: failure.error_type}
    run.scope.count(semconv.DURABLE_RETRIES, 1, labels)
    _log.warning(
        "durable_run.retrying run_id=%s attempt=%s delay=%.1f %s", claim.run.id, failure.attempts, delay, failure.error
    )
    return "retrying"
