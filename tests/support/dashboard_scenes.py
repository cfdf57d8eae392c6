"""Runs in which every series of the dashboards gets data: a normal one, and one in which much goes wrong."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from mcp import ClientSession
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.memory import create_client_server_memory_streams

from pellucid import (
    Agent,
    Budget,
    Decision,
    DiscoveryProvider,
    Message,
    ModelDelta,
    ModelError,
    ModelResponse,
    PellucidError,
    Reliability,
    Tool,
    ToolCall,
    ToolRegistry,
    Usage,
    tool,
)
from pellucid.durable import Callbacks, CallTokens, DurableRuns, NATSQueue
from pellucid.mcp import MCPProvider
from pellucid.reliability import CircuitBreaker, Rule, retry
from pellucid.scores import score
from pellucid.server import create_app
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from pellucid.tools.lock import ToolLock
from pellucid_instrumentation import instrument_server
from support.nats_server import Admin
from support.processes import PATIENCE
from support.scene import PRICES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid import ModelRequest
    from pellucid.durable import RunState, RunStore
    from pellucid_exporters import Telemetry

MODEL = "gpt-x"


class Vendor:
    """A model of known price that streams, calls tools as told, and tells of its prompt cache."""

    name = MODEL
    provider_name = "openai"
    server_address = "api.example.com"
    server_port = 443

    def __init__(self, *calls: ToolCall) -> None:
        self.calls = list(calls)

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Call the next tool, or answer."""
        message = Message("assistant", [self.calls.pop(0)]) if self.calls else Message("assistant", "All done.")
        usage = Usage(input_tokens=100, output_tokens=10, cache_read_input_tokens=50)
        return ModelResponse(
            message=message,
            usage=usage,
            finish_reason="tool_call" if message.tool_calls else "stop",
            model="gpt-x-2026-08-07",
        )

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        """Answer in pieces."""
        response = await self.generate(request)
        for word in (response.message.text or "...").split():
            yield ModelDelta("text", word)
        yield response


async def search(arguments: dict[str, Any], ctx: object) -> str:
    """Find nothing."""
    return "nothing"


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def broken() -> str:
    """Fail."""
    raise RuntimeError("broken")


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return "refunded"


class Hub:
    """A hub with a cache and an objective, whose catalogue is the same until it is changed."""

    def __init__(self) -> None:
        self.tools = [Tool(name="search", run=search), Tool(name="find", run=search)]
        self.listed = 1
        self.hub = FakeHub(self.tools[:1], latency=0.002)
        self.provider = DiscoveryProvider(self.hub, id="docs", ttl=0.05, objective=0.5)

    def change(self) -> None:
        """List other tools than before."""
        self.listed = 3 - self.listed
        self.hub.tools = self.tools[: self.listed]


async def normal(telemetry: Telemetry, hub: Hub) -> None:
    """Run an agent that lists a hub's tools, calls one of the hub's and one of its own, and answers."""
    model = Vendor(ToolCall("search", {}, "c1"), ToolCall("add", {"a": 1, "b": 2}, "c2"))
    agent = Agent(
        "support",
        model=model,
        tools=[add],
        providers=[hub.provider],
        prices=PRICES,
        budget=Budget("support", model_calls=10**9),
        telemetry=telemetry,
    )
    async with agent.stream("go") as stream:
        async for event in stream:
            if event.name == "run.completed":
                score(event, "correct", value=1, telemetry=telemetry)


async def changing(telemetry: Telemetry, hub: Hub) -> None:
    """Run an agent whose hub lists other tools in its second iteration than in its first, and than in the lock file."""

    def answer(request: ModelRequest) -> Any:
        if request.messages[-1].role != "user":
            return "done"
        hub.change()
        hub.provider.invalidate()
        return ToolCall("search", {}, "c1")

    options: Any = {"providers": [hub.provider], "telemetry": telemetry, "on_change": "report"}
    with TemporaryDirectory() as folder:
        ToolLock({}).write(Path(folder) / "pellucid.lock")
        agent = Agent("support", model=FunctionModel(answer), lock=Path(folder) / "pellucid.lock", **options)
    await agent.run("go")


async def connecting(telemetry: Telemetry) -> None:
    """Run an agent that connects to an MCP server."""
    async with aclosing(MCPProvider.connect(MCPServer("files"), id="files")) as provider:
        await Agent("support", model=Vendor(), providers=[provider], telemetry=telemetry).run("go")


