"""Methods of the store on callbacks."""

from __future__ import annotations

from functools import partial

from pellucid.durable.store import callbacks
from pellucid.durable.store.budget_methods import BudgetMethods
from pellucid.durable.store.records import CallbackClaim, CallbackRecord
from pellucid.durable.store.transactions import seconds


class CallbackMethods(BudgetMethods):
    """Callbacks of runs: states that are to be delivered to a URL, at least once each.

    A state becomes due in the transaction in which its run waits or ends. A newer state takes the place of one that was
    not delivered, and one state of a run is delivered at a time.
    """

    async def claim_callback(self, lease: float) -> CallbackClaim | None:
        """Claim the state that has been due for longest, with the run as it is now; None if none is due.

        No other caller gets a state of the run for `lease` seconds, unless `callback_delivered` or `callback_failed`
        ends the claim. If neither does, the state is due again after the lease.
        """
        return await self._write(partial(callbacks.claim, lease=seconds(lease, "claim_callback", "lease")))

    async def callback_delivered(self, claim: CallbackClaim) -> None:
        """Note that the receiver has accepted a state, also after the lease."""
        await self._write(partial(callbacks.delivered, claim=claim))

    async def callback_failed(self, claim: CallbackClaim, error: str, *, delay: float | None) -> bool:
        """Note an attempt that failed, unless the claim was lost; return whether it was the last one.

        Args:
            claim: The claim.
            error: The error, without secrets.
            delay: Seconds until the next attempt; None to give the state up, with the event `callback.dead`. A newer
                state is due at once in either case.
        """
        return await self._write(
            partial(
                callbacks.failed,
                claim=claim,
                error=error,
                delay=seconds(delay, "callback_failed", "delay") if delay is not None else None,
            )
        )

    async def retry_callback(self, run_id: str) -> bool:
        """Make the latest state of a run due now, also after it was given up; return False if it was delivered."""
        return await self._write(partial(callbacks.retry, run_id=run_id))

    async def callback(self, run_id: str) -> CallbackRecord | None:
        """Return the callback of a run; None if it has none."""
        return await self._read(partial(callbacks.callback, run_id=run_id))

    async def dead_callbacks(self, *, limit: int = 100) -> tuple[CallbackRecord, ...]:
        """Return the callbacks whose latest state was given up, the oldest first."""
        return await self._read(partial(callbacks.dead, limit=limit))

    async def wait_for_callbacks(self, timeout: float) -> bool:  # noqa: ASYNC109
        """Wait until a state can be claimed; return False after `timeout` seconds without one."""
        return await self._wait(
            [("callbacks", "")], partial(self._read, callbacks.has_due), self._database.poll, timeout
        )
