"""Write the outcome of a call to the journal of a durable run, once its span has ended."""

from __future__ import annotations

from pellucid.concurrency.race import shielded
from pellucid.run.calls.call import Call
from pellucid.run.calls.chain import CallHandler, Outcome
from pellucid.run.outcomes import Enqueued
from pellucid.run.state import Run


def journalled(handler: CallHandler) -> CallHandler:
    """Return a handler that writes the outcome of the next one."""

    async def write(run: Run, call: Call) -> Outcome:
        outcome = await handler(run, call)
        if isinstance(outcome, Enqueued) and outcome.is_new:
            await shielded(run.journal.mark_dispatched, outcome.request.result_id)
        await run.journal.write_result(run, call.id, outcome)
        return outcome

    return write
