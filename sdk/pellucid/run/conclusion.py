"""Conclude the calls of a message: add their results, or pause the run if approvals or external results are missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from pellucid.errors import PolicyHalt
from pellucid.messages import Message, ToolCall, ToolResult
from pellucid.run.outcomes import Paused
from pellucid.run.state import Run
from pellucid.run.tool_results import halted_text
from pellucid.tools.catalog import Catalog


def conclude_calls(run: Run, catalog: Catalog, calls: Sequence[ToolCall], done: Paused) -> str | None:
    """Add the results of calls to the conversation, or pause the run; return why the loop ends, if it does.

    Raises:
        PolicyHalt: the policy ended the run.
        ToolError: calls wait, and the run cannot be resumed.
    """
    run.check_open()
    messages = run.conversation.messages
    if run.halted is not None:
        calls = run.conversation.calls  # without repeated ids
        messages.append(Message("tool", in_order(calls, not_run(run.halted, calls), done.results)))
        raise run.halted
    if done.is_waiting:
        from pellucid.run.pausing.pause import suspend
        from pellucid.run.pausing.pausing import pausing_of

        pausing_of(run)
        return suspend(run, done)
    messages.append(Message("tool", done.results))
    run.selection.count(only_discovered=all(call.name in catalog.discovering for call in calls))
    if run.limits.max_tool_calls is not None and run.tally.tool_calls >= run.limits.max_tool_calls:
        return "max_tool_calls"
    return run.nesting.budget.reached() if run.nesting.budget is not None else None


def not_run(halt: PolicyHalt, calls: Sequence[ToolCall]) -> list[ToolResult]:
    """Return the results of calls that are not run because the policy ended the run."""
    text = halted_text(halt)
    return [ToolResult(call.id, text, is_error=True, name=call.name) for call in calls if call.id is not None]


def in_order(calls: Sequence[ToolCall], *results: Iterable[ToolResult]) -> list[ToolResult]:
    """Return the results of calls in the order of the calls."""
    by_id = {result.id: result for result in chain(*results)}
    return [by_id[call.id] for call in calls if call.id in by_id]
