"""Rows of a store as frozen records. Times are seconds since the epoch, by the database's clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pellucid.module_names import renamed
from pellucid.types import JSONValue

RunStatus: TypeAlias = Literal["queued", "due", "retrying", "running", "waiting", "completed", "failed", "cancelled"]
"""`queued` waits for the runs before it in its conversation; `due` can be claimed; `retrying` is due again after a pass
that failed, and can be claimed at `Failures.next_at`; `running` has been claimed; `waiting` has calls that are
processing; the others are final."""

QUARANTINE: Final = 2
"""Leases of a run that expired in a row, after which it is claimed alone; only later ones show that it is the cause."""

FINAL: Final[frozenset[RunStatus]] = frozenset({"completed", "failed", "cancelled"})
"""Statuses of runs that have ended."""

CallStatus: TypeAlias = Literal["processing", "completed", "failed", "expired", "cancelled"]
"""`processing` until the call is settled; the others are final."""

CallKind: TypeAlias = Literal["external", "approval"]
"""`external` waits for a result from elsewhere, `approval` for a person's decision."""

SettlementOutcome: TypeAlias = Literal["settled", "duplicate", "conflict", "late", "unknown"]
"""See `Settlement`."""

PassEnd: TypeAlias = Literal["waiting", "due", "cancelled"]
"""Status of a run after a worker's pass: `due` if all of its calls are settled already."""

CancellationOutcome: TypeAlias = Literal["cancelled", "requested", "ended", "unknown"]

RetryOutcome: TypeAlias = Literal["due", "open", "completed", "unknown"]
"""See `Retry`."""


@dataclass(frozen=True, slots=True)
class Failures:
    """Passes of a run that have failed.

    Attributes:
        attempts: Passes that failed in a row without a new step; 0 after `retry`.
        since: Time at which the first of them failed.
        failed_at: Time at which the latest failed.
        next_at: Time from which the run can be claimed after it, if it is or was retried.
        error_type: Value of `error.type` of the latest.
        error: Its redacted text; empty if none is recorded.
    """

    attempts: int
    since: float
    failed_at: float
    next_at: float | None
    error_type: str
    error: str


@dataclass(frozen=True, slots=True)
class FailedPass:
    """A pass that has failed.

    Attributes:
        attempts: Passes that have failed in a row without a new step, this one included.
        error_type: Value of `error.type`.
        error: Redacted text of the error; empty if none is recorded.
    """

    attempts: int
    error_type: str
    error: str


@dataclass(frozen=True, slots=True)
class Streak:
    """Passes of a run that have failed in a row without a new step.

    Attributes:
        attempts: Their number.
        elapsed: Seconds since the first of them failed.
        error_type: `error.type` of the latest; None if there is none.
    """

    attempts: int = 0
    elapsed: float = 0.0
    error_type: str | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run.

    Attributes:
        id: Id given to `submit`.
        agent: Name of the agent that runs it.
        status: Where the run is.
        pass_no: Number of the pass that is running or comes next, from 1; a pass continues after a crash.
        pending: Calls that are processing.
        last_seq: Sequence number of the latest journal entry, call or event; 0 if there is none.
        cancel_reason: Reason given to `cancel`; None unless it was called.
        created_at: Time of `submit`.
        updated_at: Time of the latest change.
        request: Submitted data.
        checkpoint: Checkpoint of the last pass; None before.
        checkpoint_seq: Sequence number up to which the checkpoint contains the journal; 0 without one.
        result: Result of the run; None before its end.
        idempotency_key: Key given to `submit`.
        fence: Number of the latest claim.
        lease_owner: Worker that holds the run, or whose lease expired.
        lease_until: End of the lease; None unless the run is running.
        due_at: Time from which the run can be claimed, or if it is running, could be before; otherwise None.
        trace: Trace context given to `submit`.
        failures: Its passes that have failed, unless none has; None also in what `submit` and claims return.
    """

    id: str
    agent: str
    status: RunStatus
    pass_no: int
    pending: int
    last_seq: int
    cancel_reason: str | None
    created_at: float
    updated_at: float
    request: JSONValue
    checkpoint: JSONValue
    checkpoint_seq: int
    result: JSONValue
    idempotency_key: str | None
    fence: int
    lease_owner: str | None
    lease_until: float | None
    due_at: float | None
    trace: JSONValue
    failures: Failures | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class RunDue:
    """A run that a commit has made due.

    Attributes:
        id: Its id.
        agent: Name of its agent.
        fence: Number of its latest claim, 0 before the first: a run becomes due once after each claim.
    """

    id: str
    agent: str
    fence: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a commit for which other processes may wait.

    Attributes:
        due: Runs that can be claimed now.
        events: Ids of the runs that have new events, or have ended.
    """

    due: tuple[RunDue, ...] = ()
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NewCall:
    """A call to register.

    Attributes:
        id: Id by which it is settled; unique in the store.
        tool: Name of the tool.
        tool_call_id: Id of the model's tool call.
        request: Contents of the call, such as its arguments.
        kind: `external`, or `approval` for the decision of a person.
        timeout: Seconds until the call expires; None for never.
        trace: Trace context of the dispatch.
    """

    id: str
    tool: str
    tool_call_id: str
    request: JSONValue = None
    kind: CallKind = "external"
    timeout: float | None = None
    trace: JSONValue = None


