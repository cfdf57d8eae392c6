"""Phase 4: run the tools that the model requested. Every call id gets exactly one result; failures are results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from pellucid.approvals.decisions import Settled
from pellucid.approvals.external import ExternalRequest
from pellucid.concurrency.race import OutOfTime, race, shielded, together
from pellucid.errors import JournalError, PermissionDenied, PolicyHalt, ReliabilityFailFast, ToolError
from pellucid.events import ToolFailed
from pellucid.messages import ToolCall, ToolResult
from pellucid.reliability import Decision, Reliability, Subject
from pellucid.run.background import callbacks, new_call, start
from pellucid.run.call_checks import Call, bind, check_running, context_of, decide, halt_run, permit, resolve
from pellucid.run.external import enqueued, external_call, new_request
from pellucid.run.invocation import function_of, observed_call, out_of_time, progress_of
from pellucid.run.journal import Journal, Registration
from pellucid.run.outcomes import Enqueued, Paused, Suspended, Waiting
from pellucid.run.pause import apply_decision
from pellucid.run.state import Run
from pellucid.run.steps import started, write_result, write_started
from pellucid.run.tool_results import failure_of, result_of, with_note
from pellucid.telemetry import Boundary
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Binding
from pellucid.tools.tool import MetaTool
from pellucid.types import JSONObject

_Outcome: TypeAlias = ToolResult | Waiting | Suspended | Enqueued

_UNLIMITED: Final = nullcontext()


async def dispatch(
    run: Run, catalog: Catalog, requests: Sequence[ToolCall], approvals: Mapping[str, Settled] | None = None
) -> Paused:
    """Run the calls of one message concurrently, up to `Limits.parallel_tools`.

    Of several calls with the same id only the first is run; a note in its result reports the others. Calls that
    discover tools run one by one before all other calls, which may call the discovered tools: the order of activation
    is the order of the offer.

    Args:
        run: The run.
        catalog: Catalogue in which tool names are resolved.
        requests: The calls; each has an id.
        approvals: Settled approvals, by ids of calls, in a resumed run.

    Returns:
        Results and calls that wait for a person, each in call order.
    """
    if len(requests) == 1:
        [request] = requests
        return _gathered({request.id: await _in_turn(run, catalog, request, approvals)})
    first: dict[str | None, ToolCall] = {}
    repeated = [request for request in requests if first.setdefault(request.id, request) is not request]
    slots = anyio.CapacityLimiter(run.limits.parallel_tools) if len(first) > 1 else _UNLIMITED
    outcomes: dict[str | None, _Outcome] = {}

    async def work(request: ToolCall) -> None:
        outcomes[request.id] = await _in_turn(run, catalog, request, approvals, slots)

    others: list[ToolCall] = []
    for request in first.values():
        if request.name in catalog.discovering:
            await work(request)
        else:
            others.append(request)
    if len(others) == 1:
        await work(others[0])
    elif others:
        await together(partial(work, request) for request in others)
    for request in repeated:
        outcomes[request.id] = _reject_repeated(run, bind(run, catalog, request), outcomes[request.id])
    return _gathered({call_id: outcomes[call_id] for call_id in first})


def _gathered(outcomes: Mapping[str | None, _Outcome]) -> Paused:
    results: list[ToolResult] = []
    waiting: list[Waiting] = []
    nested: dict[str, JSONObject] = {}
    notes: dict[str, str] = {}
    external: list[ExternalRequest] = []
    is_enqueued = False
    for call_id, outcome in outcomes.items():
        assert call_id is not None
        if isinstance(outcome, ToolResult):
            results.append(outcome)
            continue
        if outcome.note is not None:
            notes[call_id] = outcome.note
        if isinstance(outcome, Waiting):
            waiting.append(outcome)
        elif isinstance(outcome, Suspended):
            waiting += [Waiting(request, is_reported=True) for request in outcome.approvals]
            nested[call_id] = outcome.checkpoint
            external += outcome.external
        else:
            is_enqueued = True
    return Paused(results, waiting, nested, notes, is_enqueued, external)


async def _in_turn(
    run: Run,
    catalog: Catalog,
    request: ToolCall,
    approvals: Mapping[str, Settled] | None,
    slot: AbstractAsyncContextManager[object] = _UNLIMITED,
) -> _Outcome:
    """Run one call once it has a slot. A call of a serial tool first waits for its turn, before its span starts."""
    binding = catalog.find_listed(request.name)
    if binding is None or not binding.tool.serial:
        async with slot:
            return await _journalled(run, bind(run, catalog, request, approvals))
    queued_at = run.scope.now()
    async with run.serial, slot:
        queued = (run.scope.now() - queued_at) / 1e6
        return await _journalled(run, bind(run, catalog, request, approvals, queued))


async def _journalled(run: Run, call: Call) -> _Outcome:
    """Run one call, and write its outcome to the journal of a durable run, outside of the call's boundary."""
    outcome = await _execute(run, call)
    if run.journal is not None:
        if isinstance(outcome, Enqueued) and outcome.is_new:
            await shielded(run.journal.dispatched, outcome.request.result_id)
        await write_result(run, call.id, outcome)
    return outcome


