"""Calls whose work another process does: dispatch them, and apply their results when the run resumes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from opentelemetry.trace import get_current_span

from pellucid import semconv
from pellucid.approvals.checkpoint import Checkpoint, context_of, trace_of
from pellucid.approvals.external import ExternalRequest, ExternalResult
from pellucid.messages import ToolResult, dump_part
from pellucid.run.journal import Registration
from pellucid.run.outcomes import Enqueued
from pellucid.run.pausing.async_calls import emit_late, register, settle
from pellucid.run.pausing.async_state import AsyncCall, AsyncCalls, CallFacts
from pellucid.run.pausing.delivery import pending_result
from pellucid.run.pausing.state import pending
from pellucid.run.state import Run
from pellucid.run.tool_results import to_response
from pellucid.telemetry import Boundary
from pellucid.tools.tool import Execution
from pellucid.types import JSONObject

EXECUTION: Final[Execution] = "external-dispatch"


def add_dispatched(
    run: Run, b: Boundary, request: ExternalRequest, registration: Registration
) -> JSONObject | Enqueued:
    """Add a dispatched call to those of the run; return what the model reads, or that it reads nothing yet.

    The dispatch is emitted once: not again by a pass of a durable run that continues after it.
    """
    call = _call(request)
    if registration == "dispatched":
        pending(run).calls.by_id[request.result_id] = call
    else:
        register(run, b, call, request.expires_at)
    if registration != "new":
        run.scope.count(semconv.DURABLE_DISPATCHES_SKIPPED, 1, {semconv.TOOL_NAME: request.tool_name}, b.context)
    return Enqueued(request, is_new=registration == "new") if request.takes_place else pending_result(call.facts)


def restore(run: Run, checkpoint: Checkpoint) -> None:
    """Restore the calls of a paused run, with the results that were known when it paused."""
    inner = (request for paused in checkpoint.nested_checkpoints.values() for request in paused.all_external)
    calls = pending(run).calls
    calls.ended = {call.result_id: call for call in checkpoint.ended}
    calls.nested = {request.result_id: _call(request) for request in inner if request.result is None}
    for request in checkpoint.external:
        call = _call(request)
        calls.by_id[request.result_id] = call
        if (result := request.result) is not None:
            call.status = result.status
            call.output = request.content_parts or to_response(result.output_or_error, run.limits.max_result_bytes)
            calls.end(request, result)


def adopt(run: Run, requests: Iterable[ExternalRequest]) -> None:
    """Add calls that an earlier pass has dispatched to those that the run waits for."""
    pending(run).calls.by_id.update({request.result_id: _call(request) for request in requests})


def apply_results(run: Run, b: Boundary, results: Iterable[ExternalResult], late: Iterable[ExternalResult]) -> None:
    """Settle calls with their results, record the waits and link the run to them, and emit late results."""
    calls, recorded = pending(run).calls, pending(run).recorded
    for result in results:
        call = calls.by_id[result.result_id]
        assert call.request is not None
        assert result.status is not None  # set when it was created
        call.request = replace(call.request, result=result)  # whole, to recognize it if it is repeated
        calls.end(call.request, result)
        output = to_response(result.output_or_error, run.limits.max_result_bytes)
        if result.result_id in recorded:
            calls.settle(call, result.status, output)
        else:
            b.link(settle(run, call, result.status, output, settled_at=result.settled_at))
    for result in late:
        ended = calls.ended[result.result_id]
        facts = CallFacts(ended.result_id, ended.tool_name, ended.tool_call_id, EXECUTION)
        emit_late(run, facts, context_of(ended.trace), result.status)


def results_in_place(run: Run) -> dict[str, ToolResult]:
    """Remove the settled calls whose results take their places, and return these results by result id.

    Until all calls of the message are settled, they stay, so that repeated results are recognized.
    """
    by_id = pending(run).calls.by_id
    settled = [call for call in by_id.values() if call.takes_place and call.status is not None]
    for call in settled:
        del by_id[call.facts.result_id]
    return {
        call.facts.result_id: ToolResult(
            call.facts.tool_call_id, call.output, is_error=call.status != "completed", name=call.facts.tool_name
        )
        for call in settled
    }


def requests_of(calls: AsyncCalls) -> list[ExternalRequest]:
    """Return the asynchronous calls whose results the model does not have, for a checkpoint."""
    return [_request(call) for call in calls.by_id.values() if not call.delivered]


def _request(call: AsyncCall) -> ExternalRequest:
    if call.request is not None:
        return call.request
    facts, output = call.facts, call.output
    parts = output if isinstance(output, tuple) else ()
    if parts:
        output = None
    result = ExternalResult.of(facts.result_id, call.status, output) if call.status is not None else None
    return ExternalRequest(
        result_id=facts.result_id,
        tool_name=facts.tool_name,
        tool_call_id=facts.tool_call_id,
        arguments={},
        dispatched_at=call.started / 1e9,
        trace=trace_of(get_current_span(call.dispatch).get_span_context()),
        result=result,
        parts=[dump_part(part) for part in parts],
    )


def cancel_all(run: Run) -> None:
    """Cancel the external calls of a run that ends, except those that its checkpoint has."""
    calls = pending(run).calls
    for call in [*calls.external, *calls.nested.values()]:
        settle(run, call, "cancelled", "The run ended before the result.")


def _call(request: ExternalRequest) -> AsyncCall:
    facts = CallFacts(request.result_id, request.tool_name, request.tool_call_id, EXECUTION)
    started = int(request.dispatched_at * 1e9)
    return AsyncCall(facts=facts, started=started, dispatch=context_of(request.trace), request=request)
