"""The agent: a frozen configuration and its entry points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack, overload

from typing_extensions import TypeForm

from pellucid.concurrency.block import Within
from pellucid.concurrency.per_loop import PerLoop
from pellucid.concurrency.sync import run_in_portal
from pellucid.concurrency.tasks import in_event_loop, load_backend
from pellucid.context import DiscoveryContext, Identity
from pellucid.messages import Message
from pellucid.options import (
    AgentOptions,
    CallerOptions,
    InstructionsFunction,
    OverrideOptions,
    ResumeOptions,
    RunOptions,
    check_options,
)
from pellucid.run.loop import execute
from pellucid.run.outcomes import RunResult
from pellucid.run.start import Input, ResumeRequest, conversation, new_run
from pellucid.run.state import Configuration, Run, Setup
from pellucid.setup import copied, make_setup
from pellucid.signatures import shows
from pellucid.telemetry import Listeners, Subscribable
from pellucid.telemetry.scope import load_capture
from pellucid.tools import Tool
from pellucid.types import DepsT_contra, JSONObject, OutputT_co

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from pellucid.providers import Readiness
    from pellucid.run.stream import RunStream
    from pellucid.run.warm_up import BackgroundWarmUp
    from pellucid.selection import Explanation
    from pellucid.sessions import Session


@dataclass(slots=True, eq=False)
class _Configured:
    """Options of an agent, and the configuration made of them."""

    options: AgentOptions[Any]
    configuration: Configuration


class Agent(Subscribable, Generic[DepsT_contra, OutputT_co]):
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
        **options: `model` (required), `instructions`, `settings`, `tools`, `providers`, `skills`, `limits`, `budget`,
            `context`, `policy`, `telemetry`, `description`, `version`, `prices`, `reliability`, `collisions`,
            `registry_mode`, `pin`, `lock`, `on_change`, `on_stale`, `scorers` and `warm`; described in `AgentOptions`.

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

    @shows(AgentOptions)
    def __init__(
        self,
        name: str,
        *,
        output: type[OutputT_co] | TypeForm[OutputT_co] | None = None,
        **options: Unpack[AgentOptions[DepsT_contra]],
    ) -> None:
        check_options("Agent()", options, AgentOptions)
        load_backend()
        self._output = output
        options = copied(options)
        setup = _setup_of(name, output, options, Listeners())
        load_capture(options.get("telemetry"))
        # The last one counts; the others are those that it overrides.
        self._configured = configured = [_Configured(options, Configuration(setup, options.get("telemetry")))]
        self._opened: list[AsyncExitStack] = []
        # Without a reference to the agent, which is then released at once when nobody uses it any more.
        self._warm_ups = PerLoop(lambda: _background(lambda: configured[-1].configuration))
        if setup.is_warm and in_event_loop():
            self._warm_ups.get().start()

    def __repr__(self) -> str:
        providers = ", ".join(lister.provider.id for lister in self._setup.listers)
        return f"Agent({self.name!r}, model={self._setup.model.name!r}, providers=[{providers}])"

    async def __aenter__(self) -> Self:
        """Open the providers: `async with agent` connects to MCP servers, and closes all providers at its end.

        It can be entered again, such as by each lifespan of an application. Providers that several agents share close
        with the last of them.

        Raises:
            DiscoveryError: a provider cannot be opened.
        """
        from pellucid.providers.opening import open_all

        self._opened.append(await open_all(lister.provider for lister in self._setup.listers))
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._opened.pop().aclose()

    @property
    def _configuration(self) -> Configuration:
        return self._configured[-1].configuration

    @property
    def _setup(self) -> Setup:
        return self._configuration.setup

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
    @shows(RunOptions)
    async def run(self, input: Input, *, deps: Any = None, **options: Unpack[RunOptions]) -> RunResult[OutputT_co]:  # noqa: A002
        """Run until the model is done or a limit is reached.

        Args:
            input: A text, a message, or a sequence of messages.
            deps: Value that tools receive as `ctx.deps`; type checkers require it if the agent has a type of `deps`.
            **options: `history`, `identity`, `signal`, `budget` and `tags`; described in `RunOptions`.

        Raises:
            RunCancelled: `signal` was cancelled. (A cancelled task or scope raises the event loop's own exception.)
            RunTimeout: `Limits.timeout` passed.
            DiscoveryError, ToolNameCollision, ModelError: a phase failed.
            ReliabilityFailFast: a reliability rule ended the run.
            OutputError: the model's answer is not of the type `output`, at the second attempt either.
        """
        check_options("Agent.run()", options, RunOptions)
        return await execute(self._new_run(conversation(options.get("history", ()), input), deps, options))

    @overload
    def run_sync(
        self: Agent[None, OutputT_co], input: Input, *, deps: None = None, **options: Unpack[RunOptions]
    ) -> RunResult[OutputT_co]: ...
    @overload
    def run_sync(self, input: Input, *, deps: DepsT_contra, **options: Unpack[RunOptions]) -> RunResult[OutputT_co]: ...
    @shows(RunOptions)
    def run_sync(self, input: Input, *, deps: Any = None, **options: Unpack[RunOptions]) -> RunResult[OutputT_co]:  # noqa: A002
        """Call `run` from sync code: without an event loop, inside a running one, or after one was closed.

        Inside a running one it blocks the loop, of which a `RuntimeWarning` tells once, but not in a notebook.
        """
        check_options("Agent.run_sync()", options, RunOptions)
        return run_in_portal(lambda: self.run(input, deps=deps, **options))

    @overload
    def stream(
        self: Agent[None, OutputT_co], input: Input, *, deps: None = None, **options: Unpack[RunOptions]
    ) -> RunStream[OutputT_co]: ...
    @overload
    def stream(self, input: Input, *, deps: DepsT_contra, **options: Unpack[RunOptions]) -> RunStream[OutputT_co]: ...
    @shows(RunOptions)
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
        from pellucid.run.stream import RunStream

        check_options("Agent.stream()", options, RunOptions)
        messages = conversation(options.get("history", ()), input)
        return RunStream[OutputT_co](self._new_run(messages, deps, options, Listeners()))

    @overload
    async def resume(
        self: Agent[None, OutputT_co], checkpoint: JSONObject, *, deps: None = None, **options: Unpack[ResumeOptions]
    ) -> RunResult[OutputT_co]: ...
    @overload
    async def resume(
        self, checkpoint: JSONObject, *, deps: DepsT_contra, **options: Unpack[ResumeOptions]
    ) -> RunResult[OutputT_co]: ...
    @shows(ResumeOptions)
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
            **options: `decisions`, `results`, `identity`, `signal`, `budget`, `tags` and `claims`; described in
                `ResumeOptions`.

        Raises:
            CheckpointError: the checkpoint or a decision is not valid, or changed arguments do not fit the schema.
                Nothing was run, and the checkpoint can be resumed again.
            AlreadyResumed: the checkpoint was resumed before.
            PellucidError: any other error that `run` raises.
        """
        check_options("Agent.resume()", options, ResumeOptions)
        return await execute(self._resumed_run(checkpoint, deps, options))

    @overload
    def resume_sync(
        self: Agent[None, OutputT_co], checkpoint: JSONObject, *, deps: None = None, **options: Unpack[ResumeOptions]
    ) -> RunResult[OutputT_co]: ...
    @overload
    def resume_sync(
        self, checkpoint: JSONObject, *, deps: DepsT_contra, **options: Unpack[ResumeOptions]
    ) -> RunResult[OutputT_co]: ...
    @shows(ResumeOptions)
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
    @shows(ResumeOptions)
    def resume_stream(
        self, checkpoint: JSONObject, *, deps: Any = None, **options: Unpack[ResumeOptions]
    ) -> RunStream[OutputT_co]:
        """Resume a run and stream its events, as `stream` does.

        Raises:
            CheckpointError: the checkpoint or a decision is not valid.
        """
        from pellucid.run.stream import RunStream

        check_options("Agent.resume_stream()", options, ResumeOptions)
        return RunStream[OutputT_co](self._resumed_run(checkpoint, deps, options, Listeners()))

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
        from pellucid.run.subagent import agent_tool

        return agent_tool(lambda: self._configuration, name, description, timeout)

    def session(
        self, session_id: str, *, store: Any = None, identity: Identity | None = None, window: int | None = None
    ) -> Session[DepsT_contra, OutputT_co]:
        """Return a conversation of this agent, kept between its runs: `await agent.session("customer-7").run("Hi")`.

        Its id is `gen_ai.conversation.id` of the runs. Each principal of each tenant has conversations of its own.

        Args:
            session_id: Id of the conversation, 1 to 255 characters.
            store: Where it is kept, an open `RunStore`; the memory of this process, as long as the agent exists, unless
                given.
            identity: Identity on whose behalf the runs act.
            window: Number of messages with which a run starts at least, rounded up to whole runs; all unless given.

        Raises:
            ConfigError: an argument is invalid.
        """
        from pellucid.sessions import Session

        return Session(self, session_id, store, identity, window)

    def instructions(self, function: InstructionsFunction[DepsT_contra]) -> InstructionsFunction[DepsT_contra]:
        """Add a function to the instructions, as a decorator.

        ```python
        @agent.instructions
        async def customer(ctx: ToolContext[Shop]) -> str:
            return f"The customer is {await ctx.deps.name_of(ctx.identity)}."
        ```

        It is called for each request that starts from now on, and its text comes after the agent's other instructions.

        Args:
            function: Function of a `ToolContext`, sync or async, as for the option `instructions`.

        Raises:
            ConfigError: it is not a function.
        """
        from pellucid.run.instructions import added

        for item in self._configured:
            parts, setup = added(item.options.get("instructions"), item.configuration.setup, function)
            item.options = {**item.options, "instructions": parts}
            item.configuration = Configuration(setup, item.configuration.pipeline)
        return function

    @shows(OverrideOptions, dict.fromkeys(OverrideOptions.__annotations__, ...))
    def override(self, **options: Unpack[OverrideOptions[DepsT_contra]]) -> AbstractContextManager[None]:
        """Replace options of this agent for all runs that start within the block, in any thread; for tests.

        ```python
        with support.override(model=ScriptedModel("Hello.")):
            response = client.post("/questions", json={"text": "Hi"})
        ```

        It applies where the agent is used already: in an application that holds it, to durable runs, and to tools made
        with `as_tool()`. An inner block keeps the options of the outer one that it does not replace itself.

        Args:
            **options: Options of `Agent`, except `name` and `output`.

        Raises:
            ConfigError, InvalidCatalog: as for `Agent`.
        """
        check_options("Agent.override()", options, OverrideOptions)
        changed: AgentOptions[Any] = copied({**self._configured[-1].options, **options})
        setup = _setup_of(self.name, self._output, changed, self._setup.listeners)
        return Within(self._configured, _Configured(changed, Configuration(setup, changed.get("telemetry"))))

    async def warm_up(self, *, identity: Identity | None = None) -> None:
        """Connect to servers, fetch catalogues and create the model's client now, so that the first run need not.

        Each provider lists its tools once, in a `discover_tools` span that belongs to no run. Connections belong to the
        event loop in which this is called.

        Args:
            identity: Identity to pass to hubs whose catalogues depend on it.

        Raises:
            DiscoveryError: a provider failed.
        """
        from pellucid.run.warm_up import warm_up

        await warm_up(self._configuration, identity)

    def warm_up_sync(self, *, identity: Identity | None = None) -> None:
        """Call `warm_up` from sync code, in the event loop of `run_sync`."""
        run_in_portal(lambda: self.warm_up(identity=identity))

    def ready(self) -> Readiness:
        """Return whether the hubs have answered, for a health check; nothing is asked and nothing waits.

        ```python
        @app.get("/readyz")
        async def readyz() -> JSONResponse:
            readiness = agent.ready()
            return JSONResponse(readiness.to_dict(), 200 if readiness else 503)
        ```

        An agent with `warm=True` starts to warm up with the first call in an event loop (without one, in that of
        `run_sync`), and tries again while a hub that runs need has not answered.
        """
        from pellucid.providers.readiness import readiness_of

        readiness = readiness_of(self._setup.listers)
        if self._setup.is_warm:
            if in_event_loop():
                self._warm_ups.get().start(again=not readiness)
            else:
                run_in_portal(partial(self._start_warm_up, again=not readiness))
        return readiness

    async def _start_warm_up(self, *, again: bool) -> None:
        self._warm_ups.get().start(again=again)

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
        from pellucid.selection.explain import explain

        setup = self._setup
        within = setup.limits.discovery_timeout
        ctx = ctx or DiscoveryContext()
        return await explain(self.name, setup.listers, setup.catalogs, setup.permissions, within, tool_name, ctx)

    def _resumed_run(
        self, checkpoint: JSONObject, deps: Any, options: ResumeOptions, stream: Listeners | None = None
    ) -> Run:
        from pellucid.run.resume_request import resume_request

        return self._new_run(resume_request(checkpoint, options), deps, options, stream)

    def _new_run(
        self,
        source: Sequence[Message] | ResumeRequest,
        deps: Any,
        options: CallerOptions,
        stream: Listeners | None = None,
    ) -> Run:
        return new_run(self._configuration, source, deps, options, stream=stream)


def _setup_of(name: str, output: Any, options: AgentOptions[Any], listeners: Listeners) -> Setup:
    setup = make_setup(name, output, options, listeners)
    if not options.get("scorers"):
        return setup
    from pellucid.scores.online import scored

    return scored(setup, options["scorers"])


def configuration_of(agent: Agent[Any, Any]) -> Configuration:
    """Return the configuration of the runs that an agent starts now; for those who make them with `new_run`."""
    return agent._configuration  # noqa: SLF001  (of this module)


def _background(configuration: Callable[[], Configuration]) -> BackgroundWarmUp:
    from pellucid.run.warm_up import BackgroundWarmUp

    return BackgroundWarmUp(configuration)
