"""Scripts of runs that Hypothesis generates, and the code that plays them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import anyio
from anyio import to_thread
from hypothesis import strategies as st

from pellucid import (
    Agent,
    CancelToken,
    CapturePolicy,
    Decision,
    DiscoveryProvider,
    ExternalResult,
    Limits,
    Message,
    ModelResponse,
    PermissionRequest,
    RunCancelled,
    RunResult,
    Tool,
    ToolCall,
    ToolRegistry,
    Usage,
    combined,
    gated_tools,
    semconv,
    static_tools,
)
from pellucid.models import ModelDelta, ModelRequest
from pellucid.testing import FakeHub
from pellucid_exporters.testing import Captured

Ending: TypeAlias = Literal["nothing", "token", "native", "deadline"]
Capture: TypeAlias = Literal["full", "redacted", "metadata", "off"]
Policy: TypeAlias = Literal["denies", "halts", "fails", "asks"]
Reader: TypeAlias = Literal["none", "reads", "leaves", "raises", "sync"]

TOOLS: Final = (
    "quick",
    "threaded",
    "broken",
    "broken_thread",
    "hangs",
    "nested",
    "odd",
    "serial",
    "lazy",
    "sub_agent",
    "asks",
    "background",
    "expires",
    "external",
    "waits",
)
META: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "discovers": ("__lazy__tool__discovery__", {"toolNames": ["lazy", "invented"]}),
    "searches": ("tool_search", {"query": "searched"}),
    "activates": ("tool_search", {"names": ["searched", "invented"]}),
}
CALLS: Final = (*TOOLS, *META, "invented", "bad_arguments", "from_hub", "searched")
PROVIDERS: Final = (
    "gate", "broken_gate", "hub", "stale_hub", "refreshing_hub", "dying_hub", "hung_hub", "skipping", "skipping_hubs",
    "failing", "invalid", "quarantined", "empty", "doubles", "lazy_registry",
)  # fmt: skip
HARMLESS: Final = frozenset(PROVIDERS) - {"broken_gate", "dying_hub", "hung_hub", "failing", "invalid"}
DEADLINE: Final = 0.03
TIMEOUT: Final = 0.02


@dataclass(frozen=True)
class Script:
    """One scene of a test.

    Attributes:
        at: Number of the event at which the ending, or the reader's, comes.
        reader: Reader of the run as a stream, if there is one; `sync` calls `run_sync` from a thread.
        runs: Runs at the same time, by the agents in turn, which share their providers.
        listeners: True if listeners that fail, or are async, hear all events too.
        stubborn: True if the tool `hangs` ignores its cancellation, which costs half a second.
        policy: Effect of the permission policy on some of the tools, if there is one.
    """

    steps: Sequence[Sequence[str]]
    providers: Sequence[str]
    answer: Literal["text", "error", "nonsense", "hangs"]
    usage: bool
    repeated_ids: bool
    ending: Ending
    reader: Reader
    at: int
    runs: int
    fixed: bool
    agents: int = 1
    capture: Capture | None = None
    most_calls: int | None = None
    listeners: bool = False
    stubborn: bool = False
    policy: Policy | None = None

    @property
    def succeeds(self) -> bool:
        """True if each run of the script must come to its answer."""
        return (
            self.answer == "text"
            and self.ending == "nothing"
            and self.reader in ("none", "reads", "sync")
            and set(self.providers) <= HARMLESS
            and self.policy != "halts"
        )

    @property
    def capture_policy(self) -> CapturePolicy | None:
        """A policy with small bounds, so that they are reached; None leaves the policy to the environment."""
        return CapturePolicy(self.capture, max_bytes=600, max_span_bytes=1000) if self.capture is not None else None


scripts: Final = st.builds(
    Script,
    steps=st.lists(st.lists(st.sampled_from(CALLS), min_size=1, max_size=3), max_size=4),
    providers=st.lists(st.sampled_from(PROVIDERS), max_size=3, unique=True),
    answer=st.sampled_from(("text", "text", "text", "text", "error", "nonsense", "hangs")),
    usage=st.booleans(),
    repeated_ids=st.booleans(),
    ending=st.sampled_from(("nothing", "nothing", "token", "native", "deadline")),
    reader=st.sampled_from(("none", "none", "reads", "leaves", "raises", "sync")),
    at=st.integers(1, 40),
    runs=st.integers(1, 4),
    fixed=st.booleans(),
    agents=st.integers(1, 2),
    capture=st.sampled_from((None, "full", "redacted", "metadata", "off")),
    most_calls=st.sampled_from((None, None, 1, 3)),
    listeners=st.booleans(),
    stubborn=st.integers(0, 9).map(lambda number: number == 9),  # seldom
    policy=st.sampled_from((None, None, None, "denies", "halts", "fails", "asks")),
)


class ReaderError(Exception):
    """Exception that the reader of a stream raises."""


class Playing:
    """A model that follows a script."""

    name = "scripted"
    provider_name = "tests"

    def __init__(self, script: Script) -> None:
        self.script = script

    def respond(self, request: ModelRequest) -> Any:
        """Return the answer that is due, by the length of the conversation."""
        step = sum(message.role == "assistant" for message in request.messages)
        usage = Usage(input_tokens=7 + step, output_tokens=step) if self.script.usage else Usage()
        if request.tools and step < len(self.script.steps):
            calls = [self.call(step, index, name) for index, name in enumerate(self.script.steps[step])]
            return ModelResponse(message=Message("assistant", calls), usage=usage, finish_reason="tool_call")
        if self.script.answer == "error":
            raise ConnectionError("the model is away")
        if self.script.answer == "nonsense":
            return 5
        if self.script.answer == "hangs":
            return None
        return ModelResponse(message=Message("assistant", "done"), usage=usage)

    def call(self, step: int, index: int, name: str) -> ToolCall:
        """Return one call; several of a message may have one id."""
        number = 0 if self.script.repeated_ids else index
        if name in META:
            return ToolCall(*META[name], f"call_{step}_{number}")
        arguments: Any = {"n": "no number"} if name == "bad_arguments" else {"n": index}
        arguments = {"input": "again"} if name == "sub_agent" else arguments
        return ToolCall("quick" if name == "bad_arguments" else name, arguments, f"call_{step}_{number}")

    async def generate(self, request: ModelRequest) -> Any:
        """Answer whole."""
        await anyio.lowlevel.checkpoint()
        return await self.respond_or_hang(request)

    async def respond_or_hang(self, request: ModelRequest) -> Any:
        """Return the answer that is due, or never."""
        response = self.respond(request)
        if response is None:
            await anyio.sleep_forever()
        return response

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        """Answer in pieces."""
        for word in ("some ", "words"):
            yield ModelDelta("text", word)
            await anyio.lowlevel.checkpoint()
        yield await self.respond_or_hang(request)


SCHEMA: Final = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def make_tool(name: str, run: Callable[..., Any], **options: Any) -> Tool:
    """Return a tool that takes a number."""
    return Tool(name=name, description=name, input_schema=SCHEMA, run=run, **options)


async def quick(arguments: dict[str, Any], ctx: object) -> int:
    """Give back the number."""
    return int(arguments["n"])


def threaded(arguments: dict[str, Any], ctx: object) -> int:
    """Give back the number, from a thread."""
    return int(arguments["n"])


async def broken(arguments: dict[str, Any], ctx: object) -> int:
    """Fail."""
    raise LookupError(f"nothing has the number {arguments['n']}")


def broken_thread(arguments: dict[str, Any], ctx: object) -> int:
    """Fail in a thread."""
    raise ZeroDivisionError


async def odd(arguments: dict[str, Any], ctx: object) -> Any:
    """Give back what is not JSON, and too much of it."""
    return {"what": object(), "long": "\x00\ud800ü" * 500, "number": math.nan}


async def hangs(arguments: dict[str, Any], ctx: object) -> None:
    """Never end."""
    await anyio.sleep_forever()


async def enqueue(arguments: dict[str, Any], ctx: object) -> None:
    """Leave the work to another process."""


ASYNCHRONOUS: Final[dict[str, dict[str, Any]]] = {
    "background": {"execution": "same-invocation"},
    "expires": {"execution": "same-invocation", "expires_in": TIMEOUT},
    "external": {"execution": "external-dispatch"},
    "waits": {"execution": "external-dispatch", "pending": "wait"},
}


@dataclass
class Stage:
    """Telemetry and outcomes of one script that is played.

    Attributes:
        outcomes: Result or exception of each run, also of those that were resumed.
        final: Result or exception of each run that was not resumed.
        resumed: Number of runs that were resumed after an approval or a result.
        late: Spans of runs that were still open after all callers had returned.
        released: Token that releases tools that were left behind.
    """

    script: Script
    telemetry: Captured
    token: CancelToken = field(default_factory=CancelToken)
    outcomes: list[Any] = field(default_factory=list)
    final: list[Any] = field(default_factory=list)
    resumed: int = 0
    late: list[str] = field(default_factory=list)
    heard: int = 0
    released: CancelToken = field(default_factory=CancelToken)

    @property
    def timeout(self) -> float | None:
        """Seconds that the tool `hangs` may take; None if the deadline of the run ends it and leaves it behind."""
        return None if self.script.stubborn and self.script.ending == "deadline" else TIMEOUT

    def agents(self) -> list[Agent]:
        """Return the agents of the script, which share their providers."""
        providers = [PROVIDER[name]() for name in self.script.providers]
        return [self.agent(f"outer-{number}", providers) for number in range(self.script.agents)]

    def agent(self, name: str, providers: Sequence[Any]) -> Agent:
        """Return one agent of the script."""
        inner = Agent("inner", model=Playing(_INNER), tools=[make_tool("quick", quick)])

        async def stubborn(arguments: dict[str, Any], ctx: object) -> None:
            with anyio.CancelScope(shield=True):
                await self.released.wait()

        async def nested(arguments: dict[str, Any], ctx: object) -> str:
            return (await inner.run("again")).output

        runs: dict[str, Callable[..., Any]] = {
            "quick": quick, "threaded": threaded, "broken": broken, "broken_thread": broken_thread,
            "hangs": stubborn if self.script.stubborn else hangs, "nested": nested, "odd": odd, "serial": quick,
            "lazy": quick, "asks": quick, "background": quick, "expires": hangs, "external": enqueue, "waits": enqueue,
        }  # fmt: skip
        tools = [
            make_tool(
                name,
                runs[name],
                timeout=self.timeout if name == "hangs" else None,
                serial=name == "serial",
                lazy=name == "lazy",
                needs_approval=name == "asks",
                **ASYNCHRONOUS.get(name, {}),
            )
            for name in runs
        ]
        deeper = [tool for tool in tools if tool.name in ("quick", "hangs", "asks", "waits")]
        sub_agent = Agent("deeper", model=Playing(_DEEPER), tools=deeper, description="Goes deeper.")
        tools.append(sub_agent.as_tool("sub_agent", timeout=self.timeout))
        limits = Limits(
            max_iterations=4,
            max_discoveries=2,
            max_tool_tokens=400,
            max_tool_calls=self.script.most_calls,
            timeout=DEADLINE if self.script.ending == "deadline" else None,
            model_timeout=TIMEOUT if self.script.answer == "hangs" else None,
        )
        model = Playing(self.script)
        policy = partial(_decide, self.script.policy) if self.script.policy else None
        return Agent(
            name, model=model, tools=tools, providers=providers, limits=limits, collisions="first", policy=policy
        )

    async def play(self) -> None:
        """Run the script to its end, whatever that is."""
        agents = self.agents()
        with anyio.CancelScope() as scope:

            def listen(event: object) -> None:
                self.heard += 1
                if self.heard == self.script.at:
                    # A scope cannot be cancelled from another thread.
                    if self.script.ending == "native" and self.script.reader != "sync":
                        scope.cancel()
                    elif self.script.ending in ("native", "token"):
                        self.token.cancel("enough")

            for agent in agents:
                if self.script.listeners:
                    agent.on("*", _fail_to_listen)
                    agent.on("*", _listen_slowly)
                agent.on("*", listen)
            async with anyio.create_task_group() as tasks:
                for number in range(self.script.runs):
                    tasks.start_soon(self.one, agents[number % len(agents)])
        self.late = [
            span.name
            for span in self.telemetry.started
            if span.is_recording() and semconv.RUN_ID in (span.attributes or {})
        ]
        self.released.cancel()
        if self.script.reader == "sync":
            await self.settle()

    async def settle(self) -> None:
        """Wait for fetches in the background: the event loop of `run_sync` goes on after the runs."""
        with anyio.fail_after(60):
            while not self.is_settled:  # noqa: ASYNC110  (another thread, no event)
                await anyio.sleep(0.001)

    @property
    def is_settled(self) -> bool:
        """True if nothing is under way any longer. A log line is the last that a boundary leaves."""
        inflight = [point.value for point in self.telemetry.metrics if point.name == semconv.DISCOVERY_INFLIGHT.name]
        lines = [line for line in self.telemetry.logs if line["event"] != semconv.EXCEPTION_EVENT]
        return not any(inflight) and len(lines) == len(self.telemetry.started)

    @property
    def expected(self) -> Counter[str]:
        """Number of runs that ended with each outcome, as their callers saw it; the spans must have the same."""
        return Counter(_outcome(outcome) for outcome in self.outcomes)

    async def one(self, agent: Agent) -> None:
        """Run the agent once, and decide all that it asks a person until it is done."""
        begin, begin_stream = partial(agent.run, "go"), partial(agent.stream, "go")
        begin_sync = partial(agent.run_sync, "go")
        while True:
            outcome = await self.ended(begin, begin_sync, begin_stream)
            self.outcomes.append(outcome)
            if not isinstance(outcome, RunResult) or outcome.checkpoint is None:
                break
            self.resumed += 1
            more: dict[str, Any] = {
                "checkpoint": json.loads(json.dumps(outcome.checkpoint)),
                "decisions": decide(outcome),
                "results": settle(outcome),
            }
            begin, begin_stream = partial(agent.resume, **more), partial(agent.resume_stream, **more)
            begin_sync = partial(agent.resume_sync, **more)
        self.final.append(outcome)

    async def ended(self, run: Any, run_sync: Any, stream: Any) -> Any:
        """Run in the way of the script, and return the result or what was raised."""
        try:
            if self.script.reader == "sync":
                return await to_thread.run_sync(partial(run_sync, signal=self.token))
            if self.script.reader == "none":
                return await run(signal=self.token)
            return await self.read(stream)
        except Exception as error:  # noqa: BLE001  (looked at by the test)
            return error

    async def read(self, stream: Any) -> Any:
        """Read a stream as the script says."""
        seen = 0
        async with stream(signal=self.token) as events:
            async for _ in events:
                seen += 1
                if seen >= self.script.at:
                    if self.script.reader == "leaves":
                        return None
                    if self.script.reader == "raises":
                        raise ReaderError
        return events.result


def decide(waits: RunResult[Any]) -> list[Decision]:
    """Approve of one call, deny the next, and leave the third for later."""
    return [
        Decision(request.approval_id, approved=number % 3 == 0)
        for number, request in enumerate(waits.approvals)
        if number % 3 < 2
    ]


def settle(waits: RunResult[Any]) -> list[ExternalResult]:
    """Return one result, an error for the next call, and nothing for the third."""
    errors = (None, "it failed")
    return [
        ExternalResult(result_id=request.result_id, error=errors[number % 3])
        for number, request in enumerate(waits.external)
        if number % 3 < 2
    ]


def _outcome(outcome: Any) -> str:
    if isinstance(outcome, RunResult):
        return semconv.COMPLETED
    if isinstance(outcome, RunCancelled):
        return semconv.CANCELLED
    return semconv.TIMEOUT if isinstance(outcome, TimeoutError) else semconv.FAILED


_INNER: Final = Script([["quick"]], [], "text", True, False, "nothing", "none", 1, 1, False)


_DEEPER: Final = Script([["quick", "hangs", "asks", "waits"]], [], "text", True, False, "nothing", "none", 1, 1, False)


async def _decide(policy: Policy, request: PermissionRequest) -> str:
    """Keep `odd` from being seen and `threaded` from being called."""
    await anyio.lowlevel.checkpoint()
    if policy == "asks":
        return "ask" if request.tool_name in ("serial", "sub_agent", "invented", "nested") else "allow"
    if (request.stage, request.tool_name) not in {("offer", "odd"), ("dispatch", "threaded")}:
        return "allow"
    if policy == "fails":
        raise LookupError("no rule")
    return "halt" if policy == "halts" and request.stage == "dispatch" else "deny"


def _hub_tools(number: int) -> list[Tool]:
    return [make_tool("from_hub", quick)] + ([make_tool("sometimes", quick)] if number % 2 else [])


def _fail_to_listen(event: object) -> None:
    raise RuntimeError("no ears")


async def _listen_slowly(event: object) -> None:
    await anyio.lowlevel.checkpoint()


def _refuse(tool: Tool, ctx: object) -> bool:
    raise PermissionError("no policy")


async def _slow_gate(tool: Tool, ctx: object) -> bool:
    await anyio.lowlevel.checkpoint()
    return tool.name != "hidden"


class _Invalid:
    id = "invalid"

    def list_tools(self, ctx: object) -> Any:
        return [make_tool("twice", quick), make_tool("twice", quick)]


class _Quarantined(_Invalid):
    id = "quarantined"
    on_invalid = "quarantine"


class _Guarded:
    id = "guarded"

    def list_tools(self, ctx: object) -> Any:
        return [make_tool("guarded", quick)]


class _Down:
    id = "down"

    async def list_tools(self, ctx: object) -> Any:
        raise ConnectionError("the hub is away")


def _doubles() -> ToolRegistry:
    registry = ToolRegistry([make_tool("double", quick)], id="doubles", collisions="last")
    registry.register_mcp(make_tool("double", quick), "a")
    registry.register_mcp(make_tool("quick", quick), "b")
    return registry


PROVIDER: Final[dict[str, Callable[[], Any]]] = {
    "gate": lambda: gated_tools(static_tools([make_tool("hidden", quick), make_tool("shown", quick)]), _slow_gate),
    "broken_gate": lambda: gated_tools(_Guarded(), _refuse),
    "hub": lambda: DiscoveryProvider(FakeHub(_hub_tools, latency=0.001), id="hub", ttl=0.002),
    "stale_hub": lambda: DiscoveryProvider(
        FakeHub([make_tool("from_stale", quick)], faults=[None, ConnectionError("away")]),
        id="stale-hub", ttl=0, stale_if_error=60,
    ),
    "refreshing_hub": lambda: DiscoveryProvider(
        FakeHub([make_tool("from_refreshed", quick)], latency=0.001, faults=[None, None, ConnectionError("away")]),
        id="refreshing-hub", ttl=0, stale_while_revalidate=60,
    ),
    "dying_hub": lambda: DiscoveryProvider(
        FakeHub([make_tool("from_dying", quick)], latency=0.001, faults=[None, ConnectionError("away")]),
        id="dying-hub", ttl=0,
    ),
    "hung_hub": lambda: DiscoveryProvider(FakeHub(latency=math.inf), id="hung-hub", timeout=TIMEOUT),
    "skipping": lambda: combined(_Down(), static_tools([make_tool("kept", quick)]), on_error="skip"),
    "skipping_hubs": lambda: combined(
        DiscoveryProvider(FakeHub(latency=math.inf), id="hung-and-skipped", timeout=TIMEOUT), _Invalid(),
        DiscoveryProvider(FakeHub([make_tool("from_third", quick)]), id="third"), on_error="skip",
    ),
    "doubles": _doubles,
    "lazy_registry": lambda: ToolRegistry([make_tool("searched", quick)], id="lazy-registry", registry_mode="lazy"),
    "failing": lambda: combined(_Down(), _Guarded()),
    "invalid": _Invalid,
    "quarantined": _Quarantined,
    "empty": lambda: DiscoveryProvider(FakeHub(), id="empty"),
}  # fmt: skip
