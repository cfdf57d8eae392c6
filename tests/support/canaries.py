"""Runs that carry a marked text in every place where content can enter."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pydantic
from mcp_types import CallToolResult, ListToolsResult, TextContent
from mcp_types import Tool as ServerTool

from pellucid import (
    Agent,
    BlobPart,
    CancelToken,
    DiscoveryProvider,
    Identity,
    Limits,
    Message,
    ModelDelta,
    ModelResponse,
    PellucidError,
    TextPart,
    Tool,
    ToolCall,
    ToolError,
    UriPart,
    combined,
    gated_tools,
)
from pellucid.mcp import MCPProvider
from pellucid.messages import ServerToolCall, ServerToolResult
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from support.mcp_servers import listing_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pellucid import ModelRequest, ToolContext, ToolProvider
    from pellucid.telemetry.pipeline import Pipeline

CANARY = re.compile(r"sk-canary-([a-z-]+)-0123456789abcdef")
"""A text that looks like a key of a vendor, so that one set of runs serves all modes. Group 1 is its place."""


def canary(place: str) -> str:
    """Return the text that marks a place."""
    return f"sk-canary-{place}-0123456789abcdef"


def escaped(text: str) -> set[str]:
    """Return the places whose canaries are in a text."""
    return set(CANARY.findall(text))


class _Quoted(pydantic.BaseModel):
    """Something whose validation errors quote what they were given."""

    number: int


def _raise(kind: str) -> None:
    """Raise one of the exceptions that say more than their own text."""
    match kind:
        case "note":
            error = ValueError(canary("error-text"))
            error.add_note(canary("error-note"))
            raise error
        case "cause":
            raise RuntimeError("no text of its own") from OSError(canary("error-cause"))
        case "context":
            try:
                raise OSError(canary("error-context"))  # noqa: TRY301  (so that there is a context)
            except OSError:
                raise RuntimeError("while handling")  # noqa: B904  (its context is what is wanted)
        case "group":
            nested = ExceptionGroup(canary("group-text"), [KeyError(canary("group-member"))])
            raise ExceptionGroup("several", [ValueError("harmless"), nested])
        case "key":
            raise KeyError(canary("error-key"))
        case "pydantic":
            _Quoted(number=canary("pydantic-input"))  # type: ignore[arg-type]  # it is to be refused
        case "tool":
            raise ToolError(canary("tool-error"))
        case _:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, canary("unicode-reason"))


async def _work(arguments: dict[str, Any], ctx: ToolContext) -> Any:
    ctx.progress({canary("progress-key"): canary("progress-value")})
    return {canary("result-key"): [canary("result-value"), arguments]}


async def _fail(arguments: dict[str, Any], ctx: ToolContext) -> None:
    _raise(arguments["kind"])


async def _parts(arguments: dict[str, Any], ctx: ToolContext) -> Any:
    return (
        TextPart(canary("part-text")),
        UriPart(uri="https://h.example/?q=" + canary("part-uri"), modality="image"),
        BlobPart(content=canary("part-blob"), modality="image"),
    )


async def _unspeakable(arguments: dict[str, Any], ctx: ToolContext) -> Any:
    class Odd:
        def __repr__(self) -> str:
            return canary("repr")

    return Odd()


SCHEMA = {
    "type": "object",
    "description": canary("schema-description"),
    "properties": {
        "kind": {"type": "string", "default": canary("schema-default"), "examples": [canary("schema-example")]},
        "choice": {"enum": [canary("schema-enum")]},
        "fixed": {"const": canary("schema-const")},
        "number": {"type": "integer"},
        canary("schema-property"): {"type": "string"},
    },
}


def _tools() -> list[Tool]:
    runs = {"work": _work, "fail": _fail, "parts": _parts, "unspeakable": _unspeakable}
    described = canary("tool-description")
    return [Tool(name=name, run=run, description=described, input_schema=SCHEMA) for name, run in runs.items()]


KINDS = ("note", "cause", "context", "group", "key", "pydantic", "tool", "unicode")


def _script() -> ScriptedModel:
    """Return a model that calls every tool in every way, rightly and wrongly."""
    return ScriptedModel(
        [
            ToolCall("work", {"kind": canary("argument"), canary("argument-key"): 1}),
            *(ToolCall("fail", {"kind": kind}) for kind in KINDS),
            ToolCall("parts", {}),
            ToolCall("unspeakable", {}),
        ],
        [
            ToolCall("work", '{"kind": "' + canary("raw-argument")),
            ToolCall("work", {"number": canary("refused-argument"), "choice": canary("refused-choice")}),
            ToolCall(canary("invented-name"), {"x": canary("argument-of-invented")}),
        ],
        Message(
            "assistant",
            [
                TextPart(canary("answer")),
                ServerToolCall(name="search", server_tool_call={"type": "search", "query": canary("server-call")}),
                ServerToolResult(server_tool_call_response={"type": "search", "found": canary("server-result")}),
            ],
        ),
    )


IDENTITY = Identity(tenant=canary("tenant"), principal=canary("principal"))


async def _ordinary(telemetry: Pipeline | None) -> None:
    """Have content in messages, tools, calls and results; two runs, one of them streamed."""
    for streamed in (False, True):
        agent = Agent(
            "speaking",
            model=_script(),
            tools=_tools(),
            instructions=canary("instructions"),
            description=canary("agent-description"),
            telemetry=telemetry,
        )
        agent.on("run.started", _raising_listener)
        given: dict[str, Any] = {
            "history": [Message("user", canary("history")), Message("assistant", canary("history-answer"))],
            "identity": IDENTITY,
            "deps": {"password": canary("deps")},
        }
        if not streamed:
            await agent.run(canary("input"), **given)
            continue
        async with agent.stream(canary("input"), **given) as events:
            async for _ in events:
                pass


def _raising_listener(event: object) -> None:
    raise OSError(canary("listener-error"))


async def _failing_runs(telemetry: Pipeline | None) -> None:
    """Have content in what ends a run: errors of models, of streams under way, and reasons of cancellations."""

    class Breaking:
        name = "breaking"
        provider_name = "test"

        async def generate(self, request: ModelRequest) -> ModelResponse:
            raise ConnectionError(canary("model-error"))

        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
            yield ModelDelta("text", canary("delta"))
            yield ModelDelta("reasoning", canary("reasoning-delta"))
            raise ConnectionError(canary("stream-error"))

    agent = Agent("failing", model=Breaking(), telemetry=telemetry)
    with suppress(PellucidError):
        await agent.run("x")
    with suppress(PellucidError):
        async with agent.stream("x") as events:
            async for _ in events:
                pass
    token = CancelToken()
    token.cancel(canary("cancel-reason"))
    with suppress(PellucidError):
        await agent.run("x", signal=token)
    wrong: Any = canary("no-response")
    await _attempt(Agent("wrong", model=FunctionModel(lambda request: wrong), telemetry=telemetry))


async def _attempt(agent: Agent, **given: Any) -> None:
    """Run an agent whose run may fail."""
    with suppress(PellucidError):
        await agent.run("x", **given)


def _rejecting(tool: Tool, ctx: object) -> bool:
    raise LookupError(canary("gate-error"))


async def _providers(telemetry: Pipeline | None) -> None:
    """Have content in what hubs say: errors, catalogues that are none, broken tools, and what is served in spite."""

    class Listing:
        id = "listing"

        def __init__(self, answer: Callable[[], Any]) -> None:
            self._answer = answer

        async def list_tools(self, ctx: object) -> Any:
            return self._answer()

    def raising() -> Any:
        raise PermissionError(canary("provider-error"))

    clock = iter(range(0, 10_000, 100))
    stale = DiscoveryProvider(
        FakeHub(_tools(), faults=[None, ConnectionError(canary("hub-error"))]),
        id="stale",
        ttl=1.0,
        stale_if_error=1e6,
        clock=lambda: float(next(clock)),
    )
    broken = Tool(name="broken", run=_work, input_schema={"type": canary("broken-schema")})
    duplicate = [Tool(name="twice", run=_work, description="x")] * 2
    providers: list[ToolProvider] = [
        Listing(raising),
        Listing(lambda: canary("no-catalogue")),
        Listing(lambda: [broken]),
        Listing(lambda: [Tool(name=canary("bad-name") + " !", run=_work)]),
        Listing(lambda: duplicate),
        gated_tools(Listing(_tools), _rejecting),
        combined(Listing(raising), on_error="skip"),
        DiscoveryProvider(FakeHub([broken]), id="quarantine", on_invalid="quarantine"),
        stale,
        stale,
    ]
    for provider in providers:
        model = ScriptedModel(ToolCall("work", {"kind": "x"}), "done")
        agent = Agent("asking", model=model, providers=[provider], telemetry=telemetry)
        await _attempt(agent, identity=IDENTITY)


async def _mcp(telemetry: Pipeline | None) -> None:
    """Have content in what MCP servers say: descriptions, schemas, results, errors, last words."""

    def call(name: str, arguments: dict[str, Any]) -> CallToolResult:
        return CallToolResult(
            content=[TextContent(text=canary("mcp-result"))],
            structured_content={"text": canary("mcp-structured")},
            is_error=name == "bad",
        )

    schema = {**SCHEMA, "description": canary("mcp-schema")}
    listed = [
        ServerTool(name=name, description=canary("mcp-description"), input_schema=schema) for name in ("a", "bad")
    ]
    async with MCPProvider.connect(listing_server(lambda _: ListToolsResult(tools=listed), call), id="mcp") as provider:
        model = ScriptedModel([ToolCall("a", {"kind": canary("mcp-argument")}), ToolCall("bad", {})], "done")
        await Agent("remote", model=model, providers=[provider], telemetry=telemetry).run("x")
    said = "import sys; sys.exit('" + canary("mcp-last-words") + "')"
    dying = MCPProvider.stdio(
        sys.executable, "-c", said, canary("mcp-command"), id="dying", env={"KEY": canary("mcp-environment")}
    )
    await _attempt(Agent("remote", model=ScriptedModel("x"), providers=[dying], telemetry=telemetry))
    url = "http://user:" + canary("url-password") + "@127.0.0.1:9/" + canary("url-path") + "?key=" + canary("url-query")
    unreachable = MCPProvider.http(url, id="unreachable", headers={"x-key": canary("header")})
    await _attempt(Agent("remote", model=ScriptedModel("x"), providers=[unreachable], telemetry=telemetry))
    await dying.aclose()
    await unreachable.aclose()


async def _timeouts(telemetry: Pipeline | None) -> None:
    """Have content in what a time limit cuts short."""

    async def hang(arguments: dict[str, Any], ctx: ToolContext) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError(canary("clean-up-error"))

    tools = [Tool(name="hang", run=hang, timeout=0.01)]
    model = ScriptedModel(ToolCall("hang", {"x": canary("argument-of-hanging")}), "done")
    await Agent("slow", model=model, tools=tools, telemetry=telemetry).run("x")
    model = ScriptedModel(ToolCall("hang", {}), "done")
    tools = [Tool(name="hang", run=hang)]
    await _attempt(Agent("slow", model=model, tools=tools, limits=Limits(timeout=0.02), telemetry=telemetry))


PLACES = frozenset(re.findall(r'canary\("([a-z-]+)"\)', Path(__file__).read_text()))
"""Every place that has a canary."""

NEVER_RECORDED = frozenset(
    {
        *("broken-schema", "cancel-reason", "clean-up-error", "deps", "no-catalogue", "repr"),
        *("header", "mcp-command", "mcp-environment", "url-password", "url-path", "url-query"),
    }
)
"""Places that are no content and are in no mode recorded: dependencies, objects that are no data, ways to servers."""

SCENES = {
    "ordinary": _ordinary,
    "failing": _failing_runs,
    "providers": _providers,
    "mcp": _mcp,
    "timeouts": _timeouts,
}
"""Runs by what they are about; each takes the pipeline, or None for the default one."""
