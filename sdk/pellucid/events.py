"""Events of a run, as frozen records. The class is the name, the payload and the registration.

Subscribe with `agent.on("tools.discovery_failed", listener)`, with the class `ToolsDiscoveryFailed`, or with the
patterns `"tools.*"` and `"*"`; `pellucid.telemetry.subscriptions` has a signature for each event. Payloads follow the
run's capture policy: error texts are redacted, and absent in the modes `metadata` and `off`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from pellucid.context import Identity
from pellucid.messages import Usage
from pellucid.types import JSONValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Envelope of every event.

    Attributes:
        run_id: Id of the run; empty for background work.
        agent: Name of the agent.
        iteration: 1-based; 0 before the first.
        identity: Identity on whose behalf the run acts.
        trace_id: Trace id of the event's span, 32 hexadecimal digits.
        span_id: Id of the event's span, 16 hexadecimal digits.
        time: Seconds since the epoch.
    """

    name: ClassVar[str]
    run_id: str
    agent: str
    iteration: int
    identity: Identity | None
    trace_id: str
    span_id: str
    time: float

    def __init_subclass__(cls, name: str = "") -> None:
        """Set the name of the event."""
        if name:  # a dataclass with slots is created twice, the second time with the attribute
            cls.name = name


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """Fields of the events of failures, cancellations and timeouts; `outcome` says which."""

    __slots__ = ()
    duration_ms: float
    outcome: str
    error: str | None
    error_type: str | None


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """Fields of the events about a provider, tool or model; the others are None."""

    __slots__ = ()
    provider_id: str | None
    tool_name: str | None
    model: str | None


@dataclass(frozen=True, kw_only=True)
class _ToolCall:
    """Fields of the events about a tool call."""

    __slots__ = ()
    tool_name: str
    tool_call_id: str


