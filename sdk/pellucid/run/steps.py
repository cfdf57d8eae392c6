"""Write the steps of a durable run to its journal; every function does nothing for a run without a journal.

What has happened is written to the end, also if the run is stopped meanwhile: it would happen again, or be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, get_current_span

from pellucid.approvals.checkpoint import Checkpoint, trace_of
from pellucid.concurrency.race import shielded
from pellucid.messages import Message, ToolResult, dump_messages, dump_part
from pellucid.models import ModelResponse
from pellucid.run.external import requests_of
from pellucid.run.journal import ANSWER, BEGUN, RESULT, STARTED, Journal
from pellucid.run.outcomes import Enqueued, Suspended, Waiting
from pellucid.run.state import Run
from pellucid.telemetry import Boundary


def state_of(
    run: Run,
    span: SpanContext,
    checkpoint_id: str,
    messages: Sequence[Message],
    *,
    has_pins: bool = True,
    **pending: Any,
) -> Checkpoint:
    """Return the state of a run with these messages; `pending` is about the calls of the last one."""
    activation = run.offering.activation
    return Checkpoint(
        id=checkpoint_id,
        agent=run.scope.agent,
        run_id=run.scope.run_id,
        trace=trace_of(span),
        created_at=run.scope.now() / 1e9,
        identity=run.scope.identity,
        iteration=run.scope.iteration,
        tool_calls=run.tally.tool_calls,
        discoveries=activation.iterations,
        usage=run.spent,
        active=activation.names,
        pins=run.offering.pins.to_dict() if has_pins else {},
        messages=dump_messages(messages),
        external=requests_of(run),
        **pending,
    )


async def write_answer(
    run: Run, response: ModelResponse, catalog_digest: str, *, can_repair: bool = False, stop: str | None = None
) -> None:
    """Write the messages since the last answer, the last of which is the model's.

    Args:
        run: The run.
        response: The model's response.
        catalog_digest: Digest of the tools that the model was offered.
        can_repair: Whether the model may correct the answer if it does not fit the output type.
        stop: Reason why it is the closing answer, if it is.

    Raises:
        JournalError: the step was not written.
        CheckpointError: something in the messages cannot be turned into JSON.
    """
    if run.journal is None:
        return
    conversation = run.conversation
    state = state_of(run, _span(), "", conversation.messages[conversation.journalled :])
    value = {
        "state": state.partial(),
        "finish_reason": response.finish_reason,
        "catalog": catalog_digest,
        "can_repair": can_repair,
        "stop": stop,
    }
    key = f"{run.scope.iteration}{':closing' if stop is not None else ''}"
    await shielded(run.journal.write, ANSWER, key, value)
    conversation.journalled = len(conversation.messages)


async def write_begun(run: Run, b: Boundary, links: Iterable[SpanContext]) -> None:
    """Write the ids of the run's span, if it has any; nothing below it can have ended before.

    Raises:
        JournalError: the step was not written.
    """
    if run.journal is None or not (span := b.span.get_span_context()).is_valid:
        return
    value = {
        "run_id": run.scope.run_id,
        "agent": run.scope.agent,
        "trace": trace_of(span),
        "parent": trace_of(b.parent),
        "links": [trace_of(link) for link in links],
        "start": b.start,
        "facts": b.facts(),
    }
    await run.journal.write(BEGUN, run.scope.run_id, value, is_progress=False)


async def write_started(run: Run, b: Boundary, call_id: str, tool_name: str, *, can_repeat: bool) -> None:
    """Write that a tool is about to run.

    Args:
        run: The run.
        b: Boundary of the call.
        call_id: Id of the call.
        tool_name: Name of the tool.
        can_repeat: Whether a pass that continues after a crash runs the tool again.

    Raises:
        JournalError: the step was not written.
    """
    if run.journal is None or (can_repeat and not b.span.get_span_context().is_valid):
        return
    key, value = started(run, b, call_id, tool_name, can_repeat=can_repeat)
    await run.journal.write(STARTED, key, value, is_progress=not can_repeat)


def started(run: Run, b: Boundary, call_id: str, tool_name: str, *, can_repeat: bool) -> tuple[str, dict[str, Any]]:
    """Return the key and the value of the step that a tool is about to run; the arguments are `write_started`'s."""
    return f"{run.scope.iteration}:{call_id}", {
        "call_id": call_id,
        "tool": tool_name,
        "run_id": run.scope.run_id,
        "iteration": run.scope.iteration,
        "trace": trace_of(b.span.get_span_context()),
        "start": b.start,
        "facts": b.facts(),
        "can_repeat": can_repeat,
    }


async def write_result(run: Run, call_id: str, outcome: ToolResult | Waiting | Suspended | Enqueued) -> None:
    """Write the result of a call or the checkpoint of its sub-agent; calls that wait otherwise are written elsewhere.

    Raises:
        JournalError: the step was not written.
        CheckpointError: something in the result cannot be turned into JSON.
    """
    if run.journal is None or isinstance(outcome, Waiting | Enqueued):
        return
    if isinstance(outcome, ToolResult):
        pending: dict[str, Any] = {"results": [dump_part(outcome)]}
    else:
        notes = {call_id: outcome.note} if outcome.note is not None else {}
        pending = {"approvals": list(outcome.approvals), "nested": {call_id: outcome.checkpoint}, "notes": notes}
    await shielded(_write_result, run, run.journal, call_id, pending)


async def _write_result(run: Run, journal: Journal, call_id: str, pending: dict[str, Any]) -> None:
    async with run.writing:  # the states of calls that run at the same time are written in the order of their times
        value = {
            "call_id": call_id,
            "run_id": run.scope.run_id,
            "state": state_of(run, INVALID_SPAN_CONTEXT, "", (), has_pins=False, **pending).partial(),
        }
        await journal.write(RESULT, f"{run.scope.iteration}:{call_id}", value)


def _span() -> SpanContext:
    return get_current_span().get_span_context()
