"""State of one run."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from anyio.lowlevel import EventLoopToken

from pellucid import semconv
from pellucid.context import CancelToken, Identity, Limits
from pellucid.errors import PolicyHalt, RunCancelled, RunTimeout, ToolError
from pellucid.messages import Message, ToolCall, Usage
from pellucid.models import Model, Prices, Settings
from pellucid.models.facts import ModelFacts
from pellucid.providers.listing import Lister
from pellucid.run.run_journal import NO_JOURNAL, RunJournal
from pellucid.run.structured_output import Output
from pellucid.run.unpaused import UNPAUSED, Unpaused
from pellucid.selection.selection import Selection
from pellucid.telemetry import Listeners, Pipeline, Scope, current_scope
from pellucid.text import excerpt
from pellucid.tools.catalog import Catalogs
from pellucid.tools.tool import Tool

if TYPE_CHECKING:
    from pellucid.compaction import Context
    from pellucid.providers.skills import ActiveSkills, Skill
    from pellucid.reliability import Reliability
    from pellucid.run.budget import RunBudget
    from pellucid.run.fitting import Fitting
    from pellucid.run.journal import LiveText
    from pellucid.selection.permission import Permissions
    from pellucid.telemetry.content import CapturedValue


def _nobody(*_run: object, is_final: bool = False) -> None:
    """Do nothing with a run that has ended: nobody waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Configuration that all runs of an agent share.

    Attributes:
        version: Version that the application gives the agent.
        instructions: System text that never changes.
        varying: Functions whose texts follow it.
        tools: Own tools of the agent, which the first lister has, too.
        parameters: Hash of the settings and the output schema, which are part of every request.
        budget: Budgets that the runs share with others, or a function of the context that returns some.
        context: Options by which requests are fitted into the window.
        is_warm: Whether the agent warms up in the background.
        is_standalone: Whether it is that of `observe()`, whose calls belong to no run.
        ended: Called with each run that has ended, and its outcome; of a durable run with each pass, and with the last
            one again, once the run has ended (`is_final`).
        captured: Captured configuration, by capture policy.
        handlers: Chains of links that calls pass through, by kinds of calls.
        models: The models to call in order.
    """

    name: str
    description: str | None
    version: str | None = None
    model: Model
    instructions: str | None
    varying: tuple[Callable[..., Any], ...] = ()
    output: Output[Any] | None
    settings: Settings
    parameters: str
    prices: Prices
    reliability: Reliability | None
    tools: tuple[Tool, ...]
    listers: tuple[Lister, ...]
    limits: Limits
    catalogs: Catalogs
    listeners: Listeners
    skills: Mapping[str, Skill]
    permissions: Permissions | None
    pin: bool
    budget: Any = None
    context: Context | None = None
    is_warm: bool = False
    is_standalone: bool = False
    ended: Callable[..., None] = _nobody
    captured: dict[object, CapturedValue] = field(default_factory=dict)
    handlers: dict[Any, Any] = field(default_factory=dict, init=False)
    models: tuple[ModelFacts, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", ModelFacts.of_all(self.model))


@dataclass(frozen=True, slots=True, eq=False)
class Configuration:
    """Configuration of an agent's runs, and where their telemetry goes."""

    setup: Setup
    pipeline: Pipeline | None = None


@dataclass(frozen=True, kw_only=True)
class CallerContext:
    """Options of a run besides its input.

    Attributes:
        budget: Budgets that the run shares with others, besides those of its agent.
        stream: Listeners of the stream's reader, if the run is streamed.
        journal: Journal of the pass, in which a run that is not durable writes nothing.
        live: Sends pieces of the answers to those who read the durable run.
        check_tools: Checks the tools of each iteration, before the model is called, those of nested runs too; it raises
            to end the run.
        namespace: Namespace of the ids of calls; that of the run's own id by default.
        tags: Tags of the run.
    """

    identity: Identity | None
    signal: CancelToken | None
    deps: Any
    budget: Any = None
    stream: Listeners | None = None
    pipeline: Pipeline | None = None
    journal: RunJournal = NO_JOURNAL
    live: LiveText | None = None
    check_tools: Callable[[Iterable[Tool]], None] | None = None
    namespace: uuid.UUID | None = None
    tags: tuple[str, ...] = ()

    @cached_property
    def conversation_id(self) -> str | None:
        """Value of `gen_ai.conversation.id`, if the caller gave one."""
        return self.identity.conversation_id if self.identity is not None else None


