"""Runs without a store: each lives as long as its request."""

from __future__ import annotations

import math
import socket
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx
import pytest
from opentelemetry.trace import SpanKind

from pellucid import (
    Agent,
    CapturePolicy,
    ConfigError,
    DiscoveryProvider,
    Identity,
    ModelError,
    TelemetryOptions,
    Tool,
    ToolCall,
    ToolContext,
)
from pellucid.messages import dump_messages
from pellucid.server import bearer, create_agent_app
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from support.clock import SOON, pass_time
from support.durable_agents import DO, JOB, PAY
from support.processes import PATIENCE
from support.server_scene import BASE, events, listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid import DiscoveryContext
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

STREAM = {"Accept": "text/event-stream"}
NAMED = "tool 'job' hands its work to another process"


class Hub:
    """A provider that lists a tool whose work another process does."""

    id = "hub"

    def list_tools(self, ctx: DiscoveryContext) -> list[Tool]:
        """Return the tool."""
        return [JOB]


def unasked(_request: Any) -> str:
    """Stand for a model that must not be called."""
    raise AssertionError("the model was called")


@asynccontextmanager
async def client(*agents: Agent[Any, Any], **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a server of agents."""
    app = create_agent_app(agents, **options)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as http:
        with anyio.fail_after(60):
            yield http


async def test_a_run_is_answered_with_its_state(telemetry: Captured) -> None:
    """In the shape of a durable run, in the trace of the client, on behalf of the caller."""
    agent = Agent("a", model=ScriptedModel(ToolCall("do"), "Hello."), tools=[DO])
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with client(agent, authenticate=lambda _: Identity(principal="ann")) as http:
        headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        answer = await http.post("/runs", json={"input": "Hi", "conversationId": "c"}, headers=headers)
    state = answer.json()
    [run] = telemetry.find("invoke_agent a")
    assert run.attributes is not None
    assert state.pop("usage").keys() >= {"inputTokens", "outputTokens"}
    assert [message["role"] for message in state.pop("messages")] == ["user", "assistant", "tool", "assistant"]
    assert (answer.status_code, state) == (
        200,
        {
            "id": run.attributes["pellucid.run.id"],
            "agent": "a",
            "status": "completed",
            "conversationId": "c",
            "passes": 1,
            "output": "Hello.",
            "stopReason": "stop",
            "traceId": trace,
            "approvals": [],
            "external": [],
        },
    )
    assert run.attributes["gen_ai.conversation.id"] == "c"
    assert [span.name for span in telemetry.spans if span.kind is SpanKind.SERVER] == ["POST /runs"]


async def test_a_run_without_tracing_has_no_trace() -> None:
    """Nothing traces it, so its state has no `traceId`, whether it completes or fails."""
    agents = [Agent("a", model=ScriptedModel("Hello.")), Agent("b", model=ScriptedModel(ModelError("m", "down")))]
    async with client(*agents) as http:
        for agent in agents:
            state = (await http.post("/runs", json={"agent": agent.name, "input": "Hi"})).json()
            assert state["agent"] == agent.name
            assert "traceId" not in state


async def test_a_run_is_streamed() -> None:
    """Its events with the pieces of the answer, and its state as the last one; messages continue a conversation."""
    agent = Agent("a", model=FunctionModel(lambda request: f"{len(request.messages)} messages"))
    async with client(agent, roles=("user", "assistant")) as http:
        history = dump_messages((await agent.run("Hi")).messages)
        body = {"input": [*history, *dump_messages((await agent.run("And?")).messages)[:1]]}
        answer = await http.post("/runs", json=body, headers=STREAM)
    seen = events(answer.text)
    names = [name for _, name, _ in seen]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (names[0], names[-2:]) == ("run.started", ["run.completed", "run"])
    assert "".join(data["content"] for _, name, data in seen if name == "inference.delta") == "3 messages"
    assert (seen[-1][2]["status"], seen[-1][2]["output"]) == ("completed", "3 messages")
    assert {data["runId"] for _, _, data in seen[:-1]} == {seen[-1][2]["id"]}
    assert not any("identity" in data for _, _, data in seen)


@pytest.mark.parametrize("headers", [{}, STREAM], ids=["json", "stream"])
@pytest.mark.parametrize(
    "options",
    [
        {"tools": [JOB]},
        {"tools": [JOB], "registry_mode": "lazy"},
        {"providers": [Hub()]},
        {"tools": [Agent("inner", model=FunctionModel(unasked), tools=[JOB], description="?").as_tool()]},
    ],
    ids=["own", "lazy", "hub", "sub-agent"],
)
async def test_a_tool_of_another_process_is_refused(headers: dict[str, str], options: dict[str, Any]) -> None:
    """Before the model is called, with the name of the tool and both remedies."""
    async with client(Agent("a", model=FunctionModel(unasked), **options)) as http:
        answer = await http.post("/runs", json={"input": "Hi"}, headers=headers)
    assert (answer.status_code, answer.json()["toolName"]) == (422, "job")
    error = answer.json()["error"]
    assert NAMED in error
    assert "serve the agent with a store" in error
    assert "execution='same-invocation'" in error


async def test_a_hub_of_a_sub_agent_is_refused_to_the_sub_agent() -> None:
    """Before the sub-agent's model is called; the outer model reads why."""
    inner = Agent("inner", model=FunctionModel(unasked), providers=[Hub()], description="?")
    model = ScriptedModel(ToolCall("inner", {"input": "?"}), "sorry")
    async with client(Agent("a", model=model, tools=[inner.as_tool()])) as http:
        assert (await http.post("/runs", json={"input": "Hi"})).json()["output"] == "sorry"
    assert NAMED in str(model.requests[1].messages[-1])


async def test_a_denied_tool_is_not_refused() -> None:
    """The model is not offered it."""
    agent = Agent("a", model=ScriptedModel("Hello."), tools=[JOB], policy=lambda _: "deny")
    async with client(agent) as http:
        assert (await http.post("/runs", json={"input": "Hi"})).json()["output"] == "Hello."


@pytest.mark.parametrize(
    ("headers", "body", "path"),
    [
        ({"Prefer": "respond-async"}, {}, "Prefer"),
        ({"Idempotency-Key": "k"}, {}, "Idempotency-Key"),
        ({}, {"callbackUrl": "https://example.org/"}, "callbackUrl"),
        ({}, {"agent": "b"}, "agent"),
        ({}, {"input": []}, "input"),
    ],
)
async def test_what_needs_a_store_is_refused(headers: dict[str, str], body: dict[str, Any], path: str) -> None:
    """As other faults of a request are."""
    async with client(Agent("a", model=FunctionModel(unasked))) as http:
        answer = await http.post("/runs", json={"input": "Hi", **body}, headers=headers)
    assert (answer.status_code, answer.json()["path"]) == (400, path)


async def test_other_endpoints() -> None:
    """Those of a store say that there is none; probes and the document are there; callers are authenticated."""
    async with client(Agent("a", model=ScriptedModel("Hello.")), authenticate=bearer("s3cret")) as http:
        for method, path in (("GET", "/runs/1"), ("POST", "/runs/1/cancel"), ("POST", "/async-tools/1/complete")):
            answer = await http.request(method, path)
            assert (answer.status_code, "has no store" in answer.json()["error"]) == (404, True)
        assert (await http.post("/runs", json={"input": "Hi"})).status_code == 401
        assert (await http.get("/readyz")).json() == {"status": "ready"}
        assert sorted((await http.get("/openapi.json")).json()["paths"]) == ["/healthz", "/readyz", "/runs"]
        sent = await http.post("/runs", json={"input": "Hi"}, headers={"Authorization": "Bearer s3cret"})
        assert sent.json()["status"] == "completed"


async def test_ready_once_hubs_have_answered() -> None:
    """Of agents that warm up; probes begin it, and the answer names the agents that are not ready."""
    hub = FakeHub(latency=math.inf)
    provider = DiscoveryProvider(hub, id="hub")
    agent = Agent("slow", model=ScriptedModel("x"), providers=[provider], warm=True)
    async with client(agent) as http:
        answer = await http.get("/readyz")
        assert (answer.status_code, "of the agents slow" in answer.json()["error"]) == (503, True)
        await provider.aclose()
        hub.latency = 0
        while (await http.get("/readyz")).status_code != 200:
            await anyio.lowlevel.checkpoint()


async def test_a_run_that_fails() -> None:
    """Its state has the error, redacted, in a stream too; or its type if no content is recorded. The server goes on."""

    def fail(_request: Any) -> str:
        raise ZeroDivisionError("by api_key=abcdefgh12345678")

    async with client(Agent("a", model=FunctionModel(fail))) as http:
        answer = await http.post("/runs", json={"input": "Hi"})
        assert (answer.status_code, answer.json()["status"]) == (200, "failed")
        assert answer.json()["error"]["type"] == "ZeroDivisionError"
        assert "abcdefgh" not in answer.text
        streamed = await http.post("/runs", json={"input": "Hi"}, headers=STREAM)
        assert events(streamed.text)[-1][2]["error"] == answer.json()["error"]
    quiet = TelemetryOptions(capture=CapturePolicy("metadata"))
    async with client(Agent("a", model=FunctionModel(fail), telemetry=quiet)) as http:
        answer = await http.post("/runs", json={"input": "Hi"})
        assert answer.json()["error"] == {"type": "ZeroDivisionError", "message": "ZeroDivisionError"}


@pytest.mark.parametrize("headers", [{}, STREAM], ids=["json", "stream"])
async def test_a_run_that_waits_for_approval(headers: dict[str, str]) -> None:
    """Its state says that nobody can decide here, and what to do."""
    async with client(Agent("a", model=ScriptedModel(ToolCall("pay")), tools=[PAY])) as http:
        answer = await http.post("/runs", json={"input": "Hi"}, headers=headers)
    state = events(answer.text)[-1][2] if headers else answer.json()
    assert (state["status"], state["approvals"][0]["toolName"]) == ("awaiting_approval", "pay")
    assert "serve the agent with a store" in state["error"]["message"]
    assert state["error"]["type"] == "store_needed"


class Endless:
    """A tool that never returns. Attributes: started, ended: Set when a call has started, and was cancelled."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.ended = threading.Event()
        self.agent = Agent("a", model=FunctionModel(lambda _: ToolCall("sleep")), tools=[Tool(name="sleep", run=self)])

    async def __call__(self, arguments: Any, ctx: ToolContext) -> None:
        """Sleep until cancelled."""
        self.started.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.ended.set()


@pytest.mark.parametrize("headers", [{}, STREAM], ids=["json", "stream"])
async def test_a_run_that_takes_too_long(headers: dict[str, str]) -> None:
    """It is cancelled and has failed; meanwhile a stream has comments."""
    endless = Endless()
    app = create_agent_app([endless.agent], timeout=SOON, heartbeat=0.01)
    has_comment = anyio.Event()

    async def heard(scope: Any, receive: Any, send: Any) -> None:
        async def hear(message: Any) -> None:
            await send(message)
            if b": waiting" in message.get("body", b""):
                has_comment.set()

        await app(scope, receive, hear)

    async def let_time_pass() -> None:
        await anyio.to_thread.run_sync(endless.started.wait)
        if headers:
            await has_comment.wait()
        pass_time()

    with anyio.fail_after(60):
        transport = httpx.ASGITransport(heard)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as http, anyio.create_task_group() as tasks:
            tasks.start_soon(let_time_pass)
            answer = await http.post("/runs", json={"input": "Hi"}, headers=headers)
    state = events(answer.text)[-1][2] if headers else answer.json()
    assert (state["status"], state["error"]["type"]) == ("failed", "timeout")
    assert endless.ended.is_set()
    assert not headers or ": waiting\n" in answer.text


@pytest.mark.parametrize("headers", [{}, STREAM], ids=["json", "stream"])
async def test_runs_end_when_the_server_shuts_down(headers: dict[str, str]) -> None:
    """The client is told, and asked to try again elsewhere."""
    endless = Endless()
    app = create_agent_app([endless.agent])
    transport = httpx.ASGITransport(app)
    answers: list[httpx.Response] = []
    with anyio.fail_after(60):
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as http, anyio.create_task_group() as tasks:

            async def ask() -> None:
                answers.append(await http.post("/runs", json={"input": "Hi"}, headers=headers))

            tasks.start_soon(ask)
            await anyio.to_thread.run_sync(endless.started.wait)
            app.state.drain()
    [answer] = answers
    state = events(answer.text)[-1][2] if headers else answer.json()
    assert (answer.status_code, state["status"]) == (200 if headers else 503, "cancelled")
    assert "the server shuts down" in state["error"]["message"]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_a_client_that_leaves_ends_its_run(accept: str, telemetry: Captured) -> None:
    """Over a real connection, with an answer that streams and one that does not; the span of the request tells."""
    endless = Endless()
    body = b'{"input": "Hi"}'
    head = ["POST /runs HTTP/1.1", "Host: 127.0.0.1", f"Accept: {accept}", f"Content-Length: {len(body)}", "", ""]
    with listening(create_agent_app([endless.agent])) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall("\r\n".join(head).encode() + body)
            assert endless.started.wait(PATIENCE)
            assert not endless.ended.is_set()
        assert endless.ended.wait(PATIENCE)
    [request] = telemetry.find("POST /runs")
    found = [(request.attributes or {}).get(name) for name in ("http.response.status_code", "error.type")]
    assert found == ([499, "client_disconnected"] if accept == "application/json" else [200, None])


def test_agents_of_one_name() -> None:
    """They are refused, and so are none."""
    agent = Agent("a", model=ScriptedModel("Hello."))
    for agents in ([], [agent, agent]):
        with pytest.raises(ConfigError, match="one or more agents of different names"):
            create_agent_app(agents)