async def _execute(run: Run, call: Call) -> _Outcome:
    """Run one call within its boundary, unless it must wait for a person first."""
    with _recorded(run, call):
        decided = await decide(run, call)
    run.check_open()
    if isinstance(decided, Waiting):
        return decided
    call = decided
    note = call.approval.note if call.approval is not None else None
    with _observed(run, call) as b:
        b.input(call.request.arguments)
        if run.journal is not None and call.runs_here:
            await write_started(run, b, call.id, call.request.name, can_repeat=not call.must_not_repeat)
            await checkpoint()  # no tool begins in a run that was stopped meanwhile: its result would be lost
            run.check_open()
        try:
            if call.approval is not None:
                apply_decision(run, b, call.approval)
            binding = resolve(run, b, call)
            if run.setup.reliability is None:
                value = await _perform(run, b, binding, call)
            else:
                value = await _guarded(run, b, run.setup.reliability, binding, call)
            if isinstance(value, Suspended | Enqueued):
                _record_waiting(b, value)
                return replace(value, note=note)
            result = await result_of(call.request, value, run.limits.max_result_bytes)
        except (ReliabilityFailFast, JournalError):
            raise
        except Exception as error:  # noqa: BLE001  (any exception of a tool is a result for the model)
            b.fail(error)
            result = failure_of(call.request, error, run.limits.max_result_bytes)
        if note is not None:
            result = with_note(result, note)
        b.output(result.to_dict()["response"])
        return result


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


@contextmanager
def _recorded(run: Run, call: Call) -> Iterator[None]:
    """Give the call its span here if the run ends before the tool begins."""
    try:
        yield
    except BaseException:
        if not run.closed:
            with _observed(run, call) as b:
                b.input(call.request.arguments)
                raise
        raise


async def _guarded(run: Run, b: Boundary, reliability: Reliability, binding: Binding, call: Call) -> Any:
    """Run the tool under the reliability rules, with all attempts in one boundary."""
    tool = binding.tool

    def obstacle(decision: Decision, error: BaseException | None) -> str | None:
        if run.halted is not None or isinstance(error, PermissionDenied):
            return "denied"  # no rule may override or replace a denial
        if decision.then == "retry_other":
            return "no_other"
        return "not_idempotent" if decision.then == "retry" and not tool.idempotent else None

    gate = run.gate(reliability, Subject("tool", tool.name, tool.source), obstacle, b)

    async def attempt() -> Any:
        # The ruling of the policy holds for the first attempt only.
        attempted = call if gate.attempt == 1 else replace(call, ruling=None)
        return await gate.run_attempt(
            b, ToolFailed, lambda: _perform(run, b, binding, attempted), pending=(Suspended, Enqueued)
        )

    return await gate.run(attempt, fall_back=Decision.result)


