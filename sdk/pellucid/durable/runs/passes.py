"""One pass of a durable run: from its claim to where it waits or ends."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Final, Literal

import anyio
from opentelemetry.context import attach, detach

from pellucid.agent import Agent, configuration_of
from pellucid.context import CancelToken
from pellucid.durable.runs.code import DIGEST, digest_of
from pellucid.durable.runs.continuation import request_of, settled_ids, source_of
from pellucid.durable.runs.conversations import history_of, own_messages
from pellucid.durable.runs.draining import PassReleased
from pellucid.durable.runs.endings import given_up, record_cancelled, record_end, record_finished, start_context
from pellucid.durable.runs.failed_passes import retried
from pellucid.durable.runs.journal import StoreJournal
from pellucid.durable.runs.lost import last_span, record
from pellucid.durable.runs.retries import RetryPolicy
from pellucid.durable.runs.tokens import Completion
from pellucid.durable.runs.waits import expect_recorded
from pellucid.durable.states.metrics import PassOutcome
from pellucid.durable.states.records import identity_of
from pellucid.durable.store import Claim, FailedPass, NewCall, RunStore
from pellucid.errors import (
    CheckpointError,
    Fenced,
    JournalError,
    RunCancelled,
    StoreError,
    StoreUnavailable,
    UnknownRun,
)
from pellucid.failures import error_type_of
from pellucid.messages import Message, dump_messages
from pellucid.options import CallerOptions
from pellucid.run.journal import LiveText
from pellucid.run.loop import execute
from pellucid.run.outcomes import RunResult
from pellucid.run.start import new_run
from pellucid.run.state import Run
from pellucid.run.tool_results import to_json
from pellucid.telemetry import Scope
from pellucid.types import JSONObject

_log = logging.getLogger("pellucid.durable_runs")

PATIENCE: Final = 5.0
"""Seconds for giving a claim back when the worker is stopped."""


async def run_pass(
    store: RunStore,
    agent: Agent[Any, Any],
    claim: Claim,
    deps: Any,
    completion: Completion | None = None,
    live: LiveText | None = None,
    retry: RetryPolicy | None = None,
) -> PassOutcome:
    """Continue a claimed run until it waits, ends, or another worker has claimed it; return how the pass ended.

    If the worker is cancelled, the run is due again at once.
    """
    if claim.run.status == "failed":  # the store has given it up
        record_end(store, {agent.name: agent}, claim, given_up(claim.run))
        _log.error("durable_run.given_up run_id=%s agent=%s", claim.run.id, agent.name)
        return "failed"
    try:
        return await _run_pass(store, agent, claim, deps, completion, live, retry)
    except PassReleased:
        return await give_back(store, claim)
    except (Fenced, UnknownRun) as error:
        _log.warning("durable_run.fenced %s", error)
        return "fenced"
    except StoreUnavailable as error:
        _log.warning("durable_run.interrupted run_id=%s %s", claim.run.id, error)  # continued after the lease
        return "interrupted"
    except Exception as error:  # noqa: BLE001  (a run that cannot continue must not end its worker)
        return await _fail(store, claim, error)
    except anyio.get_cancelled_exc_class():
        await give_back(store, claim)
        raise


async def give_back(store: RunStore, claim: Claim) -> PassOutcome:
    """Give a claim back: the run is due again at once."""
    with anyio.move_on_after(PATIENCE, shield=True):
        try:
            await store.release(claim)
        except StoreError as error:
            _log.warning("durable_run.not_released run_id=%s %s", claim.run.id, error)
    return "interrupted"


async def _run_pass(
    store: RunStore,
    agent: Agent[Any, Any],
    claim: Claim,
    deps: Any,
    completion: Completion | None,
    live: LiveText | None,
    retry: RetryPolicy | None,
) -> PassOutcome:
    if claim.run.cancel_reason is not None:
        ending = await _finish(store, claim, "cancelled", None)
        await record_finished(store, agent, claim, RunCancelled(agent.name, claim.run.cancel_reason))
        return ending
    token = CancelToken()
    digest = digest_of(configuration_of(agent).setup)
    journal = StoreJournal(store, claim, token, completion, digest)
    try:
        history = await history_of(store, claim)
        identity, source = identity_of(claim.run), source_of(claim, history)
        options: CallerOptions = {"signal": token}
        if identity is not None:
            options["identity"] = identity
        request = request_of(claim.run)
        options["tags"] = request.get("tags", ())
        if kept := request.get("budgets"):
            from pellucid.durable.runs.budgets import load_budgets

            options["budget"] = load_budgets(kept, store)
        run = new_run(configuration_of(agent), source, deps, options, journal=journal, live=live)
        expect_recorded(run, claim.journal)
    except StoreUnavailable:
        raise
    except Exception as error:  # noqa: BLE001  (the rows are damaged, or not this agent's)
        ending = await _fail(store, claim, error)
        await record_finished(store, agent, claim, error)
        return ending
    calls = run.conversation.calls
    outcome = await _executed(store, claim, journal, run)
    if outcome is None:
        _log.warning("durable_run.fenced run_id=%s fence=%s", claim.run.id, claim.run.fence)
        return "fenced"
    failure = await retried(store, claim, journal, run, outcome, retry)
    if failure == "retrying":
        return failure
    if not isinstance(outcome, JournalError):  # otherwise another pass continues the run
        run.scope.guarded("span", record, claim, run, calls)
    if isinstance(outcome, RunResult) and outcome.checkpoint is not None:
        checkpoint = {**own_messages(outcome.checkpoint, history), DIGEST: digest}
        return await _wait(store, agent, claim, journal, replace(outcome, checkpoint=checkpoint), settled_ids(source))
    ending = await _ended(store, claim, journal, run, outcome, history, failure)
    run.setup.ended(run, outcome, is_final=ending != "cancelled")
    return ending


async def _ended(
    store: RunStore,
    claim: Claim,
    journal: StoreJournal,
    run: Run,
    outcome: RunResult[Any] | Exception,
    history: Sequence[Message],
    failure: FailedPass | None,
) -> PassOutcome:
    """End a run with the outcome of a pass; `history` are the messages before the run, which it does not keep."""
    if isinstance(outcome, RunResult):
        content = own_messages(_content(outcome), history)
        return await _finish(store, claim, "completed", {**content, "trace": journal.trace})
    if isinstance(outcome, RunCancelled) and journal.cancel_reason is not None:
        return await _finish(store, claim, "cancelled", None)
    if isinstance(outcome, JournalError) and outcome.__cause__ is not None:
        raise outcome.__cause__
    assert failure is not None  # the pass has
    result: JSONObject = {"error": failure.error, "error_type": failure.error_type, "trace": journal.trace}
    return await _finish(store, claim, "failed", result, failure)


async def _executed(
    store: RunStore, claim: Claim, journal: StoreJournal, run: Run
) -> RunResult[Any] | Exception | None:
    """Return the outcome of a run, or None if its claim was lost."""
    outcome: RunResult[Any] | Exception | None = None
    context = start_context(claim, run, last_span(claim))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_renew, store, claim, journal, tasks.cancel_scope)
        attached = attach(context) if context is not None else None
        try:
            outcome = await execute(run)
        except Exception as error:  # noqa: BLE001  (its text is the result of the run)
            outcome = error
        finally:
            if attached is not None:
                detach(attached)
        tasks.cancel_scope.cancel()
    return outcome


async def _renew(store: RunStore, claim: Claim, journal: StoreJournal, scope: anyio.CancelScope) -> None:
    """Renew the lease at a third of its length; cancel the pass when the claim is lost, or the lease has ended."""
    with anyio.move_on_after(claim.lease) as until, suppress(UnknownRun):
        try:
            while True:
                await anyio.sleep(claim.lease / 3)
                started = anyio.current_time()
                with suppress(StoreUnavailable):
                    journal.update(await store.renew(claim))
                    until.deadline = started + claim.lease
        except Fenced:
            journal.is_fenced = True
    scope.cancel()


async def _wait(
    store: RunStore,
    agent: Agent[Any, Any],
    claim: Claim,
    journal: StoreJournal,
    result: RunResult[Any],
    settled: Collection[str],
) -> PassOutcome:
    """End a pass that waits: register its approvals, and cancel calls whose results nobody needs any longer.

    The run would wait for such calls: one that could not be dispatched, that the model has stopped, or of a sub-agent
    that was interrupted.

    Args:
        store: The store.
        agent: The run's agent.
        claim: The claim that ran the pass.
        journal: Its journal.
        result: Result with a checkpoint.
        settled: Ids of the calls whose decisions and results the pass has got.
    """
    needed = {request.result_id for request in result.external} | {item.approval_id for item in result.approvals}
    if unneeded := journal.pending_calls - needed:
        await store.renew(claim)  # settlements need no claim: a worker that has lost its own must not cancel anything
        for call_id in unneeded:
            event: JSONObject = {"type": "async_tool.settled", "result_id": call_id, "status": "cancelled"}
            await store.settle(call_id, "cancelled", "The run no longer needs the result.", events=[event])
    approvals = [
        NewCall(
            id=request.approval_id,
            tool=request.tool_name,
            tool_call_id=request.tool_call_id,
            request={name: value for name, value in asdict(request).items() if value is not None},
            kind="approval",
            timeout=max(0.0, request.expires_at - request.requested_at) if request.expires_at is not None else None,
        )
        for request in result.approvals
        if not journal.has(request.approval_id)
    ]
    if not needed.isdisjoint(settled) and not approvals and not needed & journal.pending_calls:
        # The next pass would be due at once, with the same decisions and results.
        raise CheckpointError("a sub-agent could not resume; the span of its call says why")
    requested = [{"type": "approval.requested", "approval_id": call.id, "tool": call.tool} for call in approvals]
    end = await store.end_pass(
        claim,
        result.checkpoint,
        calls=approvals,
        events=[*requested, {"type": "run.waiting", "status": result.status}],
        cancellation_events=[{"type": "run.cancelled"}],
    )
    if end != "cancelled":
        return "waiting"
    if (run := await store.run(claim.run.id)) is not None:
        await record_cancelled(store, {agent.name: agent}, run)
    return "cancelled"


def _content(result: RunResult[Any]) -> JSONObject:
    """Return what a completed run keeps of its result.

    Raises:
        ValueError, RecursionError: the output cannot be turned into JSON.
    """
    return {
        "status": result.status,
        "output": to_json(result.output)[0],
        "messages": dump_messages(result.messages),
        "usage": asdict(result.usage),
        "iterations": result.iterations,
        "stop_reason": result.stop_reason,
        "trace_id": result.trace_id,
        "span_id": result.span_id,
        "agent_version": result.agent_version,
    }


async def _fail(store: RunStore, claim: Claim, error: Exception) -> PassOutcome:
    """Fail a run that cannot continue: its state, its output or the agent is at fault."""
    error_type, reason = error_type_of(error), Scope(agent=claim.run.agent).text_of(error)  # redacted
    text = f"run {claim.run.id!r} cannot continue: {': '.join(filter(None, (error_type, reason)))}"
    _log.error("durable_run.failed %s", text)
    try:
        failure = FailedPass((await store.streak(claim.run.id)).attempts + 1, error_type, reason or "")
        return await _finish(store, claim, "failed", {"error": text, "error_type": error_type}, failure)
    except StoreError as failure:  # the next worker fails it
        _log.warning("durable_run.interrupted run_id=%s %s", claim.run.id, failure)
        return "interrupted"


async def _finish(
    store: RunStore,
    claim: Claim,
    status: Literal["completed", "failed", "cancelled"],
    result: JSONObject | None,
    failure: FailedPass | None = None,
) -> PassOutcome:
    event: JSONObject = {"type": f"run.{status}"}
    if result is not None and "error_type" in result:
        event["error_type"] = result["error_type"]
    await store.finish(claim, status, result, events=[event], failure=failure)
    return status
