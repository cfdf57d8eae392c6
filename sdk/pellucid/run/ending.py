"""End a paused run that nobody resumes: its span, its waits and its approvals."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from pellucid.approvals.external import ExternalRequest
from pellucid.run.loop import conclude, opened
from pellucid.run.pausing.external_calls import adopt, apply_results
from pellucid.run.pausing.pausing import pausing_of
from pellucid.run.state import Run


def end_unresumed(run: Run, error: Exception, others: Iterable[ExternalRequest] = ()) -> None:
    """Record a run that ends with an error before it runs anything, and all that it waited for.

    Args:
        run: The run, which has not started.
        error: Error with which it ends.
        others: Calls of other processes that are not in the checkpoint from which the run would resume.
    """
    pausing = pausing_of(run)
    resumed = pausing.resumption
    if resumed is not None:
        resumed.is_claimed = True  # what it waits for ends with it
        run.scope.iteration = resumed.checkpoint.iteration
        pausing.expect(resumed.checkpoint.approvals)
    with opened(run) as (b, _):
        run.scope.open[run] = partial(conclude, run, b)
        b.note(iterations=run.scope.iteration)
        b.capture_input(lambda capturer: capturer.messages(tuple(run.conversation.messages)))
        if resumed is not None:
            apply_results(run, b, resumed.external, ())
        adopt(run, others)
        b.fail(error)
        conclude(run, b)
