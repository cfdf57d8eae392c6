"""Runs in endpoints of an application: streamed as events, and awaited."""

from __future__ import annotations

import socket
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.opentelemetry import OpenTelemetryMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pellucid import Agent, ConfigError, Tool, ToolCall
from pellucid.durable import SQLiteStore
from pellucid.errors import StoreUnavailable
from pellucid.server import EventStreamResponse, cancel_on_disconnect, drain_at_signals
from pellucid.testing import FunctionModel, ScriptedModel
from support.durable_agents import PAY
from support.processes import PATIENCE
from support.server_scene import BASE, events, listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


def application(agent: Agent[Any], **options: Any) -> Starlette:
    """Return an application with an endpoint that streams a run, and one that awaits it."""

    async def stream(_request: Request) -> Response:
        return EventStreamResponse(agent.stream("Hi"), **options)

    async def answer(request: Request) -> Response:
        async with cancel_on_disconnect(request):
            result = await agent.run("Hi")
        return PlainTextResponse(result.output)

    return Starlette(routes=[Route("/stream", stream), Route("/answer", answer)])


@asynccontextmanager
async def client(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of an application."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as http:
        with anyio.fail_after(PATIENCE):
            yield http


async def test_a_stream_has_the_events_and_the_state() -> None:
    """A stream has numbered events with the pieces of the answer, and the state at its end."""
    agent = Agent("a", model=ScriptedModel("Hello."))
    async with client(application(agent, headers={"x-run": "1"}, select="all")) as http:
        answer = await http.get("/stream")
    seen = events(answer.text)
    assert [seq for seq, _, _ in seen] == [str(number) for number in range(1, len(seen) + 1)]
    names = [name for _, name, _ in seen]
    assert (names[0], names[-2:]) == ("run.started", ["run.completed", "run"])
    assert (seen[-1][2]["status"], seen[-1][2]["output"]) == ("completed", "Hello.")
    assert "".join(data["content"] for _, name, data in seen if name == "inference.delta") == "Hello."
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.headers["cache-control"], answer.headers["x-run"]) == ("no-store", "1")


async def test_signals_are_left_alone_in_other_threads() -> None:
    """An application runs in a thread, as in a test client, where there are no signals."""

    def enter() -> bool:
        with drain_at_signals(application(Agent("a", model=ScriptedModel("Hello.")))):
            return True

    assert await anyio.to_thread.run_sync(enter)


async def test_a_run_that_fails_ends_the_stream_with_its_error() -> None:
    """A run that fails ends its stream, whose status is 200, with its error, whose text follows the capture policy."""

    def fail(_request: Any) -> str:
        raise RuntimeError("password=hunter2")

    async with client(application(Agent("a", model=FunctionModel(fail)), select="all")) as http:
        answer = await http.get("/stream")
    _, name, state = events(answer.text)[-1]
    assert (answer.status_code, name, state["status"]) == (200, "run", "failed")
    assert state["error"]["type"] == "RuntimeError"
    assert "hunter2" not in answer.text


async def test_a_client_that_connects_again_starts_no_second_run() -> None:
    """A client that connects again, as browsers do after a stream, gets 204 and starts no second run."""
    model = ScriptedModel()
    async with client(application(Agent("a", model=model))) as http:
        answer = await http.get("/stream", headers={"Last-Event-ID": "7"})
    assert (answer.status_code, answer.text, model.requests) == (204, "", [])


