"""What is kept of a run that waits for a person: plain JSON, with which any process can go on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Final

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic import TypeAdapter, ValidationError

from pellucid.approvals.claims import Claims
from pellucid.approvals.decisions import ApprovalRequest, Decision, Settled
from pellucid.context import Identity
from pellucid.errors import CheckpointError, ConfigError
from pellucid.messages import Message, ToolResult, Usage, load_messages, load_part
from pellucid.types import JSONObject

VERSION: Final = 1

_ID: Final = re.compile(r"[0-9a-f]{32}")
_PROPAGATOR: Final = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of a run that waits.

    Attributes:
        id: 32 hexadecimal digits; a checkpoint is resumed once.
        agent: Name of the agent, which the resuming process has to have too.
        run_id: The run that waits.
        trace: Its span, as headers of W3C Trace Context: what goes on is in the same trace.
        created_at: Seconds since the epoch.
        identity: On whose behalf it happens.
        iteration: The iteration that waits.
        tool_calls: Calls dispatched so far.
        discoveries: Iterations so far that only discovered tools.
        usage: Used so far.
        active: Names of the lazy tools that are active.
        pins: What the tools were when the model was given them; see `offer/pins.py`.
        messages: The conversation; the last message has the calls that wait.
        results: What the other calls of that message came to.
        approvals: What is asked.
        nested: Checkpoints of agents that are tools, and wait, by ids of the calls that run them.
        notes: What the results of calls that wait are to say besides, by ids of calls.
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
    active: list[str] = field(default_factory=list)
    pins: dict[str, str] = field(default_factory=dict)
    messages: list[JSONObject] = field(default_factory=list)
    results: list[JSONObject] = field(default_factory=list)
    approvals: list[ApprovalRequest] = field(default_factory=list)
    nested: dict[str, JSONObject] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> JSONObject:
        """Return it as plain JSON, independent of the run.

        Raises:
            CheckpointError: something in the conversation cannot be turned into JSON.
        """
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        try:
            text = json.dumps({"version": VERSION, **state}, allow_nan=False, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"run {self.run_id!r} of agent {self.agent!r} waits for approval, but no checkpoint can be made of it: "
                f"its conversation holds something that is not JSON: {error}"
            ) from error
        plain: JSONObject = json.loads(text)
        return plain

    @classmethod
    def from_dict(cls, data: object) -> Checkpoint:
        """Return the checkpoint that this is.

        Raises:
            CheckpointError: it is none, or of another version.
        """
        if not isinstance(data, Mapping) or "version" not in data:
            raise CheckpointError("this is no checkpoint; give resume() the `checkpoint` of a RunResult that waits")
        if data["version"] != VERSION:
            raise CheckpointError(
                f"the checkpoint has version {data['version']!r}, and this release of Pellucid reads version {VERSION}"
            )
        try:
            made: Checkpoint = _adapter().validate_python({**data})
            fault = made._fault()
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        except ConfigError as error:
            fault = str(error)
        except RecursionError:
            fault = "it is nested too deeply"
        if fault is not None:
            raise CheckpointError(f"the checkpoint is damaged: {fault}")
        return made

    def _fault(self) -> str | None:
        """Return what is wrong with it.

        Raises:
            CheckpointError: a checkpoint nested in it is damaged.
            ConfigError: its messages or results are no messages or results.
        """
        if not _ID.fullmatch(self.id) or not self.messages or not self.approvals:
            return "its id is none, or it has no messages or no approvals"
        if self.iteration < 1 or self.tool_calls < 0 or self.discoveries < 0:
            return "it counts less than nothing"
        return self._mismatch()

    def _mismatch(self) -> str | None:
        """Return what does not fit together: each call of the last message has a result or is waited for, once."""
        last = self.conversation[-1]
        calls = {call.id: call.name for call in last.tool_calls if call.id}
        if last.role != "assistant" or len(calls) < len(last.tool_calls):
            return "its last message is no answer of a model with tool calls, each of an id of its own"
        nested = [each.approval_id for kept in self.nested_checkpoints.values() for each in kept.approvals]
        own = [each for each in self.approvals if each.approval_id not in nested]
        asked = [each.approval_id for each in self.approvals]
        if len({*asked}) < len(asked) or len({*nested}) < len(nested) or not {*nested} <= {*asked}:
            return "its approvals are not those of its calls and of its nested checkpoints, each once"
        known = [*self.known_results, *(each.tool_call_id for each in own), *self.nested]
        if sorted(known) != sorted(calls) or len(self.known_results) < len(self.results):
            return "its calls are not those that have a result or wait, each once"
        if other := next((each for each in own if calls[each.tool_call_id] != each.tool_name), None):
            return f"approval {other.approval_id!r} is of another tool than its call"
        return None

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The messages.

        Raises:
            ConfigError: they are damaged.
        """
        return load_messages(self.messages)

    @property
    def known_results(self) -> Mapping[str, ToolResult]:
        """Results that there are, by ids of calls.

        Raises:
            ConfigError: they are damaged.
        """
        parts = [load_part(result, f"results[{n}]") for n, result in enumerate(self.results)]
        return {part.id: part for part in parts if isinstance(part, ToolResult)}

    @property
    def nested_checkpoints(self) -> Mapping[str, Checkpoint]:
        """Checkpoints of agents that are tools, by ids of calls.

        Raises:
            CheckpointError: one is damaged.
        """
        return {call_id: Checkpoint.from_dict(kept) for call_id, kept in self.nested.items()}

    @property
    def context(self) -> Context:
        """OpenTelemetry's context of the run that waits, which may have been in another process."""
        return _PROPAGATOR.extract(self.trace, context=Context())


