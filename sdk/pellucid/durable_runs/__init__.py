"""Durable runs: runs of agents that survive their process, on a store of `pellucid.durable`."""

from pellucid.durable_runs.callbacks import Callbacks, verify_callback
from pellucid.durable_runs.conversations import Conversation
from pellucid.durable_runs.queue import Delivery, WorkQueue
from pellucid.durable_runs.records import RunEvent, RunEventPage, RunState
from pellucid.durable_runs.runs import DurableRuns
from pellucid.durable_runs.tokens import CallTokens, Completion

__all__ = [
    "CallTokens",
    "Callbacks",
    "Completion",
    "Conversation",
    "Delivery",
    "DurableRuns",
    "RunEvent",
    "RunEventPage",
    "RunState",
    "WorkQueue",
    "verify_callback",
]
