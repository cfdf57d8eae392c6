"""The state of one run."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any

import anyio

from pellucid.approvals.checkpoint import Resumption
from pellucid.context import CancelToken, DiscoveryContext, Identity, Limits
from pellucid.errors import PolicyHalt, RunCancelled
from pellucid.messages import Message, Usage
from pellucid.models import Model, Prices, Settings
from pellucid.offer.offering import Offering
from pellucid.offer.permission import Permissions
from pellucid.providers.listing import Lister
from pellucid.providers.skills import ActiveSkills, Skill
from pellucid.reliability import Reliability
from pellucid.run.conversation import Conversation
from pellucid.run.pending_approvals import PendingApprovals
from pellucid.run.structured_output import Output
from pellucid.run.tally import Tally
from pellucid.telemetry import Listeners, Pipeline, Scope, current_scope
from pellucid.tools.catalog import Catalogs


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


class Run:
    """One run under way.

    Attributes:
        setup: What is the same in all runs of the agent.
        limits: The bounds of the agent's runs.
        conversation_id: Value of `gen_ai.conversation.id`: only if the caller gave one.
        scope: Its telemetry.
        conversation: Its messages.
        offering: What of the catalogues the model is offered.
        tally: What it has used.
        nesting: The runs around it and inside of it.
        approvals: What it is waiting for.
        resumption: What it resumes from, if it was resumed.
        signal: Cancels it.
        deps: What the caller gave for tools.
        reader: Who reads the run as a stream, if anybody does; the model is asked for a stream then.
        serial: Held by the call of a serial tool.
        halted: Why the policy ended the run, once it has.
        closed: Whether its spans have ended; an abandoned run may do nothing more.
    """

    __slots__ = (
        "__weakref__",
        "approvals",
        "closed",
        "conversation",
        "conversation_id",
        "deps",
        "halted",
        "limits",
        "nesting",
        "offering",
        "reader",
        "resumption",
        "scope",
        "serial",
        "setup",
        "signal",
        "tally",
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
        self.setup = setup
        self.limits = limits = setup.limits
        self.conversation_id = identity.conversation_id if identity is not None else None
        self.scope = Scope(
            agent=setup.name,
            run_id=uuid.uuid4().hex,
            identity=identity,
            pipeline=pipeline,
            listeners=(setup.listeners, stream) if stream is not None else (setup.listeners,),
        )
        skills = ActiveSkills(setup.skills) if setup.skills else None
        self.conversation = Conversation(messages, skills, setup.model.name)
        self.offering = Offering(
            setup.permissions,
            max_discoveries=limits.max_discoveries,
            max_tokens=limits.max_tool_tokens,
            pin=setup.pin,
        )
        self.tally = Tally()
        self.nesting = Nesting(self)
        self.approvals = PendingApprovals()
        self.resumption: Resumption | None = None
        self.signal = signal
        self.deps = deps
        self.reader = stream
        self.serial = anyio.Lock()
        self.halted: PolicyHalt | None = None
        self.closed = False

    @property
    def spent(self) -> Usage:
        """What it has used so far, with the runs nested in it, and before it was resumed."""
        return self.tally.earlier + self.nesting.used

    def over(self) -> str | None:
        """Return why the run must stop (`cancelled`, `deadline`), also if the event loop could not tell it; or None."""
        if self.closed or (self.signal is not None and self.signal.cancelled):
            return "cancelled"
        deadline = self.scope.deadline
        return "deadline" if deadline is not None and anyio.current_time() >= deadline else None

    def check_open(self) -> None:
        """Stop an abandoned run, in which something did not let itself be cancelled.

        Raises:
            RunCancelled: it was abandoned; nobody receives this.
        """
        if self.closed:
            raise RunCancelled(self.scope.agent, "it is over")

    def close(self) -> None:
        """End what is still open, nested runs first."""
        self.closed = True
        self.nesting.release_all()
        self.scope.close()

    def discovery_context(self) -> DiscoveryContext:
        """Return what providers may know in this iteration."""
        active = self.conversation.active_skills()
        return DiscoveryContext(
            iteration=self.scope.iteration,
            active_skill_id=active[-1] if active else None,
            active_skill_ids=active,
            identity=self.scope.identity,
            signal=self.signal,
            deadline=self.scope.deadline,
        )


class Nesting:
    """The place of a run among others.

    Attributes:
        outer: The run that this one is nested in, as an agent that is another's tool.
        depth: How many runs it is nested in.
        deadline: When the outer run must end, on the event loop's clock.
        may_wait: Whether anybody can resume this run once it has paused.
        inner: The runs nested in this one that are under way, and the ids of the calls that they are nested in.
    """

    __slots__ = ("_run", "deadline", "depth", "inner", "may_wait", "outer")

    def __init__(self, run: Run) -> None:
        self._run = run
        self.outer: Run | None = None
        self.depth = 0
        self.deadline = math.inf
        self.may_wait = True
        self.inner: dict[Run, str] = {}

    def enter(self, outer: Run) -> None:
        """Nest this run in another one."""
        self.outer, self.depth = outer, outer.nesting.depth + 1

    @property
    def used(self) -> Usage:
        """What the run and those nested in it have used since it started."""
        tally = self._run.tally
        return sum((run.nesting.used for run in self.inner), tally.usage + tally.delegated)

    def count_call(self) -> int | None:
        """Count a tool call of this run and of those that it is nested in; return the limit that it exceeds."""
        self._run.tally.tool_calls += 1
        exceeded = self.outer.nesting.count_call() if self.outer is not None else None
        most = self._run.limits.max_tool_calls
        return most if most is not None and self._run.tally.tool_calls > most else exceeded

    def release(self, nested: Run) -> None:
        """Let go of a nested run that has ended or was abandoned: end its spans, and count what it used."""
        if self.inner.pop(nested, None) is None:
            return
        nested.close()
        approvals = self._run.approvals
        if (resumed := nested.resumption) is not None and resumed.is_taken_up:
            approvals.release(resumed.checkpoint.approvals)
        approvals.expect(nested.approvals.requested)
        self._run.tally.delegated += nested.nesting.used

    def release_all(self, call_id: str | None = None) -> None:
        """Let go of the runs nested in a call, or of all."""
        for nested in [run for run, of in self.inner.items() if call_id in (None, of)]:
            self.release(nested)


_current: ContextVar[Run | None] = ContextVar("pellucid_run", default=None)


def current_run() -> Run | None:
    """Return the run that this code runs in."""
    run = _current.get()
    return run if run is not None and run.scope is current_scope() else None


def enter_run(run: Run) -> Token[Run | None]:
    """Make a run the current one; returns the token for `leave_run`."""
    return _current.set(run)


leave_run = _current.reset