@dataclass(slots=True, kw_only=True)
class Resumption:
    """What a run begins with that goes on from a checkpoint.

    Attributes:
        results: Results that there are already, by ids of calls.
        settled: What was decided, by ids of calls.
        nested: Checkpoints of agents that are tools and go on now, with what was decided, by ids of calls; those that
            have begun to are taken out.
        waiting: What goes on waiting.
        left: Checkpoints of agents that are tools and go on waiting, by ids of calls.
        is_taken_up: Whether the checkpoint was claimed. Until then nothing was run, and it can be resumed again.
    """

    checkpoint: Checkpoint
    results: Mapping[str, ToolResult]
    settled: Mapping[str, Settled]
    nested: dict[str, tuple[Checkpoint, Sequence[Decision]]]
    waiting: Sequence[ApprovalRequest]
    left: Mapping[str, JSONObject]
    claims: Claims | None
    is_taken_up: bool = False


@contextmanager
def in_trace(kept: Checkpoint, *, is_nested: bool) -> Iterator[Sequence[SpanContext]]:
    """Go on in the trace of a run that waits, and yield what its new span links to: that run, and who resumes it.

    One that is nested in another goes on where that one does.
    """
    before, here = get_current_span(kept.context), INVALID_SPAN if is_nested else get_current_span()
    token = attach(set_span_in_context(before)) if before.get_span_context().is_valid and not is_nested else None
    try:
        yield [context for span in (before, here) if (context := span.get_span_context()).is_valid]
    except GeneratorExit:  # a coroutine that is thrown away is closed in a foreign context, and its own is gone with it
        token = None
        raise
    finally:
        if token is not None:
            detach(token)


def trace_of(span: SpanContext) -> dict[str, str]:
    """Return a span's context as the headers of W3C Trace Context have it."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(NonRecordingSpan(span), Context()))
    return carrier


def _plain(value: object) -> JSONObject:
    """Return what `json` does not know."""
    if isinstance(value, Identity | Usage | ApprovalRequest):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    raise TypeError(f"an object of type {type(value).__name__}")


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Checkpoint)
