"""The journal of a durable run, as its run writes it.

What has happened is written to the end, also if the run is stopped meanwhile: it would happen again, or be lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import anyio
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, get_current_span
from typing_extensions import override

from pellucid.approvals.checkpoint import Checkpoint, trace_of
from pellucid.approvals.external import ExternalRequest
from pellucid.concurrency.race import shielded
from pellucid.messages import Message, ToolResult, dump_messages, dump_part
from pellucid.models import ModelResponse
from pellucid.run.journal import ANSWER, BEGUN, RESULT, STARTED, CallAddress, Journal, NestedJournal, Registration
from pellucid.run.outcomes import Enqueued, Suspended, Waiting
from pellucid.run.run_journal import RunJournal
from pellucid.run.state import Run
from pellucid.telemetry import Boundary


def state_of(
    run: Run,
    span: SpanContext,
    checkpoint_id: str,
    messages: Sequence[Message],
    *,
    has_pins: bool = True,
    **pending: Any,
) -> Checkpoint:
    """Return the state of a run with these messages; `pending` is about the calls of the last one."""
    activation = run.selection.activation
    return Checkpoint(
        id=checkpoint_id,
        agent=run.scope.agent,
        run_id=run.scope.run_id,
        trace=trace_of(span),
        created_at=run.scope.now() / 1e9,
        identity=run.scope.identity,
        iteration=run.scope.iteration,
        tool_calls=run.tally.tool_calls,
        discoveries=activation.iterations,
        usage=run.nesting.spent,
        spent=run.nesting.budget.spent if run.nesting.budget is not None else {},
        context=run.conversation.fitting.state if run.conversation.fitting is not None else {},
        active=activation.names,
        pins=run.selection.pins.to_dict() if has_pins else {},
        messages=dump_messages(messages),
        external=run.pausing.requests(),
        **pending,
    )


class DurableJournal(RunJournal):
    """Journal of one pass of a durable run: turns what happens in the run into steps, and writes these.

    Attributes:
        inner: Where the steps are written.
    """

    is_durable = True

    def __init__(self, inner: Journal) -> None:
        self.inner = inner
        self._writing = anyio.Lock()

    @property
    @override
    def run_id(self) -> str:
        return self.inner.run_id

    @property
    @override
    def namespace(self) -> uuid.UUID:
        return self.inner.namespace

    @override
    def is_continued_elsewhere(self) -> bool:
        return self.inner.is_continued_elsewhere()

    @override
    def completion_of(self, request: ExternalRequest) -> CallAddress:
        return self.inner.completion_of(request)

    @override
    async def write_answer(
        self, run: Run, response: ModelResponse, digest: str, *, can_repair: bool = False, stop: str | None = None
    ) -> None:
        conversation = run.conversation
        state = state_of(run, _span(), "", conversation.messages[conversation.journalled :])
        value = {
            "state": state.partial(),
            "finish_reason": response.finish_reason,
            "catalog": digest,
            "can_repair": can_repair,
            "stop": stop,
        }
        key = f"{run.scope.iteration}{':closing' if stop is not None else ''}"
        await shielded(self.inner.write, ANSWER, key, value)
        conversation.journalled = len(conversation.messages)

    @override
    async def write_begun(self, run: Run, b: Boundary, links: Iterable[SpanContext]) -> None:
        if not (span := b.span.get_span_context()).is_valid:
            return
        value = {
            "run_id": run.scope.run_id,
            "agent": run.scope.agent,
            "trace": trace_of(span),
            "parent": trace_of(b.parent),
            "links": [trace_of(link) for link in links],
            "start": b.start,
            "facts": b.facts(),
        }
        await self.inner.write(BEGUN, run.scope.run_id, value, is_progress=False)

    @override
    async def write_started(self, run: Run, b: Boundary, call_id: str, tool_name: str, *, can_repeat: bool) -> None:
        if can_repeat and not b.span.get_span_context().is_valid:
            return
        key, value = _started(run, b, call_id, tool_name, can_repeat=can_repeat)
        await self.inner.write(STARTED, key, value, is_progress=not can_repeat)

    @override
    async def register(self, run: Run, b: Boundary, request: ExternalRequest) -> Registration:
        key, value = _started(run, b, request.tool_call_id, request.tool_name, can_repeat=True)
        if request.takes_place:  # its mark says that its span has ended; other calls have a result
            value["result_id"] = request.result_id
        return await self.inner.register(request, key, value)

    @override
    async def mark_dispatched(self, result_id: str) -> None:
        await self.inner.dispatched(result_id)

    @override
    async def write_result(self, run: Run, call_id: str, outcome: ToolResult | Waiting | Suspended | Enqueued) -> None:
        if isinstance(outcome, Waiting | Enqueued):
            return
        if isinstance(outcome, ToolResult):
            pending: dict[str, Any] = {"results": [dump_part(outcome)]}
        else:
            notes = {call_id: outcome.note} if outcome.note is not None else {}
            pending = {"approvals": list(outcome.approvals), "nested": {call_id: outcome.checkpoint}, "notes": notes}
        await shielded(self._write_result, run, call_id, pending)

    async def _write_result(self, run: Run, call_id: str, pending: dict[str, Any]) -> None:
        async with self._writing:  # the states of calls that run at the same time are written in order of their times
            value = {
                "call_id": call_id,
                "run_id": run.scope.run_id,
                "state": state_of(run, INVALID_SPAN_CONTEXT, "", (), has_pins=False, **pending).partial(),
            }
            await self.inner.write(RESULT, f"{run.scope.iteration}:{call_id}", value)

    @override
    def nested(self, idempotency_key: str) -> DurableJournal:
        return DurableJournal(NestedJournal(self.inner, uuid.uuid5(self.namespace, idempotency_key)))


def _started(run: Run, b: Boundary, call_id: str, tool_name: str, *, can_repeat: bool) -> tuple[str, dict[str, Any]]:
    """Return the key and the value of the step that a tool is about to run; arguments as for `write_started`."""
    return f"{run.scope.iteration}:{call_id}", {
        "call_id": call_id,
        "tool": tool_name,
        "run_id": run.scope.run_id,
        "iteration": run.scope.iteration,
        "trace": trace_of(b.span.get_span_context()),
        "start": b.start,
        "facts": b.facts(),
        "can_repeat": can_repeat,
    }


def _span() -> SpanContext:
    return get_current_span().get_span_context()
