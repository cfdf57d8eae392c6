"""Phase 4: run the tools that the model asked for. Every call id gets exactly one result; failures are results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from inspect import isawaitable
from typing import Any

import anyio
import anyio.to_thread
from anyio.lowlevel import current_token
from opentelemetry.trace import SpanContext

from pellucid import semconv
from pellucid.background import OutOfTime, call_soon, race
from pellucid.context import ToolContext
from pellucid.errors import PermissionDenied, PolicyHalt, ReliabilityFailFast, ToolError, describe, first_of
from pellucid.events import ToolProgress
from pellucid.messages import ToolCall, ToolResult
from pellucid.reliability import Decision, Gate, Reliability, Subject
from pellucid.results import to_response
from pellucid.run import Run
from pellucid.telemetry import DISPATCH, Boundary, boundary
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Binding
from pellucid.tools.permission import Permissions
from pellucid.tools.tool import Tool
from pellucid.types import JSONObject, JSONValue

_LONGEST_NAME = 64
_LONGEST_ID = 256
_HALTED = "Not run: {}. The run has been ended."


async def dispatch(run: Run, catalog: Catalog, calls: Sequence[ToolCall]) -> list[ToolResult]:
    """Run the calls of one message at the same time, up to `Limits.parallel_tools`, and return results in call order.

    Of several calls with one id the first is run; the others are refused, which its result says. Calls that discover
    tools come before those of the tools that they discover.
    """
    first: dict[str, ToolCall] = {}
    repeated = [call for call in calls if first.setdefault(_id(call), call) is not call]
    results: dict[str, ToolResult] = {}
    if len(first) == 1:
        results[_id(calls[0])] = await _execute(run, catalog, calls[0])
    else:
        slots = anyio.CapacityLimiter(run.limits.parallel_tools)

        async def work(call: ToolCall) -> None:
            async with slots:
                results[_id(call)] = await _execute(run, catalog, call)

        try:
            for group in catalog.groups(list(first.values())):
                async with anyio.create_task_group() as tasks:
                    for call in group:
                        tasks.start_soon(work, call)
        except BaseExceptionGroup as several:
            ended = first_of(several)
            raise ended from ended.__cause__
    for call in repeated:
        results[_id(call)] = _refuse_repeated(run, catalog, call, results[_id(call)])
    return [results[call_id] for call_id in first]


async def _execute(run: Run, catalog: Catalog, call: ToolCall) -> ToolResult:
    """Run one call within its boundary."""
    binding = _listed(catalog, call)
    with _observed(run, binding, call) as b:
        b.input(call.arguments)
        try:
            found = _resolve(run, b, catalog, call)
            if run.setup.reliability is None:
                value = await _perform(run, b, found, call)
            else:
                value = await _guarded(run, b, run.setup.reliability, found, call)
            response = to_response(value, run.limits.max_result_bytes)
        except ReliabilityFailFast:
            raise
        except Exception as error:  # noqa: BLE001  (whatever a tool raises is a result for the model)
            b.fail(error)
            result = ToolResult(_id(call), _explain(error), is_error=True, name=call.name)
        else:
            result = ToolResult(_id(call), response, name=call.name)
        b.output(result.to_dict()["response"])
        return result


async def _guarded(run: Run, b: Boundary, reliability: Reliability, binding: Binding, call: ToolCall) -> Any:
    """Run the tool as often as the rules want, all within its one boundary."""
    tool = binding.tool

    def bar(decision: Decision, error: BaseException | None) -> str | None:
        if run.halted is not None or isinstance(error, PermissionDenied):
            return "denied"
        if decision.then == "retry_other":
            return "no_other"
        return "not_idempotent" if decision.then == "retry" and not tool.idempotent else None

    subject = Subject(operation="tool", tool_name=tool.name, apart=tool.source)
    gate = Gate(reliability, run, subject, usage=lambda: run.usage, over=run.over, bar=bar)

    async def attempt() -> Any:
        return await gate.judged(b.span, lambda: _perform(run, b, binding, call))

    return await gate.run(attempt, instead=Decision.result)


def _observed(run: Run, binding: Binding | None, call: ToolCall) -> Boundary:
    tool = binding.tool if binding is not None else None
    # A name that the model made up is content of its own.
    name = call.name if tool is not None else run.label(call.name[:_LONGEST_NAME]) or semconv.OTHER
    b = boundary(
        run,
        DISPATCH,
        name,
        agent=run.agent,
        tool_name=name,
        tool_type="function",
        tool_call_id=_id(call)[:_LONGEST_ID],
        provider_id=binding.provider_id if binding is not None else None,
        source=binding.source.kind if binding is not None else None,
        source_place=binding.source.place if binding is not None else None,
        dispatch_mode=tool.mode if tool is not None else None,
        conversation_id=run.conversation_id,
    )
    if tool is None:
        b.label(tool_name=semconv.OTHER)
    elif b.records:
        b.note(tool_description=run.label(tool.description) if tool.description else None)
        b.attributes(tool.attributes)
    return b


def _check_halted(run: Run) -> None:
    if run.halted is not None:
        raise ToolError(_HALTED.format(run.halted.reason), error_type=run.halted.error_type)


def _listed(catalog: Catalog, call: ToolCall) -> Binding | None:
    """Return what a call means, also if the policy keeps it from the model."""
    if (denied := catalog.denied.get(call.name)) is not None:
        return denied.binding
    return catalog.find(call.name)


def _resolve(run: Run, b: Boundary, catalog: Catalog, call: ToolCall) -> Binding:
    """Find the tool and check that the call may be made.

    Raises:
        ToolError: it may not; the text tells the model what to do.
    """
    run.tool_calls += 1
    most = run.limits.max_tool_calls
    if most is not None and run.tool_calls > most:
        raise ToolError(
            f"Not run: this run may make {most} tool calls and has made them. Answer with what you have.",
            error_type="max_tool_calls",
        )
    _check_halted(run)
    if (denied := catalog.denied.get(call.name)) is not None and run.setup.permissions is not None:
        b.note(permission="deny")
        raise run.setup.permissions.refuse(run, b.span.get_span_context(), denied, _id(call))
    if (binding := catalog.find(call.name)) is not None:
        if (refusal := catalog.refusal(call.name)) is not None:
            raise ToolError(refusal, error_type="tool_not_active")
        return binding
    if call.name in run.offered:
        raise ToolError(
            f"Tool {call.name!r} was removed since it was offered. {_alternatives(catalog, call.name)}",
            error_type="tool_removed",
        )
    raise ToolError(f"Unknown tool: {call.name!r}. {_alternatives(catalog, call.name)}", error_type="unknown_tool")


def _alternatives(catalog: Catalog, name: str) -> str:
    names = list(catalog.bindings)
    if close := get_close_matches(name, names, n=3):
        return f"Did you mean {' or '.join(map(repr, close))}?"
    if not names:
        return "No tools are available; answer without them."
    return f"Available tools: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}."  # noqa: PLR2004  (enough to choose from)


async def _perform(run: Run, b: Boundary, binding: Binding, call: ToolCall) -> Any:
    """Check the arguments and the permission, and run the tool, within its timeout and, if it is serial, alone."""
    tool = binding.tool
    arguments = _arguments(tool, call)
    if run.setup.permissions is not None:
        await _permit(run, b, run.setup.permissions, binding, call, arguments)
    timeout = tool.timeout if tool.timeout is not None else run.limits.tool_timeout
    ctx = ToolContext(
        run_id=run.run_id,
        iteration=run.iteration,
        tool_call_id=_id(call),
        identity=run.identity,
        signal=run.signal,
        deadline=run.deadline,
        deps=run.deps,
        progress=_progress(run, b.span.get_span_context(), call),
    )
    if tool.serial:
        await run.serial.acquire()
    try:
        _check_halted(run)
        return await _call(tool, arguments, ctx, timeout)
    except OutOfTime:
        raise ToolError(
            f"Tool {tool.name!r} did not finish within {timeout:g} s and was stopped.", error_type="timeout"
        ) from None
    finally:
        if tool.serial:
            run.serial.release()
        if run.nested:  # what did not let itself be stopped is left behind, and must not outlive the call
            run.leave_all(_id(call))


async def _permit(
    run: Run, b: Boundary, permissions: Permissions, binding: Binding, call: ToolCall, arguments: JSONObject
) -> None:
    """Ask the policy whether the call may be made; a halt ends the run once every call has its result."""
    b.note(permission="deny")  # until it has said something else, whatever ends this
    try:
        await permissions.check(run, b.span.get_span_context(), binding, arguments, _id(call))
    except PolicyHalt as halt:
        b.note(permission="halt")
        run.halted = run.halted or halt
        raise
    b.note(permission="allow")


async def _call(tool: Tool, arguments: JSONObject, ctx: ToolContext, within: float | None) -> Any:
    """Run the tool in a task or thread of its own, so that one that cannot be stopped is left behind."""
    if tool.mode != "thread":
        return await race(tool.run, arguments, ctx, within=within)
    return await race(_call_in_thread, tool, arguments, ctx, within=within)


async def _call_in_thread(tool: Tool, arguments: JSONObject, ctx: ToolContext) -> Any:
    # A limiter of its own: a thread that was left behind must not keep later calls waiting. How many run at a time is
    # bounded by `dispatch`. The list is there because trio refuses functions that return an awaitable.
    limiter = anyio.CapacityLimiter(1)
    call = partial(_boxed, tool, arguments, ctx)
    [value] = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter)
    return await value if isawaitable(value) else value


def _boxed(tool: Tool, arguments: JSONObject, ctx: ToolContext) -> list[Any]:
    return [tool.run(arguments, ctx)]


def _arguments(tool: Tool, call: ToolCall) -> JSONObject:
    """Return the arguments as an object that fits the schema.

    Raises:
        ToolError: they do not; values are not repeated, because they may be secret.
    """
    arguments: object = call.arguments or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise ToolError(
                f"The arguments of {tool.name!r} are not JSON: {error}. Send one JSON object.",
                error_type="invalid_arguments",
            ) from None
    if not isinstance(arguments, dict):
        raise ToolError(
            f"The arguments of {tool.name!r} are not a JSON object. Send one JSON object.",
            error_type="invalid_arguments",
        )
    if issues := tool.validator.issues(arguments):
        raise ToolError(
            f"The arguments of {tool.name!r} do not fit its schema: {'; '.join(issues)}. "
            f"Correct them and call it again.",
            error_type="invalid_arguments",
        )
    return arguments


def _progress(run: Run, span: SpanContext, call: ToolCall) -> Any:
    """Return a function that emits progress; it may be called from any thread."""
    loop = current_token()

    def progress(value: JSONValue) -> None:
        if not run.heard(ToolProgress.name):
            return
        try:
            clean = run.recorder.clean(value)
        except Exception as error:  # noqa: BLE001  (redactors and values are the application's)
            run.fault("recording", error)
            return
        payload = {"tool_name": call.name, "tool_call_id": _id(call), "value": clean}
        call_soon(loop, lambda: run.emit(ToolProgress, span, payload))

    return progress


def _explain(error: Exception) -> str:
    if isinstance(error, PolicyHalt):
        return _HALTED.format(error.reason)
    return str(error) if isinstance(error, ToolError) else f"The tool failed. {describe(error)}"


def _refuse_repeated(run: Run, catalog: Catalog, call: ToolCall, result: ToolResult) -> ToolResult:
    """Record a call whose id was taken, and say so in the one result of that id."""
    text = (
        f"Note: you used the call id {call.id!r} for several calls of one message. Only the first was run; "
        f"call {call.name!r} again with an id of its own."
    )
    with _observed(run, _listed(catalog, call), call) as b:
        b.input(call.arguments)
        b.fail(ToolError(text, error_type="repeated_call_id"))
        b.output(text)
    response = result.response if isinstance(result.response, str) else json.dumps(result.to_dict()["response"])
    return ToolResult(result.id, f"{response}\n\n{text}", is_error=result.is_error, name=result.name)


def _id(call: ToolCall) -> str:
    assert call.id is not None  # inference gave one
    return call.id
