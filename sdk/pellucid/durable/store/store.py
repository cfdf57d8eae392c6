"""The store of durable runs: each method is one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from pellucid.durable.store import calls, queries, runs
from pellucid.durable.store.claim_methods import ClaimMethods
from pellucid.durable.store.conversation_methods import ConversationMethods
from pellucid.durable.store.conversations import IfBusy
from pellucid.durable.store.live_methods import LiveMethods
from pellucid.durable.store.overview_methods import OverviewMethods
from pellucid.durable.store.records import (
    CallRecord,
    Cancellation,
    Claim,
    EventPage,
    FailedPass,
    JournalEntry,
    Lease,
    NewCall,
    PassEnd,
    Recovery,
    RunRecord,
    Settlement,
    Statistics,
    Submission,
)
from pellucid.durable.store.retention import RetentionMethods
from pellucid.durable.store.retry_methods import NO_ENTRIES
from pellucid.durable.store.schema_methods import SchemaMethods
from pellucid.durable.store.score_methods import ScoreMethods
from pellucid.durable.store.transactions import seconds
from pellucid.durable.store.values import MAX_ID, is_storable
from pellucid.durable.store.worker_methods import WorkerMethods
from pellucid.errors import ConfigError
from pellucid.module_names import renamed
from pellucid.text import excerpt
from pellucid.types import JSONValue


class RunStore(
    ClaimMethods,
    WorkerMethods,
    ConversationMethods,
    OverviewMethods,
    RetentionMethods,
    SchemaMethods,
    ScoreMethods,
    LiveMethods,
):
    """Durable runs, their journals, events and calls, in a database.

    Each method is one transaction in a worker thread. A caller that is cancelled waits for the end of its transaction,
    which is always committed or rolled back. Use a store in the event loop that opened it, for budgets in any, and not
    in a forked child.

    If the database restarts or the connection is lost, a transaction is repeated for up to `patience` seconds, also
    when the answer to its commit was lost: then it recognises what it has written, by the fence of the claim and the
    key of the journal entry, the id of the call or of the run. Only `emit` cannot, and is not repeated then.

    Raises of every method:
        StoreUnavailable: the database did not answer in time.
        StoreError: the store is not open. One that was left can be entered again.
        TypeError, ValueError: a value is not JSON.
    """

    # Runs

    async def submit(
        self,
        run_id: str,
        agent: str,
        request: JSONValue,
        *,
        idempotency_key: str | None = None,
        trace: JSONValue = None,
        callback: str | None = None,
        conversation: str | None = None,
        if_busy: IfBusy = "refuse",
    ) -> Submission:
        """Insert a run that is due, and wake a worker; or return the one submitted before.

        The same id, or the same idempotency key, with the same agent, request and callback returns the existing run.

        Args:
            run_id: Id of the run.
            agent: Name of the agent that runs it.
            request: Start of the run.
            idempotency_key: A second name of the run, chosen by the caller.
            trace: Trace context of the submission.
            callback: URL to which each state is delivered in which the run waits or has ended.
            conversation: Id of the conversation to which the run belongs; it is made with its first run.
            if_busy: If another run of the conversation has not ended: refuse this one, or queue it until then.

        Raises:
            ConfigError: an id or the key is empty, longer than 255 characters, or not printable.
            ConversationBusy: a run of the conversation has not ended; nothing was written.
            IdempotencyConflict: the id or the key belongs to a run of another agent, request or callback.
        """
        names = {"run_id": run_id, "idempotency_key": idempotency_key, "conversation": conversation}
        for name, text in names.items():
            if text is not None and not (text and is_storable(text)):
                raise ConfigError(f"submit({name}={excerpt(repr(text))}): must be 1 to {MAX_ID} printable characters")
        return await self._write(
            partial(
                runs.submit,
                run_id=run_id,
                agent=agent,
                request=request,
                idempotency_key=idempotency_key,
                trace=trace,
                callback=callback,
                conversation=conversation,
                if_busy=if_busy,
            )
        )

    async def renew(self, claim: Claim) -> Lease:
        """Renew the lease.

        Raises:
            Fenced: the claim was lost.
        """
        return await self._write(partial(runs.advance, claim=claim))

    async def append(self, claim: Claim, key: str, value: JSONValue, events: Sequence[JSONValue] = ()) -> Lease:
        """Write a journal entry and the events that come with it, and renew the lease.

        Raises:
            Fenced: the claim was lost; nothing was written.
            DuplicateKey: the run has an entry of that key; nothing was written.
        """
        return await self._write(partial(runs.append, claim=claim, key=key, value=value, events=events))

    async def note(self, claim: Claim, key: str, value: JSONValue) -> Lease:
        """Write a journal entry that is no progress: leases that expire in a row are counted on. See `append`."""
        write = partial(runs.append, claim=claim, key=key, value=value, events=(), is_progress=False)
        return await self._write(write)

    async def register(
        self,
        claim: Claim,
        new_calls: Sequence[NewCall],
        events: Sequence[JSONValue] = (),
        *,
        entries: Mapping[str, JSONValue] = NO_ENTRIES,
    ) -> Lease:
        """Register calls as processing, before they are dispatched, and renew the lease.

        The run does not become due before all of them are settled.

        Args:
            claim: The claim that dispatches the calls.
            new_calls: The calls.
            events: Events written in the same commit.
            entries: Journal entries by key, written in the same commit.

        Raises:
            Fenced: the claim was lost; no call was registered.
            DuplicateKey: a call has an id that exists, or the run has an entry of such a key; no call was registered.
        """
        if not new_calls:
            raise ConfigError("register: there are no calls to register")
        return await self._write(partial(calls.register, claim=claim, calls=new_calls, entries=entries, events=events))

    async def end_pass(
        self,
        claim: Claim,
        checkpoint: JSONValue = None,
        *,
        calls: Sequence[NewCall] = (),
        entries: Mapping[str, JSONValue] = NO_ENTRIES,
        events: Sequence[JSONValue] = (),
        cancellation_events: Sequence[JSONValue] = (),
    ) -> PassEnd:
        """End the pass and give up the claim.

        The run becomes `waiting` if calls are pending, `due` if all were settled meanwhile, and `cancelled`, with its
        pending calls, if that was requested.

        Args:
            claim: The claim that ran the pass.
            checkpoint: Start of the next claim, instead of the journal so far; None keeps both as they are.
            calls: Calls to register in the same commit, unless the run is cancelled.
            entries: Journal entries by key, written in the same commit.
            events: Events written in the same commit, unless the run is cancelled.
            cancellation_events: Events written instead if it is.

        Raises:
            Fenced: the claim was lost; nothing was written.
            DuplicateKey: the run has an entry of such a key, or a call has an id that exists; nothing was written.
        """
        return await self._write(
            partial(
                runs.end_pass,
                claim=claim,
                checkpoint=checkpoint,
                calls=calls,
                entries=entries,
                events=events,
                cancellation_events=cancellation_events,
            )
        )

    async def finish(
        self,
        claim: Claim,
        status: Literal["completed", "failed", "cancelled"],
        result: JSONValue = None,
        *,
        entries: Mapping[str, JSONValue] = NO_ENTRIES,
        events: Sequence[JSONValue] = (),
        failure: FailedPass | None = None,
    ) -> tuple[CallRecord, ...]:
        """End the run, and return the calls that were pending, which are cancelled; `failure` says how it failed.

        Raises:
            Fenced: the claim was lost; nothing was written.
            DuplicateKey: the run has an entry of such a key; nothing was written.
        """
        return await self._write(
            partial(
                runs.finish,
                claim=claim,
                status=status,
                result=result,
                entries=entries,
                events=events,
                failure=failure,
            )
        )

    async def release(self, claim: Claim, *, delay: float = 0.0) -> None:
        """Give a claim up in the middle of a pass: the run is due again after `delay` seconds.

        Raises:
            Fenced: the claim was lost.
        """
        await self._write(partial(runs.release, claim=claim, delay=seconds(delay, "release", "delay")))

    async def cancel(self, run_id: str, reason: str, events: Sequence[JSONValue] = ()) -> Cancellation:
        """Cancel a run and its pending calls at once, or ask the worker that holds it.

        The worker sees `Lease.cancel_reason` at its next write, and its pass cannot end otherwise than by cancelling
        or finishing the run. `events` are written if the run is cancelled at once.
        """
        return await self._write(partial(runs.cancel, run_id=run_id, reason=reason, events=events))

    async def recover(self) -> Recovery:
        """Make runs with expired leases due again, and expire overdue calls. A second call changes nothing.

        Queued runs start whose conversation has no open run, because an earlier version of Pellucid has ended it.
        """
        recovered: list[str] = []
        while batch := await self._write(runs.recover):
            recovered.extend(batch)
        return Recovery(tuple(recovered), await self.expire())

    async def run(self, run_id: str) -> RunRecord | None:
        """Return a run; None if there is none of that id."""
        return await self._read(partial(queries.run, run_id=run_id))

    async def steps(self, run_id: str, *, after: int = 0, answers: bool = False) -> tuple[JournalEntry, ...]:
        """Return the entries of a run's journal about what has started and ended, without the content of results.

        Args:
            run_id: Id of the run.
            after: Entries up to this number are left out.
            answers: Whether to include the entries of answers, also without content.
        """
        return await self._read(partial(queries.steps, run_id=run_id, after=after, answers=answers))

    async def journal(self, run_id: str, *, after: int = 0) -> tuple[JournalEntry, ...]:
        """Return the journal of a run, also entries that a checkpoint contains."""
        return await self._read(partial(queries.journal, run_id=run_id, after=after))

    # Calls

    @renamed(call_id="result_id")
    async def mark_dispatched(self, result_id: str) -> bool:
        """Note that a call was dispatched; return False if that had been noted, or there is no such call."""
        return await self._write(partial(calls.mark_dispatched, result_id=result_id))

    async def undispatched(self, older_than: float, *, limit: int = 100) -> tuple[CallRecord, ...]:
        """Return external calls registered `older_than` seconds ago that were never marked as dispatched."""
        return await self._read(
            partial(queries.undispatched, older_than=seconds(older_than, "undispatched", "older_than"), limit=limit)
        )

    @renamed(call_id="result_id", payload="output")
    async def settle(
        self,
        result_id: str,
        status: Literal["completed", "failed", "expired", "cancelled"],
        output: JSONValue = None,
        *,
        run_id: str | None = None,
        digest: str | None = None,
        events: Sequence[JSONValue] = (),
        trace: JSONValue = None,
    ) -> Settlement:
        """Settle a call; if the run waited for it as its last one, make the run due and wake a worker.

        The first settlement wins; the outcome of a later one says how it compares. One that comes after the deadline
        is late: it settles the call as expired, if nothing has yet.

        Args:
            result_id: Id of the result, or of the approval.
            status: Status with which it ended.
            output: Output of the call, the reason why there is none, or the decision about an approval.
            run_id: The run that must have the call, which otherwise is unknown.
            digest: Digest by which a second settlement is compared, with the status; defaults to one of canonical JSON.
            events: Events of the run, written only if the outcome is `settled`.
            trace: Trace context of the settlement, for the pass that continues.
        """
        return await self._write(
            partial(
                calls.settle,
                result_id=result_id,
                status=status,
                output=output,
                run_id=run_id,
                digest=digest,
                events=events,
                trace=trace,
            ),
            is_single=True,
        )

    @renamed(call_id="result_id")
    async def heartbeat(self, result_id: str, *, extend: float | None = None) -> CallRecord | None:
        """Note that a call is being worked on; return the call, unchanged unless it is processing, or None if unknown.

        Args:
            result_id: Id of the result, or of the approval.
            extend: Move the deadline, if there is one, to at least this many seconds from now.

        Raises:
            ConfigError: `extend` is not a number of seconds.
        """
        if extend is not None:
            extend = seconds(extend, "heartbeat", "extend")
        return await self._write(partial(calls.heartbeat, result_id=result_id, extend=extend, progress=None))

    @renamed(call_id="result_id")
    async def progress(self, result_id: str, value: JSONValue) -> CallRecord | None:
        """Store the progress of a call, which is also a heartbeat; return as `heartbeat`."""
        return await self._write(partial(calls.heartbeat, result_id=result_id, extend=None, progress=value))

    async def expire(self) -> tuple[Settlement, ...]:
        """Settle all calls past their deadline as expired, and return the settlements of this caller."""
        expired: list[Settlement] = []
        while batch := await self._write(calls.expire):
            expired.extend(batch)
        return tuple(expired)

    @renamed(call_id="result_id")
    async def call(self, result_id: str) -> CallRecord | None:
        """Return a call; None if there is none of that id."""
        return await self._read(partial(queries.call, result_id=result_id))

    async def calls(self, run_id: str) -> tuple[CallRecord, ...]:
        """Return the calls of a run, in the order of their registration."""
        return await self._read(partial(queries.calls, run_id=run_id))

    # Events

    async def emit(self, run_id: str, events: Sequence[JSONValue]) -> int:
        """Write events of a run, with or without a claim; return the sequence number of the last one.

        Raises:
            UnknownRun: there is no such run.
        """
        return await self._write(partial(runs.emit, run_id=run_id, events=events), is_repeatable=False)

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> EventPage:
        """Return the events after a sequence number.

        A reader that continues after the last number it has seen misses no event and gets none twice.

        Raises:
            UnknownRun: there is no such run.
        """
        return await self._read(partial(queries.events, run_id=run_id, after=after, limit=limit))

    # Waiting

    async def statistics(self, *, is_open_only: bool = False) -> Statistics:
        """Return numbers of runs by status, and of pending calls by tool, with the age of the oldest.

        Args:
            is_open_only: Do not count runs that have ended; counting them takes longer the more there are.
        """
        return await self._read(partial(queries.statistics, is_open_only=is_open_only))
