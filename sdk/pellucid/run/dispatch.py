"""Phase 4: run the tools that the model asked for. Every call id gets exactly one result; failures are results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
from anyio.lowlevel import current_token
from opentelemetry.trace import SpanContext

from pellucid import semconv
from pellucid.approvals.decisions import Settled
from pellucid.concurrency.race import OutOfTime, race, together
from pellucid.concurrency.tasks import call_soon
from pellucid.context import ToolContext
from pellucid.errors import PermissionDenied, PolicyHalt, ReliabilityFailFast, ToolError
from pellucid.events import ToolProgress
from pellucid.failures import describe
from pellucid.messages import Parts, ToolCall, ToolResult, id_of
from pellucid.reliability import Decision, Gate, Reliability, Subject
from pellucid.run.call_checks import (
    UNASKED,
    Admission,
    admit,
    arguments_of,
    asks,
    check_halted,
    check_stopped,
    context_of,
    halted,
    listed,
    permit,
    resolve,
)
from pellucid.run.pause import take
from pellucid.run.state import Paused, Run, Suspended, Waiting
from pellucid.run.tool_results import respond, to_response, with_note
from pellucid.telemetry import DISPATCH, Boundary, boundary
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Binding
from pellucid.tools.tool import MetaTool, Tool
from pellucid.types import JSONObject, JSONValue

_Came: TypeAlias = ToolResult | Waiting | Suspended
"""What came of a call."""

_LONGEST_NAME = 64
_LONGEST_ID = 256


async def dispatch(
    run: Run, catalog: Catalog, calls: Sequence[ToolCall], settled: Mapping[str, Settled] | None = None
) -> Paused:
    """Run the calls of one message at the same time, up to `Limits.parallel_tools`.

    Returns:
        Results and calls that wait for a person, each in call order.

    Of several calls with one id the first is run; the others are refused, which its result says. Calls that discover
    tools come before those of the tools that they discover. What a person has decided is `settled`, by ids of calls.
    """
    first: dict[str, ToolCall] = {}
    repeated = [call for call in calls if first.setdefault(id_of(call), call) is not call]
    came: dict[str, _Came] = {}
    if len(first) == 1:
        came[id_of(calls[0])] = await _in_turn(run, catalog, calls[0], settled, nullcontext())
    else:
        slots = anyio.CapacityLimiter(run.limits.parallel_tools)

        async def work(call: ToolCall) -> None:
            came[id_of(call)] = await _in_turn(run, catalog, call, settled, slots)

        for group in catalog.groups(list(first.values())):
            await together(partial(work, call) for call in group)
    for call in repeated:
        came[id_of(call)] = _refuse_repeated(run, catalog, call, came[id_of(call)])
    return _gathered(first, came)


def _gathered(order: Iterable[str], came: Mapping[str, _Came]) -> Paused:
    results: list[ToolResult] = []
    waiting: list[Waiting] = []
    nested: dict[str, JSONObject] = {}
    notes: dict[str, str] = {}
    for call_id in order:
        each = came[call_id]
        if isinstance(each, ToolResult):
            results.append(each)
            continue
        if each.note is not None:
            notes[call_id] = each.note
        if isinstance(each, Waiting):
            waiting.append(each)
        else:
            waiting += [Waiting(request, is_told=True) for request in each.approvals]
            nested[call_id] = each.checkpoint
    return Paused(results, waiting, nested, notes)


async def _known(
    run: Run, catalog: Catalog, call: ToolCall, settled: Mapping[str, Settled] | None
) -> Admission | Waiting:
    """Find out whether a call may be made now. It has a span when it is made, or if the run ends before."""
    if settled is not None:
        return Admission(settled=settled.get(id_of(call)), is_resumed=True)
    began = run.now()
    try:
        known = await admit(run, catalog, call)
    except BaseException:
        if not run.closed:
            with _observed(run, listed(catalog, call), call, began) as b:
                b.input(call.arguments)
                raise
        raise
    run.check_open()
    return known


async def _in_turn(
    run: Run,
    catalog: Catalog,
    call: ToolCall,
    settled: Mapping[str, Settled] | None,
    slot: AbstractAsyncContextManager[object],
) -> _Came:
    """Run one call once it has a slot. A call of a serial tool waits for its turn before that, and before its span."""
    binding = listed(catalog, call)
    if binding is None or not binding.tool.serial:
        async with slot:
            return await _execute(run, catalog, call, settled)
    began = run.now()
    async with run.serial, slot:
        return await _execute(run, catalog, call, settled, queued=(run.now() - began) / 1e6)


async def _execute(
    run: Run,
    catalog: Catalog,
    call: ToolCall,
    settled: Mapping[str, Settled] | None,
    queued: float | None = None,
) -> _Came:
    """Run one call within its boundary, unless it has to wait for a person first."""
    binding, known = listed(catalog, call), UNASKED
    if settled is not None or asks(run, binding):
        found_out = await _known(run, catalog, call, settled)
        if isinstance(found_out, Waiting):
            return found_out
        known = found_out
    note = known.settled.note if known.settled is not None else None
    with _observed(run, binding, call, known.began, queued) as b:
        b.input(call.arguments)
        try:
            if known.settled is not None:
                take(run, b, known.settled)
            found = resolve(run, b, catalog, call)
            if run.setup.reliability is None:
                value = await _perform(run, b, found, call, known)
            else:
                value = await _guarded(run, b, run.setup.reliability, found, call, known)
            if isinstance(value, Suspended):
                return replace(_suspended(b, value), note=note)
            response = await respond(value, run.limits.max_result_bytes)
        except ReliabilityFailFast:
            raise
        except Exception as error:  # noqa: BLE001  (whatever a tool raises is a result for the model)
            b.fail(error)
            said = to_response(_explain(error), run.limits.max_result_bytes)
            result = ToolResult(id_of(call), said, is_error=True, name=call.name)
        else:
            structured = value.structured if isinstance(value, Parts) else None
            result = ToolResult(id_of(call), response, name=call.name, structured=structured)
        if note is not None:
            result = with_note(result, note)
        b.output(result.to_dict()["response"])
        return result


def _suspended(b: Boundary, value: Suspended) -> Suspended:
    """Note in its boundary that an agent that is a tool waits."""
    b.note(approval="awaiting")
    if value.fault is not None:
        b.fail(value.fault)
    b.output({"approvals": [request.approval_id for request in value.approvals]})
    return value


async def _guarded(
    run: Run, b: Boundary, reliability: Reliability, binding: Binding, call: ToolCall, known: Admission
) -> Any:
    """Run the tool as often as the rules want, all within its one boundary."""
    tool = binding.tool

    def bar(decision: Decision, error: BaseException | None) -> str | None:
        if run.halted is not None or isinstance(error, PermissionDenied):
            return "denied"  # no rule makes a yes of it, and nothing stands in for it
        if decision.then == "retry_other":
            return "no_other"
        return "not_idempotent" if decision.then == "retry" and not tool.idempotent else None

    subject = Subject(operation="tool", tool_name=tool.name, apart=tool.source)
    gate = Gate(reliability, run, subject, usage=lambda: run.spent, over=run.over, bar=bar)

    async def attempt() -> Any:
        # What the policy said before is for the first attempt.
        asked = known if gate.attempt == 1 else replace(known, ruling=None)
        return await gate.judged(b.span, lambda: _perform(run, b, binding, call, asked), unjudged=Suspended)

    return await gate.run(attempt, instead=Decision.result)


def _observed(
    run: Run, binding: Binding | None, call: ToolCall, began: int | None = None, queued: float | None = None
) -> Boundary:
    tool = binding.tool if binding is not None else None
    run.own_tool_calls += 1
    # A name that the model made up is content of its own.
    name = call.name if tool is not None else run.label(call.name[:_LONGEST_NAME]) or semconv.OTHER
    b = boundary(
        run,
        DISPATCH,
        name,
        began=began,
        agent=run.agent,
        tool_name=name,
        tool_type="function",
        tool_call_id=id_of(call)[:_LONGEST_ID],
        provider_id=binding.provider_id if binding is not None else None,
        source=binding.source.kind if binding is not None else None,
        source_place=binding.source.place if binding is not None else None,
        dispatch_mode=tool.mode if tool is not None else None,
        queued=queued,
        conversation_id=run.conversation_id,
    )
    if tool is None:
        b.label(tool_name=semconv.OTHER)
    elif b.records:
        b.note(tool_description=run.label(tool.description) if tool.description else None)
        b.attributes(tool.attributes)
    return b


async def _perform(run: Run, b: Boundary, binding: Binding, call: ToolCall, known: Admission) -> Any:
    """Check the arguments and the permission, and run the tool within its timeout."""
    tool = binding.tool
    arguments = known.arguments if known.arguments is not None else arguments_of(tool, call)
    if run.setup.permissions is not None:
        await permit(run, b, run.setup.permissions, binding, call, arguments, known)
    timeout = tool.timeout if tool.timeout is not None else run.limits.tool_timeout
    ctx = context_of(run, call, progress=_progress(run, b.span.get_span_context(), call))
    try:
        check_halted(run)
        check_stopped(run)
        return await _call(tool, arguments, ctx, timeout)
    except PolicyHalt as halt:
        if isinstance(tool, MetaTool):  # the policy was asked about what it activates
            b.note(permission="halt")
            run.halted = run.halted or halt
        raise
    except OutOfTime:
        raise ToolError(
            f"Tool {tool.name!r} did not finish within {timeout:g} s and was stopped.", error_type="timeout"
        ) from None
    finally:
        if run.nested:  # what did not let itself be stopped is left behind, and must not outlive the call
            run.leave_all(id_of(call))


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
        payload = {"tool_name": call.name, "tool_call_id": id_of(call), "value": clean}
        call_soon(loop, lambda: run.emit(ToolProgress, span, payload))

    return progress


def _explain(error: Exception) -> str:
    if isinstance(error, PolicyHalt):
        return halted(error)
    return str(error) if isinstance(error, ToolError) else f"The tool failed. {describe(error)}"


def _refuse_repeated(run: Run, catalog: Catalog, call: ToolCall, came: _Came) -> _Came:
    """Record a call whose id was taken, and say so in the one result of that id."""
    text = (
        f"Note: you used the call id {call.id!r} for several calls of one message. Only the first was run; "
        f"call {call.name!r} again with an id of its own."
    )
    with _observed(run, listed(catalog, call), call) as b:
        b.input(call.arguments)
        b.fail(ToolError(text, error_type="repeated_call_id"))
        b.output(text)
    if isinstance(came, ToolResult):
        return with_note(came, text)
    return replace(came, note=f"{came.note}\n\n{text}" if came.note is not None else text)