@renamed(deadline="expires_at", payload="output")
@dataclass(frozen=True, slots=True)
class CallRecord:
    """A registered call.

    Attributes:
        id: Id by which it is settled.
        run_id: Its run.
        seq: Sequence number of its registration, shared with journal and events of the run.
        pass_no: Pass that registered it.
        kind: `external` or `approval`.
        tool: Name of the tool.
        tool_call_id: Id of the model's tool call.
        status: `processing`, or how it was settled.
        request: Contents of the call.
        output: Output with which it was settled, the reason why there is none, or a decision; None before.
        digest: Digest of status and output, by which a second settlement is compared.
        expires_at: Time at which it expires; None for never.
        heartbeat_at: Time of the latest heartbeat or progress.
        progress: Latest value given to `progress`.
        created_at: Time of its registration.
        dispatched_at: Time at which it was marked as dispatched.
        settled_at: Time of its settlement, expiry or cancellation.
        trace: Trace context of the dispatch.
        settlement_trace: Trace context of the settlement.
    """

    id: str
    run_id: str
    seq: int
    pass_no: int
    kind: CallKind
    tool: str
    tool_call_id: str
    status: CallStatus
    request: JSONValue
    output: JSONValue
    digest: str | None
    expires_at: float | None
    heartbeat_at: float | None
    progress: JSONValue
    created_at: float
    dispatched_at: float | None
    settled_at: float | None
    trace: JSONValue
    settlement_trace: JSONValue


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A step of a run. Attributes: key: Unique in the run. fence: Claim that wrote it."""

    run_id: str
    seq: int
    key: str
    value: JSONValue
    fence: int
    created_at: float


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event of a run; `seq` grows in the order of commits, with gaps where journal entries and calls are."""

    run_id: str
    seq: int
    value: JSONValue
    created_at: float


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events of a run in order.

    Attributes:
        events: The events after the given sequence number, oldest first.
        has_more: Whether more events were stored when this page was read.
        run_status: Status of the run at that moment; if it is final and there are no more events, the stream has ended.
    """

    events: tuple[StoredEvent, ...]
    has_more: bool
    run_status: RunStatus


@dataclass(frozen=True, slots=True)
class Submission:
    """Outcome of `submit`. Attributes: run: The run. is_new: False if it had been submitted before."""

    run: RunRecord
    is_new: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to continue a run, until its lease expires or another worker claims the run.

    Attributes:
        run: The run, as claimed. If it has a `cancel_reason`, the worker before was asked to cancel it: finish it as
            cancelled.
        worker: Name of the worker.
        lease: Seconds for which each write of this claim renews the lease.
        is_recovered: Whether the worker before let its lease expire.
        waited: Seconds for which the run was due, or its lease had expired.
        journal: Entries that the checkpoint does not contain, in order.
        calls: All calls of the run, in order of registration.
        expired_leases: Leases of the run that have expired in a row without progress, the one before this claim
            included.
        conversation: The conversation to which the run belongs, if any.
        turn: Place of the run in it.
    """

    run: RunRecord
    worker: str
    lease: float
    is_recovered: bool
    waited: float
    journal: tuple[JournalEntry, ...]
    calls: tuple[CallRecord, ...]
    expired_leases: int = 0
    conversation: str | None = None
    turn: int | None = None

    @property
    def is_alone(self) -> bool:
        """True if the worker must run nothing else meanwhile: the run may be what ended earlier processes."""
        return self.expired_leases >= QUARANTINE and self.run.status == "running"


@dataclass(frozen=True, slots=True)
class Turn:
    """A run of a conversation.

    Attributes:
        number: Place in the conversation; it grows, with gaps.
        run: The run.
        journal: Entries that the checkpoint does not contain, if the run failed or was cancelled, and was not given up.
        calls: Its calls; empty if it is completed.
    """

    number: int
    run: RunRecord
    journal: tuple[JournalEntry, ...]
    calls: tuple[CallRecord, ...]


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """Runs of a conversation in order.

    Attributes:
        turns: The runs.
        has_more: Whether there are earlier ones.
        open_run: Id of the run that has started or starts next, and has not ended; None if all runs have ended.
    """

    turns: tuple[Turn, ...]
    has_more: bool
    open_run: str | None


