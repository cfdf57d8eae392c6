"""Events of what an agent may not use, loaded with the first of them; and all events by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pellucid import events
from pellucid.events import Event, _AsyncCall, _ToolCall
from pellucid.types import JSONValue

__all__ = [
    "EVENTS",
    "ApprovalDecided",
    "ApprovalRequested",
    "AsyncToolContinued",
    "AsyncToolDispatched",
    "AsyncToolExpired",
    "AsyncToolLate",
    "BudgetLow",
    "CircuitClosed",
    "CircuitHalfOpened",
    "CircuitOpened",
    "ContextCompacted",
    "ReliabilityFailedFast",
    "ReliabilityFellBack",
    "ReliabilityRecovered",
    "ReliabilityRetried",
    "ScoreRecorded",
    "ToolDenied",
    "ToolOutputInvalid",
    "ToolsActivated",
    "ToolsDeactivated",
    "ToolsRedefined",
    "ToolsSearched",
]


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """Fields of the events about a provider, tool or model; the others are None."""

    __slots__ = ()
    provider_id: str | None
    tool_name: str | None
    model: str | None


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
        diff: Differences from the lock file, word by word as `[-old-]{+new+}`, redacted and cut.
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
class BudgetLow(Event, name="budget.low"):
    """A budget that the run shares with others is nearly spent, is spent, or has refused a call; once each in a run.

    It is nearly spent from 80 % on.

    Attributes:
        budget: Name of the budget.
        limit: `cost`, `tokens` or `model_calls`.
        value: The limit.
        spent: Amounts of ended calls, of all runs.
        reserved: Most that the calls in flight may use.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncToolDispatched(_AsyncCall, Event, name="async_tool.dispatched"):
    """An asynchronous tool call was dispatched, and the model continues without its result.

    Attributes:
        deadline: Time at which it expires, in seconds since the epoch; None if it never does.
    """

    deadline: float | None


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
class ScoreRecorded(Event, name="score.recorded"):
    """A run, an answer or another span was scored.

    Attributes:
        score: Quality that was judged.
        value: A number, 0 or more; None if there is none.
        label: Word for the value.
        explanation: Why, redacted; None if no content is recorded.
        by: The judge.
        error_type: Type of the error for which there is no judgement.
        response_id: Id of the model's answer that was judged.
        version: Version of the agent, if it was given.
        model: Model that was asked, if it was given.
    """

    score: str
    value: float | None
    label: str | None
    explanation: str | None
    by: str | None
    error_type: str | None
    response_id: str | None
    version: str | None = None
    model: str | None = None


EVENTS: Final[dict[str, type[Event]]] = {
    value.name: value
    for value in [*vars(events).values(), *globals().values()]
    if isinstance(value, type) and issubclass(value, Event) and value is not Event
}
"""All events, by name."""
