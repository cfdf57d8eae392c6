"""The agent: a frozen configuration and its entry points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Generic, Unpack, overload

from typing_extensions import TypeForm

from pellucid.approvals.checkpoint import Checkpoint
from pellucid.concurrency.sync import run_in_portal
from pellucid.concurrency.tasks import load_backend
from pellucid.context import DiscoveryContext, Identity, Limits
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
from pellucid.run.journal import Journal
from pellucid.run.loop import execute
from pellucid.run.outcomes import RunResult
from pellucid.run.start import Input, ResumeRequest, conversation, create_run
from pellucid.run.state import CallerContext, Run, Setup
from pellucid.run.stream import RunStream
from pellucid.run.structured_output import Output
from pellucid.run.subagent import agent_tool
from pellucid.run.warm_up import warm_up
from pellucid.telemetry import Listeners, Observable
from pellucid.tools import Tool, tool
from pellucid.tools.catalog import Catalogs, check_mode
from pellucid.tools.collisions import check_policy
from pellucid.tools.tool import PlainFunction
from pellucid.types import DepsT_contra, JSONObject, OutputT_co


class Agent(Observable, Generic[DepsT_contra, OutputT_co]):
    """A frozen configuration. It can be run any number of times, also concurrently.

    ```python
    agent = Agent("weather", model=model, tools=[forecast], instructions="Answer in one sentence.")
    result = await agent.run("Will it rain in Bergen?")
    ```

    The runs of an `Agent[Deps, Output]` need `deps` of the type `Deps`, and its answers are of the type `Output`.
    `Agent` is short for `Agent[object, str]`: any `deps` fit, also none.

    Args:
        name: Value of `gen_ai.agent.name`.
        output: Type of the answers, if they are not text: any type that pydantic can validate. An answer that does not
            fit is sent back to the model once, with the problem.
        **options: `model` (required), `instructions`, `settings`, `tools`, `providers`, `skills`, `limits`, `policy`,
            `telemetry`, `description`, `prices`, `reliability`, `collisions`, `registry_mode` and `pin`; described in
            `AgentOptions`.

    Raises:
        ConfigError: an option is invalid.
        InvalidCatalog: a tool is invalid, or two tools have the same name.
    """

    @overload
    def __init__(
        self, name: str, *, output: type[OutputT_co] | None = None, **options: Unpack[AgentOptions[DepsT_contra]]
    ) -> None: ...

    @overload  # type checkers do not treat a union, a Literal or an Annotated as type[...]
    def __init__(
        self, name: str, *, output: TypeForm[OutputT_co], **options: Unpack[AgentOptions[DepsT_contra]]
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        output: type[OutputT_co] | TypeForm[OutputT_co] | None = None,
        **options: Unpack[AgentOptions[DepsT_contra]],
    ) -> None:
        check_options("Agent()", options, AgentOptions)
        load_backend()
        self._telemetry = options.get("telemetry")
        self._setup = _setup(name, output, options)

    def __repr__(self) -> str:
        providers = ", ".join(lister.provider.id for lister in self._setup.listers)
        return f"Agent({self.name!r}, model={self._setup.model.name!r}, providers=[{providers}])"

    @property
    def name(self) -> str:
        """Value of `gen_ai.agent.name`."""
        return self._setup.name

    @property
    def _listeners(self) -> Listeners:
        return self._setup.listeners

    @overload
    async def run(
        self: Agent[None, OutputT_co], input: Input, *, deps: None = None, **options: Unpack[RunOptions]
    ) -> RunResult[OutputT_co]: ...
    @overload
    async def run(
        self, input: Input, *, deps: DepsT_contra, **options: Unpack[RunOptions]
    ) -> RunResult[OutputT_co]: ...
    async def run(self, input: Input, *, deps: Any = None, **options: Unpack[RunOptions]) -> RunResult[OutputT_co]:  # noqa: A002
        """Run until the model is done or a limit is reached.

        Args:
            input: A text, a message, or a sequence of messages.
            deps: Value that tools receive as `ctx.deps`; type checkers require it if the agent has a type of `deps`.
            **options: `history`, `identity` and `signal`; described in `RunOptions`.

        Raises:
            RunCancelled: `signal` was cancelled. (A cancelled task or scope raises the event loop's own exception.)
            RunTimeout: `Limits.deadline` passed.
            DiscoveryError, ToolNameCollision, ModelError: a phase failed.
            ReliabilityFailFast: a reliability rule ended the run.
            OutputError: the model's answer is not of the type `output`, at the second attempt either.
        """
        check_options("Agent.run()", options, RunOptions)
        return await execute(self._create_run(conversation(options.get("history", ()), input), deps, options))

    @overload
    def run_sync(
        self: Agent[None, OutputT_co], input: Input, *, deps: None = None, **options: Unpack[RunOptions]
    ) -> RunResult[OutputT_co]: ...
    @overload
    def run_sync(self, input: Input, *, deps: DepsT_contra, **options: Unpack[RunOptions]) -> RunResult[OutputT_co]: ...
    def run_sync(self, input: Input, *, deps: Any = None, **options: Unpack[RunOptions]) -> RunResult[OutputT_co]:  # noqa: A002
        """Call `run` from sync code: without an event loop, inside a running one, or after one was closed."""
        check_options("Agent.run_sync()", options, RunOptions)
        return run_in_portal(lambda: self.run(input, deps=deps, **options))

    @overload
    def stream(
        self: Agent[None, OutputT_co], input: Input, *, deps: None = None, **options: Unpack[RunOptions]
    ) -> RunStream[OutputT_co]: ...
    @overload
    def stream(self, input: Input, *, deps: DepsT_contra, **options: Unpack[RunOptions]) -> RunStream[OutputT_co]: ...
    def stream(self, input: Input, *, deps: Any = None, **options: Unpack[RunOptions]) -> RunStream[OutputT_co]:  # noqa: A002
        """Start a run and stream its events; the arguments are those of `run`.

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
        messages = conversation(options.get("history", ()), input)
        return RunStream[OutputT_co](self._create_run(messages, deps, options, Listeners()))

    @overload
    async def resume(
        self: Agent[None, OutputT_co], checkpoint: JSONObject, *, deps: None = None, **options: Unpack[ResumeOptions]
    ) -> RunResult[OutputT_co]: ...
    @overload
    async def resume(
        self, checkpoint: JSONObject, *, deps: DepsT_contra, **options: Unpack[ResumeOptions]
    ) -> RunResult[OutputT_co]: ...
    async def resume(
        self, checkpoint: JSONObject, *, deps: Any = None, **options: Unpack[ResumeOptions]
    ) -> RunResult[OutputT_co]:
        """Resume a run that is waiting for approvals or external results, in this process or in another.

        Approved calls are run; denied calls are reported to the model with the reason. Calls without a decision stay
        pending: the result is then `awaiting_approval` again and has a new checkpoint. Permissions, schemas and limits
        are checked again. The model is called once no approval and no external result is missing; until then the result
        is `awaiting_approval` or `awaiting_tools`.

        Args:
            checkpoint: `RunResult.checkpoint` of the paused run. It is trusted: store it where nobody else can change
                it.
            deps: Value that tools receive as `ctx.deps`, as in `run`.
            **options: `decisions`, `results`, `identity`, `signal` and `claims`; described in `ResumeOptions`.

        Raises:
            CheckpointError: the checkpoint or a decision is not valid, or changed arguments do not fit the schema.
                Nothing was run, and the checkpoint can be resumed again.
            AlreadyResumed: the checkpoint was resumed before.
            PellucidError: any other error that `run` raises.
        """
        check_options("Agent.resume()", options, ResumeOptions)
        return await execute(self._create_run(_resume_request(checkpoint, options), deps, options))

    @overload
    def resume_sync(
        self: Agent[None, OutputT_co], checkpoint: JSONObject, *, deps: None = None, **options: Unpack[ResumeOptions]
    ) -> RunResult[OutputT_co]: ...
    @overload
    def resume_sync(
        self, checkpoint: JSONObject, *, deps: DepsT_contra, **options: Unpack[ResumeOptions]
    ) -> RunResult[OutputT_co]: ...
    def resume_sync(
        self, checkpoint: JSONObject, *, deps: Any = None, **options: Unpack[ResumeOptions]
    ) -> RunResult[OutputT_co]:
        """Call `resume` from sync code."""
        check_options("Agent.resume_sync()", options, ResumeOptions)
        return run_in_portal(lambda: self.resume(checkpoint, deps=deps, **options))

    @overload
    def resume_stream(
        self: Agent[None, OutputT_co], checkpoint: JSONObject, *, deps: None = None, **options: Unpack[ResumeOptions]
    ) -> RunStream[OutputT_co]: ...
    @overload
    def resume_stream(
        self, checkpoint: JSONObject, *, deps: DepsT_contra, **options: Unpack[ResumeOptions]
    ) -> RunStream[OutputT_co]: ...
    def resume_stream(
        self, checkpoint: JSONObject, *, deps: Any = None, **options: Unpack[ResumeOptions]
    ) -> RunStream[OutputT_co]:
        """Resume a run and stream its events, as `stream` does.

        Raises:
            CheckpointError: the checkpoint or a decision is not valid.
        """
        check_options("Agent.resume_stream()", options, ResumeOptions)
        return RunStream[OutputT_co](self._create_run(_resume_request(checkpoint, options), deps, options, Listeners()))

    def as_tool(
        self, name: str | None = None, description: str | None = None, *, timeout: float | None = None
    ) -> Tool[DepsT_contra]:
        """Return a tool that runs this agent with one text, `input`, and returns its answer.

        The run is nested in the call: its span is a child of the call's span, and the caller's identity, `deps`, cancel
        token and deadline apply to it. Its telemetry goes where the caller's goes, unless this agent has a `telemetry`
        option. Its tool calls count against the caller's `Limits.max_tool_calls`, and its usage is part of the caller's
        usage; its other limits are its own.

        Args:
            name: Tool name for the model; the agent's name unless given.
            description: Tool description for the model; the agent's description unless given.
            timeout: Seconds for one call; the caller's `Limits.tool_timeout` unless given.

        Raises:
            ConfigError: neither `description` nor the agent's description is set.
        """
        return agent_tool(self._setup, self._telemetry, name, description, timeout)

    async def warm_up(self, *, identity: Identity | None = None) -> None:
        """Connect to servers, fetch catalogues and create the model's client now, so that the first run need not.

        Each provider lists its tools once, in a `discover_tools` span that belongs to no run. Connections belong to the
        event loop in which this is called.

        Args:
            identity: Identity to pass to hubs whose catalogues depend on it.

        Raises:
            DiscoveryError: a provider failed.
        """
        await warm_up(self._setup, self._telemetry, identity)

    def warm_up_sync(self, *, identity: Identity | None = None) -> None:
        """Call `warm_up` from sync code, in the event loop of `run_sync`."""
        run_in_portal(lambda: self.warm_up(identity=identity))

    async def explain(self, tool_name: str, ctx: DiscoveryContext | None = None) -> Explanation:
        """Explain why the model is, or is not, offered a tool: providers, gates, skills, collisions and the policy.

        ```python
        print(await agent.explain("refund", DiscoveryContext(identity=Identity(principal="ann"))))
        ```

        The providers and the policy are called as in a run, but without telemetry. A provider that fails is part of
        the explanation.

        Args:
            tool_name: Name of the tool, as listed or as offered.
            ctx: Context for the providers, such as the identity and the active skills.
        """
        setup = self._setup
        within = setup.limits.discovery_timeout
        ctx = ctx or DiscoveryContext()
        return await explain(self.name, setup.listers, setup.catalogs, setup.permissions, within, tool_name, ctx)

    def _create_run(
        self,
        source: Sequence[Message] | ResumeRequest,
        deps: Any,
        options: CallerOptions,
        stream: Listeners | None = None,
        journal: Journal | None = None,
        check_tools: Callable[[Iterable[Tool]], None] | None = None,
    ) -> Run:
        caller = CallerContext(
            identity=options.get("identity"),
            signal=options.get("signal"),
            deps=deps,
            stream=stream,
            pipeline=self._telemetry,
            journal=journal,
            check_tools=check_tools,
        )
        return create_run(self._setup, source, caller)


def _resume_request(checkpoint: JSONObject, options: ResumeOptions) -> ResumeRequest:
    decisions = tuple(options.get("decisions", ()))
    results = tuple(options.get("results", ()))
    return ResumeRequest(Checkpoint.from_dict(checkpoint), decisions, results, options.get("claims"))


def _setup(name: str, output: Any, options: AgentOptions[Any]) -> Setup:
    """Check the options of an agent, and return the configuration that its runs share."""
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
    tools = _tools(agent, options.get("tools", ()))
    listers = _listers(agent, tools, options, loader)
    answer_type = Output(output) if output is not None and output is not str else None
    settings = _checked(agent, options.get("settings") or Settings())
    limits, policy = options.get("limits") or Limits(), options.get("policy")
    return Setup(
        name=name,
        description=options.get("description"),
        model=model,
        instructions=options.get("instructions"),
        output=answer_type,
        settings=settings,
        parameters=digest_of_parameters(settings, answer_type.schema if answer_type is not None else None),
        reliability=options.get("reliability"),
        prices=prices,
        tools=tuple(tools),
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
            f"{agent}: prices must be a function of provider, model and usage; for fixed prices use "
            f"PriceTable({{'openai:gpt-6-sol': Price(input=..., output=...)}})"
        )
    prices = prices if prices is not None else PublishedPrices()
    load_prices(prices, [(candidate.provider_name, candidate.name) for candidate in candidates(model)])
    return prices


def _listers(
    agent: str, tools: Sequence[Tool], options: AgentOptions[Any], loader: SkillProvider
) -> tuple[Lister, ...]:
    """Return a lister for each provider of an agent; check the agent's own tools and skills before any run."""
    static_provider = static_tools(tools)
    providers = list(options.get("providers", ()))
    if tools or not (providers or loader.skills):
        providers.insert(0, static_provider)
    if loader.skills:
        providers.append(loader)
    listers = tuple(map(Lister, providers))
    ids = [lister.provider.id for lister in listers]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"{agent}: duplicate provider id in {ids}; give each provider an id of its own")
    if tools:
        listers[0].check(static_provider.list_tools(DiscoveryContext()))
    if loader.skills:
        listers[-1].check(loader.list_tools(DiscoveryContext(active_skill_ids=tuple(loader.skills))))
    return listers


def _tools(agent: str, tools: Sequence[Tool[Any] | PlainFunction[..., object]]) -> list[Tool]:
    if not isinstance(tools, Iterable):
        raise ConfigError(f"{agent}: tools={tools!r} is not a sequence; give a list of tools and functions")
    items = list(tools)
    for index, item in enumerate(items):
        if not isinstance(item, Tool) and not callable(item):
            raise ConfigError(f"{agent}: tools[{index}]={item!r} is not a tool; give a Tool or a function")
    return [item if isinstance(item, Tool) else tool(item) for item in items]


def _checked(agent: str, settings: Settings) -> Settings:
    allowed = Settings.__annotations__
    for name in settings:
        if name not in allowed:
            close = get_close_matches(name, allowed, 1)
            raise ConfigError(
                f"{agent}: unknown setting {name!r}; "
                f"{f'did you mean {close[0]!r}? ' if close else ''}"
                f"known settings are {', '.join(allowed)}; settings of a single vendor go into `extra`"
            )
    if isinstance(settings.get("stop_sequences"), str):
        raise ConfigError(f"{agent}: the setting stop_sequences must be a list of texts, not one text")
    return settings.copy()