async def test_a_stream_without_events_has_comments() -> None:
    """A stream without events has comments, which keep the connection open while a tool works."""
    is_beaten = anyio.Event()

    async def wait(_arguments: Any, _ctx: Any) -> str:
        await is_beaten.wait()
        return "done"

    agent = Agent("a", model=ScriptedModel(ToolCall("wait"), "x"), tools=[Tool(name="wait", run=wait)])
    sent: list[Any] = []

    async def receive() -> Any:
        await anyio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)
        if b": waiting" in message.get("body", b""):
            is_beaten.set()

    with anyio.fail_after(PATIENCE):
        scope: Any = {"type": "http", "method": "GET", "headers": []}
        await EventStreamResponse(agent.stream("Hi"), heartbeat=0.01)(scope, receive, send)
    assert is_beaten.is_set()
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_background_task_reads_the_result() -> None:
    """A background task reads the result of the stream, such as its checkpoint."""
    stream = Agent("a", model=ScriptedModel(ToolCall("pay")), tools=[PAY]).stream("Hi")
    checkpoints: list[Any] = []
    task = BackgroundTask(lambda: checkpoints.append(stream.result.checkpoint))

    async def endpoint(_request: Request) -> Response:
        return EventStreamResponse(stream, background=task, select={"run"})

    async with client(Starlette(routes=[Route("/", endpoint)])) as http:
        _, _, state = events((await http.get("/")).text)[-1]
    assert (state["status"], "checkpoint" in state["error"]["message"]) == ("awaiting_approval", True)
    assert checkpoints[0]["run_id"] == state["id"]


async def test_an_awaited_run_answers_or_raises_as_ever() -> None:
    """An awaited run answers, or raises an exception of its block that is not in a group."""

    async def refuse(request: Request) -> Response:
        async with cancel_on_disconnect(request):
            raise HTTPException(404, "no such question")

    app = application(Agent("a", model=ScriptedModel("Hello.")))
    app.router.routes.append(Route("/refuse", refuse))
    async with client(app) as http:
        assert (await http.get("/answer")).text == "Hello."
        refused = await http.get("/refuse")
        assert (refused.status_code, refused.text) == (404, "no such question")


@pytest.mark.parametrize("path", ["/stream", "/answer"])
def test_a_client_that_leaves_cancels_its_run(path: str, telemetry: Captured) -> None:
    """A client that leaves cancels its run and the tool that runs, with a complete trace below the request."""
    is_started, is_ended = threading.Event(), threading.Event()

    async def wait(_arguments: Any, _ctx: Any) -> str:
        is_started.set()
        try:
            await anyio.sleep_forever()
        finally:
            is_ended.set()
        return "never"

    agent = Agent("a", model=ScriptedModel(ToolCall("wait")), tools=[Tool(name="wait", run=wait, timeout=600)])
    app = application(agent)
    app.user_middleware.append(Middleware(OpenTelemetryMiddleware, tracer_provider=telemetry.tracer_provider))
    with listening(app) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert is_started.wait(PATIENCE)
        assert is_ended.wait(PATIENCE)
    [run] = telemetry.find("invoke_agent a")
    [request] = telemetry.find(f"GET {path}")
    assert run.attributes is not None
    assert run.attributes["pellucid.outcome"] == "cancelled"
    assert run.parent == request.context


AGENT = Agent("a", model=ScriptedModel("Hello."))


@pytest.mark.parametrize(
    ("stream", "shown"),
    [
        (AGENT, "stream=Agent('a'"),
        (AGENT.session("x"), "stream=<pellucid.sessions.session.Session"),
        ("Hi", "stream='Hi'"),
        (None, "stream=None"),
    ],
)
async def test_what_is_not_a_stream_is_refused(stream: Any, shown: str) -> None:
    """An argument that is no stream raises ConfigError when the response is made."""
    with pytest.raises(ConfigError) as refused:
        EventStreamResponse(stream)
    assert str(refused.value).startswith(f"EventStreamResponse({shown}")
    assert "give what agent.stream(...) returned" in str(refused.value)


@pytest.mark.parametrize("heartbeat", [0, -1, "15", True, float("nan"), float("inf")])
async def test_a_heartbeat_that_is_no_time_is_refused(heartbeat: Any) -> None:
    """A heartbeat of no time is refused, as it would send comments without end."""
    with pytest.raises(ConfigError, match="seconds above 0, or None"):
        EventStreamResponse(AGENT.stream("Hi"), heartbeat=heartbeat)