@dataclass(slots=True)
class Conversation:
    """Conversation of a run so far.

    Attributes:
        messages: The messages, oldest first.
        answered_by: Name of the model that answered last.
        skills: Reader of the active skills, if the agent has skills.
        journalled: Number of messages that the journal has, if the run is durable.
        dispatched: The calls of the last message that had several, and their outcomes so far, by ids.
        fitting: Fits requests into the window, if the agent has a `context`; `pellucid.run.fitted` sets it.
    """

    messages: list[Message]
    answered_by: str
    skills: ActiveSkills | None
    journalled: int
    dispatched: tuple[Sequence[ToolCall], Mapping[str | None, object]] = (), {}
    fitting: Fitting | None = None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Tool calls of the last message."""
        return self.messages[-1].tool_calls

    def active_skills(self) -> tuple[str, ...]:
        """Return the ids of the active skills, in order of activation."""
        return tuple(self.skills.read(self.messages)) if self.skills is not None else ()


@dataclass(slots=True)
class Tally:
    """Usage and call counts of a run.

    Attributes:
        usage: Usage of the run's own model calls.
        delegated: Usage of nested runs that have ended.
        earlier: Usage before the run was resumed.
        model_calls: Attempts to call a model.
        tool_calls: Calls dispatched, including nested runs and the time before the run was resumed.
        own_tool_calls: Calls dispatched by this run.
    """

    usage: Usage = field(default_factory=Usage)
    delegated: Usage = field(default_factory=Usage)
    earlier: Usage = field(default_factory=Usage)
    model_calls: int = 0
    tool_calls: int = 0
    own_tool_calls: int = 0


class Run:
    """State of one active run.

    Attributes:
        setup: Configuration that all runs of the agent share.
        limits: Limits of the agent's runs.
        caller: Options of the run.
        scope: Its telemetry.
        conversation: Its messages.
        selection: Which tools of the catalogues the model gets.
        tally: Its usage and call counts.
        nesting: Its outer run and its nested runs.
        pausing: Calls that it waits for, or was waiting for when it was resumed.
        serial: Lock held by the call of a serial tool.
        journal: Journal of the pass, in which a run that is not durable writes nothing.
        notices: Sentences that providers added to the instructions.
        halted: Error with which the policy ended the run, if it did.
        closed: Whether its spans have ended; an abandoned run must not do anything more.
        token: The event loop, once the run has started.
    """

    def __init__(
        self, setup: Setup, messages: Sequence[Message], caller: CallerContext, scope: Scope | None = None
    ) -> None:
        self.setup = setup
        self.limits = setup.limits
        self.caller = caller
        self.scope = scope or Scope(
            agent=setup.name,
            run_id=uuid.uuid4().hex,
            identity=caller.identity,
            pipeline=caller.pipeline,
            listeners=(setup.listeners,) if caller.stream is None else (setup.listeners, caller.stream),
        )
        self.conversation = Conversation(list(messages), setup.model.name, _active(setup.skills), len(messages))
        self.selection = Selection(self.scope, setup.permissions, setup.limits, pin=setup.pin)
        self.tally = Tally()
        self.nesting = Nesting(self)
        self.pausing: Unpaused = UNPAUSED
        self.serial = anyio.Lock()
        self.journal = caller.journal
        self.notices: dict[str, None] = {}
        self.halted: PolicyHalt | None = None
        self.closed = False
        self.token: EventLoopToken | None = None
        self.scope.is_continued_elsewhere = self.journal.is_continued_elsewhere
        self._namespace = self.journal.namespace or caller.namespace or uuid.UUID(self.scope.run_id)

    def id_of(self, tool_call_id: str) -> uuid.UUID:
        """Return an id for a call of this iteration, which is the same if the call is repeated in another process."""
        # In ASCII, because ids may hold what UTF-8 does not.
        return uuid.uuid5(self._namespace, f"{self.scope.iteration}:{tool_call_id!a}")

    def stop_cause(self) -> str | None:
        """Return why the run must stop (`cancelled`, `deadline`), or None, also before the event loop stops it."""
        if self.closed or ((signal := self.caller.signal) is not None and signal.cancelled):
            return "cancelled"
        return "deadline" if (limit := self.scope.deadline) is not None and anyio.current_time() >= limit else None

    def check_stopped(self) -> None:
        """Check that the run was not stopped, also before the event loop delivers the cancellation.

        Raises:
            RunCancelled, RunTimeout: the run was stopped.
        """
        if (cause := self.stop_cause()) is not None:
            self.scope.cancelled = self.scope.cancelled or cause == "cancelled"
            raise stopped(self)

    def check_open(self) -> None:
        """Stop an abandoned run, in which something ignored a cancellation.

        Raises:
            RunCancelled: the run was abandoned; no caller receives this error.
        """
        if self.closed:
            raise RunCancelled(self.scope.agent, "it has ended")

    def close(self) -> None:
        """End all open spans, those of nested runs first."""
        self.closed = True
        self.nesting.release_all()
        self.scope.close()


_MOST_NAMED: Final = 3
"""Boundaries that the error of a deadline names."""


def stopped(run: Run) -> RunCancelled | RunTimeout:
    """Return the error of a run that was stopped."""
    if run.scope.cancelled:
        return RunCancelled(run.scope.agent, run.caller.signal.reason if run.caller.signal is not None else None)
    timeout = run.limits.timeout
    bound = f"its deadline of {timeout:g} s" if timeout is not None else "the deadline of the run that called it"
    own = f"{semconv.INVOKE_AGENT} {run.scope.agent}"
    names = [name for name in dict.fromkeys(run.scope.overdue) if name != own]
    under_way = f"; under way: {', '.join(names[:_MOST_NAMED])}" if names else ""
    return RunTimeout(f"run of agent {run.scope.agent!r} did not finish within {bound}{under_way}")


def _active(skills: Mapping[str, Skill]) -> ActiveSkills | None:
    """Return a reader of the active ones of an agent's skills, if it has any."""
    if not skills:
        return None
    from pellucid.providers.skills import ActiveSkills

    return ActiveSkills(skills)


