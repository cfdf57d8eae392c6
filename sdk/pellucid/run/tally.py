"""What a run has used, and how many calls it has made."""

from __future__ import annotations

from pellucid.messages import Usage


class Tally:
    """What a run has used, and how many calls it has made.

    Attributes:
        usage: Used by its own model calls.
        delegated: Used by nested runs that have ended.
        earlier: Used before it was resumed.
        model_calls: Attempts to call a model.
        tool_calls: Calls dispatched, in nested runs too, and before it was resumed.
        own_tool_calls: Calls dispatched by this run.
    """

    __slots__ = ("delegated", "earlier", "model_calls", "own_tool_calls", "tool_calls", "usage")

    def __init__(self) -> None:
        self.usage = self.delegated = self.earlier = Usage()
        self.model_calls = self.tool_calls = self.own_tool_calls = 0
