"""Methods of the store on runs whose passes fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from pellucid.durable.store import retries
from pellucid.durable.store.callback_methods import CallbackMethods
from pellucid.durable.store.records import Claim, FailedPass, Retry, Streak
from pellucid.durable.store.transactions import seconds
from pellucid.types import JSONValue

NO_ENTRIES: Final[Mapping[str, JSONValue]] = {}


class RetryMethods(CallbackMethods):
    """Retries of passes, and of runs that have ended.

    A row of `retries` belongs to a run whose pass has failed: it counts the passes that failed in a row, and has the
    last error, also after the run has gone on.
    """

    async def streak(self, run_id: str) -> Streak:
        """Return the passes of a run that have failed in a row without an answer or a result in between."""
        return await self._read(partial(retries.streak, run_id=run_id))

    async def retry_later(
        self, claim: Claim, failure: FailedPass, *, delay: float, entries: Mapping[str, JSONValue] = NO_ENTRIES
    ) -> float | None:
        """Give a claim back whose pass has failed: the run is due again after `delay` seconds, at once if cancelled.

        `entries` are journal entries by key, written in the same commit.

        Returns:
            The time at which it is; None if a commit that was not answered has given the claim back.

        Raises:
            Fenced: the claim was lost; nothing was written.
        """
        work = partial(
            retries.retry_later,
            claim=claim,
            failure=failure,
            delay=seconds(delay, "retry_later", "delay"),
            entries=entries,
        )
        return await self._write(work)

    async def retry(self, run_id: str, events: Sequence[JSONValue] = ()) -> Retry:
        """Make a run due again that failed, was given up or was cancelled, with its journal and its checkpoint.

        Calls that were cancelled with it stay cancelled. Workers of any version of its agent may continue it. `events`
        are written if the outcome is `due`.

        Raises:
            ConversationBusy: another run of its conversation has not ended; nothing was written.
        """
        return await self._write(partial(retries.retry, run_id=run_id, events=events))
