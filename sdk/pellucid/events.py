"""What happens in a run, as frozen records. The class is the name, the payload and the registration.

Listen with `agent.on("tools.discovery_failed", listener)`, or with the patterns `"tools.*"` and `"*"`. Payloads obey
the run's capture policy: texts of errors are redacted, and absent in the modes `metadata` and `off`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from pellucid.context import Identity
from pellucid.messages import Usage
from pellucid.types import JSONValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The envelope of every event.

    Attributes:
        run_id: The run it happened in; empty for background work.
        agent: Name of the agent.
        iteration: 1-based; 0 before the first.
        trace_id: 32 hexadecimal digits of the span it belongs to.
        span_id: 16 hexadecimal digits.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """A run began."""

    name: ClassVar[str] = "run.started"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCompleted(Event):
    """A run came to a result."""

    name: ClassVar[str] = "run.completed"
    duration_ms: float
    stop_reason: str
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(Event):
    """A run failed, was cancelled or passed its deadline; `outcome` says which."""

    name: ClassVar[str] = "run.failed"
    duration_ms: float
    outcome: str
    error: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsDiscoveryStarted(Event):
    """A tool provider was asked for its tools."""

    name: ClassVar[str] = "tools.discovery_started"
    provider_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsDiscoveryCompleted(Event):
    """A tool provider listed its tools.

    Attributes:
        cache: `none`, `hit`, `miss`, `joined` or `stale`.
    """

    name: ClassVar[str] = "tools.discovery_completed"
    provider_id: str
    duration_ms: float
    tool_count: int
    cache: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsDiscoveryFailed(Event):
    """A tool provider failed, was cancelled or timed out; `outcome` says which."""

    name: ClassVar[str] = "tools.discovery_failed"
    provider_id: str
    duration_ms: float
    cache: str
    outcome: str
    error: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsCatalogChanged(Event):
    """A provider's catalogue has other content than the last time."""

    name: ClassVar[str] = "tools.catalog_changed"
    provider_id: str
    tool_count: int
    digest: str
    previous_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsCatalogStale(Event):
    """An old catalogue was served: while it is fetched anew, or because that failed; `error` says which."""

    name: ClassVar[str] = "tools.catalog_stale"
    provider_id: str
    seconds_over: float
    error: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsQuarantined(Event):
    """A provider with `on_invalid="quarantine"` listed a broken tool, which was left out."""

    name: ClassVar[str] = "tools.quarantined"
    provider_id: str
    tool_name: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsShadowed(Event):
    """Two tools have one name, and the first two fields say which of them is called by it.

    Attributes:
        source: `builtin`, `mcp:<server>` or `hub:<provider id>`.
        shadowed_provider_id: Provider of the other one.
        shadowed_source: Its source.
        offered_as: The name under which the other is offered; None if it is not.
    """

    name: ClassVar[str] = "tools.shadowed"
    tool_name: str
    provider_id: str
    source: str
    shadowed_provider_id: str
    shadowed_source: str
    offered_as: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsSearched(Event):
    """A model searched for tools.

    Attributes:
        hits: How many tools match.
        names: The best of them, best first.
    """

    name: ClassVar[str] = "tools.searched"
    query: str | None
    hits: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsActivated(Event):
    """A lazy tool was activated.

    Attributes:
        via: `tool_search`, `__lazy__tool__discovery__`, `history`: it was in an earlier run of the conversation, or
            `checkpoint`: it was when the run came to wait.
    """

    name: ClassVar[str] = "tools.activated"
    tool_name: str
    provider_id: str
    via: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsDeactivated(Event):
    """A lazy tool is no longer active.

    Attributes:
        reason: `removed` from the catalogue, `not_lazy` any more, `denied` by the policy, or `budget`: it made room for
            others.
    """

    name: ClassVar[str] = "tools.deactivated"
    tool_name: str
    provider_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsBudgetExceeded(Event):
    """The offered tools take more tokens than they may: those that are not lazy, or that the model has just asked for.

    Attributes:
        tokens: What they take, by an estimate.
        max_tokens: What they may take.
        eager_tokens: What those take that are not lazy, and so are never left out.
    """

    name: ClassVar[str] = "tools.budget_exceeded"
    tokens: int
    max_tokens: int
    eager_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsRedefined(Event):
    """A tool has another definition than before under the same name, or comes from another provider or source.

    Attributes:
        provider_id: Who lists it now.
        digest: Hash of its definition.
        previous_digest: Hash of the one before; the same if only the provider or the source is another.
        after: What the tool was pinned at: `offer`, `activation` or `approval`.
        refused: Whether it is kept from the model; False too when it is again what it was.
    """

    name: ClassVar[str] = "tools.redefined"
    tool_name: str
    provider_id: str
    digest: str
    previous_digest: str
    after: str
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestComposed(Event):
    """A model request is ready.

    Attributes:
        digest: Hash of it; None if nothing is recorded.
    """

    name: ClassVar[str] = "request.composed"
    duration_ms: float
    tool_count: int
    message_count: int
    digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceStarted(Event):
    """A model was called."""

    name: ClassVar[str] = "inference.started"
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceDelta(Event):
    """A piece of a streamed answer arrived.

    Attributes:
        type: `text`, `reasoning` or `tool_call`.
        content: The piece as it is for the reader of the stream. Other listeners get it redacted, or empty if no
            content is recorded; a secret that is split over several pieces cannot be recognised.
    """

    name: ClassVar[str] = "inference.delta"
    type: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceCompleted(Event):
    """A model answered."""

    name: ClassVar[str] = "inference.completed"
    model: str
    duration_ms: float
    finish_reason: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceFailed(Event):
    """A model call failed, was cancelled or timed out; `outcome` says which."""

    name: ClassVar[str] = "inference.failed"
    model: str
    duration_ms: float
    outcome: str
    error: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRejected(Event):
    """A model's answer is not of the type that the agent asks for.

    Attributes:
        is_final: The run fails of it; otherwise the model was told, and answers once more.
    """

    name: ClassVar[str] = "output.rejected"
    problem: str
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(Event):
    """A tool call began."""

    name: ClassVar[str] = "tool.started"
    tool_name: str
    tool_call_id: str
    provider_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress(Event):
    """A tool reported progress."""

    name: ClassVar[str] = "tool.progress"
    tool_name: str
    tool_call_id: str
    value: JSONValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCompleted(Event):
    """A tool call returned."""

    name: ClassVar[str] = "tool.completed"
    tool_name: str
    tool_call_id: str
    provider_id: str | None
    duration_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFailed(Event):
    """A tool call failed, was cancelled or timed out; `outcome` says which."""

    name: ClassVar[str] = "tool.failed"
    tool_name: str
    tool_call_id: str
    provider_id: str | None
    duration_ms: float
    outcome: str
    error: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDenied(Event):
    """The permission policy did not let a tool be offered, activated or called.

    Attributes:
        tool_call_id: The call, or the one that was to activate the tool; None at stage `offer`, and for a history.
        stage: `offer` (told once for each tool and run), `activation` or `dispatch`.
        permission: `deny`, or `halt` if it ended the run.
        error_type: What the policy raised, if it failed; then nobody decided, and the answer is no.
    """

    name: ClassVar[str] = "tool.denied"
    tool_name: str
    provider_id: str
    tool_call_id: str | None
    stage: str
    permission: str
    reason: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested(Event):
    """A run waits for a person to approve of a tool call.

    Attributes:
        arguments: What the tool would get, redacted; None if no content is recorded.
        expires_at: Seconds since the epoch; None: never.
        reason: Why, if a policy has said so.
        error_type: What the tool's `needs_approval` raised, if it failed; then approval is needed.
    """

    name: ClassVar[str] = "approval.requested"
    approval_id: str
    tool_name: str
    tool_call_id: str
    provider_id: str
    arguments: JSONValue
    expires_at: float | None
    reason: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecided(Event):
    """A person decided about a tool call, it is too late for that, or the run that waits can no longer heed it.

    Attributes:
        outcome: `approved`, `denied`, `expired`, or `withdrawn`: the run ended otherwise, as by a cancellation.
        edited: Whether the arguments were changed.
        waited_ms: Milliseconds from the request to the decision.
    """

    name: ClassVar[str] = "approval.decided"
    approval_id: str
    tool_name: str
    tool_call_id: str
    outcome: str
    edited: bool
    reason: str | None
    decided_by: str | None
    waited_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityRetried(Event):
    """A reliability rule has an operation tried again, or another model.

    Attributes:
        kind: The rule's.
    """

    name: ClassVar[str] = "reliability.retried"
    operation: str
    provider_id: str | None
    tool_name: str | None
    model: str | None
    attempt: int
    kind: str
    error: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityRecovered(Event):
    """An operation succeeded after attempts that were not taken."""

    name: ClassVar[str] = "reliability.recovered"
    operation: str
    provider_id: str | None
    tool_name: str | None
    model: str | None
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityFellBack(Event):
    """A reliability rule goes on with another result.

    Attributes:
        kind: The rule's.
    """

    name: ClassVar[str] = "reliability.fell_back"
    operation: str
    provider_id: str | None
    tool_name: str | None
    model: str | None
    attempt: int
    kind: str
    error: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityFailedFast(Event):
    """A reliability rule ends the run.

    Attributes:
        kind: The rule's.
        attempt: 0 before the first.
    """

    name: ClassVar[str] = "reliability.failed_fast"
    operation: str
    provider_id: str | None
    tool_name: str | None
    model: str | None
    attempt: int
    kind: str
    error: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitOpened(Event):
    """A provider, model or tool failed again and again, and is left alone."""

    name: ClassVar[str] = "circuit.opened"
    provider_id: str | None
    tool_name: str | None
    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitHalfOpened(Event):
    """One call may try whether it works again."""

    name: ClassVar[str] = "circuit.half_opened"
    provider_id: str | None
    tool_name: str | None
    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitClosed(Event):
    """It works again."""

    name: ClassVar[str] = "circuit.closed"
    provider_id: str | None
    tool_name: str | None
    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryError(Event):
    """Something that only observes failed; the run did not notice.

    Attributes:
        part: `listener`, `span`, `metric`, `log`, `recording` or `event`.
    """

    name: ClassVar[str] = "telemetry.error"
    part: str
    error: str | None


EVENTS: Final[dict[str, type[Event]]] = {
    value.name: value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Event) and value is not Event
}
"""All events by their names."""
