"""An agent: a configuration that can be run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Generic, overload

from typing_extensions import TypeForm

from pellucid.approvals.claims import Claims
from pellucid.approvals.decisions import Decision
from pellucid.concurrency.sync import run_in_portal
from pellucid.context import CancelToken, DiscoveryContext, Identity, Limits, ToolContext
from pellucid.errors import ConfigError
from pellucid.messages import Message
from pellucid.models import Model, Prices, PublishedPrices, Settings, candidates, load_prices, require_model, resolve
from pellucid.offer.explain import Explanation, explain
from pellucid.offer.permission import Permissions
from pellucid.offer.policy import Policy
from pellucid.providers import Lister, ToolProvider, static_tools
from pellucid.providers.skills import Skill, SkillProvider
from pellucid.reliability import Reliability
from pellucid.run.compose import digest_of_parameters
from pellucid.run.loop import execute
from pellucid.run.outcomes import RunResult
from pellucid.run.start import Around, Input, Resumed, begin, conversation, resumed
from pellucid.run.state import Run, Setup
from pellucid.run.stream import RunStream
from pellucid.run.structured_output import Output, OutputT
from pellucid.run.subagent import agent_tool
from pellucid.run.warm_up import warm_up
from pellucid.telemetry import Listener, Listeners, Pipeline
from pellucid.tools import Tool, tool
from pellucid.tools.catalog import Catalogs, RegistryMode, check_mode
from pellucid.tools.collisions import Collisions, check_policy
from pellucid.types import JSONObject


class Agent(Generic[OutputT]):
    """A configuration that can be run any number of times, also at the same time.

    ```python
    agent = Agent("weather", model=model, tools=[forecast], instructions="Answer in one sentence.")
    result = await agent.run("Will it rain in Bergen?")
    ```

    Args:
        name: Value of `gen_ai.agent.name`.
        model: What answers; a name such as `openai:gpt-6-sol` is resolved.
        instructions: System text.
        output: Type of the answers, if they are not text: anything that pydantic can validate. An answer that does not
            fit is sent back once with what is wrong.
        settings: Request parameters of every model call, such as `{"temperature": 0.2, "max_tokens": 4096}`.
        tools: Tools, or functions to make tools of; they are listed by a provider called `static`.
        providers: What else lists tools; asked once per iteration, in this order, all at the same time.
        skills: Instructions and tools that the model loads when it needs them.
        limits: Bounds of each run.
        policy: Decides which tools the model is offered, and which calls it may make.
        telemetry: Where telemetry goes. What it leaves open comes from `configure()`, else from OpenTelemetry's global
            providers.
        description: Value of `gen_ai.agent.description`.
        reliability: What to do when discovery, a model or a tool fails; without it nothing is tried again.
        prices: Says what model calls cost; the vendors' published prices if not given.
        collisions: What happens when two providers offer tools of one name: `error` fails the run, `first` and `last`
            say which provider's is taken, `prefix` offers the later one as `<provider id>__<name>`.
        registry_mode: `full` offers all tools to the model. `lazy` offers `tool_search` in their place, with which it
            finds and activates them.
        pin: Keep back a tool that has changed under its name since the model was given it, or its call was approved.

    Raises:
        ConfigError: something of this cannot work.
        InvalidCatalog: a tool is broken, or two have one name.
    """

    @overload
    def __init__(
        self,
        name: str,
        *,
        model: Model | str,
        instructions: str | None = None,
        output: type[OutputT] | None = None,
        settings: Settings | None = None,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        providers: Sequence[ToolProvider] = (),
        skills: Sequence[Skill] = (),
        limits: Limits | None = None,
        policy: Policy | None = None,
        telemetry: Pipeline | None = None,
        description: str | None = None,
        prices: Prices | None = None,
        reliability: Reliability | None = None,
        collisions: Collisions = "error",
        registry_mode: RegistryMode = "full",
        pin: bool = False,
    ) -> None: ...

    @overload  # to type checkers a union, a Literal or an Annotated is no type[...]
    def __init__(
        self,
        name: str,
        *,
        model: Model | str,
        instructions: str | None = None,
        output: TypeForm[OutputT],
        settings: Settings | None = None,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        providers: Sequence[ToolProvider] = (),
        skills: Sequence[Skill] = (),
        limits: Limits | None = None,
        policy: Policy | None = None,
        telemetry: Pipeline | None = None,
        description: str | None = None,
        prices: Prices | None = None,
        reliability: Reliability | None = None,
        collisions: Collisions = "error",
        registry_mode: RegistryMode = "full",
        pin: bool = False,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        model: Model | str,
        instructions: str | None = None,
        output: type[OutputT] | TypeForm[OutputT] | None = None,
        settings: Settings | None = None,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        providers: Sequence[ToolProvider] = (),
        skills: Sequence[Skill] = (),
        limits: Limits | None = None,
        policy: Policy | None = None,
        telemetry: Pipeline | None = None,
        description: str | None = None,
        prices: Prices | None = None,
        reliability: Reliability | None = None,
        collisions: Collisions = "error",
        registry_mode: RegistryMode = "full",
        pin: bool = False,
    ) -> None:
        if not name:
            raise ConfigError("Agent: name must not be empty; it names the agent in traces and metrics")
        model = resolve(model) if isinstance(model, str) else require_model(model, f"Agent {name!r}")
        if prices is not None and not callable(prices):
            raise ConfigError(
                f"Agent {name!r}: prices must be a function of provider, model and usage; make one of a table by "
                f"PriceTable({{'openai:gpt-6-sol': Price(input=..., output=...)}})"
            )
        prices = prices if prices is not None else PublishedPrices()
        load_prices(prices, [(each.provider_name, each.name) for each in candidates(model)])
        check_policy(f"Agent {name!r}", collisions)
        check_mode(f"Agent {name!r}", registry_mode)
        own = static_tools(_tools(name, tools))
        offered = [own, *providers] if tools or not (providers or skills) else list(providers)
        loader = SkillProvider(skills)
        listers = tuple(Lister(each) for each in ([*offered, loader] if loader.skills else offered))
        ids = [lister.provider.id for lister in listers]
        if len(set(ids)) < len(ids):
            raise ConfigError(f"Agent {name!r}: two providers have one id in {ids}; give each an id of its own")
        if tools:
            listers[0].check(own.list_tools(DiscoveryContext()))
        if loader.skills:  # what they bring is checked now, and not in the middle of a run
            listers[-1].check(loader.list_tools(DiscoveryContext(active_skill_ids=tuple(loader.skills))))
        answer = Output(output) if output is not None and output is not str else None
        settings = _checked(name, settings or Settings())
        limits = limits or Limits()
        self._telemetry = telemetry
        self._setup = Setup(
            name=name,
            description=description,
            model=model,
            instructions=instructions,
            output=answer,
            settings=settings,
            parameters=digest_of_parameters(settings, answer.schema if answer is not None else None),
            reliability=reliability,
            prices=prices,
            listers=listers,
            limits=limits,
            catalogs=Catalogs(collisions, is_lazy=registry_mode == "lazy"),
            listeners=Listeners(),
            skills=loader.skills,
            permissions=Permissions(policy, limits.policy_timeout) if policy is not None else None,
            pin=pin,
        )

    def __repr__(self) -> str:
        providers = ", ".join(lister.provider.id for lister in self._setup.listers)
        return f"Agent({self.name!r}, model={self._setup.model.name!r}, providers=[{providers}])"

    @property
    def name(self) -> str:
        """Value of `gen_ai.agent.name`."""
        return self._setup.name

    async def run(
        self,
        input: Input,  # noqa: A002  (named in the public contract)
        *,
        history: Sequence[Message] = (),
        identity: Identity | None = None,
        signal: CancelToken | None = None,
        deps: Any = None,
    ) -> RunResult[OutputT]:
        """Run until the model is done or a limit is reached.

        Args:
            input: A text, a message, or several.
            history: The conversation so far, such as `result.messages` of the run before.
            identity: On whose behalf; providers, tools and events see it.
            signal: Cancels the run, from any thread.
            deps: Anything; tools find it as `ctx.deps`.

        Raises:
            RunCancelled: `signal` was cancelled. (A cancelled task or scope raises the event loop's own exception.)
            RunTimeout: `Limits.deadline` passed.
            DiscoveryError, ToolNameCollision, ModelError: a phase failed.
            ReliabilityFailFast: a reliability rule ended the run.
            OutputError: the model's answer is not of the type `output`, also at the second attempt.
        """
        around = Around(identity=identity, signal=signal, deps=deps)
        return await execute(self._begin(conversation(history, input), around))

    def run_sync(
        self,
        input: Input,  # noqa: A002
        *,
        history: Sequence[Message] = (),
        identity: Identity | None = None,
        signal: CancelToken | None = None,
        deps: Any = None,
    ) -> RunResult[OutputT]:
        """Do as `run` does, for sync callers: without an event loop, inside a running one, or after one was closed."""
        return run_in_portal(lambda: self.run(input, history=history, identity=identity, signal=signal, deps=deps))

    def stream(
        self,
        input: Input,  # noqa: A002
        *,
        history: Sequence[Message] = (),
        identity: Identity | None = None,
        signal: CancelToken | None = None,
        deps: Any = None,
    ) -> RunStream[OutputT]:
        """Run, and read the events as they happen; arguments as for `run`.

        ```python
        async with agent.stream("Will it rain in Bergen?") as events:
            async for event in events:
                if isinstance(event, InferenceDelta):
                    print(event.content, end="")
        print(events.result.usage)
        ```

        Leaving the block cancels the run if it is not over.
        """
        readers = Listeners()
        around = Around(identity=identity, signal=signal, deps=deps, stream=readers)
        return RunStream[OutputT](readers, self._begin(conversation(history, input), around))

    async def resume(
        self,
        checkpoint: JSONObject,
        *,
        decisions: Sequence[Decision] = (),
        identity: Identity | None = None,
        signal: CancelToken | None = None,
        deps: Any = None,
        claims: Claims | None = None,
    ) -> RunResult[OutputT]:
        """Go on with a run that waits for approval, in this process or in another.

        Calls that were approved are made, those that were denied are told to the model with the reason. Calls that are
        not decided yet go on waiting: then the result waits too, and has another checkpoint. Permissions, schemas and
        limits are checked anew.

        Args:
            checkpoint: That of the result that waits. It is trusted: keep it where nobody else can change it.
            decisions: What was decided.
            identity: On whose behalf; that of the checkpoint if not given.
            signal: Cancels the run, from any thread.
            deps: Anything; tools find it as `ctx.deps`.
            claims: Sees to it that no other process resumes the same checkpoint, such as `FileClaims(directory)`. This
                process never does it twice.

        Raises:
            CheckpointError: the checkpoint or a decision is not valid, or changed arguments do not fit. Nothing was
                run, and it can be resumed again.
            AlreadyResumed: it was resumed before.
            PellucidError: whatever else `run` raises.
        """
        around = Around(identity=identity, signal=signal, deps=deps)
        return await execute(self._begin(resumed(checkpoint, decisions, claims), around))

    def resume_sync(
        self,
        checkpoint: JSONObject,
        *,
        decisions: Sequence[Decision] = (),
        identity: Identity | None = None,
        signal: CancelToken | None = None,
        deps: Any = None,
        claims: Claims | None = None,
    ) -> RunResult[OutputT]:
        """Do as `resume` does, for sync callers."""
        return run_in_portal(
            lambda: self.resume(
                checkpoint, decisions=decisions, identity=identity, signal=signal, deps=deps, claims=claims
            )
        )

    def resume_stream(
        self,
        checkpoint: JSONObject,
        *,
        decisions: Sequence[Decision] = (),
        identity: Identity | None = None,
        signal: CancelToken | None = None,
        deps: Any = None,
        claims: Claims | None = None,
    ) -> RunStream[OutputT]:
        """Do as `resume` does, and read the events as they happen, as with `stream`.

        Raises:
            CheckpointError: the checkpoint or a decision is not valid.
        """
        readers = Listeners()
        around = Around(identity=identity, signal=signal, deps=deps, stream=readers)
        return RunStream[OutputT](readers, self._begin(resumed(checkpoint, decisions, claims), around))

    def on(self, pattern: str, listener: Listener, *, once: bool = False) -> Callable[[], None]:
        """Call `listener` for every event that matches: `"run.completed"`, `"tools.*"` or `"*"`.

        A sync listener is called at once and must not block; an async one is fed from a bounded queue. A listener that
        fails is counted and never reaches the run.

        Returns:
            A function that ends the subscription.

        Raises:
            ConfigError: no event matches the pattern.
        """
        return self._setup.listeners.add(pattern, listener, once=once)

    def as_tool(self, name: str | None = None, description: str | None = None, *, timeout: float | None = None) -> Tool:
        """Return a tool that runs this agent with one text, `input`, and returns its answer.

        The run is nested in the call: its span below that of the call; the caller's identity, `deps`, cancel token and
        deadline hold for it too, and its telemetry goes where the caller's goes unless it has a `telemetry` of its own.
        Its tool calls count against the caller's `Limits.max_tool_calls`, and what it uses is in the caller's usage;
        other limits are its own.

        Args:
            name: Its name for the model; that of the agent if not given.
            description: Its description for the model; that of the agent if not given.
            timeout: Seconds for one call; the caller's `Limits.tool_timeout` if not given.

        Raises:
            ConfigError: neither this nor the agent has a description.
        """

        def begin(what: str | Resumed, ctx: ToolContext, pipeline: Pipeline | None) -> Run:
            around = Around(identity=ctx.identity, signal=ctx.signal, deps=ctx.deps, pipeline=pipeline)
            return self._begin(conversation((), what) if isinstance(what, str) else what, around)

        return agent_tool(self.name, name, description or self._setup.description, timeout, begin)

    async def warm_up(self, *, identity: Identity | None = None) -> None:
        """Connect to servers, fetch from hubs and make the model's client now, so that the first run need not.

        Each provider is asked once, with a `discover_tools` span that belongs to no run. Connections belong to the
        event loop in which this is called.

        Args:
            identity: For whom hubs are asked, where their lists depend on it.

        Raises:
            DiscoveryError: a provider failed.
        """
        await warm_up(self._setup, self._telemetry, identity)

    def warm_up_sync(self, *, identity: Identity | None = None) -> None:
        """Do as `warm_up` does, for `run_sync`, which has an event loop of its own."""
        run_in_portal(lambda: self.warm_up(identity=identity))

    async def explain(self, tool_name: str, ctx: DiscoveryContext | None = None) -> Explanation:
        """Say why the model is, or is not, offered a tool: who lists it, gates, skills, collisions and the policy.

        ```python
        print(await agent.explain("refund", DiscoveryContext(identity=Identity(principal="ann"))))
        ```

        The providers and the policy are asked as in a run, but outside of one: there is no telemetry. A provider that
        fails is part of the explanation.

        Args:
            tool_name: Name of the tool, as it is listed or as it is offered.
            ctx: What providers may know: on whose behalf, and which skills are active.
        """
        setup = self._setup
        within = setup.limits.discovery_timeout
        ctx = ctx or DiscoveryContext()
        return await explain(self.name, setup.listers, setup.catalogs, setup.permissions, within, tool_name, ctx)

    def _begin(self, what: Sequence[Message] | Resumed, around: Around) -> Run:
        own = self._telemetry
        return begin(self._setup, what, replace(around, pipeline=own) if own is not None else around)


def _tools(agent: str, tools: Sequence[Tool | Callable[..., Any]]) -> list[Tool]:
    if not isinstance(tools, Iterable):
        raise ConfigError(f"Agent {agent!r}: tools={tools!r} is not a sequence; give a list of tools and functions")
    items = list(tools)
    for index, item in enumerate(items):
        if not isinstance(item, Tool) and not callable(item):
            raise ConfigError(f"Agent {agent!r}: tools[{index}]={item!r} is not a tool; give a Tool or a function")
    return [item if isinstance(item, Tool) else tool(item) for item in items]


def _checked(agent: str, settings: Settings) -> Settings:
    known = Settings.__annotations__
    for name in settings:
        if name not in known:
            close = get_close_matches(name, known, 1)
            raise ConfigError(
                f"Agent {agent!r}: there is no setting {name!r}; "
                f"{f'did you mean {close[0]!r}? ' if close else ''}"
                f"known are {', '.join(known)}, and what only one vendor knows goes into `extra`"
            )
    if isinstance(settings.get("stop_sequences"), str):
        raise ConfigError(f"Agent {agent!r}: the setting stop_sequences must be a list of texts, not one text")
    return settings.copy()
