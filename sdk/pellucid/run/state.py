"""The state of one run, and what it comes to."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias

import anyio

from pellucid.approvals.checkpoint import Resumption
from pellucid.approvals.decisions import ApprovalRequest
from pellucid.context import CancelToken, DiscoveryContext, Identity, Limits
from pellucid.errors import PolicyHalt, RunCancelled
from pellucid.messages import Message, ToolResult, Usage
from pellucid.models import Model, Prices, Settings
from pellucid.offer.lazy import Offers
from pellucid.offer.permission import Permissions
from pellucid.offer.pins import Pins
from pellucid.providers.listing import Lister
from pellucid.providers.skills import ActiveSkills, Skill
from pellucid.reliability import Reliability
from pellucid.run.structured_output import Output, OutputT
from pellucid.telemetry import Listeners, Pipeline, Scope
from pellucid.tools.catalog import Catalog, Catalogs
from pellucid.tools.collisions import Told
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is the same in all runs of an agent.

    Attributes: parameters: hash of what is the same in all its requests beside instructions and tools.
    """

    name: str
    description: str | None
    model: Model
    instructions: str | None
    output: Output[Any] | None
    settings: Settings
    parameters: str
    prices: Prices
    reliability: Reliability | None
    listers: tuple[Lister, ...]
    limits: Limits
    catalogs: Catalogs
    listeners: Listeners
    skills: Mapping[str, Skill]
    permissions: Permissions | None
    pin: bool


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


