"""State and events of a durable run, as applications read them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias, cast

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, format_trace_id, get_current_span

from pellucid.approvals.checkpoint import context_of
from pellucid.approvals.decisions import ApprovalRequest
from pellucid.context import Identity
from pellucid.durable.store import CallRecord, RunRecord, RunStatus, StoredEvent
from pellucid.durable.store.records import FINAL
from pellucid.errors import ConfigError
from pellucid.messages import Message, Usage, load_messages
from pellucid.types import JSONObject, JSONValue

StreamMode: TypeAlias = Literal["read", "always", "never"]
"""Streaming of the answers of durable runs: if anybody reads when an answer begins, always, or never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State of a durable run.

    Attributes:
        run_id: Id of the run, the same in all its passes.
        agent: Name of the agent.
        status: `queued` if it waits for the runs before it in its conversation; `due` if a worker can continue it;
            `retrying` if it waits for another attempt; `running`; `waiting` for approvals or external results; or how
            it ended.
        output: Answer as JSON; None unless the run is completed.
        stop_reason: The model's finish reason, or the name of the limit; None unless the run is completed.
        messages: All messages of a run that is completed; otherwise those at the end of the last pass, none before. The
            run of a conversation has its own, without those of earlier runs.
        usage: Usage of all passes; None unless the run is completed.
        error: Redacted text of the error with which the run failed, or the reason why it was cancelled.
        error_type: Value of `error.type`; None unless the run failed.
        approvals: Pending approvals, for `DurableRuns.decide`.
        external: Calls whose results other processes owe, for `DurableRuns.settle`.
        passes: Number of passes, including the next one of a run that has not ended.
        identity: Identity on whose behalf the run acts.
        created_at: Time of `submit`, by the store's clock, as the others; None without a store.
        updated_at: Time of the latest change.
        due_at: Time from which a worker can continue the run; None unless it is due or retrying.
        worker: Worker that holds the run; None unless it is running.
        lease_until: End of the worker's lease.
        trace_id: 32 hexadecimal digits; None before the end of the first pass, unless the run was submitted within a
            span.
        span_id: Span of the pass with the answer, 16 hexadecimal digits; None unless the run is completed.
        agent_version: Version of the agent in that pass; empty if it is not known.
        attempts: Passes that have failed in a row without a new step; 0 after `DurableRuns.retry`.
        last_error: Redacted text of the error of the latest pass that failed, also if the run has gone on since.
        last_error_type: Its `error.type`.
        failed_at: When that was, in seconds since the epoch.
        next_attempt_at: When a worker can continue a run that is retrying; None otherwise.
    """

    run_id: str
    agent: str
    status: RunStatus
    output: JSONValue = None
    stop_reason: str | None = None
    messages: tuple[Message, ...] = ()
    usage: Usage | None = None
    error: str | None = None
    error_type: str | None = None
    approvals: tuple[ApprovalRequest, ...] = ()
    external: tuple[CallRecord, ...] = ()
    passes: int = 1
    trace_id: str | None = None
    span_id: str | None = None
    agent_version: str = ""
    identity: Identity | None = None
    created_at: float | None = None
    updated_at: float | None = None
    due_at: float | None = None
    worker: str | None = None
    lease_until: float | None = None
    attempts: int = 0
    last_error: str | None = None
    last_error_type: str | None = None
    failed_at: float | None = None
    next_attempt_at: float | None = None

    @property
    def is_over(self) -> bool:
        """True if the run has ended."""
        return self.status in FINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A page of a conversation.

    Attributes:
        conversation_id: Its id.
        runs: Its runs in order; `messages` of one that has ended are what it has added to the conversation.
        before: Place before which there are more runs, for `DurableRuns.conversation(before=)`; None if there are none.
        open_run: The run that has not ended, also if it is on another page; runs that are queued wait for it.
    """

    conversation_id: str
    runs: tuple[RunState, ...]
    before: int | None
    open_run: RunState | None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of these runs."""
        return tuple(chain.from_iterable(run.messages for run in self.runs))


@dataclass(frozen=True, slots=True)
class RunEventPage:
    """Events of a run in order.

    Attributes:
        events: The events after the given sequence number, oldest first.
        has_more: Whether there were more.
        status: Status of the run at that moment.
    """

    events: tuple[RunEvent, ...]
    has_more: bool
    status: RunStatus

    @property
    def is_over(self) -> bool:
        """True if the run had ended and no events follow this page."""
        return self.status in FINAL and not self.has_more


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Event of a durable run, without content.

    Attributes:
        seq: Position of the event, for `events(after=...)`.
        type: Name of the event.
        data: Its facts.
        time: Seconds since the epoch, by the database's clock.
    """

    seq: int
    type: str
    data: JSONObject
    time: float


