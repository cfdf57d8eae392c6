"""Scripts of runs, made up by Hypothesis, and how to play them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import anyio
from hypothesis import strategies as st

from pellucid import (
    Agent,
    CancelToken,
    DiscoveryProvider,
    Limits,
    Message,
    ModelResponse,
    Tool,
    ToolCall,
    Usage,
    combined,
    gated_tools,
    static_tools,
)
from pellucid.models import ModelDelta, ModelRequest
from pellucid.testing import FakeHub
from pellucid_exporters.testing import Captured

Ending: TypeAlias = Literal["nothing", "token", "native", "deadline"]
Reader: TypeAlias = Literal["none", "reads", "leaves", "raises"]

TOOLS: Final = ("quick", "threaded", "broken", "hangs", "nested")
CALLS: Final = (*TOOLS, "invented", "bad_arguments", "from_hub")
PROVIDERS: Final = ("gate", "broken_gate", "hub", "stale_hub", "hung_hub", "skipping", "failing", "invalid", "empty")
HARMLESS: Final = frozenset({"gate", "hub", "stale_hub", "skipping", "empty"})
DEADLINE: Final = 0.03
TIMEOUT: Final = 0.02


@dataclass(frozen=True)
class Script:
    """One scene. Attributes: at: number of the event at which the ending, or the reader's, comes."""

    steps: Sequence[Sequence[str]]
    providers: Sequence[str]
    answer: Literal["text", "error", "nonsense"]
    usage: bool
    repeated_ids: bool
    ending: Ending
    reader: Reader
    at: int
    runs: int
    fixed: bool

    @property
    def succeeds(self) -> bool:
        """Whether every run of it must come to its answer."""
        return (
            self.answer == "text"
            and self.ending == "nothing"
            and self.reader in ("none", "reads")
            and set(self.providers) <= HARMLESS
        )


scripts: Final = st.builds(
    Script,
    steps=st.lists(st.lists(st.sampled_from(CALLS), min_size=1, max_size=3), max_size=4),
    providers=st.lists(st.sampled_from(PROVIDERS), max_size=3, unique=True),
    answer=st.sampled_from(("text", "text", "text", "error", "nonsense")),
    usage=st.booleans(),
    repeated_ids=st.booleans(),
    ending=st.sampled_from(("nothing", "nothing", "token", "native", "deadline")),
    reader=st.sampled_from(("none", "none", "reads", "leaves", "raises")),
    at=st.integers(1, 40),
    runs=st.integers(1, 3),
    fixed=st.booleans(),
)


