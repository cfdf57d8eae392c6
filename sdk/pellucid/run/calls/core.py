"""Links of every call: its span, its result, its refusal, and the tool itself within its timeout."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any, Final

import anyio
import anyio.to_thread

from pellucid import semconv
from pellucid.concurrency.race import OutOfTime, race
from pellucid.concurrency.tasks import call_soon
from pellucid.context import ToolContext
from pellucid.errors import JournalError, PolicyHalt, ReliabilityFailFast, RunCancelled, ToolError
from pellucid.events import ToolProgress
from pellucid.run.calls.call import Call, Requested, bind
from pellucid.run.calls.chain import CallHandler, Handler, Outcome, TurnHandler
from pellucid.run.outcomes import Enqueued, Suspended
from pellucid.run.state import Run
from pellucid.run.tool_results import failure_of, halted_text, result_of, with_note
from pellucid.telemetry import DISPATCH, Boundary, boundary
from pellucid.tools.tool import Tool
from pellucid.types import JSONObject, JSONValue

_MAX_NAME: Final = 64
_MAX_ID: Final = 256


def bound(handler: CallHandler) -> TurnHandler:
    """Return a handler that reads the arguments, and passes a `Call` to the next one."""

    def read(run: Run, item: Requested) -> Awaitable[Outcome]:
        return handler(run, bind(run, item))

    return read


def in_span(handler: Handler) -> CallHandler:
    """Return a handler that runs the next one within the span of the call, and makes a result of its value or error."""

    async def run_in_span(run: Run, call: Call) -> Outcome:
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
            except Exception as error:  # any exception of a tool is a result for the model
                if isinstance(error, ReliabilityFailFast | JournalError) and not run.setup.is_standalone:
                    raise  # it ends the run
                run.check_open()
                b.fail(error)
                result = failure_of(call.request, error, run.limits.max_result_bytes)
            if note is not None:
                result = with_note(result, note)
            b.capture_output(lambda capturer: capturer.value(result.to_dict()["response"]))
            return result

    return run_in_span


def span_of(run: Run, call: Call) -> Boundary:
    """Count a call, and return its `execute_tool` boundary, which starts when the checks of the call did."""
    run.tally.own_tool_calls += 1
    scope, request, binding = run.scope, call.request, call.binding
    notes: dict[str, Any] = {"queued": call.queued, "conversation_id": run.caller.conversation_id}
    notes |= {"agent": scope.agent or None, "tool_call_id": call.id[:_MAX_ID]}
    if binding is None:  # a name that the model invented is content
        name = scope.label(request.name[:_MAX_NAME]) or semconv.OTHER
        b = boundary(scope, DISPATCH, name, start=call.started, tool_name=name, tool_type="function", **notes)
        b.label(tool_name=semconv.OTHER)
        return b
    b = boundary(scope, DISPATCH, request.name, start=call.started, **notes, **binding.facts)
    if b.records:
        description = binding.tool.description
        b.note(tool_description=scope.label(description) if description else None)
        b.attributes(binding.tool.attributes)
    return b


def _admit(run: Run, b: Boundary, call: Call) -> None:
    """Record a decision about a call, and count it.

    Raises:
        ToolError: the run has ended or reached a limit; the text tells the model what to do.
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
        if run.nesting.budget is not None:
            run.nesting.budget.check_call()
        check_halted(run)
    if call.denied is not None and run.setup.permissions is not None:
        from pellucid.selection.policy import Ruling

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
        problem = f"Tool {tool.name!r} did not finish within {timeout:g} s and was stopped."
        raise ToolError(problem, error_type="timeout") from None
    finally:
        if run.nesting.inner:  # abandoned nested runs must not outlive the call
            run.nesting.release_all(call.id)


def context_of(run: Run, call: Call, **more: Any) -> ToolContext:
    """Return the context of a tool call."""
    return ToolContext(
        run_id=run.scope.run_id,
        iteration=run.scope.iteration or 1,  # outside of a run as in the first
        tool_call_id=call.id,
        idempotency_key=str(run.id_of(call.id)),
        identity=run.scope.identity,
        signal=run.caller.signal,
        expires_at=run.scope.expires_at,
        deps=run.caller.deps,
        **more,
    )


def progress(run: Run, b: Boundary, call: Call) -> Callable[[JSONValue], None]:
    """Return the function with which a tool reports its progress; it may be called from any thread."""
    loop, scope, span, request = run.token, run.scope, b.span.get_span_context(), call.request
    assert loop is not None  # the run has started

    def emit(value: JSONValue) -> None:
        if not scope.has_listener(ToolProgress.name):
            return
        try:
            clean = scope.capturer.clean(value)
        except Exception as error:  # noqa: BLE001  (redactors and values are the application's)
            scope.fault("recording", error)
            return
        payload = {"tool_name": request.name, "tool_call_id": request.id, "value": clean}
        call_soon(loop, lambda: scope.emit(ToolProgress, span, payload))

    return emit


def function_of(tool: Tool) -> Callable[[JSONObject, ToolContext], Awaitable[Any]]:
    """Return the function of a tool, to be awaited; a sync one runs in a worker thread."""
    function = tool.run if tool.mode != "thread" else partial(_run_in_thread, tool.run)
    if tool.output_schema is None or tool.on_invalid_output is None:
        return function
    from pellucid.run.output_check import checked

    return checked(tool, function)


async def _run_in_thread(function: Callable[..., Any], arguments: JSONObject, ctx: ToolContext) -> Any:
    # A limiter of its own: an abandoned thread must not block later calls. A run bounds the number of its concurrent
    # calls, `observe` does not. The result is boxed because trio rejects functions that return an awaitable.
    limiter = anyio.CapacityLimiter(1)
    [value] = await anyio.to_thread.run_sync(
        lambda: [function(arguments, ctx)], abandon_on_cancel=True, limiter=limiter
    )
    return await value if isawaitable(value) else value


def halt_run(run: Run, b: Boundary, halt: PolicyHalt) -> None:
    """Record that the policy has ended the run."""
    b.note(permission="halt")
    run.halted = run.halted or halt


def check_halted(run: Run) -> None:
    """Check that the policy has not ended the run.

    Raises:
        ToolError: the policy has ended it.
    """
    if run.halted is not None:
        raise ToolError(halted_text(run.halted), error_type=run.halted.error_type)


def check_running(run: Run) -> None:
    """Check that the run was not halted or stopped, also before the event loop delivers the cancellation.

    Raises:
        ToolError: the policy halted the run.
        RunCancelled, TimeoutError: the run was stopped.
    """
    check_halted(run)
    if (reason := run.stop_cause()) is not None:
        raise TimeoutError("the run's deadline has passed") if reason == "deadline" else RunCancelled(run.scope.agent)
