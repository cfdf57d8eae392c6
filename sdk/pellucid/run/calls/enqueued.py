"""Hand a call to another process, which returns its result later."""

from __future__ import annotations

from pellucid.approvals.checkpoint import trace_of
from pellucid.approvals.external import ExternalRequest
from pellucid.concurrency.race import shielded
from pellucid.context import ExternalCall
from pellucid.instants import instant
from pellucid.run.calls.call import Call
from pellucid.run.calls.core import check_running, context_of, progress, within_timeout
from pellucid.run.outcomes import Enqueued
from pellucid.run.pausing.external_calls import add_dispatched
from pellucid.run.pausing.pausing import pausing_of
from pellucid.run.state import Run
from pellucid.telemetry import Boundary
from pellucid.tools.tool import Tool
from pellucid.types import JSONObject


async def enqueued(run: Run, b: Boundary, call: Call) -> JSONObject | Enqueued:
    """Run the tool of a call, which dispatches it; in a durable run, only once it is registered, and once only."""
    pausing_of(run)
    request = _new_request(run, b, call.tool.tool, call.id, call.arguments)
    check_running(run)
    registration = await run.journal.register(run, b, request)
    if registration == "new":
        ctx = context_of(run, call, progress=progress(run, b, call), external=_external_call(run, request))
        await within_timeout(run, call, ctx)
        if run.journal.is_durable and not request.takes_place:  # otherwise once its span has ended
            return await shielded(_mark_dispatched, run, b, request)
    return add_dispatched(run, b, request, registration)


async def _mark_dispatched(run: Run, b: Boundary, request: ExternalRequest) -> JSONObject | Enqueued:
    """Mark a call as dispatched, and emit it: a later pass does neither."""
    await run.journal.mark_dispatched(request.result_id)
    return add_dispatched(run, b, request, "new")


def _new_request(run: Run, b: Boundary, tool: Tool, tool_call_id: str, arguments: JSONObject) -> ExternalRequest:
    """Return the request for the result of a call that is about to be dispatched.

    The id is the same if the dispatch is repeated, so that the other process can recognize it.
    """
    now = run.scope.now() / 1e9
    return ExternalRequest(
        result_id=f"async_tool_{run.id_of(tool_call_id)}",
        tool_name=tool.name,
        tool_call_id=tool_call_id,
        arguments=arguments,
        dispatched_at=now,
        expires_at=now + tool.expires_in if tool.expires_in is not None else None,
        takes_place=tool.pending == "wait",
        trace=trace_of(b.span.get_span_context()),
    )


def _external_call(run: Run, request: ExternalRequest) -> ExternalCall:
    """Return what the tool hands to the other process."""
    url, token, expires_at = run.journal.completion_of(request)
    return ExternalCall(
        result_id=request.result_id,
        complete_path=f"/async-tools/{request.result_id}/complete",
        complete_url=url,
        token=token,
        expires_at=instant(expires_at) if expires_at is not None else None,
        headers=request.trace,
    )