class DepthLimit(NamedTuple):
    """`Limits.max_depth` of the runs of an agent.

    Attributes:
        agent: Name of the agent.
        most: The limit.
        remaining: Number of runs that may still be nested; negative if the limit is exceeded.
    """

    agent: str
    most: int
    remaining: int


MAX_CHAIN: Final = 1_000
"""Maximum characters of the names of nested agents in an error."""


class Nesting:
    """Relations of a run to its outer run and its nested runs.

    Attributes:
        outer: The run whose tool call started this one, if it is the run of a sub-agent.
        chain: Names of the agents whose active runs led to this one, and of its own, outermost first.
        tightest: The limit of depth that is reached first below this run: its agent, its value, and the remaining runs.
        deadline: Time at which the outer run must end, on the event loop's clock.
        may_wait: Whether the run can be resumed once it has paused.
        inner: Active runs nested in this one, with the ids of their calls; result ids of calls in the background.
        budget: Allowance of the run for models, if that is limited; `pellucid.run.budgeted` sets it.
        inference: Link through which its model calls then pass.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.outer: Run | None = None
        self.chain: tuple[str, ...] = (run.setup.name,)
        self.tightest = DepthLimit(run.setup.name, run.limits.max_depth, run.limits.max_depth)
        if (starter := current_run()) is not None and not starter.closed:
            self._count(starter.nesting)
        self.deadline = math.inf
        self.may_wait = True
        self.inner: dict[Run, str] = {}
        self.budget: RunBudget | None = None
        self.inference: Callable[..., Any] | None = None

    def enter(self, outer: Run) -> None:
        """Nest this run in another one."""
        self.outer = outer

    @property
    def is_budgeted(self) -> bool:
        """True if this run, or one in which it is nested, has a limit of what it spends on models."""
        run, own = self._run, self._run.limits
        limits = own.max_cost, own.max_tokens, own.max_model_calls, run.setup.budget, run.caller.budget
        return limits.count(None) < len(limits) or (self.outer is not None and self.outer.nesting.budget is not None)

    def _count(self, starter: Nesting) -> None:
        """Count this run below the one whose code starts it, with a tool call or otherwise."""
        self.chain = (*starter.chain, *self.chain)
        agent, most, remaining = starter.tightest
        self.tightest = min(DepthLimit(agent, most, remaining - 1), self.tightest, key=attrgetter("remaining"))

    def check_depth(self) -> None:
        """Check that this run is not nested too deeply.

        Raises:
            ToolError: it is; a tool call fails with it, and the model reads it.
        """
        agent, most, remaining = self.tightest
        if remaining < 0:
            raise ToolError(
                f"Agent {self.chain[-1]!r} was not run: agent {agent!r} allows at most {most} runs nested in each "
                f"other (Limits.max_depth={most}), and these are: {excerpt(' > '.join(self.chain[:-1]), MAX_CHAIN)}. "
                f"Do not call other agents; answer with what you have.",
                error_type="nested_too_deep",
            )

    @property
    def used(self) -> Usage:
        """Usage of the run and of its nested runs since it started."""
        tally = self._run.tally
        return sum((run.nesting.used for run in self.inner), tally.usage + tally.delegated)

    @property
    def spent(self) -> Usage:
        """Usage so far, including nested runs and the time before the run was resumed."""
        return self._run.tally.earlier + self.used

    def count_call(self) -> int | None:
        """Count a tool call in this run and its outer runs; return the limit that it exceeds, or None."""
        self._run.tally.tool_calls += 1
        exceeded = self.outer.nesting.count_call() if self.outer is not None else None
        limit = self._run.limits.max_tool_calls
        return limit if limit is not None and self._run.tally.tool_calls > limit else exceeded

    def release(self, nested: Run) -> None:
        """Release a nested run that has ended or was abandoned: end its spans and add its usage."""
        if self.inner.pop(nested, None) is None:
            return
        nested.close()
        nested.pausing.hand_over(self._run)
        self._run.tally.delegated += nested.nesting.used

    def release_all(self, call_id: str | None = None) -> None:
        """Release the runs nested in a call, or all nested runs."""
        for nested in [run for run, inner_call in self.inner.items() if call_id in (None, inner_call)]:
            self.release(nested)


_current: ContextVar[Run | None] = ContextVar("pellucid_run", default=None)


def current_run() -> Run | None:
    """Return the current run, if there is one."""
    run = _current.get()
    return run if run is not None and run.scope is current_scope() else None


enter_run: Final = _current.set
"""Make a run the current one, and return the token for `leave_run`."""

leave_run: Final = _current.reset