@dataclass(frozen=True, slots=True)
class RunDelta:
    """Piece of an answer of a durable run, while the model writes it. It is not stored.

    When `key`, `claim` or `attempt` is another one than that of the piece before, discard the text so far: another
    answer has begun, or the same one again.

    Attributes:
        key: The answer, as in the event `step.answer` that takes the place of its pieces.
        claim: Number of the claim of the run; it grows when another worker continues the run.
        attempt: Number of the attempt to call a model for this answer.
        type: Kind of the content: `text`, `reasoning`, or `tool_call` with the name of a tool.
        offset: Characters (Unicode code points) of this type before the piece. It is greater than what the reader has
            if the reader came late, or was so slow that pieces were dropped.
        content: The new text.
    """

    key: str
    claim: int
    attempt: int
    type: str
    offset: int
    content: str

    @property
    def iteration(self) -> int:
        """Iteration of the run, counted from 1."""
        return int(self.key.partition(":")[0])


def state_of(run: RunRecord, calls: Sequence[CallRecord]) -> RunState:
    """Return the state of a run from its row and its calls."""
    pending = [call for call in calls if call.status == "processing"]
    result: dict[str, Any] = run.result if isinstance(run.result, dict) else {}
    usage = result.get("usage")
    identity: Identity | None = None
    with suppress(TypeError, KeyError):  # damaged: a pass fails
        identity = identity_of(run)
    failures = run.failures
    return RunState(
        run_id=run.id,
        agent=run.agent,
        status=run.status,
        output=result.get("output"),
        stop_reason=result.get("stop_reason"),
        messages=_messages_of(run),
        usage=Usage(**usage) if usage is not None else None,
        error=result.get("error") or (run.cancel_reason if run.status == "cancelled" else None),
        error_type=result.get("error_type"),
        approvals=tuple(approval_of(call) for call in pending if call.kind == "approval"),
        external=tuple(call for call in pending if call.kind == "external"),
        passes=run.pass_no,
        trace_id=trace_id_of(run),
        span_id=known_trace(result.get("span_id")),
        agent_version=result.get("agent_version") or "",
        identity=identity,
        created_at=run.created_at,
        updated_at=run.updated_at,
        due_at=run.due_at if run.status in ("due", "retrying") else None,
        worker=run.lease_owner if run.lease_until is not None else None,
        lease_until=run.lease_until,
        attempts=failures.attempts if failures is not None else 0,
        last_error=failures.error or None if failures is not None else None,
        last_error_type=failures.error_type if failures is not None else None,
        failed_at=failures.failed_at if failures is not None else None,
        next_attempt_at=failures.next_at if failures is not None and run.status == "retrying" else None,
    )


def _messages_of(run: RunRecord) -> tuple[Message, ...]:
    """Return the messages in the result or the checkpoint of a run; none if they are damaged."""
    for state in (run.result, run.checkpoint):
        if isinstance(state, dict) and isinstance(messages := state.get("messages"), list):
            with suppress(ConfigError):
                return load_messages(messages)
    return ()


def known_trace(trace_id: object) -> str | None:
    """Return the id of a trace or a span; None if nothing was traced, and the id is all zero."""
    return trace_id if isinstance(trace_id, str) and trace_id.strip("0") else None


def trace_id_of(run: RunRecord) -> str | None:
    """Return the id of the trace of a run's passes, if it is known."""
    if isinstance(run.result, dict) and (trace_id := known_trace(run.result.get("trace_id"))):
        return trace_id
    span = get_current_span(context_of_run(run)).get_span_context()
    return format_trace_id(span.trace_id) if span.is_valid else None


def context_of_run(run: RunRecord) -> Context:
    """Return the OpenTelemetry context of a run: of the span that submitted it, or of its first pass; else empty."""
    stored = [state.get("trace") for state in (run.checkpoint, run.result) if isinstance(state, dict)]
    traces = [trace for trace in (run.trace, *stored) if span_of(trace) is not None]
    return context_of(cast("dict[str, str]", traces[0])) if traces else Context()


def span_of(trace: JSONValue) -> SpanContext | None:
    """Return the span of a stored trace context, if there is a valid one."""
    if not isinstance(trace, dict):
        return None
    span = get_current_span(context_of(trace)).get_span_context()
    return span if span.is_valid else None


def identity_of(run: RunRecord) -> Identity | None:
    """Return the identity with which a run was submitted.

    Raises:
        TypeError, KeyError: the request is damaged.
    """
    identity = cast("dict[str, Any]", run.request)["identity"]
    return Identity(**identity) if identity is not None else None


def event_of(event: StoredEvent) -> RunEvent:
    """Return a stored event as applications read it."""
    data = {**cast("dict[str, Any]", event.value)}
    return RunEvent(event.seq, data.pop("type"), data, event.created_at)


def approval_of(call: CallRecord) -> ApprovalRequest:
    """Return the approval request that a call of kind `approval` was registered with."""
    request: Any = call.request
    return ApprovalRequest(**{**request, "expires_at": call.expires_at})
