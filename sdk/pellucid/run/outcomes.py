"""Outcomes of runs, of messages with tool calls, and of tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias

from pellucid.approvals.decisions import ApprovalRequest
from pellucid.approvals.external import ExternalRequest
from pellucid.messages import Message, ToolResult, Usage
from pellucid.types import JSONObject, OutputT_co

Status: TypeAlias = Literal["completed", "limit_reached", "awaiting_approval", "awaiting_tools"]


class BudgetReached(Exception):
    """The next model call does not fit into what the run may spend.

    Its arguments are the name of the limit, and the catalogue that the call offered.
    """


AWAITING: Final = "awaiting"
"""Reason why the loop ends: calls wait for approvals or external results."""


@dataclass(frozen=True, kw_only=True)  # with slots, Python 3.11 cannot call `RunResult[Output](...)`
class RunResult(Generic[OutputT_co]):
    """Result of a run.

    Attributes:
        status: `completed`; `limit_reached` if a limit made the model answer early; `awaiting_approval` if tool calls
            wait for a person, in which case resume with `agent.resume(checkpoint, decisions=...)`; `awaiting_tools` if
            other processes owe results, in which case resume with `agent.resume(checkpoint, results=...)`.
        output: Text of the last answer, or its value if the agent has an output type; None while the run is paused. If
            a limit of cost, tokens or model calls left no room for a closing answer, or cut it off, an empty text or
            what there is of it; None if the agent has an output type.
        messages: The whole conversation, ready to be the `history` of the next run, unless the run is paused.
        usage: Sum over all model calls, including those of sub-agents and those before the run was resumed; `None`
            where no call reported a value.
        iterations: Passes of the loop.
        stop_reason: The model's finish reason, or the name of the limit.
        trace_id: 32 hexadecimal digits; all zero if nothing was traced.
        span_id: Span of the run, 16 hexadecimal digits; all zero if nothing was traced.
        agent: Name of the agent.
        agent_version: Version of the agent; empty if it has none.
        degraded: Ids of providers that failed and were skipped, or that did not answer within their patience.
        budget: Name of the `Budget` that ended the run, if `stop_reason` is `budget`.
        approvals: Pending approvals, and the questions of MCP servers; `elicitations` has the latter only.
        external: Calls whose results other processes owe, also if the run waits for approvals too.
        checkpoint: Plain JSON to resume from, if the run is paused. It holds the whole conversation and is not
            redacted.
    """

    status: Status
    output: OutputT_co
    messages: tuple[Message, ...]
    usage: Usage
    iterations: int
    stop_reason: str
    trace_id: str
    run_id: str
    degraded: tuple[str, ...] = ()
    budget: str | None = None
    approvals: tuple[ApprovalRequest, ...] = ()
    external: tuple[ExternalRequest, ...] = ()
    checkpoint: JSONObject | None = None
    span_id: str = "0" * 16
    agent: str = ""
    agent_version: str = ""

    @property
    def elicitations(self) -> tuple[ApprovalRequest, ...]:
        """Those of the pending approvals that are questions of MCP servers to a person."""
        return tuple(request for request in self.approvals if request.elicitation is not None)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print a summary in IPython and notebooks, where `repr` would show the whole conversation."""
        from pellucid.run.result_text import summary

        printer.text(summary(self))


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that waits for a person.

    Attributes:
        provider_id: Id of the provider that lists the tool.
        fault: Exception of the tool's `needs_approval`, if it failed.
        is_reported: Whether an earlier run emitted `approval.requested`.
        note: Text to add to the result.
    """

    request: ApprovalRequest
    provider_id: str = ""
    fault: Exception | None = None
    is_reported: bool = False
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """Value of a call whose result takes its place, and is owed by another process.

    Attributes:
        note: Text to add to the result.
        is_new: Whether the call was dispatched now, and not in an earlier pass of a durable run.
    """

    request: ExternalRequest
    note: str | None = None
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Suspended:
    """Value that a sub-agent returns when its run has paused.

    Attributes:
        fault: Exception that kept it from resuming, if it failed before anything was run.
        note: Text to add to the result.
    """

    checkpoint: JSONObject
    approvals: Sequence[ApprovalRequest]
    external: Sequence[ExternalRequest] = ()
    fault: Exception | None = None
    note: str | None = None


class Paused(NamedTuple):
    """Partial results of a message whose calls are still waiting.

    Attributes:
        results: Results so far.
        waiting: Calls that wait for a person.
        enqueued: Whether calls of the message wait for results that take their places.
        external: Calls of sub-agents whose results other processes owe.
        nested: Checkpoints of paused nested runs, by ids of calls.
        notes: Additions to the results of calls that wait, by ids of calls.
    """

    results: Sequence[ToolResult]
    waiting: Sequence[Waiting]
    nested: Mapping[str, JSONObject]
    notes: Mapping[str, str]
    enqueued: bool = False
    external: Sequence[ExternalRequest] = ()

    def joined(self, other: Paused) -> Paused:
        """Return the outcomes of these calls and of other calls of the message."""
        return Paused(
            [*self.results, *other.results],
            [*self.waiting, *other.waiting],
            {**self.nested, **other.nested},
            {**self.notes, **other.notes},
            self.enqueued or other.enqueued,
            [*self.external, *other.external],
        )

    @property
    def is_waiting(self) -> bool:
        """True if calls of the message have no result yet."""
        return bool(self.waiting or self.enqueued or self.nested)
