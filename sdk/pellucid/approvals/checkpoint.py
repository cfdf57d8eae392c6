"""The checkpoint of a paused run: plain JSON, from which any process can resume the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final

from opentelemetry.context import Context, attach, detach
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic_core import to_json

from pellucid.approvals.claims import Claims
from pellucid.approvals.decisions import ApprovalRequest, Decision
from pellucid.approvals.external import STORED_KEYS, EndedCall, ExternalRequest, ExternalResult
from pellucid.approvals.settling import Settled
from pellucid.context import Identity
from pellucid.errors import CheckpointError
from pellucid.messages import Message, ToolResult, Usage, load_messages, load_part
from pellucid.types import JSONObject

VERSION: Final = 2
"""Version of the format; raise it when an older release must not resume a checkpoint of this one. Version 1 is the same
without calls of other processes.
"""

_PROPAGATOR: Final = TraceContextTextMapPropagator()


class _Headers(Getter[Mapping[str, str]]):
    """Getter of headers that have one value each; that of OpenTelemetry looks whether a value is a list."""

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        value = carrier.get(key)
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


_HEADERS: Final = _Headers()

_REQUIRED: Final = {"id", "agent", "run_id", "trace", "created_at"}
"""Fields without a default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """State of a paused run.

    Attributes:
        id: 32 hexadecimal digits; a checkpoint can be resumed once.
        agent: Name of the agent, which must exist in the resuming process.
        run_id: Id of the paused run.
        trace: Context of its span, as W3C Trace Context headers; the resumed run joins the same trace.
        created_at: Seconds since the epoch.
        identity: Identity on whose behalf the run acts.
        iteration: The iteration in which the run paused.
        tool_calls: Calls dispatched so far.
        discoveries: Iterations so far that only discovered tools.
        usage: Usage so far.
        spent: Amounts that count against `max_cost`, `max_tokens` and `max_model_calls` so far, if one of them applies.
        context: Messages that requests leave out, if the agent has a `context`.
        active: Names of the active lazy tools.
        pins: Digests of the tools as the model was given them; see `selection/pins.py`.
        messages: The conversation; the last message has the waiting calls.
        results: Results of the other calls of the last message.
        approvals: Pending approval requests, including those of sub-agents.
        nested: Checkpoints of paused sub-agents, by ids of the calls that run them.
        notes: Texts to add to the results of waiting calls, by ids of calls.
        external: Calls of other processes whose results the model does not have.
        ended: Calls of other processes that have ended, also those of sub-agents.
    """

    id: str
    agent: str
    run_id: str
    trace: dict[str, str]
    created_at: float
    identity: Identity | None = None
    iteration: int = 1
    tool_calls: int = 0
    discoveries: int = 0
    usage: Usage = field(default_factory=Usage)
    spent: dict[str, float] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    active: list[str] = field(default_factory=list)
    pins: dict[str, str] = field(default_factory=dict)
    messages: list[JSONObject] = field(default_factory=list)
    results: list[JSONObject] = field(default_factory=list)
    approvals: list[ApprovalRequest] = field(default_factory=list)
    nested: dict[str, JSONObject] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    external: list[ExternalRequest] = field(default_factory=list)
    ended: list[EndedCall] = field(default_factory=list)

    def to_dict(self) -> JSONObject:
        """Return the checkpoint as plain JSON, independent of the run.

        Raises:
            CheckpointError: something in the conversation cannot be turned into JSON.
        """
        state = {item.name: getattr(self, item.name) for item in fields(self)}
        try:
            version = VERSION if self.has_external or self.ended else VERSION - 1  # which earlier releases read, too
            text = json.dumps({"version": version, **state}, allow_nan=False, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"run {self.run_id!r} of agent {self.agent!r} has paused, but cannot be saved in a checkpoint: "
                f"its conversation contains something that is not JSON: {error}"
            ) from error
        plain: JSONObject = json.loads(text)
        return plain

    def partial(self) -> dict[str, Any]:
        """Return what is not empty, for a step of a journal; values are not independent of the run, see `to_text`."""
        state = {name: value for name in self.__slots__ if (value := getattr(self, name)) or name in _REQUIRED}
        usage = {name: value for name in self.usage.__slots__ if (value := getattr(self.usage, name)) not in (None, {})}
        external = [_plain(request) for request in self.external]
        return {"version": VERSION, **state, "usage": usage, **({"external": external} if external else {})}

    @classmethod
    def from_dict(cls, data: object, *, is_partial: bool = False) -> Checkpoint:
        """Return the checkpoint that `to_dict` turned into this data.

        Args:
            data: The data.
            is_partial: Whether it is a step of a journal: a part of a checkpoint.

        Raises:
            CheckpointError: the data is not a checkpoint, is damaged, or has another version.
        """
        from pellucid.approvals.stored import read

        if not isinstance(data, Mapping) or "version" not in data:
            remedy = "as a JSON object, which `json.loads` makes of a text"
            raise CheckpointError(
                f"not a checkpoint; pass resume() the `checkpoint` of a paused run's result, {remedy}"
            )
        if data["version"] not in (VERSION - 1, VERSION):
            raise CheckpointError(
                f"the checkpoint has version {data['version']!r}, and this release of Pellucid reads versions 1 to "
                f"{VERSION}"
            )
        checkpoint: Checkpoint
        checkpoint, fault = read(Checkpoint, data, is_partial=is_partial)
        if fault is not None:
            raise CheckpointError(f"the checkpoint is damaged: {fault}")
        return checkpoint

    @property
    def has_external(self) -> bool:
        """True if the run or one of its sub-agents waits for calls of other processes."""
        return bool(self.external) or any(inner.has_external for inner in self.nested_checkpoints.values())

    @property
    def all_external(self) -> list[ExternalRequest]:
        """Calls of other processes, including those of sub-agents."""
        inner = (request for paused in self.nested_checkpoints.values() for request in paused.all_external)
        return [*self.external, *inner]

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The messages.

        Raises:
            ConfigError: they are damaged.
        """
        return load_messages(self.messages)

    @property
    def known_results(self) -> Mapping[str, ToolResult]:
        """Results so far, by ids of calls.

        Raises:
            ConfigError: they are damaged.
        """
        parts = [load_part(result, f"results[{n}]") for n, result in enumerate(self.results)]
        return {part.id: part for part in parts if isinstance(part, ToolResult)}

    @property
    def nested_checkpoints(self) -> Mapping[str, Checkpoint]:
        """Checkpoints of paused sub-agents, by ids of calls.

        Raises:
            CheckpointError: one is damaged.
        """
        return {call_id: Checkpoint.from_dict(data) for call_id, data in self.nested.items()}


@dataclass(slots=True, kw_only=True)
class Resumption:
    """State from which a resumed run starts.

    Attributes:
        results: Results so far, by ids of calls.
        settled: Settled approvals, by ids of calls.
        nested: Checkpoints of sub-agents to resume, with the decisions and external results, by ids of calls; removed
            once they resume.
        external: Results that settle calls of other processes.
        late: External results that come too late.
        waiting: Approvals that stay pending.
        still_paused: Checkpoints of sub-agents that stay paused, by ids of calls.
        is_claimed: Whether the checkpoint was claimed. Until then nothing was run, and it can be resumed again.
    """

    checkpoint: Checkpoint
    results: Mapping[str, ToolResult]
    settled: Mapping[str, Settled]
    nested: dict[str, tuple[Checkpoint, Sequence[Decision], Sequence[ExternalResult]]]
    external: Sequence[ExternalResult]
    late: Sequence[ExternalResult]
    waiting: Sequence[ApprovalRequest]
    still_paused: Mapping[str, JSONObject]
    claims: Claims | None
    is_claimed: bool = False


@contextmanager
def in_trace(checkpoint: Checkpoint, *, is_nested: bool) -> Iterator[Sequence[SpanContext]]:
    """Continue the trace of a paused run; yield the links of the new span: the paused run and the current span.

    A nested run stays in the trace of its outer run, and links to the paused run only.
    """
    paused = get_current_span(context_of(checkpoint.trace))
    current = INVALID_SPAN if is_nested else get_current_span()
    token = attach(set_span_in_context(paused)) if paused.get_span_context().is_valid and not is_nested else None
    try:
        yield [context for span in (paused, current) if (context := span.get_span_context()).is_valid]
    except GeneratorExit:  # a discarded coroutine is closed in a foreign context, where the token is not valid
        token = None
        raise
    finally:
        if token is not None:
            detach(token)


def context_of(trace: Mapping[str, str]) -> Context:
    """Return the OpenTelemetry context that W3C Trace Context headers name."""
    return _PROPAGATOR.extract(trace, context=Context(), getter=_HEADERS)


def trace_of(span: SpanContext) -> dict[str, str]:
    """Return a span's context as W3C Trace Context headers."""
    return _headers_of(set_span_in_context(NonRecordingSpan(span), Context()))


def current_trace() -> dict[str, str]:
    """Return the context of the current span as W3C Trace Context headers; empty if there is none."""
    return _headers_of(None)


def _headers_of(context: Context | None) -> dict[str, str]:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context)
    return carrier


def to_text(value: object) -> str:
    """Return a step of a journal, in which states are `partial`, as JSON text; NaN and the infinities become texts.

    Raises:
        CheckpointError: something in it cannot be turned into JSON.
    """
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except (ValueError, RecursionError):  # also of half a surrogate pair, which JSON can hold
        try:
            return json.dumps(value, allow_nan=False, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(f"the conversation contains something that is not JSON: {error}") from error


def _plain(value: object) -> JSONObject:
    """Return a dataclass of the checkpoint as a JSON object, for `json.dumps`."""
    if isinstance(value, Identity | Usage | ApprovalRequest | ExternalRequest | ExternalResult | EndedCall):
        keys = STORED_KEYS if isinstance(value, ExternalRequest) else {}
        return {keys.get(item.name, item.name): getattr(value, item.name) for item in fields(value)}
    raise TypeError(f"an object of type {type(value).__name__}")
