"""The loop: discover, compose, infer, dispatch, until the model is done or a limit is reached."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import anyio
from anyio.lowlevel import checkpoint, current_token
from opentelemetry.trace import SpanContext, format_span_id, format_trace_id

from pellucid import semconv
from pellucid.concurrency.race import begins_at_once, race
from pellucid.errors import JournalError, RunCancelled
from pellucid.messages import Message, ToolCall
from pellucid.models import ModelResponse
from pellucid.run.answers import accept
from pellucid.run.compose import compose
from pellucid.run.conclusion import conclude_calls
from pellucid.run.configuration import record_configuration
from pellucid.run.discovery import discover
from pellucid.run.dispatch import dispatch
from pellucid.run.inference import infer, without_repeated_ids
from pellucid.run.outcomes import AWAITING, BudgetReached, RunResult, Status
from pellucid.run.state import Run, enter_run, leave_run, stopped
from pellucid.telemetry import RUN, Boundary, boundary, enter_scope, leave_scope
from pellucid.tools.catalog import Catalog

DRAIN_TIMEOUT = 0.25
"""Seconds that a finished run waits for its async listeners to receive the remaining events."""


async def execute(run: Run) -> RunResult[Any]:
    """Run the loop until it ends, is cancelled, or passes its deadline.

    The loop runs in a task of its own. A tool, provider or model that ignores cancellation is abandoned and its spans
    are ended, so that it cannot block the caller.

    Raises:
        RunCancelled: the run's cancel token was cancelled.
        RunTimeout: the run passed its deadline.
        ToolError: the run is nested too deeply in others; it was not started.
        ConfigError: its cost is limited, and a price is unknown; it was not started.
        PellucidError: a phase failed.
    """
    run.nesting.check_depth()
    if run.nesting.is_budgeted:
        from pellucid.run.budget_start import start_budget

        start_budget(run)
    if run.setup.context is not None:
        from pellucid.run.fitted import start_fitting

        start_fitting(run)
    run.token = current_token()
    outcomes: list[RunResult[Any] | Exception] = []
    try:
        with anyio.move_on_after(run.limits.timeout) as scope:
            until = min(scope.deadline, run.nesting.deadline)
            if until < math.inf:
                from pellucid.instants import instant_of

                run.scope.deadline, run.scope.expires_at = until, instant_of(until)

            def stop() -> None:
                run.scope.cancelled = True
                scope.cancel()

            async def work() -> None:
                try:
                    outcomes.append(await _observed(run))
                except Exception as error:  # noqa: BLE001  (raised below)
                    outcomes.append(error)

            with run.caller.signal.calling(stop) if run.caller.signal is not None else nullcontext():
                await race(work, token=run.token)
    finally:
        run.close()
        outcome = outcomes[0] if outcomes else None  # taken now: an abandoned run may still end later
        for listeners in run.scope.listeners:
            if listeners.busy:
                with anyio.CancelScope(shield=True):
                    await listeners.drain(DRAIN_TIMEOUT)
    run.setup.ended(run, outcome)
    # A run that ended while it was being stopped keeps the outcome recorded on its span.
    if isinstance(outcome, RunResult):
        return outcome
    from pellucid.run.failure import carrying

    raise carrying(run, outcome if outcome is not None else stopped(run))


@contextmanager
def opened(run: Run) -> Iterator[tuple[Boundary, Sequence[SpanContext]]]:
    """Open the boundary of a run, in the trace that it continues; yield it and its links."""
    setup, resumed = run.setup, run.pausing.resumption
    with (
        run.pausing.in_trace(run) as links,
        boundary(
            run.scope,
            RUN,
            setup.name,
            agent=setup.name,
            version=setup.version,
            model=(setup.model.name or None) if len(setup.models) == 1 else None,
            conversation_id=run.caller.conversation_id,
            resumed_from=resumed.checkpoint.run_id if resumed is not None else None,
            durable_run_id=run.journal.run_id,
            tags=run.caller.tags or None,
            output_type="json" if setup.output is not None else None,
            **setup.settings,
        ) as b,
    ):
        for link in links:
            b.link(link)
        if setup.description and b.records:
            b.note(description=run.scope.label(setup.description))
        yield b, links


async def _observed(run: Run) -> RunResult[Any]:
    """Run the loop within the boundary of the run."""
    with opened(run) as (b, links):
        context = b.span.get_span_context()
        run.scope.trace_id, run.scope.span_id = format_trace_id(context.trace_id), format_span_id(context.span_id)
        run.scope.start = b.start
        scope_token, run_token = enter_scope(run.scope), enter_run(run)
        run.scope.open[run] = partial(conclude, run, b)  # also if it is abandoned
        try:
            b.capture_input(lambda capturer: capturer.messages(tuple(run.conversation.messages)))
            record_configuration(b, run.setup)
            try:
                await run.journal.write_begun(run, b, links)
                return await _loop(run, b)
            finally:
                await run.pausing.stop(run)
        except (JournalError, anyio.get_cancelled_exc_class()) as error:
            # Another process continues a durable run, unless it was cancelled or passed its deadline.
            if run.journal.is_durable:
                run.pausing.is_interrupted = isinstance(error, JournalError) or not run.stop_cause()
            raise
        except Exception as error:
            # A failure in a run that was cancelled is a cancellation to its caller.
            if run.caller.signal is not None and run.caller.signal.cancelled and not isinstance(error, RunCancelled):
                raise RunCancelled(run.scope.agent, run.caller.signal.reason) from error
            raise
        finally:
            conclude(run, b)
            leave_run(run_token)
            leave_scope(scope_token)


def conclude(run: Run, b: Boundary) -> None:
    """Count the calls of a run that ends, once, and withdraw what it waits for."""
    if run.scope.open.pop(run, None) is None:
        return
    if run.tally.model_calls and b.noted("finish_reasons") is None:
        b.note(finish_reasons=("error",))
    if run.nesting.budget is not None:
        run.nesting.budget.record(b)
    names = {"agent": semconv.AGENT_NAME, "version": semconv.AGENT_VERSION, "model": semconv.REQUEST_MODEL}
    labels = {name: value for note, name in names.items() if (value := b.noted(note)) is not None}
    run.scope.count(semconv.INFERENCE_CALLS, run.tally.model_calls, labels, b.context)
    run.scope.count(semconv.TOOL_CALLS, run.tally.own_tool_calls, labels, b.context)
    run.pausing.conclude(run, b)


async def _loop(run: Run, b: Boundary) -> RunResult[Any]:
    stop: str | None = None
    response: ModelResponse | None = None
    can_repair = True
    # Delivers a cancellation that is already pending; later ones are delivered where the run awaits a model.
    await checkpoint()
    if run.pausing.resumption is not None:
        from pellucid.run.resume import interrupted_answer, resume

        catalog, stop = await resume(run, b, run.pausing.resumption)
        response, can_repair = interrupted_answer(run)
    try:
        while stop is None:
            if response is None:
                if run.scope.iteration >= run.limits.max_iterations + run.selection.discoveries:
                    break
                response, catalog = await _iterate(run, b, can_repair=can_repair)
            if calls := response.message.tool_calls:
                run.check_stopped()
                stop = conclude_calls(run, catalog, calls, await dispatch(run, catalog, calls))
            elif not await run.pausing.next_results(run, b):
                if (stop := _left_open(run, response)) is not None:
                    break
                if (answer := accept(run, b, response, can_repair=can_repair)) is not None:
                    return _finish(run, b, "completed", response.finish_reason, response.finish_reason, answer.value)
                can_repair = False
            response = None
    except BudgetReached as reached:
        stop, catalog = reached.args
    return await _end(run, b, catalog, stop or "max_iterations", response)


def _left_open(run: Run, response: ModelResponse) -> str | None:
    """Return why the run ends with an answer that is not the final one: results are owed, or a limit has cut it off."""
    if run.pausing.awaits_results:
        return AWAITING
    return run.nesting.budget.cut_short(response) if run.nesting.budget is not None else None


async def _end(run: Run, b: Boundary, catalog: Catalog, stop: str, response: ModelResponse | None) -> RunResult[Any]:
    """Pause, or end with the closing answer; `response` is that answer if the run was interrupted after it.

    Raises:
        OutputError: the answer does not fit the output type.
    """
    if (paused := await run.pausing.end(run)) is not None:
        status: Status = "awaiting_approval" if paused.waiting else "awaiting_tools"
        return _finish(run, b, status, status, "tool_call")
    if response is None:
        run.pausing.deliver(run, b)
        with suppress(BudgetReached):
            response = await _closing_answer(run, b, catalog, stop)
    if (budget := run.nesting.budget) is not None and (response is None or budget.cut_short(response) is not None):
        return _finish(run, b, "limit_reached", stop, "length", budget.unfinished())
    assert response is not None
    answer = accept(run, b, response, can_repair=False)
    assert answer is not None  # otherwise it raises
    return _finish(run, b, "limit_reached", stop, response.finish_reason, answer.value)


async def _iterate(run: Run, b: Boundary, *, can_repair: bool) -> tuple[ModelResponse, Catalog]:
    """Start an iteration; return the model's response, and the catalogue that it was offered."""
    if run.scope.iteration and run.token is not None and begins_at_once(run.token):
        await checkpoint()  # a model and tools that do not wait would keep other tasks from running
    run.scope.iteration += 1
    b.note(iterations=run.scope.iteration)
    run.check_stopped()
    run.pausing.deliver(run, b)
    discovered = await discover(run)
    run.check_stopped()
    request, catalog = await compose(run, discovered)
    run.check_stopped()
    response = await infer(run, request, catalog)
    _note_usage(run, b)
    run.conversation.messages.append(without_repeated_ids(response.message))
    await run.journal.write_answer(run, response, catalog.digest, can_repair=can_repair)
    return response, catalog