@dataclass(frozen=True, kw_only=True)
class _RuleDecision(_Subject):
    """Fields of the events about a decision of a reliability rule.

    Attributes:
        operation: `discovery`, `inference` or `tool`.
        attempt: 1-based; 0 before the first.
        kind: `kind` of the rule.
    """

    __slots__ = ()
    operation: str
    attempt: int
    kind: str
    error: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event, name="run.started"):
    """A run started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCompleted(Event, name="run.completed"):
    """A run ended with a result."""

    duration_ms: float
    stop_reason: str
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(_Failure, Event, name="run.failed"):
    """A run failed, was cancelled or passed its deadline; `outcome` says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsDiscoveryStarted(Event, name="tools.discovery_started"):
    """A discovery from a tool provider started."""

    provider_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsDiscoveryCompleted(Event, name="tools.discovery_completed"):
    """A tool provider listed its tools.

    Attributes:
        cache: `none`, `hit`, `miss`, `joined`, `stale` or `pending`.
    """

    provider_id: str
    duration_ms: float
    tool_count: int
    cache: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsDiscoveryFailed(_Failure, Event, name="tools.discovery_failed"):
    """A tool provider failed, was cancelled or timed out; `outcome` says which."""

    provider_id: str
    cache: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsCatalogChanged(Event, name="tools.catalog_changed"):
    """A provider's catalogue has changed since the last discovery; with equal digests in what models do not get."""

    provider_id: str
    tool_count: int
    digest: str
    previous_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsCatalogStale(Event, name="tools.catalog_stale"):
    """A stale catalogue was served: during a refresh, or because the refresh failed, in which case `error` is set."""

    provider_id: str
    seconds_over: float
    error: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsDiscoveryPending(Event, name="tools.discovery_pending"):
    """A hub did not answer within the provider's patience; the run goes on, and the round trip continues.

    Attributes:
        duration_ms: Time that the run waited.
        tool_count: Number of tools of the previous catalogue, with which the run goes on; 0 if there is none.
    """

    provider_id: str
    duration_ms: float
    tool_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsQuarantined(Event, name="tools.quarantined"):
    """A provider with `on_invalid="quarantine"` listed an invalid tool, which was left out."""

    provider_id: str
    tool_name: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsHiddenText(Event, name="tools.hidden_text"):
    """A provider listed a tool with characters that people do not see, such as a hidden instruction.

    Attributes:
        place: Where the text is: `name` (as an MCP server lists it), `description`, or a place in a schema.
        text: The text around the first hidden character, with the hidden ones escaped.
        removed: Whether the model gets the text without them; False for names and values that calls repeat.
    """

    provider_id: str
    tool_name: str
    place: str
    text: str | None
    removed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsShadowed(Event, name="tools.shadowed"):
    """Two tools have the same name, and one of them shadows the other.

    Attributes:
        tool_name: The name.
        provider_id: Id of the provider whose tool is called by this name.
        source: Source of that tool: `builtin`, `mcp:<server>` or `hub:<provider id>`.
        shadowed_provider_id: Id of the provider of the shadowed tool.
        shadowed_source: Source of the shadowed tool.
        offered_as: Name under which the shadowed tool is offered; None if it is not offered.
    """

    tool_name: str
    provider_id: str
    source: str
    shadowed_provider_id: str
    shadowed_source: str
    offered_as: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsSearched(Event, name="tools.searched"):
    """A model searched for tools.

    Attributes:
        hits: Number of matching tools.
        names: Names of the best matches, best first.
    """

    query: str | None
    hits: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsActivated(Event, name="tools.activated"):
    """A lazy tool was activated.

    Attributes:
        via: `tool_search`, `__lazy__tool__discovery__`, `history` (active in an earlier run of the conversation) or
            `checkpoint` (active when the run paused).
    """

    tool_name: str
    provider_id: str
    via: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsDeactivated(Event, name="tools.deactivated"):
    """A lazy tool is no longer active.

    Attributes:
        reason: `removed` from the catalogue, `not_lazy` any more, `denied` by the policy, or `budget` (the offered
            tools exceeded `Limits.max_tool_tokens`).
    """

    tool_name: str
    provider_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsBudgetExceeded(Event, name="tools.budget_exceeded"):
    """The offered tools exceed the token budget: tools that are not lazy, or that the model has just requested.

    Attributes:
        tokens: Estimated tokens of the offered tools.
        max_tokens: The budget, `Limits.max_tool_tokens`.
        eager_tokens: Estimated tokens of the tools that are not lazy and therefore always offered.
    """

    tokens: int
    max_tokens: int
    eager_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsRedefined(Event, name="tools.redefined"):
    """A tool's definition, provider or source has changed under the same name, or the lock file does not have the tool.

    Attributes:
        provider_id: Id of the provider that lists the tool now.
        digest: Hash of its definition.
        previous_digest: Hash of its previous definition; the same if only the provider or the source changed; None if
            the lock file does not have the tool.
        after: Point at which the tool was pinned: `offer`, `activation` or `approval`; `lock` if it differs from the
            lock file.
        refused: Whether the tool is withheld from the model; False if the change was reverted.
        diff: What differs from the lock file, word by word as `[-old-]{+new+}`, redacted and cut.
    """

    tool_name: str
    provider_id: str
    digest: str
    previous_digest: str | None
    after: str
    refused: bool
    diff: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCompacted(Event, name="context.compacted"):
    """A request leaves out more of the conversation than those before it, also those of earlier runs.

    Attributes:
        strategies: Names of the strategies that left something out, in order.
        messages: Number of messages that they left out, whole or in part.
        tokens_before: Estimated tokens of the request with these messages.
        tokens_after: Estimated tokens of the request.
        summary_digest: Hash of the summary, if it was made or extended.
    """

    strategies: tuple[str, ...]
    messages: int
    tokens_before: int
    tokens_after: int
    summary_digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestComposed(Event, name="request.composed"):
    """A model request is ready.

    Attributes:
        digest: Hash of the request; None if nothing is recorded.
    """

    duration_ms: float
    tool_count: int
    message_count: int
    digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLow(Event, name="budget.low"):
    """A budget that the run shares with others is nearly spent, is spent, or has refused a call; once each in a run.

    It is nearly spent from 80 % on.

    Attributes:
        budget: Name of the budget.
        limit: `cost`, `tokens` or `model_calls`.
        value: The limit.
        spent: What ended calls have used, of all runs.
        reserved: What the calls in flight may use at most.
        period: The period, such as `2026-11-27`; empty for a budget without periods.
        is_refused: Whether a model call was not made, because it might have exceeded the budget.
    """

    budget: str
    limit: str
    value: float
    spent: float
    reserved: float
    period: str
    is_refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceStarted(Event, name="inference.started"):
    """A model was called."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceDelta(Event, name="inference.delta"):
    """A piece of a streamed answer arrived.

    Attributes:
        type: `text`, `reasoning` or `tool_call`.
        content: The piece, unchanged for the reader of the stream. Other listeners receive it redacted, or empty if no
            content is recorded; a secret that is split over several pieces cannot be recognised.
    """

    type: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceCompleted(Event, name="inference.completed"):
    """A model answered."""

    model: str
    duration_ms: float
    finish_reason: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceFailed(_Failure, Event, name="inference.failed"):
    """A model call failed, was cancelled or timed out; `outcome` says which."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRejected(Event, name="output.rejected"):
    """A model's answer is not of the agent's output type.

    Attributes:
        is_final: Whether the run fails; otherwise the problem is sent to the model, which answers once more.
    """

    problem: str
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(_ToolCall, Event, name="tool.started"):
    """A tool call started."""

    provider_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress(_ToolCall, Event, name="tool.progress"):
    """A tool reported progress."""

    value: JSONValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCompleted(_ToolCall, Event, name="tool.completed"):
    """A tool call returned."""

    provider_id: str | None
    duration_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFailed(_Failure, _ToolCall, Event, name="tool.failed"):
    """A tool call failed, was cancelled or timed out; `outcome` says which."""

    provider_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutputInvalid(_ToolCall, Event, name="tool.output_invalid"):
    """A result does not fit the output schema of its tool, which lets it through: `on_invalid_output="report"`.

    Attributes:
        problem: Paths and what is expected there; None if no content is recorded.
    """

    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDenied(Event, name="tool.denied"):
    """The permission policy did not let a tool be offered, activated or called.

    Attributes:
        tool_call_id: Id of the denied call, or of the call that requested the activation; None at stage `offer`, and
            for an activation from the history.
        stage: `offer` (emitted once for each tool and run), `activation` or `dispatch`.
        permission: `deny`, or `halt` if it ended the run.
        error_type: Type of the policy's exception, if it failed, which denies.
    """

    tool_name: str
    provider_id: str
    tool_call_id: str | None
    stage: str
    permission: str
    reason: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested(_ToolCall, Event, name="approval.requested"):
    """A run waits for a person to approve a tool call.

    Attributes:
        arguments: Arguments for the tool, redacted; None if no content is recorded.
        expires_at: Expiry, in seconds since the epoch; None if it never expires.
        reason: Reason given by the permission policy, if any.
        error_type: Type of the exception of the tool's `needs_approval`, if it failed; then approval is required.
    """

    approval_id: str
    provider_id: str
    arguments: JSONValue
    expires_at: float | None
    reason: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecided(_ToolCall, Event, name="approval.decided"):
    """An approval request was decided, expired, or was withdrawn.

    Attributes:
        outcome: `approved`, `denied`, `expired`, or `withdrawn` (the run ended first, such as by a cancellation).
        edited: Whether the arguments were changed.
        waited_ms: Milliseconds from the request to the decision.
    """

    approval_id: str
    outcome: str
    edited: bool
    reason: str | None
    decided_by: str | None
    waited_ms: float


