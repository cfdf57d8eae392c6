"""Compaction: requests that fit into the model's window, while the conversation stays whole.

Loaded only when an agent has a `context`.
"""

from pellucid.compaction.options import Context
from pellucid.compaction.strategies import DropReasoning, DropResults, DropTurns, Strategy
from pellucid.compaction.summaries import Summarize

__all__ = ["Context", "DropReasoning", "DropResults", "DropTurns", "Strategy", "Summarize"]
