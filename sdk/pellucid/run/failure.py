"""Contents of a run's error: the conversation to continue from, and the usage until then."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from pellucid.errors import PellucidError
from pellucid.messages import Message, ToolResult
from pellucid.run.conclusion import in_order
from pellucid.run.state import Run

ErrorT = TypeVar("ErrorT", bound=Exception)

INTERRUPTED: Final = (
    "Interrupted: the run ended before this call did, so its result is unknown. "
    "Find out whether the call had an effect before you repeat it."
)
"""Result of a call that had no result when its run failed."""


def carrying(run: Run, error: ErrorT) -> ErrorT:
    """Return the error of a run with the facts of the run.

    An exception that another run has raised before is copied: a model may raise the same one in each run, and none of
    them gets the conversation of another.
    """
    if not isinstance(error, PellucidError):
        return error
    messages = conversation_of(run)
    if vars(error).setdefault("messages", messages) is not messages:
        error = _copy(error)
    vars(error).update(
        messages=messages,
        usage=run.nesting.spent,
        run_id=run.scope.run_id,
        trace_id=run.scope.trace_id,
        iterations=run.scope.iteration,
    )
    return error


def conversation_of(run: Run) -> tuple[Message, ...]:
    """Return the conversation of a run so far, with a result for each call."""
    messages = tuple(run.conversation.messages)
    calls = messages[-1].tool_calls if messages and messages[-1].role == "assistant" else ()
    if not calls:
        return messages
    results = {call.id: ToolResult(call.id, INTERRUPTED, is_error=True, name=call.name) for call in calls if call.id}
    resumption = run.pausing.resumption
    if resumption is not None and len(messages) == len(resumption.checkpoint.conversation):
        results.update(resumption.results)
    dispatched, outcomes = run.conversation.dispatched
    if dispatched and any(call is dispatched[0] for call in calls):
        results.update((item.id, item) for item in outcomes.values() if isinstance(item, ToolResult))
    return (*messages, Message("tool", in_order(calls, results.values())))


def _copy(error: Any) -> Any:
    copy = type(error).__new__(type(error), *error.args)
    vars(copy).update(vars(error))
    copy.__cause__, copy.__suppress_context__ = error.__cause__, error.__suppress_context__
    return copy.with_traceback(error.__traceback__)