def _note_usage(run: Run, b: Boundary) -> None:
    """Note the usage so far, so that a run that fails later has it too."""
    usage = run.tally.usage
    b.note(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cost=usage.cost)


async def _closing_answer(run: Run, b: Boundary, catalog: Catalog, stop: str) -> ModelResponse:
    """Call the model once more, without tools, within the last iteration, so that the limit is never exceeded."""
    run.check_stopped()
    request, catalog = await compose(run, catalog, closing=True)
    run.check_stopped()
    response = await infer(run, request, catalog, is_closing=True)
    parts = [part for part in response.message.parts if not isinstance(part, ToolCall)]
    run.conversation.messages.append(Message("assistant", parts))
    _note_usage(run, b)
    await run.journal.write_answer(run, response, catalog.digest, stop=stop)
    return response


def _finish(
    run: Run, b: Boundary, status: Status, stop_reason: str, finish_reason: str, output: Any = None
) -> RunResult[Any]:
    scope, messages = run.scope, run.conversation.messages
    b.note(stop_reason=stop_reason, finish_reasons=(finish_reason,))
    if (answer := next((item for item in reversed(messages) if item.role == "assistant"), None)) is not None:
        b.capture_output(lambda capturer: capturer.answer(answer, finish_reason))
    labels = {semconv.AGENT_NAME: scope.agent, semconv.STOP_REASON: stop_reason}
    scope.count(semconv.RUN_ITERATIONS, scope.iteration, labels, b.context)
    return RunResult(
        status=status,
        output=output,
        messages=tuple(messages),
        usage=run.nesting.spent,
        iterations=scope.iteration,
        stop_reason=stop_reason,
        trace_id=scope.trace_id,
        run_id=scope.run_id,
        degraded=tuple(scope.degraded),
        span_id=scope.span_id,
        agent=scope.agent,
        agent_version=b.noted("version") or "",
        budget=run.nesting.budget.ended_by(stop_reason) if run.nesting.budget is not None else None,
        **run.pausing.in_result(run, b),
    )