class ToolServer:
    """An instrumented MCP server that is called by an agent, and by a client with a session."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._server = MCPServer("shop-tools")
        self._server.add_tool(lambda: "12", name="stock", structured_output=False)
        self._server.add_tool(self._fail, name="order", structured_output=False)
        # So short that each request is late.
        instrument_server(self._server, objective=1e-6, telemetry=telemetry)

    def _fail(self) -> str:
        raise ToolError("sold out")

    async def once(self) -> None:
        """Call both tools, and open and close a session."""
        async with aclosing(MCPProvider.connect(self._server, id="tools")) as provider:
            model = Vendor(ToolCall("stock", {}, "c1"), ToolCall("order", {}, "c2"))
            await Agent("support", model=model, providers=[provider], telemetry=self._telemetry).run("go")
        low = self._server._lowlevel_server
        async with create_client_server_memory_streams() as (ours, theirs), anyio.create_task_group() as tasks:
            tasks.start_soon(low.run, *theirs, low.create_initialization_options())
            async with ClientSession(*ours) as session:
                await session.initialize()
            tasks.cancel_scope.cancel()


class Trouble:
    """Agents of whose runs something goes wrong, again and again, in every way that has a panel."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self.failing = DiscoveryProvider(FakeHub(faults=[OSError("down")] * 1000), id="down", ttl=0, objective=0.1)
        self.breaker = Reliability(breaker=CircuitBreaker(failures=1, cooldown=3600))
        again = Rule(
            when=lambda s: s.operation == "inference" and s.attempt < 2, then=retry(backoff=0.001), kind="again"
        )
        self.rules = Reliability([again])

    async def once(self) -> None:
        """Fail in every way."""
        busy = ModelError("m", "busy", error_kind="unavailable")
        await self._fails(ScriptedModel("never"), providers=[self.failing], reliability=self.breaker)
        await self._fails(ScriptedModel(busy, busy), reliability=self.rules)
        await self._run(Vendor(ToolCall("broken", {}, "c1")), tools=[broken])
        await self._run(Vendor(ToolCall("refund", {"order": "A"}, "c1")), tools=[refund])  # which nobody decides
        waits = await self._run(Vendor(ToolCall("refund", {"order": "B"}, "c1")), tools=[refund])
        denied = Decision(waits.approvals[0].approval_id, False, reason="no")
        await self._agent(Vendor(), tools=[refund]).resume(waits.checkpoint, decisions=[denied])
        await self._run(Vendor(), budget=Budget("spent", model_calls=0))
        registry = ToolRegistry(registry_mode="lazy")
        registry.register(add)
        await self._run(Vendor(ToolCall("tool_search", {"query": "sum"}, "c1")), providers=[registry])

    def _agent(self, model: Any, **options: Any) -> Agent:
        agent: Agent = Agent("troubled", model=model, telemetry=self.telemetry, prices=PRICES, **options)
        agent.on("run.started", _raise)
        return agent

    async def _run(self, model: Any, **options: Any) -> Any:
        return await self._agent(model, **options).run("go")

    async def _fails(self, model: Any, **options: Any) -> None:
        with pytest.raises(PellucidError):
            await self._run(model, **options)


async def survey(arguments: dict[str, Any], ctx: object) -> None:
    """Leave the work to another process."""


class Durable:
    """A server and a worker of durable runs: some results come, some come twice or late, and of one run none."""

    def __init__(self, telemetry: Telemetry, store: RunStore, queue: NATSQueue | None = None) -> None:
        owed = Tool(name="survey", run=survey, execution="external-dispatch", pending="wait", expires_in=3600)
        self.agent = Agent("durable", model=FunctionModel(answer), tools=[owed, refund], telemetry=telemetry)
        callbacks = Callbacks([b"k" * 32], allow=["https://app.example.org/"])
        self.runs = DurableRuns(store, [self.agent], telemetry=telemetry, queue=queue, callbacks=callbacks)
        self._app = create_app(self.runs, tokens=CallTokens("k" * 32), telemetry=telemetry)

    async def once(self) -> None:
        """Have a result come, and be followed by another one; have one come late; have a run wait; refuse a request."""
        result_id = await self.result()
        await self.runs.settle(result_id, output="another")
        await self.runs.submit(self.agent, "ask", run_id="waits")
        run_id = await self.runs.submit(self.agent, "go")
        state = await self._until(run_id, "waiting")
        await self.runs.cancel(run_id, "enough")
        await self.runs.settle(state.external[0].id, output="late")
        await self._request("GET", "/runs/none")

    async def result(self) -> str:
        """Have a run get the result that it waits for; return its id."""
        run_id = (await self._request("POST", "/runs", {"input": "go"})).json()["id"]
        [call] = (await self._until(run_id, "waiting")).external
        await self.runs.settle(call.id, output="done")
        await self._until(run_id, "completed")
        return call.id

    async def _until(self, run_id: str, status: str) -> RunState:
        while (state := await self.runs.status(run_id)).status != status:  # noqa: ASYNC110  (no event)
            await anyio.sleep(0.01)
        return state

    async def _request(self, method: str, path: str, body: object = None) -> httpx.Response:
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, json=body, headers={"Prefer": "respond-async"})


class Messages:
    """Messages of a queue that are received twice, name no run, or cannot be sent."""

    def __init__(self, telemetry: Telemetry, store: RunStore, url: str) -> None:
        self._telemetry = telemetry
        self._store = store
        self._url = url

    async def once(self) -> None:
        """Have each happen."""
        async with NATSQueue(self._url, telemetry=self._telemetry) as queue, Admin(self._url) as admin:
            await DurableRuns(self._store, [], queue=queue).submit("idle", "go")
            for _ in range(2):
                while (delivery := await queue.receive(["idle"], PATIENCE)) is None:
                    pass
                delivery.give_back()
            await admin.publish("pellucid.work.durable", b"?")
        async with NATSQueue("nats://127.0.0.1:1", buffer=1, telemetry=self._telemetry) as unheard:
            for _ in range(2):
                await DurableRuns(self._store, [], queue=unheard).submit("nobody", "go")


def answer(request: ModelRequest) -> Any:
    """Ask for a survey, and a person if the user says so; then end."""
    if request.messages[-1].role == "tool":
        return "done"
    asks = [ToolCall("refund", {"order": "A"}, "c2")] if request.messages[-1].text == "ask" else []
    return [ToolCall("survey", {}, "c1"), *asks]


def _raise(event: object) -> None:
    raise RuntimeError("a listener with a fault")
