"""The loop: discover, compose, infer, dispatch, until the model is done or a limit is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint
from opentelemetry.trace import format_trace_id

from pellucid import semconv
from pellucid.admission import halted
from pellucid.background import race
from pellucid.checkpoint import Resumption, in_trace
from pellucid.compose import compose, offer
from pellucid.discovery import discover
from pellucid.dispatch import dispatch
from pellucid.errors import OutputError, PolicyHalt, RunCancelled, RunTimeout, ToolError, describe
from pellucid.events import OutputRejected
from pellucid.inference import infer
from pellucid.messages import Message, ToolCall, ToolResult, id_of
from pellucid.models import ModelResponse
from pellucid.models.fallback import candidates
from pellucid.output import Mismatch, repair, said
from pellucid.pausing import AWAITING_APPROVAL, in_order, pause, take_up, withdraw
from pellucid.results import with_note
from pellucid.run import Paused, Run, RunResult, Status, Waiting
from pellucid.telemetry import RUN, Boundary, boundary, enter_scope, leave_scope
from pellucid.tools.catalog import Catalog

PATIENCE = 0.25
"""Seconds that a finished run waits for async listeners to hear of it."""

CUT_SHORT: Final = {
    "length": "it was cut off; raise `max_tokens` in the agent's settings",
    "content_filter": "the model refused to answer",
}
"""Finish reasons after which asking again for the same does not help, and what to say of them."""


async def execute(run: Run) -> RunResult[Any]:
    """Run the loop until it ends, is cancelled, or its deadline has passed.

    It runs in a task of its own. A tool, provider or model that does not let itself be cancelled is left behind, with
    its spans ended: it cannot hold the caller.

    Raises:
        RunCancelled: the run's cancel token was cancelled.
        RunTimeout: the run passed its deadline.
        PellucidError: a phase failed.
    """
    deadline = run.limits.deadline
    ended: list[RunResult[Any] | Exception] = []
    try:
        with anyio.move_on_after(deadline) as scope:
            until = min(scope.deadline, run.outer_deadline)
            run.deadline = until if until < math.inf else None

            def stop() -> None:
                run.cancelled = True
                scope.cancel()

            async def work() -> None:
                try:
                    ended.append(await _observed(run))
                except Exception as error:  # noqa: BLE001  (raised below)
                    ended.append(error)

            with run.signal.calling(stop) if run.signal is not None else nullcontext():
                await race(work)
    finally:
        run.close()
        outcome = ended[0] if ended else None  # what is left behind may still end, but no longer says how the run did
        for listeners in run.listeners:
            if listeners.busy:
                with anyio.CancelScope(shield=True):
                    await listeners.drain(PATIENCE)
    # A run that came to its end in the moment in which it was stopped has ended as its span says.
    if isinstance(outcome, RunResult):
        return outcome
    if outcome is not None:
        raise outcome
    raise _stopped(run)


def _stopped(run: Run) -> RunCancelled | RunTimeout:
    if run.cancelled:
        return RunCancelled(run.agent, run.signal.reason if run.signal is not None else None)
    deadline = run.limits.deadline
    which = f"its deadline of {deadline:g} s" if deadline is not None else "the deadline of the run that called it"
    return RunTimeout(f"run of agent {run.agent!r} did not finish within {which}")


def _check(run: Run) -> None:
    """Start no other phase in a run that was stopped, also if the event loop could not cancel it yet.

    Raises:
        RunCancelled, RunTimeout: it was.
    """
    if (reason := run.over()) is not None:
        run.cancelled = run.cancelled or reason == "cancelled"
        raise _stopped(run)


async def _observed(run: Run) -> RunResult[Any]:
    """Run the loop within the boundary of the run."""
    setup, resumed = run.setup, run.resumption
    with (
        in_trace(resumed.checkpoint, is_nested=run.depth > 0) if resumed is not None else nullcontext() as links,
        boundary(
            run,
            RUN,
            setup.name,
            agent=setup.name,
            model=setup.model.name if len(candidates(setup.model)) == 1 else None,
            conversation_id=run.conversation_id,
            resumed_from=resumed.checkpoint.run_id if resumed is not None else None,
            output_type="json" if setup.output is not None else None,
            **setup.settings,
        ) as b,
    ):
        b.note(finish_reasons=("error",))  # until there is a better one, whatever ends this
        for link in links or ():
            b.link(link)
        if setup.description and b.records:
            b.note(description=run.label(setup.description))
        entered = enter_scope(run)
        run.open[run] = partial(_conclude, run, b)  # also if it is abandoned
        try:
            b.record_input(lambda recorder: recorder.messages(tuple(run.messages)))
            return _finish(run, b, *await _loop(run, b))
        except PolicyHalt as halt:
            halt.messages = tuple(run.messages)
            raise
        except Exception as error:
            # What fails in a run that was cancelled does not make a failure of it: its caller hears of a cancellation.
            if run.signal is not None and run.signal.cancelled and not isinstance(error, RunCancelled):
                raise RunCancelled(run.agent, run.signal.reason) from error
            raise
        finally:
            _conclude(run, b)
            leave_scope(entered)


def _conclude(run: Run, b: Boundary) -> None:
    """Count the calls of a run that ends, once, and withdraw the approvals that nobody can give any more."""
    if run.open.pop(run, None) is None:
        return
    labels = {semconv.AGENT_NAME: run.agent}
    if (model := b.noted("model")) is not None:
        labels[semconv.REQUEST_MODEL] = model
    run.count(semconv.INFERENCE_CALLS, run.model_calls, labels, b.context)
    run.count(semconv.TOOL_CALLS, run.own_tool_calls, labels, b.context)
    withdraw(run, b)


async def _loop(run: Run, b: Boundary) -> tuple[Status, str, str]:
    stop: str | None = None
    # A cancellation that came first arrives here, before the first phase; later ones do where a model is waited for.
    await checkpoint()
    if run.resumption is not None:
        catalog, stop = await _go_on(run, b, run.resumption)
    while stop is None and run.iteration < run.limits.max_iterations + run.offers.activation.iterations:
        run.iteration += 1
        b.note(iterations=run.iteration)
        _check(run)
        found = await discover(run)
        _check(run)
        request, catalog = await compose(run, found)
        _check(run)
        response = await infer(run, request, catalog)
        _tally(run, b)
        run.messages.append(_without_repeated_ids(response.message))
        calls = response.message.tool_calls
        if calls:
            _check(run)
        else:
            if _accept(run, b, response, again=not run.repaired):
                return "completed", response.finish_reason, response.finish_reason
            run.repaired = True
            continue
        stop = _heed(run, catalog, calls, await dispatch(run, catalog, calls))
    if stop == AWAITING_APPROVAL:
        return "awaiting_approval", stop, "tool_call"
    response = await _closing_answer(run, catalog)
    _tally(run, b)
    _accept(run, b, response, again=False)
    return "limit_reached", stop or "max_iterations", response.finish_reason


async def _go_on(run: Run, b: Boundary, resumed: Resumption) -> tuple[Catalog, str | None]:
    """Make the calls that were decided about, in the iteration in which they were asked for."""
    calls = run.messages[-1].tool_calls
    run.iteration = resumed.checkpoint.iteration
    b.note(iterations=run.iteration)
    waiting = [Waiting(request, is_told=True) for request in resumed.waiting]
    try:
        catalog = await offer(run, b, await discover(run))
    except PolicyHalt as halt:
        run.messages.append(Message("tool", in_order(calls, _not_made(halt, calls), resumed.results)))
        raise
    _check(run)
    done = await dispatch(run, catalog, await take_up(run, resumed, catalog, calls), resumed.settled)
    resumed.nested.clear()  # what did not come to go on never will: a later call may have the same id
    notes = {**resumed.checkpoint.notes, **done.notes}
    made = {each.id: with_note(each, notes.pop(each.id)) if each.id in notes else each for each in done.results}
    results = in_order(calls, resumed.results, made)
    paused = Paused(results, [*done.waiting, *waiting], {**done.nested, **resumed.left}, notes)
    return catalog, _heed(run, catalog, calls, paused)


def _heed(run: Run, catalog: Catalog, calls: Sequence[ToolCall], done: Paused) -> str | None:
    """Go on with what came of the calls of a message; return why the loop is over, if it is."""
    run.check_open()
    if run.halted is not None:
        calls = run.messages[-1].tool_calls  # those of distinct ids
        run.messages.append(Message("tool", in_order(calls, _not_made(run.halted, calls), _by_id(done.results))))
        raise run.halted
    if done.waiting:
        if not run.may_wait:
            raise ToolError(
                f"Agent {run.agent!r} waits for approval, which cannot be asked for here.", error_type="approval"
            )
        run.paused = done
        return AWAITING_APPROVAL
    run.messages.append(Message("tool", done.results))
    run.offers.activation.count(only_discovered=catalog.only_discovers(calls))
    if run.limits.max_tool_calls is not None and run.tool_calls >= run.limits.max_tool_calls:
        return "max_tool_calls"
    return None


def _by_id(results: Sequence[ToolResult]) -> dict[str, ToolResult]:
    return {result.id: result for result in results}


def _not_made(halt: PolicyHalt, calls: Sequence[ToolCall]) -> dict[str, ToolResult]:
    """Return the results of calls that are not made any more, because the policy has ended the run."""
    return {id_of(call): ToolResult(id_of(call), halted(halt), is_error=True, name=call.name) for call in calls}


def _accept(run: Run, b: Boundary, response: ModelResponse, *, again: bool) -> bool:
    """Take the answer if it is of the type that is wanted; otherwise tell the model what is wrong with it, or give up.

    Raises:
        OutputError: it is not, and there is no other attempt; or a validator of the type broke.
    """
    answer = run.messages[-1]
    output = run.setup.output
    if output is None:
        run.answer = answer.text
        return True
    try:
        run.answer = output.parse(said(answer))
    except Mismatch as mismatch:
        problem = str(mismatch)
        again = again and response.finish_reason not in CUT_SHORT
        _reject(run, b, problem, is_final=not again)
        if not again:
            reason = CUT_SHORT.get(response.finish_reason, problem)
            raise OutputError(
                run.answering, f"its answer is no {output.name}: {reason}", text=answer.text
            ) from mismatch.__cause__
        run.messages.append(Message("user", repair(problem)))
        return False
    except Exception as error:  # validators are the application's; the model cannot mend them
        problem = describe(error)
        _reject(run, b, problem, is_final=True)
        raise OutputError(
            run.answering, f"a validator of {output.name} failed on its answer: {problem}", text=answer.text
        ) from error
    return True


def _reject(run: Run, b: Boundary, problem: str, *, is_final: bool) -> None:
    payload = {"problem": run.text(problem) or "", "is_final": is_final}
    run.emit(OutputRejected, b.span.get_span_context(), payload)


def _tally(run: Run, b: Boundary) -> None:
    """Note what the run has used so far: one that fails later has cost that too."""
    b.note(input_tokens=run.usage.input_tokens, output_tokens=run.usage.output_tokens, cost=run.usage.cost)


async def _closing_answer(run: Run, catalog: Catalog) -> ModelResponse:
    """Ask once more, without tools; it belongs to the last iteration, so that the limit is never exceeded."""
    _check(run)
    request, catalog = await compose(run, catalog, closing=True)
    _check(run)
    response = await infer(run, request, catalog)
    parts = [part for part in response.message.parts if not isinstance(part, ToolCall)]
    run.messages.append(Message("assistant", parts))
    return response


def _without_repeated_ids(message: Message) -> Message:
    """Keep the first call of each id: a history with two calls and one result of an id is refused by vendors."""
    seen: set[str | None] = set()
    parts = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            if part.id in seen:
                continue
            seen.add(part.id)
        parts.append(part)
    return message if len(parts) == len(message.parts) else Message(message.role, parts)


def _finish(run: Run, b: Boundary, status: Status, stop_reason: str, finish_reason: str) -> RunResult[Any]:
    b.note(stop_reason=stop_reason, finish_reasons=(finish_reason,))
    b.record_output(lambda recorder: recorder.answer(run.messages[-1], finish_reason))
    labels = {semconv.AGENT_NAME: run.agent, semconv.STOP_REASON: stop_reason}
    run.count(semconv.RUN_ITERATIONS, run.iteration, labels, b.context)
    paused = run.paused
    return RunResult(
        status=status,
        output=run.answer,
        messages=tuple(run.messages),
        usage=run.spent,
        iterations=run.iteration,
        stop_reason=stop_reason,
        trace_id=format_trace_id(b.span.get_span_context().trace_id),
        run_id=run.run_id,
        degraded=tuple(run.degraded),
        approvals=tuple(each.request for each in paused.waiting) if paused is not None else (),
        checkpoint=pause(run, b, paused) if paused is not None else None,
    )