@dataclass(frozen=True, slots=True)
class Lease:
    """State of a claim after a write.

    Attributes:
        seq: Sequence number of the journal entry that was written; otherwise the run's latest.
        until: End of the lease.
        cancel_reason: Reason given to `cancel`, if it was called: the worker should finish the run as cancelled.
    """

    seq: int
    until: float
    cancel_reason: str | None


@dataclass(frozen=True, slots=True)
class Settlement:
    """Outcome of settling a call.

    Attributes:
        outcome: `settled`; `duplicate` if the call had been settled alike; `conflict` if it had been settled otherwise;
            `late` if it had expired or been cancelled, or its run was over; `unknown` if there is no such call.
        call: The call as it is now; None if unknown.
        pending: Calls of the run that are still processing.
        is_run_due: Whether this settlement was the last that the run waited for.
        has_expired: Whether the call has expired just now, because this settlement came after its deadline.
    """

    outcome: SettlementOutcome
    call: CallRecord | None = None
    pending: int = 0
    is_run_due: bool = False
    has_expired: bool = False


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Outcome of `cancel`.

    Attributes:
        outcome: `cancelled` at once; `requested` of the worker that holds the run; `ended` if the run was over;
            `unknown` if there is no such run.
        run: The run as it is now; None if unknown.
        calls: Calls that were cancelled with it.
    """

    outcome: CancellationOutcome
    run: RunRecord | None = None
    calls: tuple[CallRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Retry:
    """Outcome of `retry`.

    Attributes:
        outcome: `due`, so that a worker continues the run; `open` if it had not ended, and waits
            neither for its next attempt nor for a version of its agent; `completed` if it had, and there
            is nothing to continue; `unknown` if there is no such run.
        run: The run as it is now; None if unknown.
    """

    outcome: RetryOutcome
    run: RunRecord | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """Outcome of `recover`. Attributes: run_ids: Runs made due again. expired: Settlements of overdue calls."""

    run_ids: tuple[str, ...]
    expired: tuple[Settlement, ...]


@dataclass(frozen=True, slots=True)
class PendingCalls:
    """Calls of one tool and kind that are processing.

    Attributes:
        age: Seconds since the oldest was registered.
        deadline_used: Largest share of its time until the deadline that one of them has used; None without deadlines.
    """

    tool: str
    kind: CallKind
    number: int
    age: float
    deadline_used: float | None = None


@dataclass(frozen=True, slots=True)
class DueRuns:
    """Due runs of one agent. Attributes: age: Seconds for which the oldest has been due."""

    agent: str
    number: int
    age: float


@dataclass(frozen=True, slots=True)
class PinnedRuns:
    """Open runs of one agent that only workers of one version of it continue. Attributes: number: Of these runs."""

    agent: str
    version: str
    number: int


@dataclass(frozen=True, slots=True)
class RetryingRuns:
    """Retrying runs of one agent. Attributes: age: Seconds since the first of the failures in a row of the oldest."""

    agent: str
    number: int
    age: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """Numbers of runs and pending calls in a store.

    Attributes:
        runs: Number of runs by status, without statuses that no run has.
        pending: Calls that are processing, by tool and kind.
        due: Runs that are due, by agent.
        callback_age: Seconds for which the oldest state that is still to be delivered has been; None if there is none.
        retrying: Runs that are retrying, by agent; `due` has those of them whose time has come.
    """

    runs: dict[RunStatus, int]
    pending: tuple[PendingCalls, ...]
    due: tuple[DueRuns, ...]
    callback_age: float | None = None
    retrying: tuple[RetryingRuns, ...] = ()

    @property
    def due_age(self) -> float | None:
        """Seconds for which the oldest due run has been due; None if no run is due."""
        return max((runs.age for runs in self.due), default=None)


@dataclass(frozen=True, slots=True)
class CallbackRecord:
    """The callback of a run: a URL that gets each state in which the run waits or has ended.

    Attributes:
        run_id: The run.
        url: URL given to `submit`; it may contain secrets.
        version: Number of the latest state to deliver; 0 until the run waits or has ended.
        delivered_version: The latest that the receiver has accepted.
        attempts: Attempts to deliver the version.
        next_at: Time of the next attempt; None if there is nothing to deliver, or the attempts were given up.
        dead_at: Time at which they were given up; None unless they were.
        last_error: Error of the latest attempt.
    """

    run_id: str
    url: str = field(repr=False)
    version: int
    delivered_version: int
    attempts: int
    next_at: float | None
    dead_at: float | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class CallbackClaim:
    """The right to deliver a state of a run, until its lease expires.

    Attributes:
        callback: The callback, as claimed.
        fence: Number of the claim.
        age: Seconds for which the version has been due.
        run: The run, as it is at the time of the claim.
        calls: Its calls; empty if it has ended.
    """

    callback: CallbackRecord
    fence: int
    age: float
    run: RunRecord
    calls: tuple[CallRecord, ...]