def _observed(run: Run, call: Call) -> Boundary:
    run.tally.own_tool_calls += 1
    notes = {"queued": call.queued, "conversation_id": run.conversation_id}
    return observed_call(run.scope, call.binding, call.request, call.started, **notes)


async def _perform(run: Run, b: Boundary, binding: Binding, call: Call) -> Any:
    """Check arguments and permission, and run the tool within its timeout.

    The tool runs in a task or thread of its own, so that one that ignores cancellation can be abandoned.
    """
    tool, arguments = binding.tool, call.arguments
    if isinstance(arguments, ToolError):
        raise arguments
    assert arguments is not None  # read for every tool that may be called
    await permit(run, b, binding, call, arguments)
    timeout = tool.timeout if tool.timeout is not None else run.limits.tool_timeout
    assert run.token is not None  # the run has started
    progress = progress_of(run.scope, b.span.get_span_context(), run.token, call.request)
    function = function_of(tool)
    if tool.execution == "same-invocation":
        check_running(run)
        pending = new_call(run, b, tool, call.id)
        ctx = context_of(run, call, **callbacks(pending, tool, progress))
        return start(run, b, pending, tool, partial(function, arguments, ctx))
    request = new_request(run, b, tool, call.id, arguments) if tool.execution is not None else None
    external = external_call(run, request) if request is not None else None
    ctx = context_of(run, call, progress=progress, external=external)
    work = partial(race, function, arguments, ctx, within=timeout, token=run.token, at_once=True)
    try:
        check_running(run)
        return await work() if request is None else await _enqueue(run, b, request, work)
    except PolicyHalt as halt:
        if isinstance(tool, MetaTool):  # the policy halted an activation
            halt_run(run, b, halt)
        raise
    except OutOfTime:
        raise out_of_time(tool, timeout) from None
    finally:
        if run.nesting.inner:  # abandoned nested runs must not outlive the call
            run.nesting.release_all(call.id)


async def _enqueue(
    run: Run, b: Boundary, request: ExternalRequest, work: Callable[[], Awaitable[object]]
) -> JSONObject | Enqueued:
    """Hand work to another process; in a durable run, only once the call is registered, and once only."""
    registration: Registration = "new"
    if run.journal is not None:
        key, value = started(run, b, request.tool_call_id, request.tool_name, can_repeat=True)
        if request.takes_place:  # its mark says that its span has ended; other calls have a result
            value["result_id"] = request.result_id
        registration = await run.journal.register(request, key, value)
    if registration == "new":
        await work()
        if run.journal is not None and not request.takes_place:  # otherwise once its span has ended
            return await shielded(_mark_dispatched, run, run.journal, b, request)
    return enqueued(run, b, request, registration)


async def _mark_dispatched(run: Run, journal: Journal, b: Boundary, request: ExternalRequest) -> JSONObject | Enqueued:
    """Mark a call as dispatched, and emit it: a later pass does neither."""
    await journal.dispatched(request.result_id)
    return enqueued(run, b, request, "new")


def _reject_repeated(run: Run, call: Call, outcome: _Outcome) -> _Outcome:
    """Record a call that repeats an id, and add a note to the result of that id."""
    text = (
        f"Note: you used the call id {call.id!r} for several calls of one message. Only the first was run; "
        f"call {call.request.name!r} again with a new id."
    )
    with _observed(run, call) as b:
        b.input(call.request.arguments)
        b.fail(ToolError(text, error_type="repeated_call_id"))
        b.output(text)
    if isinstance(outcome, ToolResult):
        return with_note(outcome, text)
    return replace(outcome, note=f"{outcome.note}\n\n{text}" if outcome.note is not None else text)
