"""Durable runs: runs of agents that survive their process; see README.md beside this file.

Names are imported at their first use, each with what it needs.
"""

from typing import TYPE_CHECKING

from pellucid.module_names import load_within, module_dir, module_getattr

if TYPE_CHECKING:
    from pellucid.durable.callbacks.options import (
        Callbacks,
    )
    from pellucid.durable.callbacks.signatures import (
        verify_callback,
    )
    from pellucid.durable.queue.options import (
        StreamLimits,
    )
    from pellucid.durable.queue.queue import (
        NATSQueue,
    )
    from pellucid.durable.runs.code import (
        OnChange,
    )
    from pellucid.durable.runs.live.follower import (
        LiveEvents,
    )
    from pellucid.durable.runs.retries import (
        RetryPolicy,
    )
    from pellucid.durable.runs.runs import (
        DurableRuns,
    )
    from pellucid.durable.runs.tokens import (
        CallTokens,
        Completion,
    )
    from pellucid.durable.states.records import (
        Conversation,
        RunDelta,
        RunEvent,
        RunEventPage,
        RunState,
        StreamMode,
    )
    from pellucid.durable.states.work_queue import (
        Delivery,
        WorkQueue,
    )
    from pellucid.durable.store import (
        CallbackClaim,
        CallbackRecord,
        CallKind,
        CallRecord,
        CallStatus,
        Cancellation,
        Changes,
        Claim,
        ConversationPage,
        DueRuns,
        Encoded,
        EventPage,
        FailedPass,
        Failures,
        JournalEntry,
        Lease,
        NewCall,
        PassEnd,
        PendingCalls,
        PinnedRuns,
        PostgresStore,
        Recovery,
        Retry,
        RetryingRuns,
        RetryOutcome,
        RunDue,
        RunRecord,
        RunStatus,
        RunStore,
        RunSummary,
        Settlement,
        SettlementOutcome,
        SQLiteStore,
        Statistics,
        StoredEvent,
        Streak,
        Submission,
        Turn,
        WorkerRecord,
        open_store,
    )

__all__ = [
    "CallKind",
    "CallRecord",
    "CallStatus",
    "CallTokens",
    "CallbackClaim",
    "CallbackRecord",
    "Callbacks",
    "Cancellation",
    "Changes",
    "Claim",
    "Completion",
    "Conversation",
    "ConversationPage",
    "Delivery",
    "DueRuns",
    "DurableRuns",
    "Encoded",
    "EventPage",
    "FailedPass",
    "Failures",
    "JournalEntry",
    "Lease",
    "LiveEvents",
    "NATSQueue",
    "NewCall",
    "OnChange",
    "PassEnd",
    "PendingCalls",
    "PinnedRuns",
    "PostgresStore",
    "Recovery",
    "Retry",
    "RetryOutcome",
    "RetryPolicy",
    "RetryingRuns",
    "RunDelta",
    "RunDue",
    "RunEvent",
    "RunEventPage",
    "RunRecord",
    "RunState",
    "RunStatus",
    "RunStore",
    "RunSummary",
    "SQLiteStore",
    "Settlement",
    "SettlementOutcome",
    "Statistics",
    "StoredEvent",
    "Streak",
    "StreamLimits",
    "StreamMode",
    "Submission",
    "Turn",
    "WorkQueue",
    "WorkerRecord",
    "open_store",
    "verify_callback",
]

_HOMES = {
    "callbacks.options": ("Callbacks",),
    "callbacks.signatures": ("verify_callback",),
    "queue.options": ("StreamLimits",),
    "queue.queue": ("NATSQueue",),
    "runs.code": ("OnChange",),
    "runs.live.follower": ("LiveEvents",),
    "runs.retries": ("RetryPolicy",),
    "runs.runs": ("DurableRuns",),
    "runs.tokens": ("CallTokens", "Completion"),
    "states.records": ("Conversation", "RunDelta", "RunEvent", "RunEventPage", "RunState", "StreamMode"),
    "states.work_queue": ("Delivery", "WorkQueue"),
    "store": (
        "CallKind", "CallRecord", "CallStatus", "CallbackClaim", "CallbackRecord", "Cancellation", "Changes", "Claim",
        "ConversationPage", "DueRuns", "Encoded", "EventPage", "FailedPass", "Failures", "JournalEntry", "Lease",
        "NewCall", "PassEnd", "PendingCalls", "PinnedRuns", "PostgresStore", "Recovery", "Retry", "RetryOutcome",
        "RetryingRuns", "RunDue", "RunRecord", "RunStatus", "RunStore", "RunSummary", "SQLiteStore", "Settlement",
        "SettlementOutcome", "Statistics", "StoredEvent", "Streak", "Submission", "Turn", "WorkerRecord",
        "open_store",
    ),
}  # fmt: skip
"""Modules and the names that they define."""

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__, lazy=load_within(__name__, _HOMES))
    __dir__ = module_dir(__name__)
