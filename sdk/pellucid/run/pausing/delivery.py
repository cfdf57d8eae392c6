"""Delivery of the results of asynchronous calls to the model.

The model first reads that a call is running. The result enters the conversation once: as the result of an
`async_status` call, which the model makes itself or which is added when the result is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from pellucid.approvals.external import ExternalResult
from pellucid.context import ToolContext
from pellucid.errors import ToolError
from pellucid.events import AsyncToolContinued
from pellucid.messages import Message, TextPart, ToolCall, ToolResult
from pellucid.run.pausing.async_calls import settle
from pellucid.run.pausing.async_state import AsyncCall, CallFacts
from pellucid.run.pausing.state import pending
from pellucid.run.state import Run
from pellucid.run.tool_results import to_response
from pellucid.telemetry import Boundary
from pellucid.text import close_to
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Binding
from pellucid.tools.names import ASYNC_STATUS
from pellucid.tools.tool import MetaTool
from pellucid.types import JSONObject, JSONValue

PROVIDER: Final = "async"
"""Value of `pellucid.provider.id` for `async_status`."""

_DESCRIPTION: Final = (
    "Return the status of a tool call that runs in the background, and its result once it is there, or stop it. "
    "Results are also delivered without this call, as soon as they are there: do not ask repeatedly."
)
_STOPPED: Final = "The call was stopped."

_SCHEMA: Final[JSONObject] = {
    "type": "object",
    "properties": {
        "resultId": {"type": "string", "description": "The resultId of the call."},
        "action": {"type": "string", "enum": ["status", "stop"], "description": "`status` by default."},
    },
    "required": ["resultId"],
    "additionalProperties": False,
}


def pending_result(facts: CallFacts) -> JSONObject:
    """Return the result of a call that is running."""
    return {
        "resultId": facts.result_id,
        "toolName": facts.tool_name,
        "toolCallId": facts.tool_call_id,
        "status": "running",
        "statusReference": {"tool": ASYNC_STATUS, "resultId": facts.result_id},
    }


def _answer(call: AsyncCall) -> JSONValue:
    """Return the answer of `async_status`."""
    facts, output = call.facts, call.output
    if call.status is None:
        note = "running: this result will be delivered automatically when it completes"
        return {**pending_result(facts), "note": note}
    known: JSONObject = {"resultId": facts.result_id, "toolName": facts.tool_name, "status": call.status}
    if call.status != "completed":
        return {**known, "error": output}
    if isinstance(output, tuple):  # content that is not text
        return (TextPart(json.dumps(known)), *output)
    return {**known, "result": output}


def deliver(run: Run, b: Boundary) -> bool:
    """Add the results that the model does not have to the conversation, as results of `async_status` calls.

    Returns:
        Whether there were any.
    """
    settled = pending(run).calls.take()
    if not settled:
        return False
    if len(settled) > 1:  # concurrent calls of one message are dispatched in any order
        made = [item.id for message in run.conversation.messages for item in message.tool_calls]
        settled.sort(key=lambda call: made.index(call.facts.tool_call_id) if call.facts.tool_call_id in made else 0)
    calls, results = [], []
    for call in settled:
        arguments: JSONObject = {"resultId": call.facts.result_id, "action": "status"}
        call_id = f"status_{call.facts.result_id[-32:]}"  # OpenAI refuses ids of more than 40 characters
        calls.append(ToolCall(ASYNC_STATUS, arguments, call_id))
        results.append(ToolResult(call_id, _answer(call), is_error=call.status != "completed", name=ASYNC_STATUS))
    run.conversation.messages += [Message("assistant", calls), Message("tool", results)]
    emit_continued(run, b, [call.facts.result_id for call in settled])
    return True


def emit_continued(run: Run, b: Boundary, result_ids: Iterable[str]) -> None:
    """Emit that the model gets results."""
    run.scope.emit(AsyncToolContinued, b.span.get_span_context(), {"result_ids": tuple(result_ids)})


async def narrow(run: Run, b: Boundary, catalog: Catalog) -> Catalog:
    """Return the tools to offer now, with `async_status` while the model lacks results; it can be called afterwards.

    Raises:
        ToolNameCollision, PolicyHalt: as `Selection.narrow`.
    """
    state = pending(run)
    if not state.calls.by_id:
        return await run.selection.narrow(b, catalog, run.conversation.messages)
    tool = _status_tool(run)
    status = Binding(tool, PROVIDER, tool.source)
    added = status if state.calls.is_open else None
    offered = await run.selection.narrow(b, catalog, run.conversation.messages, added)
    callable_ = {**offered.callable, tool.name: status}
    return offered.narrowed(offered.bindings, callable=callable_, captured=offered.captured)


def _status_tool(run: Run) -> MetaTool:
    async def status(arguments: JSONObject, ctx: ToolContext) -> JSONValue:
        calls, result_id = pending(run).calls.by_id, str(arguments["resultId"])
        call = calls.get(result_id)
        if call is None:
            remedy = close_to(result_id, list(calls)) or f"Known ones: {', '.join(list(calls)[-8:])}."
            raise ToolError(f"Unknown resultId {result_id!r}. {remedy}", error_type="unknown_result_id")
        if arguments.get("action") == "stop" and call.status is None:
            settle(run, call, "cancelled", _STOPPED)
            if call.request is not None:
                pending(run).calls.end(call.request, ExternalResult.of(result_id, "cancelled", _STOPPED))
            call.scope.cancel()
        answer = to_response(_answer(call), run.limits.max_result_bytes)  # delivered later if it is too large
        call.delivered = call.status is not None
        return answer

    return MetaTool(name=ASYNC_STATUS, description=_DESCRIPTION, input_schema=_SCHEMA, run=status)
