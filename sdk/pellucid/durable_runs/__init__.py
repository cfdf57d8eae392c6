"""Durable runs: runs of agents that survive their process, on a store of `pellucid.durable`."""

from pellucid.durable_runs.callbacks import Callbacks, verify_callback
from pellucid.durable_runs.conversations import Conversation
from pellucid.durable_runs.live.follower import LiveEvents
from pellucid.durable_runs.queue import Delivery, WorkQueue
from pellucid.durable_runs.records import RunDelta, RunEvent, RunEventPage, RunState, StreamMode
from pellucid.durable_runs.runs import DurableRuns
from pellucid.durable_runs.tokens import CallTokens, Completion

__all__ = [
    "CallTokens",
    "Callbacks",
    "Completion",
    "Conversation",
    "Delivery",
    "DurableRuns",
    "LiveEvents",
    "RunDelta",
    "RunEvent",
    "RunEventPage",
    "RunState",
    "StreamMode",
    "WorkQueue",
    "verify_callback",
]