@dataclass(frozen=True, kw_only=True)
class _AsyncCall:
    """Fields of the events about an asynchronous tool call.

    Attributes:
        result_id: Id of the result: `async_tool_` and a UUID.
        execution: `same-invocation` or `external-dispatch`.
    """

    __slots__ = ()
    result_id: str
    tool_name: str
    tool_call_id: str
    execution: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncToolDispatched(_AsyncCall, Event, name="async_tool.dispatched"):
    """An asynchronous tool call was dispatched, and the model continues without its result.

    Attributes:
        deadline: Time at which it expires, in seconds since the epoch; None if it never does.
    """

    deadline: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncToolSettled(_AsyncCall, Event, name="async_tool.settled"):
    """An asynchronous tool call has its result.

    Attributes:
        status: `completed`, `failed`, `expired` or `cancelled`.
        duration_ms: Milliseconds since the dispatch.
    """

    status: str
    duration_ms: float
    outcome: str
    error: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncToolExpired(_AsyncCall, Event, name="async_tool.expired"):
    """An asynchronous tool call passed its deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncToolLate(_AsyncCall, Event, name="async_tool.late"):
    """A result came for an asynchronous tool call that had already expired or been stopped; it is ignored.

    Attributes:
        status: Status of the late result.
    """

    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncToolContinued(Event, name="async_tool.continued"):
    """The model gets results of asynchronous tool calls."""

    result_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityRetried(_RuleDecision, Event, name="reliability.retried"):
    """A reliability rule retries an operation, or tries another model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityRecovered(_Subject, Event, name="reliability.recovered"):
    """An operation succeeded after earlier attempts had failed or were rejected."""

    operation: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityFellBack(_RuleDecision, Event, name="reliability.fell_back"):
    """A reliability rule continues with a fallback result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityFailedFast(_RuleDecision, Event, name="reliability.failed_fast"):
    """A reliability rule ends the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitOpened(_Subject, Event, name="circuit.opened"):
    """A circuit breaker opened after repeated failures of a provider, model or tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitHalfOpened(_Subject, Event, name="circuit.half_opened"):
    """A circuit breaker admits one call as a probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitClosed(_Subject, Event, name="circuit.closed"):
    """A circuit breaker closed: the provider, model or tool works again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryError(Event, name="telemetry.error"):
    """A part of the telemetry failed; the run is not affected.

    Attributes:
        part: `listener`, `span`, `metric`, `log`, `recording` or `event`.
    """

    part: str
    error: str | None


EVENTS: Final[dict[str, type[Event]]] = {
    value.name: value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Event) and value is not Event
}
"""All events, by name."""
