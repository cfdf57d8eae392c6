"""What runs, messages and tool calls result in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias

from pellucid.approvals.decisions import ApprovalRequest
from pellucid.messages import Message, ToolResult, Usage
from pellucid.run.structured_output import OutputT
from pellucid.types import JSONObject

Status: TypeAlias = Literal["completed", "limit_reached", "awaiting_approval"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Generic[OutputT]):
    """What a run came to.

    Attributes:
        status: `completed`; `limit_reached` if a limit made the model answer before it was done; `awaiting_approval` if
            tool calls wait for a person, then go on with `agent.resume(checkpoint, decisions=...)`.
        output: Text of the last answer, or the value it says if the agent has a type for its answers; None while it
            waits.
        messages: The whole conversation, ready to be the `history` of the next run, unless it waits.
        usage: Sum over all model calls, also those of agents that were its tools, and those before it was resumed;
            `None` where no call said anything.
        iterations: Passes of the loop.
        stop_reason: The model's finish reason, or the name of the limit.
        trace_id: 32 hexadecimal digits; all zero if nothing was traced.
        degraded: Ids of providers that failed and were skipped.
        approvals: What it waits for.
        checkpoint: Plain JSON to go on from, if it waits. It holds the whole conversation and is not redacted.
    """

    status: Status
    output: OutputT
    messages: tuple[Message, ...]
    usage: Usage
    iterations: int
    stop_reason: str
    trace_id: str
    run_id: str
    degraded: tuple[str, ...] = ()
    approvals: tuple[ApprovalRequest, ...] = ()
    checkpoint: JSONObject | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that waits for a person.

    Attributes:
        provider_id: Who lists the tool.
        fault: What the tool's `needs_approval` raised, if it failed.
        is_told: Whether an earlier run has told of it.
        note: What its result is to say besides.
    """

    request: ApprovalRequest
    provider_id: str = ""
    fault: Exception | None = None
    is_told: bool = False
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Suspended:
    """What an agent that is a tool returns when its run waits.

    Attributes:
        fault: Why it goes on waiting, if it was to go on and failed before it did anything.
        note: What its result is to say besides.
    """

    checkpoint: JSONObject
    approvals: Sequence[ApprovalRequest]
    fault: Exception | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """What there is of the calls of a message when a run comes to wait. Attributes: nested, notes: see `Checkpoint`."""

    results: Sequence[ToolResult]
    waiting: Sequence[Waiting]
    nested: Mapping[str, JSONObject]
    notes: Mapping[str, str]
