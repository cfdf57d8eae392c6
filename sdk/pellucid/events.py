"""Events of a run, as frozen records. The class is the name, the payload and the registration.

Subscribe with `agent.on("tools.discovery_failed", listener)`, with the class `ToolsDiscoveryFailed`, or with the
patterns `"tools.*"` and `"*"`; `pellucid.telemetry.subscriptions` has a signature for each event. Payloads follow the
run's capture policy: error texts are redacted, and absent in the modes `metadata` and `off`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from pellucid.context import Identity
from pellucid.messages import Usage
from pellucid.types import JSONValue

if TYPE_CHECKING:
    from pellucid.feature_events import *  # noqa: F403


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
class _ToolCall:
    """Fields of the events about a tool call."""

    __slots__ = ()
    tool_name: str
    tool_call_id: str


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
class TelemetryError(Event, name="telemetry.error"):
    """A part of the telemetry failed; the run is not affected.

    Attributes:
        part: `listener`, `span`, `metric`, `log`, `recording` or `event`.
    """

    part: str
    error: str | None


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return an event of a feature, or all events by name, which are loaded at their first use."""
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("pellucid.feature_events"), name)
