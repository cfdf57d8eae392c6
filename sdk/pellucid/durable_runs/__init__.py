"""Durable runs: runs of agents that survive their process, on a store of `pellucid.durable`."""

from pellucid.durable_runs.records import RunEvent, RunState
from pellucid.durable_runs.runs import DurableRuns

__all__ = ["DurableRuns", "RunEvent", "RunState"]
