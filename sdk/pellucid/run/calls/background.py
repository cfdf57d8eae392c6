"""Calls in the background of a run: each is a task of its own, which ends with the run at the latest."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio
from anyio.lowlevel import current_token

from pellucid.approvals.external import CallStatus
from pellucid.concurrency.race import race
from pellucid.concurrency.tasks import call_soon, spawn
from pellucid.errors import ToolError
from pellucid.run.calls.call import Call
from pellucid.run.calls.core import check_running, context_of, function_of, progress
from pellucid.run.outcomes import Suspended
from pellucid.run.pausing.async_calls import emit_late, register, settle
from pellucid.run.pausing.async_state import AsyncCall, CallFacts, background_call
from pellucid.run.pausing.delivery import pending_result
from pellucid.run.pausing.pausing import pausing_of
from pellucid.run.state import Run
from pellucid.run.tool_results import failure_text, respond, to_response
from pellucid.telemetry import Boundary
from pellucid.tools.tool import Tool
from pellucid.types import JSONObject, JSONValue

_EXPIRED: Final = "The call did not end before its deadline and was stopped."


async def background(run: Run, b: Boundary, call: Call) -> JSONObject:
    """Start the tool of a call, and return what the model reads until it has ended."""
    pausing_of(run)
    tool = call.tool.tool
    check_running(run)
    facts = CallFacts(f"async_tool_{run.id_of(call.id)}", tool.name, call.id, "same-invocation")
    started = AsyncCall(facts=facts, started=run.scope.now(), dispatch=b.context)
    ctx = context_of(run, call, **_callbacks(started, tool, progress(run, b, call)))
    limit = _limit(tool)
    register(run, b, started, started.started / 1e9 + limit if limit is not None else None)
    spawn(_work, run, started, partial(function_of(tool), call.arguments, ctx))
    return pending_result(facts)


def _callbacks(call: AsyncCall, tool: Tool, progress: Callable[[JSONValue], None]) -> dict[str, Callable[..., None]]:
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


def _limit(tool: Tool) -> float | None:
    return tool.expires_in if tool.expires_in is not None else tool.timeout


async def _work(run: Run, call: AsyncCall, work: Callable[[], Awaitable[Any]]) -> None:
    """Run a call to its end, and settle it."""
    background_call.set(call.facts.result_id)
    status: CallStatus = "cancelled"
    output: JSONValue = "The call was cancelled."
    error: Exception | None = None

    async def watched() -> Any:
        value = await work()
        if call.status is None and call.scope.cancel_called:
            settle(run, call, "expired", _EXPIRED)
        if call.status is not None and not run.closed:  # it ended although it was stopped
            emit_late(run, call.facts, call.dispatch, "completed")
        return value

    try:
        with call.scope:
            value = await race(watched)
            if isinstance(value, Suspended):
                raise ToolError(  # noqa: TRY301  (its text is for the model)
                    "The agent needs an approval, which cannot be requested in the background.", error_type="approval"
                )
            output = await respond(value, run.limits.max_result_bytes)
            status = "completed"
        if call.scope.cancelled_caught:
            status, output = "expired", _EXPIRED
    except Exception as failure:  # noqa: BLE001  (any exception of a tool is a result for the model)
        status, error = "failed", failure
        output = to_response(failure_text(failure), run.limits.max_result_bytes)
    finally:
        if call.status is None:
            settle(run, call, status, output, error)
        run.nesting.release_all(call.facts.result_id)
        call.ended.set()
