"""Pause a run whose call needs input of a person, and make the call again with the answers.

The call is restored as a sub-agent is that has paused: its questions are approval requests, and its checkpoint holds
them, the answers so far, and the server's state. Loaded for tools that may ask.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pellucid.approvals.checkpoint import Checkpoint, trace_of
from pellucid.approvals.decisions import ApprovalRequest
from pellucid.approvals.elicitation import LISTENING, Elicitation, InputRequired, Listening
from pellucid.approvals.settling import Settled, settle
from pellucid.messages import Message, ToolCall, dump_messages
from pellucid.run.calls.call import Call
from pellucid.run.calls.chain import Handler
from pellucid.run.outcomes import Suspended, Waiting
from pellucid.run.pausing.pause import emit_requested, record_decision
from pellucid.run.state import Run
from pellucid.telemetry import Boundary
from pellucid.types import JSONObject


def elicited(handler: Handler) -> Handler:
    """Return a handler that pauses a call for questions of its server, and goes on with their answers."""

    async def ask(run: Run, b: Boundary, call: Call) -> Any:
        state = _resumed(run, b, call)
        if state is not None and state.approvals:
            return Suspended(state.to_dict(), state.approvals)
        context = state.context if state is not None else {}
        listening = Listening(
            can_pause=run.nesting.may_wait and not run.setup.is_standalone,
            is_durable=run.journal.is_durable,
            answers=context.get("answers", {}),
            modes=context.get("modes", {}),
            state=context.get("state"),
        )
        with _listening(listening):
            try:
                return await handler(run, b, call)
            except InputRequired as asked:
                return _suspended(run, b, call, asked, context.get("round", 0) + 1)

    return ask


@contextmanager
def _listening(listening: Listening) -> Iterator[None]:
    token = LISTENING.set(listening)
    try:
        yield
    except GeneratorExit:  # a discarded coroutine is closed in a foreign context, where the token is not valid
        token = None  # type: ignore[assignment]
        raise
    finally:
        if token is not None:
            LISTENING.reset(token)


def _resumed(run: Run, b: Boundary, call: Call) -> Checkpoint | None:
    """Return the state of a call that waited for answers, with those that were given since; None if it did not."""
    resumption = run.pausing.resumption
    paused = resumption.nested.pop(call.id, None) if resumption is not None else None
    if paused is None:
        return None
    checkpoint, decisions, _ = paused
    settled, waiting = settle(checkpoint.approvals, decisions, run.scope.now() / 1e9)
    context = checkpoint.context
    answers = {**context["answers"], **{context["keys"][key]: _answer(each) for key, each in settled.items()}}
    for each in settled.values():
        record_decision(run, b, each)
    return replace(
        checkpoint,
        id=uuid.uuid4().hex,
        messages=_calls(waiting),
        approvals=list(waiting),
        context={**context, "answers": answers},
    )


def _answer(settled: Settled) -> JSONObject:
    """Return the outcome of a question as an `ElicitResult` of the protocol."""
    if settled.decision is None:
        return {"action": "cancel"}
    if not settled.decision.approved:
        return {"action": "decline"}
    content = {"content": settled.edited or {}} if settled.request.elicitation == "form" else {}
    return {"action": "accept", **content}


def _suspended(run: Run, b: Boundary, call: Call, asked: InputRequired, number: int) -> Suspended:
    """Return a call that waits for answers; the number is that of its questions so far, all of one time being one."""
    now = run.scope.now() / 1e9
    is_only = len(asked.questions) == 1
    requests = {
        key: _request(run, call, question, f"{number} {key}", call.id if is_only else f"{call.id}:{key}")
        for key, question in asked.questions.items()
    }
    state = Checkpoint(
        id=uuid.uuid4().hex,
        agent=run.scope.agent,
        run_id=run.scope.run_id,
        trace=trace_of(b.span.get_span_context()),
        created_at=now,
        identity=run.scope.identity,
        messages=_calls(requests.values()),
        approvals=list(requests.values()),
        context={
            "keys": {request.approval_id: key for key, request in requests.items()},
            "modes": {key: question.mode for key, question in asked.questions.items()},
            "answers": {},
            "state": asked.state,
            "round": number,
        },
    )
    for request in requests.values():
        emit_requested(run, b, Waiting(request, call.tool.provider_id))
    return Suspended(state.to_dict(), state.approvals)


def _calls(requests: Iterable[ApprovalRequest]) -> list[JSONObject]:
    """Return the conversation of a checkpoint: an answer with a call for each question."""
    calls = [ToolCall(request.tool_name, {}, request.tool_call_id) for request in requests]
    return dump_messages([Message("assistant", calls)])


def _request(run: Run, call: Call, question: Elicitation, key: str, call_id: str) -> ApprovalRequest:
    now, timeout = run.scope.now() / 1e9, run.limits.approval_timeout
    durable_id = run.id_of(f"{call.id} {key}")
    return ApprovalRequest(
        approval_id=f"approval_{(durable_id if run.journal.is_durable else uuid.uuid4()).hex}",
        tool_call_id=call_id,
        tool_name=call.tool.tool.name,
        arguments=call.arguments,
        expires_at=now + timeout if timeout is not None else None,
        requested_at=now,
        reason=question.message,
        input_schema=question.schema,
        elicitation=question.mode,
        url=question.url,
    )
