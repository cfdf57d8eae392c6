"""Telemetry of runs that end while no pass works on them: given up, or cancelled while they wait."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from pellucid.agent import Agent, configuration_of
from pellucid.approvals.checkpoint import context_of
from pellucid.approvals.external import ExternalRequest
from pellucid.context import CancelToken, Identity
from pellucid.durable.runs.continuation import request_of, source_of
from pellucid.durable.runs.journal import StoreJournal
from pellucid.durable.runs.lost import last_span, record
from pellucid.durable.states.records import identity_of
from pellucid.durable.store import CallRecord, Claim, RunRecord, RunStore
from pellucid.errors import ModelError, PellucidError, RunCancelled, StoreError
from pellucid.messages import Message
from pellucid.models import ModelRequest, ModelResponse, StreamItem
from pellucid.options import CallerOptions
from pellucid.run.ending import end_unresumed
from pellucid.run.pausing.pausing import pausing_of
from pellucid.run.start import ResumeRequest, new_run
from pellucid.run.state import Run
from pellucid.telemetry import Pipeline, Scope

_log = logging.getLogger("pellucid.durable_runs")


async def record_cancelled(
    store: RunStore, agents: Mapping[str, Agent[Any, Any]], run: RunRecord, pipeline: Pipeline | None = None
) -> None:
    """Record the end of a run that was cancelled while no pass worked on it.

    The worker that cannot be reached any longer keeps its name in the row: its pass was killed.
    """
    try:
        steps, calls = await store.steps(run.id, after=run.checkpoint_seq), await store.calls(run.id)
    except StoreError as error:  # the run is cancelled, recorded or not
        _log.warning("durable_run.end_not_recorded run_id=%s %s", run.id, error)
        return
    claim = Claim(
        replace(run, fence=run.fence + 1, due_at=run.updated_at),
        worker="",
        lease=0.0,
        is_recovered=run.lease_owner is not None,
        waited=0.0,
        journal=steps,
        calls=calls,
        expired_leases=int(run.lease_owner is not None),
    )
    record_end(store, agents, claim, RunCancelled(run.agent, run.cancel_reason), pipeline)


async def record_finished(store: RunStore, agent: Agent[Any, Any], claim: Claim, error: Exception) -> None:
    """Record the end of a claimed run that was finished without a pass."""
    try:
        calls = await store.calls(claim.run.id)
    except StoreError as failure:  # the run is finished, recorded or not
        _log.warning("durable_run.end_not_recorded run_id=%s %s", claim.run.id, failure)
        return
    record_end(store, {agent.name: agent}, replace(claim, calls=calls), error)


def given_up(run: RunRecord) -> PellucidError:
    """Return the error of a run that the store has given up."""
    result = cast("dict[str, Any]", run.result)
    error = StoreError(result["error"])
    error.error_type = result["error_type"]
    return error


def record_end(
    store: RunStore,
    agents: Mapping[str, Agent[Any, Any]],
    claim: Claim,
    error: Exception,
    pipeline: Pipeline | None = None,
) -> None:
    """Record the end of a run, of what it waited for, and of passes that were killed before; it never raises.

    Args:
        store: The store.
        agents: Agents of this process; the run's may be another's.
        claim: The run as it has ended, with its calls, and its journal at least without content.
        error: Error with which it has ended.
        pipeline: Destination of the telemetry, if the agent is another process's.
    """
    agent = agents.get(claim.run.agent)
    if agent is None:
        agent = Agent(claim.run.agent, model=_Elsewhere(), telemetry=pipeline)
    Scope(agent=agent.name, pipeline=pipeline).guarded("span", _record_end, store, agent, claim, error)


def _record_end(store: RunStore, agent: Agent[Any, Any], claim: Claim, error: Exception) -> None:
    try:
        identity, source = identity_of(claim.run), source_of(replace(claim, journal=()))
        run = _run_of(store, agent, claim, identity, source)
    except Exception:  # noqa: BLE001  (its rows are damaged, which may be why it ends)
        identity, source = None, ()
        run = _run_of(store, agent, claim, identity, source)
    known = source.checkpoint.all_external if isinstance(source, ResumeRequest) else ()
    others = _others(claim.calls, {request.result_id for request in known})
    before = last_span(claim)
    token = attach(start_context(claim, run, before) or Context())
    try:
        end_unresumed(run, error, others)
    finally:
        detach(token)
    record(claim, run, ())


def start_context(claim: Claim, run: Run, before: SpanContext | None) -> Context | None:
    """Return the context in which a run starts that resumes none; its span is below what it returns.

    Args:
        claim: Claim of the run.
        run: The run; of one that resumes another, the checkpoint has the context.
        before: Span of an earlier pass that did not end.
    """
    if run.pausing.resumption is not None:
        return None
    if before is not None:
        pausing_of(run).links = [before]
        return set_span_in_context(NonRecordingSpan(before), Context())
    return context_of(cast("dict[str, str]", claim.run.trace)) if claim.run.trace else None


def _run_of(
    store: RunStore,
    agent: Agent[Any, Any],
    claim: Claim,
    identity: Identity | None,
    source: Sequence[Message] | ResumeRequest,
) -> Run:
    options: CallerOptions = {"identity": identity, "tags": request_of(claim.run).get("tags", ())}
    journal = StoreJournal(store, claim, CancelToken())
    return new_run(configuration_of(agent), source, None, options, journal=journal)


def _others(calls: Sequence[CallRecord], known: Collection[str]) -> list[ExternalRequest]:
    """Return the calls that passes which were killed have dispatched, and that were cancelled with the run."""
    return [
        ExternalRequest(
            result_id=call.id,
            tool_name=call.tool,
            tool_call_id=call.tool_call_id,
            arguments={},
            dispatched_at=call.dispatched_at,
            trace=cast("dict[str, str]", call.trace or {}),
        )
        for call in calls
        if call.kind == "external"
        and call.dispatched_at is not None
        and call.status == "cancelled"
        and call.id not in known
    ]


class _Elsewhere:
    """Model of an agent that another process has."""

    name = ""
    provider_name = ""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Refuse: the agent's model is another process's."""
        raise ModelError(self.name, "the agent is another process's")

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Refuse, as `generate`."""
        yield await self.generate(request)