async def test_a_stream_without_a_heartbeat() -> None:
    """A stream with `heartbeat=None` has no comments."""
    async with client(application(Agent("a", model=ScriptedModel("Hello.")), heartbeat=None)) as http:
        answer = await http.get("/stream")
    assert (events(answer.text)[-1][2]["output"], ": waiting" in answer.text) == ("Hello.", False)


def conversing(session: Any, **options: Any) -> Starlette:
    """Return an application whose endpoint streams a run of a session."""

    async def stream(_request: Request) -> Response:
        return EventStreamResponse(session.stream("Hi"), **options)

    return Starlette(routes=[Route("/", stream)])


async def test_a_session_is_streamed_and_kept() -> None:
    """A streamed session has its messages when the client reads the last event, and takes the next run."""
    session = Agent("a", model=FunctionModel(lambda request: str(len(request.messages)))).session("web")
    kept: list[int] = []

    async def never() -> Any:
        await anyio.sleep_forever()

    async def send(message: Any) -> None:
        if b"event: run\n" in message.get("body", b""):
            kept.append(len(await session.messages()))

    scope: Any = {"type": "http", "method": "GET", "headers": []}
    with anyio.fail_after(PATIENCE):
        await EventStreamResponse(session.stream("Hi"))(scope, never, send)
    assert kept == [2]
    async with client(conversing(session)) as http:
        seen = events((await http.get("/")).text)
    assert "".join(data["content"] for _, name, data in seen if name == "inference.delta") == "3"
    assert (seen[0][1], seen[-1][1], seen[-1][2]["output"]) == ("run.started", "run", "3")


async def test_a_busy_session_is_a_conflict() -> None:
    """A busy session is answered with 409, and the run that has not ended goes on."""
    session = Agent("a", model=ScriptedModel("Hello.")).session("web")
    async with client(conversing(session)) as http, session.stream("Hi") as other:
        answer = await http.get("/")
        assert (answer.status_code, "send it again when that run has ended" in answer.text) == (409, True)
        assert [text async for text in other.text()] == ["Hello."]


async def test_a_session_that_cannot_be_kept_ends_with_the_error(tmp_path: Path) -> None:
    """A stream whose session cannot be kept ends with an error."""

    class Unavailable(SQLiteStore):
        async def finish(self, *_args: Any, **_options: Any) -> Any:
            raise StoreUnavailable("sessions.db")

    async with Unavailable(tmp_path / "sessions.db") as store:
        session = Agent("a", model=ScriptedModel("Hello.")).session("web", store=store)
        async with client(conversing(session, select="all")) as http:
            state = events((await http.get("/")).text)[-1][2]
    assert (state["status"], state["error"]["type"]) == ("failed", StoreUnavailable.error_type)


async def test_a_session_that_cannot_be_read_raises_as_ever(tmp_path: Path) -> None:
    """A session that cannot be read raises its own exception before the answer starts, and not a group."""

    class Unavailable(SQLiteStore):
        async def submit(self, *_args: Any, **_options: Any) -> Any:
            raise StoreUnavailable("sessions.db")

    async with Unavailable(tmp_path / "sessions.db") as store:
        session = Agent("a", model=ScriptedModel("Hello.")).session("web", store=store)
        with pytest.raises(StoreUnavailable):
            async with client(conversing(session)) as http:
                await http.get("/")


async def test_a_client_that_leaves_frees_its_session() -> None:
    """A client that leaves frees its session, which takes the next run."""
    is_started = anyio.Event()

    async def wait(_arguments: Any, _ctx: Any) -> str:
        is_started.set()
        await anyio.sleep_forever()
        return "never"

    agent = Agent("a", model=ScriptedModel(ToolCall("wait"), "Hello."), tools=[Tool(name="wait", run=wait)])
    session = agent.session("web")

    async def receive() -> Any:
        await is_started.wait()
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        await anyio.lowlevel.checkpoint()

    scope: Any = {"type": "http", "method": "GET", "headers": []}
    with anyio.fail_after(PATIENCE):
        await EventStreamResponse(session.stream("Hi"))(scope, receive, send)
        assert (await session.run("Again")).output == "Hello."
