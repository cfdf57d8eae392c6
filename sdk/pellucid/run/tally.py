"""Usage and call counts of a run."""

from __future__ import annotations

from pellucid.messages import Usage


class Tally:
    """Usage and call counts of a run.

    Attributes:
        usage: Usage of the run's own model calls.
        delegated: Usage of nested runs that have ended.
        earlier: Usage before the run was resumed.
        model_calls: Attempts to call a model.
        tool_calls: Calls dispatched, including nested runs and the time before the run was resumed.
        own_tool_calls: Calls dispatched by this run.
    """

    __slots__ = ("delegated", "earlier", "model_calls", "own_tool_calls", "tool_calls", "usage")

    def __init__(self) -> None:
        self.usage = self.delegated = self.earlier = Usage()
        self.model_calls = self.tool_calls = self.own_tool_calls = 0