class Run(Scope):
    """One run under way: its telemetry, and the state that the phases hand on.

    Attributes:
        messages: The conversation so far.
        reader: Who reads the run as a stream, if anybody does; the model is asked for a stream then.
        model_calls: Attempts to call a model so far.
        tool_calls: Calls dispatched so far, in nested runs too.
        own_tool_calls: Those of this run.
        offered: Names of all tools that were ever offered, to tell a removed one from an invented one.
        offering: Digest of the catalogue that was offered last.
        permitted: The catalogue of the last iteration, and what the policy let the model have of it.
        denied: Names of tools of which the run was told that the policy denies them.
        halted: Why the policy ended the run, once it has.
        skills: Which skills the conversation has activated; None if the agent has no skills.
        outer: The run that this one is nested in, as an agent that is another's tool.
        may_wait: Whether there is anybody to go on with it when it has waited.
        depth: How many runs it is nested in.
        outer_deadline: When the run that this one is nested in must be over, on the event loop's clock.
        closed: Whether it was left behind: its spans have ended, and it may do nothing more.
        nested: The runs nested in this one that are under way, and the ids of the calls that they are nested in.
        delegated: What the runs nested in this one have used.
        earlier: What was used before it was resumed.
        resumption: What it begins with, if it was resumed.
        asked: What people were asked that has to be decided in this run, by ids of approvals.
        paused: Results and waiting calls of the message in which it came to wait, if it did.
        waits_for: What it waits for, once it has told of it.
        answering: Name of the model that answered last, of several the one that did.
        shadowed: Collisions of which the run was told last.
        offers: What is offered of catalogues with lazy tools.
        pins: What tools were when the model was given them.
        answer: What the last answer came to: its text, or the value it says.
        repaired: Whether the model was told once that its answer is not of the type that is wanted.
    """

    __slots__ = (
        "answer",
        "answering",
        "asked",
        "closed",
        "delegated",
        "denied",
        "deps",
        "depth",
        "earlier",
        "halted",
        "limits",
        "may_wait",
        "messages",
        "model_calls",
        "nested",
        "offered",
        "offering",
        "offers",
        "outer",
        "outer_deadline",
        "own_tool_calls",
        "paused",
        "permitted",
        "pins",
        "reader",
        "repaired",
        "resumption",
        "serial",
        "setup",
        "shadowed",
        "signal",
        "skills",
        "tool_calls",
        "usage",
        "waits_for",
    )

    def __init__(
        self,
        setup: Setup,
        messages: Sequence[Message],
        *,
        identity: Identity | None,
        signal: CancelToken | None,
        deps: Any,
        pipeline: Pipeline | None,
        stream: Listeners | None = None,
    ) -> None:
        super().__init__(
            agent=setup.name,
            run_id=uuid.uuid4().hex,
            identity=identity,
            pipeline=pipeline,
            listeners=(setup.listeners, stream) if stream is not None else (setup.listeners,),
        )
        self.setup = setup
        self.limits = setup.limits
        self.messages = list(messages)
        self.signal = signal
        self.deps = deps
        self.reader = stream
        self.usage = Usage()
        self.earlier = Usage()
        self.resumption: Resumption | None = None
        self.asked: dict[str, ApprovalRequest] = {}
        self.paused: Paused | None = None
        self.waits_for: tuple[ApprovalRequest, ...] = ()
        self.tool_calls = 0
        self.model_calls = 0
        self.own_tool_calls = 0
        self.offers = Offers(self.limits.max_discoveries, setup.permissions, self.limits.max_tool_tokens)
        self.pins = Pins(self.offers.activation, refuses=setup.pin)
        self.offered: set[str] = set()
        self.offering: str | None = None
        self.permitted: tuple[Catalog, Catalog] | None = None
        self.denied: set[str] = set()
        self.halted: PolicyHalt | None = None
        self.skills = ActiveSkills(setup.skills) if setup.skills else None
        self.outer: Run | None = None
        self.may_wait = True
        self.depth = 0
        self.outer_deadline = math.inf
        self.closed = False
        self.nested: dict[Run, str] = {}
        self.delegated = Usage()
        self.answering = setup.model.name
        self.shadowed: Told = frozenset()
        self.answer: Any = None
        self.repaired = False
        self.serial = anyio.Lock()

    @property
    def spent(self) -> Usage:
        """What it has used so far, with the runs nested in it, and before it was resumed."""
        return self.earlier + self._used

    @property
    def _used(self) -> Usage:
        return sum((run._used for run in self.nested), self.usage + self.delegated)  # noqa: SLF001  (of the same class)

    def count_call(self) -> int | None:
        """Count a tool call of this run and of those that it is nested in; return the bound that is passed by it."""
        self.tool_calls += 1
        passed = self.outer.count_call() if self.outer is not None else None
        most = self.limits.max_tool_calls
        return most if most is not None and self.tool_calls > most else passed

    def over(self) -> str | None:
        """Return why nothing more may be begun, also where the event loop could not tell it yet: it is over."""
        if self.closed or (self.signal is not None and self.signal.cancelled):
            return "cancelled"
        return "deadline" if self.deadline is not None and anyio.current_time() >= self.deadline else None

    def check_open(self) -> None:
        """Stop what goes on in a run that was left behind because something in it did not let itself be cancelled.

        Raises:
            RunCancelled: it was; nobody hears of this.
        """
        if self.closed:
            raise RunCancelled(self.agent, "it is over")

    def leave(self, nested: Run) -> None:
        """Let go of a run nested in this one, which is over or is left behind: end its spans, and count its usage."""
        if self.nested.pop(nested, None) is not None:
            nested.close()
            if (resumed := nested.resumption) is not None and resumed.is_taken_up:
                self.answer_for(resumed.checkpoint.approvals)
            self.ask(nested.waits_for)
            self.delegated += nested._used

    def leave_all(self, call_id: str | None = None) -> None:
        """Let go of the runs nested in a call, or in any."""
        for nested in [each for each, of in self.nested.items() if call_id in (None, of)]:
            self.leave(nested)

    def ask(self, approvals: Iterable[ApprovalRequest]) -> None:
        """Note what has to be decided in this run: if it ends otherwise, nobody can decide it any longer."""
        self.asked.update({each.approval_id: each for each in approvals})

    def answer_for(self, approvals: Iterable[ApprovalRequest]) -> None:
        """Note what was decided, or goes on waiting elsewhere."""
        for each in approvals:
            self.asked.pop(each.approval_id, None)

    def close(self) -> None:
        """End what is still open, what is nested first."""
        self.closed = True
        self.leave_all()
        super().close()

    def discovery_context(self) -> DiscoveryContext:
        """Return what providers may know in this iteration."""
        active = self.skills.read(self.messages) if self.skills is not None else ()
        return DiscoveryContext(
            iteration=self.iteration,
            active_skill_id=active[-1] if active else None,
            active_skill_ids=active,
            identity=self.identity,
            signal=self.signal,
            deadline=self.deadline,
        )

    @property
    def conversation_id(self) -> str | None:
        """Value of `gen_ai.conversation.id`: only if the caller gave one."""
        return self.identity.conversation_id if self.identity is not None else None
