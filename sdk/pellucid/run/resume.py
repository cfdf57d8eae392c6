"""Resume a run: from its checkpoint, with decisions and external results, or where it was interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opentelemetry.trace import SpanContext

from pellucid.approvals.checkpoint import Checkpoint, Resumption
from pellucid.approvals.claims import Claims, claim
from pellucid.approvals.decisions import ApprovalRequest, Decision
from pellucid.approvals.external import ExternalResult
from pellucid.approvals.settling import Settled, settle, settle_results
from pellucid.errors import CheckpointError, PolicyHalt
from pellucid.messages import Message, ToolCall
from pellucid.models import ModelResponse
from pellucid.run.conclusion import conclude_calls, in_order, not_run
from pellucid.run.discovery import discover
from pellucid.run.dispatch import dispatch
from pellucid.run.journal import Folded
from pellucid.run.outcomes import AWAITING, Paused, Waiting
from pellucid.run.pausing.delivery import emit_continued
from pellucid.run.pausing.external_calls import apply_results, restore, results_in_place
from pellucid.run.pausing.pausing import pausing_of
from pellucid.run.pausing.state import pending
from pellucid.run.state import CallerContext, Run, Setup
from pellucid.run.tool_results import with_note
from pellucid.telemetry import Boundary
from pellucid.tools.catalog import Catalog
from pellucid.tools.schema import Validator
from pellucid.types import JSONObject


def resumed_run(
    setup: Setup,
    context: CallerContext,
    checkpoint: Checkpoint,
    decisions: Sequence[Decision],
    results: Sequence[ExternalResult],
    claims: Claims | None,
    folded: Folded | None,
    links: Sequence[SpanContext],
) -> Run:
    """Create a run that continues a paused one, without starting it.

    Raises:
        CheckpointError: the checkpoint is another agent's, or the decisions or results do not fit it.
    """
    if checkpoint.agent != setup.name:
        raise CheckpointError(
            f"this checkpoint is for agent {checkpoint.agent!r}; agent {setup.name!r} cannot resume it"
        )
    context = replace(context, identity=context.identity or checkpoint.identity)
    run = Run(setup, checkpoint.conversation, context)
    prepare(run, checkpoint, decisions, results, claims, folded)
    pausing_of(run).links = links
    return run


def prepare(
    run: Run,
    state: Checkpoint,
    decisions: Sequence[Decision],
    results: Sequence[ExternalResult],
    claims: Claims | None,
    folded: Folded | None = None,
) -> None:
    """Restore the state of a paused run in a run that has not started.

    Raises:
        CheckpointError: the decisions or results do not fit the checkpoint.
    """
    now = run.scope.now() / 1e9
    settled, waiting = settle(state.approvals, decisions, now)
    for item in settled.values():
        if item.request.elicitation is not None and item.decision is not None:
            check_answer(item.request, item.decision)
    nested = state.nested_checkpoints
    if not (settled or results or state.has_external or folded is not None):
        waiting_for = ", ".join(repr(request.approval_id) for request in state.approvals)
        raise CheckpointError(f"no decision was given; pass a Decision for at least one of {waiting_for}")
    # Ids of the calls that run sub-agents, by the ids of the results that these wait for.
    owed = {request.result_id: call_id for call_id, paused in nested.items() for request in paused.all_external}
    ended = {call.result_id: call for call in state.ended}
    own = [item for item in results if item.result_id not in owed]
    external, late = settle_results(state.external, own, now, ended)
    # Ids of the calls that run sub-agents, by the ids of the sub-agents' approvals.
    inner = {request.approval_id: call_id for call_id, paused in nested.items() for request in paused.approvals}
    resuming = {inner[approval_id] for approval_id in settled if approval_id in inner}
    resuming |= {owed[result.result_id] for result in results if result.result_id in owed}
    resuming |= {
        call_id for call_id, paused in nested.items() if any(item.expires(now) for item in paused.all_external)
    }
    pausing = pausing_of(run)
    pausing.folded = folded
    pausing.resumption = resumption = Resumption(
        checkpoint=state,
        results=state.known_results,
        settled={approval.request.tool_call_id: approval for key, approval in settled.items() if key not in inner},
        nested={
            call_id: (
                nested[call_id],
                [item for item in decisions if inner.get(item.approval_id) == call_id],
                [item for item in results if owed.get(item.result_id) == call_id],
            )
            for call_id in resuming
        },
        external=external,
        late=late,
        # A sub-agent that resumes requests its pending approvals again.
        waiting=[request for request in waiting if inner.get(request.approval_id) not in resuming],
        still_paused={call_id: paused for call_id, paused in state.nested.items() if call_id not in resuming},
        claims=claims,
    )
    run.tally.tool_calls = state.tool_calls - len(resumption.nested)  # these are dispatched again
    run.tally.earlier = state.usage
    restore(run, state)
    run.selection.names.update(call.name for call in run.conversation.calls)
    run.selection.activation.iterations = state.discoveries
    run.selection.activation.preset = state.active
    run.selection.pins.restore(state.pins)


async def _claim(run: Run, resumption: Resumption, catalog: Catalog, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
    """Claim the checkpoint, and return the settled calls with the arguments that were approved.

    Raises:
        CheckpointError: changed arguments do not fit the tool's schema, or the checkpoint was resumed before.
    """
    settled = resumption.settled
    resuming = settled.keys() | resumption.nested
    edited = [_edited(catalog, call, settled.get(call.id or "")) for call in calls if call.id in resuming]
    await claim(resumption.claims, resumption.checkpoint.id)
    resumption.is_claimed = True
    run.check_open()
    pending(run).expect(resumption.checkpoint.approvals)
    return edited


def _edited(catalog: Catalog, call: ToolCall, settled: Settled | None) -> ToolCall:
    if settled is None or settled.edited is None:
        return call
    if (binding := catalog.find(call.name)) is not None:
        check_edited(settled.request, settled.edited, binding.tool.validator)
    return replace(call, arguments=settled.edited)


def check_edited(request: ApprovalRequest, arguments: JSONObject, validator: Validator) -> None:
    """Check the changed arguments of an approval.

    Raises:
        CheckpointError: they do not fit the tool's schema.
    """
    if issues := validator.issues(arguments):
        raise CheckpointError(
            f"the changed arguments of approval {request.approval_id!r} do not fit the schema of tool "
            f"{request.tool_name!r}: {'; '.join(issues)}; correct them and resume again"
        )


def check_answer(request: ApprovalRequest, decision: Decision) -> None:
    """Check the answer to a question of an MCP server.

    Raises:
        CheckpointError: it does not fit the schema of the question.
    """
    if request.input_schema is None or not decision.approved:
        return
    from pellucid.tools.answers import issues_of

    if issues := issues_of(request.input_schema, decision.arguments or {}):
        raise CheckpointError(
            f"the answer to elicitation {request.approval_id!r} does not fit the schema of the question: "
            f"{'; '.join(issues)}; pass Decision(arguments=...) that do, or approved=False to decline"
        )


async def resume(run: Run, b: Boundary, resumption: Resumption) -> tuple[Catalog, str | None]:
    """Run the calls that were decided about, in the iteration that requested them."""
    state = pending(run)
    calls, messages = run.conversation.calls, run.conversation.messages
    run.scope.iteration = resumption.checkpoint.iteration
    b.note(iterations=run.scope.iteration)
    waiting = [Waiting(request, is_reported=True) for request in resumption.waiting]
    folded = state.folded
    left = folded.left if folded is not None else not resumption.checkpoint.has_external
    has_calls = bool(resumption.settled or resumption.nested or left)
    catalog = Catalog(bindings={})
    try:
        if has_calls:
            catalog = await run.pausing.narrow(run, b, await discover(run))
    except PolicyHalt as halt:
        messages.append(Message("tool", in_order(calls, not_run(halt, calls), resumption.results.values())))
        raise
    run.check_stopped()
    decided = await _claim(run, resumption, catalog, calls)
    apply_results(run, b, resumption.external, resumption.late)
    done = await dispatch(run, catalog, decided, resumption.settled)
    if folded is not None and folded.left:  # nobody was asked about these
        done = done.joined(await dispatch(run, catalog, [call for call in calls if call.id in folded.left]))
    resumption.nested.clear()  # later calls may reuse the ids of calls whose nested runs were not resumed now
    notes = {**resumption.checkpoint.notes, **done.notes}
    still_paused = [Checkpoint.from_dict(paused) for paused in resumption.still_paused.values()]
    enqueued = any(call.takes_place for call in state.calls.external)
    is_waiting = bool(done.waiting or waiting or done.nested or still_paused or enqueued)
    placed = results_in_place(run) if run.halted is not None or not is_waiting else {}
    new = [*done.results, *placed.values()]
    results = [with_note(result, notes.pop(result.id)) if result.id in notes else result for result in new]
    paused = Paused(
        in_order(calls, resumption.results.values(), results),
        [*done.waiting, *waiting],
        {**done.nested, **resumption.still_paused},
        notes,
        enqueued,
        [*done.external, *(request for inner in still_paused for request in inner.all_external if not request.result)],
    )
    stop = conclude_calls(run, catalog, calls, paused) if calls else None
    if folded is not None and folded.stop is not None:
        return catalog, folded.stop
    if stop != AWAITING and placed:
        emit_continued(run, b, placed)
    # Approvals and external calls are one group, unless the run was interrupted before it waited for them.
    if run.pausing.awaits_results and folded is None:
        stop = AWAITING
    return catalog, stop


def interrupted_answer(run: Run) -> tuple[ModelResponse | None, bool]:
    """Return the last answer if the run was interrupted before it was concluded, and nothing was added to it since.

    Returns:
        The answer, and whether the model may correct it if it does not fit the output type.
    """
    state, last = pending(run), run.conversation.messages[-1]
    folded = state.folded
    if folded is None or last.role != "assistant" or state.paused is not None:
        return None, folded.can_repair if folded is not None else True
    return folded.answer, folded.can_repair
