"""One pass of a durable run: from its claim to where it waits or ends."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any, Final, Literal, cast

import anyio
from opentelemetry.context import attach, detach
from pydantic_core import to_jsonable_python

from pellucid.agent import Agent
from pellucid.approvals.checkpoint import Checkpoint, context_of
from pellucid.context import CancelToken
from pellucid.durable import Claim, NewCall, RunStore
from pellucid.durable_runs.continuation import identity_of, source_of
from pellucid.durable_runs.journal import StoreJournal
from pellucid.durable_runs.metrics import PassOutcome
from pellucid.errors import Fenced, JournalError, RunCancelled, StoreError, StoreUnavailable, UnknownRun
from pellucid.failures import describe, error_type_of
from pellucid.messages import dump_messages
from pellucid.run.loop import execute
from pellucid.run.outcomes import RunResult
from pellucid.run.state import Run
from pellucid.types import JSONObject

_log = logging.getLogger("pellucid.durable_runs")

PATIENCE: Final = 5.0
"""Seconds for giving a claim back when the worker is stopped."""


async def run_pass(store: RunStore, agent: Agent[Any], claim: Claim, deps: Any) -> PassOutcome:
    """Continue a claimed run until it waits, ends, or another worker has claimed it; return how the pass ended.

    If the worker is cancelled, the run is due again at once.
    """
    try:
        return await _run_pass(store, agent, claim, deps)
    except (Fenced, UnknownRun) as error:
        _log.warning("durable_run.fenced %s", error)
        return "fenced"
    except StoreUnavailable as error:
        _log.warning("durable_run.interrupted run_id=%s %s", claim.run.id, error)  # continued after the lease
        return "interrupted"
    except anyio.get_cancelled_exc_class():
        with anyio.move_on_after(PATIENCE, shield=True):
            try:
                await store.release(claim)
            except StoreError as error:
                _log.warning("durable_run.not_released run_id=%s %s", claim.run.id, error)
        raise


async def _run_pass(store: RunStore, agent: Agent[Any], claim: Claim, deps: Any) -> PassOutcome:
    if claim.run.cancel_reason is not None:
        return await _finish(store, claim, "cancelled", None)
    token = CancelToken()
    journal = StoreJournal(store, claim, token)
    try:
        identity = identity_of(claim.run)
        options = {"signal": token, "deps": deps, **({"identity": identity} if identity is not None else {})}
        run = agent._create_run(source_of(claim), cast("Any", options), journal=journal)  # noqa: SLF001  (not public: a journal is the SDK's)
    except Exception as error:  # noqa: BLE001  (the run cannot continue anywhere: its state or the agent is at fault)
        return await _finish(store, claim, "failed", {"error": describe(error), "error_type": error_type_of(error)})
    return await _concluded(store, claim, journal, run, await _executed(store, claim, journal, run))


async def _concluded(
    store: RunStore, claim: Claim, journal: StoreJournal, run: Run, outcome: RunResult[Any] | Exception | None
) -> PassOutcome:
    """Store how a pass ended.

    Raises:
        StoreError: nothing was stored.
    """
    if isinstance(outcome, RunResult):
        if outcome.checkpoint is not None:
            return await _wait(store, claim, journal, outcome)
        try:
            content = _content(outcome)
        except ValueError as error:  # the output is not JSON
            outcome = error
        else:
            return await _finish(store, claim, "completed", content)
    if isinstance(outcome, RunCancelled) and journal.cancel_reason is not None:
        return await _finish(store, claim, "cancelled", None)
    if isinstance(outcome, JournalError) and isinstance(outcome.__cause__, Fenced | UnknownRun | StoreUnavailable):
        raise outcome.__cause__
    if outcome is not None:
        result: JSONObject = {"error": run.scope.text_of(outcome), "error_type": error_type_of(outcome)}
        return await _finish(store, claim, "failed", result)
    _log.warning("durable_run.fenced run_id=%s fence=%s", claim.run.id, claim.run.fence)
    return "fenced"


async def _executed(
    store: RunStore, claim: Claim, journal: StoreJournal, run: Run
) -> RunResult[Any] | Exception | None:
    """Return the outcome of a run, or None if its claim was lost."""
    outcome: RunResult[Any] | Exception | None = None
    context = (
        context_of(cast("dict[str, str]", claim.run.trace)) if claim.run.trace and run.resumption is None else None
    )
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
    """Renew the lease at a third of its length; cancel the pass when the claim is lost."""
    until = anyio.current_time() + claim.lease
    while True:
        await anyio.sleep(claim.lease / 3)
        started = anyio.current_time()
        try:
            journal.update(await store.renew(claim))
        except (Fenced, UnknownRun):
            break
        except StoreUnavailable:
            if anyio.current_time() >= until:
                break
        else:
            until = started + claim.lease
    scope.cancel()


async def _wait(store: RunStore, claim: Claim, journal: StoreJournal, result: RunResult[Any]) -> PassOutcome:
    """End a pass that waits: register its approvals, and cancel calls whose results nobody needs any longer.

    The run would wait for such calls: one that could not be dispatched, that the model has stopped, or of a sub-agent
    that was interrupted.
    """
    checkpoint = Checkpoint.from_dict(result.checkpoint)
    await store.renew(claim)  # settlements need no claim: a worker that has lost its own must not cancel anything
    calls = {call.id: call for call in await store.calls(claim.run.id)}
    needed = {request.result_id for request in checkpoint.all_external if request.result is None}
    needed |= {request.approval_id for request in checkpoint.approvals}
    unneeded = journal.known_calls - needed
    for call in calls.values():
        if call.status == "processing" and call.id in unneeded:
            await store.settle(call.id, "cancelled", "The run no longer needs the result.")
    approvals = [
        NewCall(
            id=request.approval_id,
            tool=request.tool_name,
            tool_call_id=request.tool_call_id,
            request=asdict(request),
            kind="approval",
            timeout=max(0.0, request.expires_at - request.requested_at) if request.expires_at is not None else None,
        )
        for request in checkpoint.approvals
        if request.approval_id not in calls
    ]
    if approvals:
        # Before the end of the pass: after a crash in between, the same approvals are requested again.
        requested: list[Any] = [
            {"type": "approval.requested", "approval_id": call.id, "tool": call.tool} for call in approvals
        ]
        await store.register(claim, approvals, requested)
    event: JSONObject = {"type": "run.waiting", "status": result.status}
    end = await store.end_pass(claim, result.checkpoint, events=[event])
    return "cancelled" if end == "cancelled" else "waiting"


def _content(result: RunResult[Any]) -> JSONObject:
    """Return what a completed run keeps of its result.

    Raises:
        ValueError: the output cannot be turned into JSON.
    """
    return {
        "status": result.status,
        "output": to_jsonable_python(result.output, bytes_mode="base64", inf_nan_mode="strings"),
        "messages": dump_messages(result.messages),
        "usage": to_jsonable_python(asdict(result.usage)),
        "iterations": result.iterations,
        "stop_reason": result.stop_reason,
        "trace_id": result.trace_id,
    }


async def _finish(
    store: RunStore, claim: Claim, status: Literal["completed", "failed", "cancelled"], result: JSONObject | None
) -> PassOutcome:
    event: JSONObject = {"type": f"run.{status}"}
    if result is not None and "error_type" in result:
        event["error_type"] = result["error_type"]
    await store.finish(claim, status, result, events=[event])
    return status
