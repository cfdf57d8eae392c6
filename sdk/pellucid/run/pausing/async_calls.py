"""Asynchronous tool calls: their start, their results and their end, with the telemetry of each."""

from __future__ import annotations

from typing import Final

import anyio
from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, get_current_span

from pellucid import semconv
from pellucid.approvals.external import CallStatus
from pellucid.errors import RunCancelled, ToolError
from pellucid.events import AsyncToolDispatched, AsyncToolExpired, AsyncToolLate
from pellucid.run.pausing.async_state import AsyncCall, CallFacts
from pellucid.run.pausing.state import pending
from pellucid.run.state import Run
from pellucid.telemetry import AWAIT, Boundary, boundary
from pellucid.types import JSONValue

PATIENCE: Final = 0.5
"""Seconds that a run which ends waits for the tasks of calls that it cancels."""


def register(run: Run, b: Boundary, call: AsyncCall, expires_at: float | None) -> None:
    """Add a call to those of the run, and emit its dispatch; `expires_at` in seconds since the epoch."""
    facts = call.facts
    pending(run).calls.by_id[facts.result_id] = call
    b.event(AsyncToolDispatched.name, {semconv.ASYNC_RESULT_ID: facts.result_id})
    run.scope.count(semconv.EXTERNAL_PENDING, 1, {semconv.TOOL_NAME: facts.tool_name}, b.context)
    run.scope.emit(AsyncToolDispatched, b.span.get_span_context(), {**facts._asdict(), "deadline": expires_at})


def settle(
    run: Run,
    call: AsyncCall,
    status: CallStatus,
    output: JSONValue,
    error: Exception | None = None,
    *,
    settled_at: float | None = None,
) -> SpanContext:
    """Set the result of a call, and record the wait for it as a span below that of the dispatch.

    Args:
        run: The run that gets the result.
        call: The call.
        status: Outcome of the call.
        output: Output, or the reason why there is none, as the model reads it.
        error: Failure of the call; derived from the status by default.
        settled_at: Time at which the result was there, in seconds since the epoch; now by default.

    Returns:
        The context of the span.
    """
    facts = call.facts
    pending(run).calls.settle(call, status, output)
    if error is None and status != "completed":
        kinds: dict[str, type[Exception]] = {"expired": TimeoutError, "failed": ToolError}
        error = kinds[status](str(output)) if status in kinds else RunCancelled(run.scope.agent, "it was stopped")
    token = otel_context.attach(call.dispatch)
    try:
        with boundary(
            run.scope,
            AWAIT,
            facts.tool_name,
            start=call.started,
            end=_end_of(run, call, settled_at),
            agent=run.scope.agent,
            **facts._asdict(),
            status=status,
        ) as b:
            if error is not None:
                b.fail(error)
            b.output(output)
            span = b.span.get_span_context()
            if status == "expired":
                b.event(AsyncToolExpired.name, {semconv.ASYNC_RESULT_ID: facts.result_id})
                run.scope.emit(AsyncToolExpired, span, facts._asdict())
            run.scope.count(semconv.EXTERNAL_PENDING, -1, {semconv.TOOL_NAME: facts.tool_name}, b.context)
        return span
    finally:
        otel_context.detach(token)


def _end_of(run: Run, call: AsyncCall, settled_at: float | None) -> int | None:
    """Return the end of a wait in nanoseconds, within the wait also if another clock was read."""
    return max(call.started, min(int(settled_at * 1e9), run.scope.now())) if settled_at is not None else None


def emit_late(run: Run, facts: CallFacts, dispatch: Context, status: CallStatus | None) -> None:
    """Count and emit a result that comes too late; `dispatch` is the context of the dispatching span."""
    run.scope.count(semconv.EXTERNAL_LATE, 1, {semconv.TOOL_NAME: facts.tool_name})
    run.scope.emit(AsyncToolLate, get_current_span(dispatch).get_span_context(), {**facts._asdict(), "status": status})


def cancel_running(run: Run) -> None:
    """Cancel the calls in the background of a run that ends."""
    for call in pending(run).calls.running:
        settle(run, call, "cancelled", "The run ended before the call.")
        call.scope.cancel()


async def stop_all(run: Run) -> None:
    """Cancel the calls in the background of a run that ends, and wait for their tasks, also those already stopped."""
    cancel_running(run)
    if calls := pending(run).calls.not_ended:
        with anyio.move_on_after(PATIENCE, shield=True):
            for call in calls:
                await call.ended.wait()