class ReaderError(Exception):
    """What a reader of a stream raises."""


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
        return ModelResponse(message=Message("assistant", "done"), usage=usage)

    def call(self, step: int, index: int, name: str) -> ToolCall:
        """Return one call; several of a message may have one id."""
        number = 0 if self.script.repeated_ids else index
        arguments = {"n": "no number"} if name == "bad_arguments" else {"n": index}
        return ToolCall("quick" if name == "bad_arguments" else name, arguments, f"call_{step}_{number}")

    async def generate(self, request: ModelRequest) -> Any:
        """Answer whole."""
        await anyio.lowlevel.checkpoint()
        return self.respond(request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        """Answer in pieces."""
        for word in ("some ", "words"):
            yield ModelDelta("text", word)
            await anyio.lowlevel.checkpoint()
        yield self.respond(request)


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


async def hangs(arguments: dict[str, Any], ctx: object) -> None:
    """Never end."""
    await anyio.sleep_forever()


@dataclass
class Stage:
    """What a script is played on.

    Attributes:
        outcomes: How each run ended: its result, or what it raised.
    """

    script: Script
    telemetry: Captured
    token: CancelToken = field(default_factory=CancelToken)
    outcomes: list[Any] = field(default_factory=list)
    heard: int = 0

    def agent(self) -> Agent:
        """Return the agent of all runs of the script."""
        inner = Agent("inner", model=Playing(_INNER), tools=[make_tool("quick", quick)])

        async def nested(arguments: dict[str, Any], ctx: object) -> str:
            return (await inner.run("again")).output

        runs: dict[str, Callable[..., Any]] = {
            "quick": quick, "threaded": threaded, "broken": broken, "hangs": hangs, "nested": nested,
        }  # fmt: skip
        tools = [make_tool(name, runs[name], timeout=TIMEOUT if name == "hangs" else None) for name in TOOLS]
        deadline = DEADLINE if self.script.ending == "deadline" else None
        return Agent(
            "outer",
            model=Playing(self.script),
            tools=tools,
            providers=[PROVIDER[name]() for name in self.script.providers],
            limits=Limits(max_iterations=4, deadline=deadline),
        )

    async def play(self) -> None:
        """Run the script to its end, whatever that is."""
        agent = self.agent()
        with anyio.CancelScope() as scope:

            def listen(event: object) -> None:
                self.heard += 1
                if self.heard == self.script.at:
                    if self.script.ending == "token":
                        self.token.cancel("enough")
                    elif self.script.ending == "native":
                        scope.cancel()

            agent.on("*", listen)
            async with anyio.create_task_group() as tasks:
                for _ in range(self.script.runs):
                    tasks.start_soon(self.one, agent)

    async def one(self, agent: Agent) -> None:
        """Run the agent once."""
        try:
            if self.script.reader == "none":
                self.outcomes.append(await agent.run("go", signal=self.token))
            else:
                self.outcomes.append(await self.read(agent))
        except Exception as error:  # noqa: BLE001  (looked at by the test)
            self.outcomes.append(error)

    async def read(self, agent: Agent) -> Any:
        """Read a stream as the script says."""
        seen = 0
        async with agent.stream("go", signal=self.token) as events:
            async for _ in events:
                seen += 1
                if seen >= self.script.at:
                    if self.script.reader == "leaves":
                        return None
                    if self.script.reader == "raises":
                        raise ReaderError
        return events.result


_INNER: Final = Script([["quick"]], [], "text", True, False, "nothing", "none", 1, 1, False)


def _hub_tools(number: int) -> list[Tool]:
    return [make_tool("from_hub", quick)] + ([make_tool("sometimes", quick)] if number % 2 else [])


def _refuse(tool: Tool, ctx: object) -> bool:
    raise PermissionError("no policy")


async def _slow_gate(tool: Tool, ctx: object) -> bool:
    await anyio.lowlevel.checkpoint()
    return tool.name != "hidden"


class _Invalid:
    id = "invalid"

    def list_tools(self, ctx: object) -> Any:
        return [make_tool("twice", quick), make_tool("twice", quick)]


class _Guarded:
    id = "guarded"

    def list_tools(self, ctx: object) -> Any:
        return [make_tool("guarded", quick)]


class _Down:
    id = "down"

    async def list_tools(self, ctx: object) -> Any:
        raise ConnectionError("the hub is away")


PROVIDER: Final[dict[str, Callable[[], Any]]] = {
    "gate": lambda: gated_tools(static_tools([make_tool("hidden", quick), make_tool("shown", quick)]), _slow_gate),
    "broken_gate": lambda: gated_tools(_Guarded(), _refuse),
    "hub": lambda: DiscoveryProvider(FakeHub(_hub_tools, latency=0.001), id="hub", ttl=0.002),
    "stale_hub": lambda: DiscoveryProvider(
        FakeHub([make_tool("from_stale", quick)], faults=[None, ConnectionError("away")]),
        id="stale-hub", ttl=0, stale_if_error=60,
    ),
    "hung_hub": lambda: DiscoveryProvider(FakeHub(latency=math.inf), id="hung-hub", timeout=TIMEOUT),
    "skipping": lambda: combined(_Down(), static_tools([make_tool("kept", quick)]), on_error="skip"),
    "failing": lambda: combined(_Down(), _Guarded()),
    "invalid": _Invalid,
    "empty": lambda: DiscoveryProvider(FakeHub(), id="empty"),
}  # fmt: skip
