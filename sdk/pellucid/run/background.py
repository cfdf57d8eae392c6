"""Asynchronous tool calls: start them, settle them, and give the model their results.

A call in the background of the run (`same-invocation`) is a task of its own. The model first reads that the call is
running. Its result enters the conversation once: as the result of an `async_status` call, which the model makes itself
or which is added when the result is there.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
from anyio.lowlevel import current_token
from opentelemetry import context as otel_context
from opentelemetry.trace import NonRecordingSpan, set_span_in_context

from pellucid import semconv
from pellucid.approvals.external import CallStatus
from pellucid.concurrency.race import race
from pellucid.concurrency.tasks import call_soon, spawn
from pellucid.context import ToolContext
from pellucid.errors import RunCancelled, ToolError
from pellucid.events import AsyncToolContinued, AsyncToolDispatched, AsyncToolExpired, AsyncToolLate
from pellucid.failures import describe
from pellucid.messages import Message, TextPart, ToolCall, ToolResult
from pellucid.run.async_state import AsyncCall
from pellucid.run.outcomes import Suspended
from pellucid.run.state import Run
from pellucid.run.tool_results import respond
from pellucid.telemetry import AWAIT, Boundary, boundary
from pellucid.text import close_to
from pellucid.tools.catalog import Catalog
from pellucid.tools.names import ASYNC_STATUS
from pellucid.tools.tool import Execution, MetaTool, Tool
from pellucid.types import JSONObject, JSONValue

PROVIDER: Final = "async"
"""Value of `pellucid.provider.id` for `async_status`."""

PATIENCE: Final = 0.5
"""Seconds that a run which ends waits for the tasks of calls that it cancels."""

_DESCRIPTION: Final = (
    "Return the status of a tool call that runs in the background, and its result once it is there, or stop it. "
    "Results are also delivered without this call, as soon as they are there: do not ask repeatedly."
)
_SCHEMA: Final[JSONObject] = {
    "type": "object",
    "properties": {
        "resultId": {"type": "string", "description": "The resultId of the call."},
        "action": {"type": "string", "enum": ["status", "stop"], "description": "`status` by default."},
    },
    "required": ["resultId"],
    "additionalProperties": False,
}


def start(run: Run, b: Boundary, call: AsyncCall, tool: Tool, work: Callable[[], Awaitable[Any]]) -> JSONObject:
    """Start a call in the background of the run, and return what the model reads."""
    register(run, b, call, _limit(tool))
    spawn(_work, run, call, work)
    return pending_result(call)


def new_call(run: Run, b: Boundary, request: ToolCall, execution: Execution) -> AsyncCall:
    """Return an asynchronous call that is not yet registered."""
    return AsyncCall(
        result_id=f"async_tool_{uuid.uuid4()}",
        request=request,
        execution=execution,
        started=run.scope.now(),
        span=b.span.get_span_context(),
    )


def register(run: Run, b: Boundary, call: AsyncCall, limit: float | None) -> None:
    """Add a call to those of the run, and emit its dispatch."""
    run.async_calls.by_id[call.result_id] = call
    deadline = call.started / 1e9 + limit if limit is not None else None
    b.event(AsyncToolDispatched.name, {semconv.ASYNC_RESULT_ID: call.result_id})
    run.scope.count(semconv.EXTERNAL_PENDING, 1, {semconv.TOOL_NAME: call.request.name}, b.context)
    run.scope.emit(AsyncToolDispatched, call.span, {**_facts(call), "deadline": deadline})


def pending_result(call: AsyncCall) -> JSONObject:
    """Return the result of a call that is running."""
    return {
        "resultId": call.result_id,
        "toolName": call.request.name,
        "toolCallId": call.request.id,
        "status": "running",
        "statusReference": {"tool": ASYNC_STATUS, "resultId": call.result_id},
    }


def _limit(tool: Tool) -> float | None:
    return tool.deadline if tool.deadline is not None else tool.timeout


def callbacks(call: AsyncCall, tool: Tool, progress: Callable[[JSONValue], None]) -> dict[str, Callable[..., None]]:
    """Set the deadline of a call that starts, and return its functions `progress` and `heartbeat`, for any thread."""
    loop, limit, silence = current_token(), _limit(tool), tool.heartbeat
    end = anyio.current_time() + limit if limit is not None else math.inf

    def extend() -> None:
        call.scope.deadline = min(end, anyio.current_time() + silence) if silence is not None else end

    def heartbeat() -> None:
        call_soon(loop, extend)

    def report(value: JSONValue) -> None:
        heartbeat()
        progress(value)

    extend()
    return {"progress": report, "heartbeat": heartbeat} if silence is not None else {"progress": progress}


async def _work(run: Run, call: AsyncCall, work: Callable[[], Awaitable[Any]]) -> None:
    """Run a call to its end, and settle it."""
    status: CallStatus = "cancelled"
    response: JSONValue = "The call was cancelled."
    error: Exception | None = None

    async def watched() -> Any:
        value = await work()
        if call.status is not None and not run.closed:  # it ended although it was stopped
            _emit_late(run, call, "completed")
        return value

    try:
        with call.scope:
            value = await race(watched)
            if isinstance(value, Suspended):
                raise ToolError(  # noqa: TRY301  (its text is for the model)
                    "The agent needs an approval, which cannot be requested in the background.", error_type="approval"
                )
            response = await respond(value, run.limits.max_result_bytes)
            status = "completed"
        if call.scope.cancelled_caught:
            status, error = "expired", TimeoutError("it did not end before its deadline")
            response = "The call did not end before its deadline and was stopped."
    except Exception as failure:  # noqa: BLE001  (any exception of a tool is a result for the model)
        status, error = "failed", failure
        response = str(failure) if isinstance(failure, ToolError) else f"The tool failed. {describe(failure)}"
    finally:
        if call.status is None:
            settle(run, call, status, response, error)
        run.nesting.release_all(call.request.id)
        call.ended.set()


def settle(run: Run, call: AsyncCall, status: CallStatus, response: JSONValue, error: Exception | None = None) -> None:
    """Set the result of a call, and record the wait for it as a span below that of its dispatch."""
    run.async_calls.settle(call, status, response)
    token = otel_context.attach(set_span_in_context(NonRecordingSpan(call.span)))
    try:
        with boundary(
            run.scope,
            AWAIT,
            call.request.name,
            start=call.started,
            agent=run.scope.agent,
            **_facts(call),
            status=status,
        ) as b:
            if error is not None:
                b.fail(error)
            elif status == "cancelled":
                b.fail(RunCancelled(run.scope.agent, "the call was stopped"))
            b.output(response)
            if status == "expired":
                b.event(AsyncToolExpired.name, {semconv.ASYNC_RESULT_ID: call.result_id})
                run.scope.emit(AsyncToolExpired, b.span.get_span_context(), _facts(call))
            run.scope.count(semconv.EXTERNAL_PENDING, -1, {semconv.TOOL_NAME: call.request.name}, b.context)
    finally:
        otel_context.detach(token)


def _emit_late(run: Run, call: AsyncCall, status: CallStatus) -> None:
    run.scope.count(semconv.EXTERNAL_LATE, 1, {semconv.TOOL_NAME: call.request.name})
    run.scope.emit(AsyncToolLate, call.span, {**_facts(call), "status": status})


def _facts(call: AsyncCall) -> dict[str, Any]:
    return {
        "result_id": call.result_id,
        "tool_name": call.request.name,
        "tool_call_id": call.request.id,
        "execution": call.execution,
    }


async def next_results(run: Run, b: Boundary) -> bool:
    """Wait for results of background calls and give them to the model; return False if there are none to wait for."""
    calls = run.async_calls
    if not calls.by_id or not calls.open:
        return False
    if any(calls.running("same-invocation")):
        await calls.wait()
    return deliver(run, b)


def deliver(run: Run, b: Boundary) -> bool:
    """Add the results that the model does not have to the conversation, as results of `async_status` calls."""
    if not run.async_calls.by_id or not (calls := run.async_calls.take()):
        return False
    requests = [
        ToolCall(ASYNC_STATUS, {"resultId": call.result_id, "action": "status"}, f"{call.result_id}_status")
        for call in calls
    ]
    results = [
        ToolResult(request.id or "", _answer(call), is_error=call.status != "completed", name=ASYNC_STATUS)
        for request, call in zip(requests, calls, strict=True)
    ]
    run.conversation.messages += [Message("assistant", requests), Message("tool", results)]
    result_ids = tuple(call.result_id for call in calls)
    run.scope.emit(AsyncToolContinued, b.span.get_span_context(), {"result_ids": result_ids})
    return True


def _answer(call: AsyncCall) -> JSONValue:
    """Return the answer of `async_status`."""
    if call.status is None:
        answer = pending_result(call)
        if call.execution == "external-dispatch":
            answer["note"] = "This result will be delivered automatically when it is there."
        return answer
    facts: JSONObject = {"resultId": call.result_id, "toolName": call.request.name, "status": call.status}
    if call.status != "completed":
        return {**facts, "error": call.response}
    if isinstance(call.response, tuple):  # content that is not text
        return (TextPart(json.dumps(facts)), *call.response)
    return {**facts, "result": call.response}


def with_status(run: Run, catalog: Catalog) -> Catalog:
    """Return a catalogue with `async_status`, offered while the model lacks results, and callable afterwards."""
    if not run.async_calls.by_id:
        return catalog
    return catalog.with_meta_tool(_status_tool(run), PROVIDER, is_offered=run.async_calls.open)


def _status_tool(run: Run) -> MetaTool:
    async def status(arguments: JSONObject, ctx: ToolContext) -> JSONValue:
        calls, result_id = run.async_calls.by_id, str(arguments["resultId"])
        call = calls.get(result_id)
        if call is None:
            known = close_to(result_id, list(calls)) or f"Known ones: {', '.join(list(calls)[-8:])}."
            raise ToolError(f"Unknown resultId {result_id!r}. {known}", error_type="unknown_result_id")
        if arguments.get("action") == "stop" and call.status is None:
            settle(run, call, "cancelled", "The call was stopped.")
            call.scope.cancel()
        if call.status is not None:
            call.delivered = True
        return _answer(call)

    return MetaTool(name=ASYNC_STATUS, description=_DESCRIPTION, input_schema=_SCHEMA, run=status)


async def stop_all(run: Run) -> None:
    """Cancel the calls in the background of a run that ends, and wait for their tasks."""
    calls = list(run.async_calls.running("same-invocation"))
    for call in calls:
        settle(run, call, "cancelled", "The run ended before the call.")
        call.scope.cancel()
    if calls:
        with anyio.move_on_after(PATIENCE, shield=True):
            for call in calls:
                await call.ended.wait()
