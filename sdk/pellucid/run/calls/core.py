"""What every call passes through: its span, its result, its refusal, and the tool itself within its timeout."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

from pellucid.concurrency.race import OutOfTime, race
from pellucid.context import ToolContext
from pellucid.errors import JournalError, ReliabilityFailFast, ToolError
from pellucid.run.calls.call import Call, Requested, bind, check_halted, check_running, context_of, progress
from pellucid.run.calls.chain import CallHandler, Handler, Outcome, TurnHandler
from pellucid.run.calls.invocation import function_of, observed_call, out_of_time
from pellucid.run.outcomes import Enqueued, Suspended
from pellucid.run.state import Run
from pellucid.run.tool_results import failure_of, result_of, with_note
from pellucid.telemetry import Boundary


def bound(handler: CallHandler) -> TurnHandler:
    """Return a handler that reads the arguments, and passes a `Call` to the next one."""

    def read(run: Run, item: Requested) -> Awaitable[Outcome]:
        return handler(run, bind(run, item))

    return read


def observed(handler: Handler) -> CallHandler:
    """Return a handler that runs the next one within the span of the call, and makes a result of its value or error."""

    async def observe(run: Run, call: Call) -> Outcome:
        note = call.approval.note if call.approval is not None else None
        with span_of(run, call) as b:
            b.input(call.request.arguments)
            try:
                _admit(run, b, call)
                value = await handler(run, b, call)
                if isinstance(value, Suspended | Enqueued):
                    _record_waiting(b, value)
                    return replace(value, note=note)
                result = await result_of(call.request, value, run.limits.max_result_bytes)
            except (ReliabilityFailFast, JournalError):
                raise
            except Exception as error:  # noqa: BLE001  (any exception of a tool is a result for the model)
                run.check_open()
                b.fail(error)
                result = failure_of(call.request, error, run.limits.max_result_bytes)
            if note is not None:
                result = with_note(result, note)
            b.output(result.to_dict()["response"])
            return result

    return observe


def span_of(run: Run, call: Call) -> Boundary:
    """Count a call, and return its boundary."""
    run.tally.own_tool_calls += 1
    notes = {"queued": call.queued, "conversation_id": run.caller.conversation_id}
    return observed_call(run.scope, call.binding, call.request, call.started, **notes)


def _admit(run: Run, b: Boundary, call: Call) -> None:
    """Record a decision about a call, and count it.

    Raises:
        ToolError: the run has ended or reached its limit of calls; the text tells the model what to do.
        PermissionDenied: the policy denied the tool when it was offered.
    """
    if call.approval is not None:
        from pellucid.run.pausing.pause import record_decision

        record_decision(run, b, call.approval)
    if call.approval is None or call.approval.error is None:
        if (limit := run.nesting.count_call()) is not None:
            raise ToolError(
                f"Not run: the limit of {limit} tool calls for this run is reached. Answer with what you have.",
                error_type="max_tool_calls",
            )
        check_halted(run)
    if call.denied is not None and run.setup.permissions is not None:
        from pellucid.offer.policy import Ruling

        b.note(permission="deny")
        ruling, span = Ruling("deny", call.denied.reason), b.span.get_span_context()
        run.setup.permissions.check(run.scope, span, call.denied.binding, call.id, ruling)


def refused(handler: Handler) -> Handler:
    """Return a handler that runs the next one for calls that may run: no other place refuses a call.

    Raises:
        ToolError: the call may not run; the text tells the model what to do.
    """

    def refuse(run: Run, b: Boundary, call: Call) -> Awaitable[Any]:
        if call.refusal is not None:
            raise call.refusal
        return handler(run, b, call)

    return refuse


def _record_waiting(b: Boundary, value: Suspended | Enqueued) -> None:
    """Record what a call waits for."""
    if isinstance(value, Enqueued):
        b.output({"resultId": value.request.result_id})
        return
    if value.approvals:
        b.note(approval="awaiting")
    if value.fault is not None:
        b.fail(value.fault)
    external = [request.result_id for request in value.external]
    approvals = [request.approval_id for request in value.approvals]
    b.output({"approvals": approvals, **({"external": external} if external else {})})


def run_tool(run: Run, b: Boundary, call: Call) -> Awaitable[Any]:
    """Run the tool of a call; the last handler of most chains."""
    return within_timeout(run, call, context_of(run, call, progress=progress(run, b, call)))


async def within_timeout(run: Run, call: Call, ctx: ToolContext) -> Any:
    """Run the function of a tool in a task or thread of its own, so that one that ignores cancellation is abandoned.

    Raises:
        ToolError: it did not end within its timeout, or the policy halted the run.
        RunCancelled, TimeoutError: the run was stopped before.
    """
    tool = call.tool.tool
    timeout = tool.timeout if tool.timeout is not None else run.limits.tool_timeout
    try:
        check_running(run)
        function = function_of(tool)
        return await race(function, call.arguments, ctx, within=timeout, token=run.token, at_once=True)
    except OutOfTime:
        raise out_of_time(tool, timeout) from None
    finally:
        if run.nesting.inner:  # abandoned nested runs must not outlive the call
            run.nesting.release_all(call.id)
