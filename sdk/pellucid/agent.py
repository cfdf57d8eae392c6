"""An agent: a configuration that can be run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Generic, Unpack, overload

from typing_extensions import TypeForm

from pellucid.concurrency.sync import run_in_portal
from pellucid.context import DiscoveryContext, Identity, Limits, ToolContext
from pellucid.errors import ConfigError
from pellucid.messages import Message
from pellucid.models import Model, Prices, PublishedPrices, Settings
from pellucid.models.base import require_model
from pellucid.models.fallback import candidates
from pellucid.models.names import resolve
from pellucid.models.prices import load_prices
from pellucid.offer.explain import Explanation, explain
from pellucid.offer.permission import Permissions
from pellucid.options import AgentOptions, CallerOptions, ResumeOptions, RunOptions, check_options
from pellucid.providers import Lister, static_tools
from pellucid.providers.skills import SkillProvider
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
from pellucid.tools.catalog import Catalogs, check_mode
from pellucid.tools.collisions import check_policy
from pellucid.types import JSONObject


class Agent(Generic[OutputT]):
    """A configuration that can be run any number of times, also at the same time.

    ```python
    agent = Agent("weather", model=model, tools=[forecast], instructions="Answer in one sentence.")
    result = await agent.run("Will it rain in Bergen?")
    ```

    Args:
        name: Value of `gen_ai.agent.name`.
        output: Type of the answers, if they are not text: anything that pydantic can validate. An answer that does not
            fit is sent back once, with the problem.
        **options: `model` (required), `instructions`, `settings`, `tools`, `providers`, `skills`, `limits`, `policy`,
            `telemetry`, `description`, `prices`, `reliability`, `collisions`, `registry_mode` and `pin`; described in
            `AgentOptions`.

    Raises:
        ConfigError: something of this cannot work.
        InvalidCatalog: a tool is broken, or two have one name.
    """

    @overload
    def __init__(self, name: str, *, output: type[OutputT] | None = None, **options: Unpack[AgentOptions]) -> None: ...

    @overload  # to type checkers a union, a Literal or an Annotated is no type[...]
    def __init__(self, name: str, *, output: TypeForm[OutputT], **options: Unpack[AgentOptions]) -> None: ...

    def __init__(
        self, name: str, *, output: type[OutputT] | TypeForm[OutputT] | None = None, **options: Unpack[AgentOptions]
    ) -> None:
        check_options("Agent()", options, AgentOptions)
        self._telemetry = options.get("telemetry")
        self._setup = _setup(name, output, options)

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
        **options: Unpack[RunOptions],
    ) -> RunResult[OutputT]:
        """Run until the model is done or a limit is reached.

        Args:
            input: A text, a message, or several.
            **options: `history`, `identity`, `signal` and `deps`; described in `RunOptions`.

        Raises:
            RunCancelled: `signal` was cancelled. (A cancelled task or scope raises the event loop's own exception.)
            RunTimeout: `Limits.deadline` passed.
            DiscoveryError, ToolNameCollision, ModelError: a phase failed.
            ReliabilityFailFast: a reliability rule ended the run.
            OutputError: the model's answer is not of the type `output`, also at the second attempt.
        """
        check_options("Agent.run()", options, RunOptions)
        return await execute(self._begin(conversation(options.get("history", ()), input), _around(options)))

    def run_sync(
        self,
        input: Input,  # noqa: A002
        **options: Unpack[RunOptions],
    ) -> RunResult[OutputT]:
        """Do as `run` does, for sync callers: without an event loop, inside a running one, or after one was closed."""
        check_options("Agent.run_sync()", options, RunOptions)
        return run_in_portal(lambda: self.run(input, **options))

    def stream(
        self,
        input: Input,  # noqa: A002
        **options: Unpack[RunOptions],
    ) -> RunStream[OutputT]:
        """Run, and read the events as they happen; arguments as for `run`.

        ```python
        async with agent.stream("Will it rain in Bergen?") as events:
            async for event in events:
                if isinstance(event, InferenceDelta):
                    print(event.content, end="")
        print(events.result.usage)
        ```

        Leaving the block cancels the run if it has not ended.
        """
        check_options("Agent.stream()", options, RunOptions)
        readers = Listeners()
        messages = conversation(options.get("history", ()), input)
        return RunStream[OutputT](readers, self._begin(messages, _around(options, readers)))

    async def resume(self, checkpoint: JSONObject, **options: Unpack[ResumeOptions]) -> RunResult[OutputT]:
        """Resume a run that waits for approval, in this process or in another.

        Approved calls are made, denied ones are reported to the model with the reason. Calls without a decision stay
        pending: then the result waits too, and has another checkpoint. Permissions, schemas and limits are checked
        again.

        Args:
            checkpoint: That of the result that waits. It is trusted: keep it where nobody else can change it.
            **options: `decisions`, `identity`, `signal`, `deps` and `claims`; described in `ResumeOptions`.

        Raises:
            CheckpointError: the checkpoint or a decision is not valid, or changed arguments do not fit. Nothing was
                run, and it can be resumed again.
            AlreadyResumed: it was resumed before.
            PellucidError: whatever else `run` raises.
        """
        check_options("Agent.resume()", options, ResumeOptions)
        return await execute(self._begin(_resumed(checkpoint, options), _around(options)))

    def resume_sync(self, checkpoint: JSONObject, **options: Unpack[ResumeOptions]) -> RunResult[OutputT]:
        """Do as `resume` does, for sync callers."""
        check_options("Agent.resume_sync()", options, ResumeOptions)
        return run_in_portal(lambda: self.resume(checkpoint, **options))

    def resume_stream(self, checkpoint: JSONObject, **options: Unpack[ResumeOptions]) -> RunStream[OutputT]:
        """Do as `resume` does, and read the events as they happen, as with `stream`.

        Raises:
            CheckpointError: the checkpoint or a decision is not valid.
        """
        check_options("Agent.resume_stream()", options, ResumeOptions)
        readers = Listeners()
        return RunStream[OutputT](readers, self._begin(_resumed(checkpoint, options), _around(options, readers)))

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


def _around(options: CallerOptions, stream: Listeners | None = None) -> Around:
    return Around(
        identity=options.get("identity"), signal=options.get("signal"), deps=options.get("deps"), stream=stream
    )


def _resumed(checkpoint: JSONObject, options: ResumeOptions) -> Resumed:
    return resumed(checkpoint, options.get("decisions", ()), options.get("claims"))


def _setup(name: str, output: Any, options: AgentOptions) -> Setup:
    """Check the options of an agent, and return what its runs share."""
    if not name:
        raise ConfigError.empty("Agent", "name", "it names the agent in traces and metrics")
    agent = f"Agent {name!r}"
    model = options["model"]
    model = resolve(model) if isinstance(model, str) else require_model(model, agent)
    collisions, registry_mode = options.get("collisions", "error"), options.get("registry_mode", "full")
    prices = _prices(agent, model, options.get("prices"))
    check_policy(agent, collisions)
    check_mode(agent, registry_mode)
    loader = SkillProvider(options.get("skills", ()))
    listers = _listers(agent, options, loader)
    answer = Output(output) if output is not None and output is not str else None
    settings = _checked(agent, options.get("settings") or Settings())
    limits, policy = options.get("limits") or Limits(), options.get("policy")
    return Setup(
        name=name,
        description=options.get("description"),
        model=model,
        instructions=options.get("instructions"),
        output=answer,
        settings=settings,
        parameters=digest_of_parameters(settings, answer.schema if answer is not None else None),
        reliability=options.get("reliability"),
        prices=prices,
        listers=listers,
        limits=limits,
        catalogs=Catalogs(collisions, is_lazy=registry_mode == "lazy"),
        listeners=Listeners(),
        skills=loader.skills,
        permissions=Permissions(policy, limits.policy_timeout) if policy is not None else None,
        pin=options.get("pin", False),
    )


def _prices(agent: str, model: Model, prices: Prices | None) -> Prices:
    if prices is not None and not callable(prices):
        raise ConfigError(
            f"{agent}: prices must be a function of provider, model and usage; make one of a table by "
            f"PriceTable({{'openai:gpt-6-sol': Price(input=..., output=...)}})"
        )
    prices = prices if prices is not None else PublishedPrices()
    load_prices(prices, [(candidate.provider_name, candidate.name) for candidate in candidates(model)])
    return prices


def _listers(agent: str, options: AgentOptions, loader: SkillProvider) -> tuple[Lister, ...]:
    """Return a lister for each provider of an agent; its own tools and skills are checked now, not during a run."""
    tools = _tools(agent, options.get("tools", ()))
    own = static_tools(tools)
    providers = list(options.get("providers", ()))
    if tools or not (providers or loader.skills):
        providers.insert(0, own)
    if loader.skills:
        providers.append(loader)
    listers = tuple(map(Lister, providers))
    ids = [lister.provider.id for lister in listers]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"{agent}: two providers have one id in {ids}; give each an id of its own")
    if tools:
        listers[0].check(own.list_tools(DiscoveryContext()))
    if loader.skills:
        listers[-1].check(loader.list_tools(DiscoveryContext(active_skill_ids=tuple(loader.skills))))
    return listers


def _tools(agent: str, tools: Sequence[Tool | Callable[..., Any]]) -> list[Tool]:
    if not isinstance(tools, Iterable):
        raise ConfigError(f"{agent}: tools={tools!r} is not a sequence; give a list of tools and functions")
    items = list(tools)
    for index, item in enumerate(items):
        if not isinstance(item, Tool) and not callable(item):
            raise ConfigError(f"{agent}: tools[{index}]={item!r} is not a tool; give a Tool or a function")
    return [item if isinstance(item, Tool) else tool(item) for item in items]


def _checked(agent: str, settings: Settings) -> Settings:
    known = Settings.__annotations__
    for name in settings:
        if name not in known:
            close = get_close_matches(name, known, 1)
            raise ConfigError(
                f"{agent}: there is no setting {name!r}; "
                f"{f'did you mean {close[0]!r}? ' if close else ''}"
                f"known are {', '.join(known)}, and what only one vendor knows goes into `extra`"
            )
    if isinstance(settings.get("stop_sequences"), str):
        raise ConfigError(f"{agent}: the setting stop_sequences must be a list of texts, not one text")
    return settings.copy()
