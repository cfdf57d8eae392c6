"""Streams of durable runs with the text of answers, while models write it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, Identity, Message, TextPart, ToolCall
from pellucid.models import ModelDelta
from support.live_runs import LiveModel
from support.server_scene import Scene, events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Return a scene that does not serve yet."""
    return Scene(tmp_path)


class Client:
    """A client of a stream. Attributes: parts: what it has got."""

    def __init__(self) -> None:
        self.parts: list[tuple[str | None, str, Any]] = []
        self._has_more = anyio.Event()
        self._is_leaving = anyio.Event()

    async def follow(self, scene: Scene, method: str, path: str, body: Any = None, **headers: str) -> None:
        """Request a stream, and read it until it ends or the client leaves."""
        is_requested = False

        async def receive() -> Any:
            nonlocal is_requested
            if not is_requested:
                is_requested = True
                return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
            await self._is_leaving.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                self.parts += events(message.get("body", b"").decode())
                self._has_more.set()
                self._has_more = anyio.Event()

        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "method": method,
            "path": path,
            "headers": [
                (b"host", b"localhost"),
                *((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()),
            ],
            "query_string": query.encode(),
            "client": ("127.0.0.1", 1),
            "scheme": "http",
            "server": ("127.0.0.1", 80),
        }
        await scene.app(scope, receive, send)

    @property
    def text(self) -> str:
        """The text of the pieces."""
        return "".join(data["content"] for _, kind, data in self.parts if kind == "inference.delta")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the client has got something."""
        while not condition():
            await self._has_more.wait()

    def leave(self) -> None:
        """Leave."""
        self._is_leaving.set()


def spoken(*clients: Client, then: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint) -> LiveModel:
    """Return a model that says hello, and ends when all clients have read that, and `then` returns."""

    async def answer(_request: Any) -> AsyncIterator[Any]:
        for piece in ("Hel", "lo."):
            yield ModelDelta("text", piece)
        for client in clients:
            await client.until(lambda client=client: client.text.endswith("lo."))  # type: ignore[misc]
        await then()
        yield "Hello."

    return LiveModel(answer)


async def test_a_client_that_submits_gets_all_pieces(scene: Scene) -> None:
    """From the first one on. They have no ids, so that a client continues after the last stored event."""
    client = Client()
    async with scene.serve(Agent("a", model=spoken(client))):
        await client.follow(scene, "POST", "/runs", {"input": "Hi"}, accept="text/event-stream")
    pieces = [(seq, data) for seq, kind, data in client.parts if kind == "inference.delta"]
    assert {seq for seq, _ in pieces} == {None}
    assert client.text == "Hello."
    assert [data["offset"] for _, data in pieces] == sorted({data["offset"] for _, data in pieces})
    first = pieces[0][1]
    expected = {"iteration": 1, "key": "1", "claim": 1, "attempt": 1, "type": "text", "offset": 0}
    assert {**first, "content": None} == {**expected, "content": None}
    (answer,) = (part for part in client.parts if part[1] == "step.answer")
    assert (answer[0] is not None, answer[2]["content"]) == (True, "Hello.")
    assert [kind for _, kind, _ in client.parts if kind != "inference.delta"][-2:] == ["run.completed", "run"]


async def test_several_clients(scene: Scene) -> None:
    """Each that is there gets the pieces; one that returns gets the answer in their place."""
    first, second = Client(), Client()
    is_over = anyio.Event()
    async with scene.serve(Agent("a", model=spoken(first, then=is_over.wait))):
        async with anyio.create_task_group() as tasks:
            body, accept = {"input": "Hi"}, "text/event-stream"
            tasks.start_soon(lambda: first.follow(scene, "POST", "/runs", body, accept=accept, idempotency_key="k"))
            await first.until(lambda: first.text == "Hello.")
            tasks.start_soon(lambda: second.follow(scene, "POST", "/runs", body, accept=accept, idempotency_key="k"))
            first.leave()
            is_over.set()
        third = Client()
        location = (await scene.http.post("/runs", json={"input": "Hi"}, headers={"Idempotency-Key": "k"})).headers
        await third.follow(scene, "GET", f"{location['location']}/events")
    for client in (second, third):
        assert [data.get("content") for _, kind, data in client.parts if kind == "step.answer"] == ["Hello."]
    assert third.text == ""


async def test_other_callers_get_nothing(scene: Scene) -> None:
    """A run of somebody else is unknown, and is not read."""
    clients = {"ann": Client(), "bob": Client()}
    options: dict[str, Any] = {"authenticate": lambda request: Identity(principal=request.headers["x-user"])}
    async with scene.serve(Agent("a", model=spoken(clients["ann"])), **options):
        ann, bob = clients["ann"], clients["bob"]

        async def submit() -> None:
            await ann.follow(scene, "POST", "/runs", {"input": "Hi"}, accept="text/event-stream", x_user="ann")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(submit)
        run_id = ann.parts[-1][2]["id"]
        answer = await scene.http.get(f"/runs/{run_id}/events", headers={"x-user": "bob"})
    assert (answer.status_code, bob.parts) == (404, [])


async def test_a_drain_ends_a_stream_in_the_middle_of_an_answer(scene: Scene) -> None:
    """Without a state, as at any other time; the run goes on."""
    client = Client()
    is_over = anyio.Event()
    async with scene.serve(Agent("a", model=spoken(client, then=is_over.wait))):
        async with anyio.create_task_group() as tasks:

            async def submit() -> None:
                await client.follow(scene, "POST", "/runs", {"input": "Hi"}, accept="text/event-stream")

            tasks.start_soon(submit)
            await client.until(lambda: client.text == "Hello.")
            scene.app.state.drain()
        is_over.set()
    assert {kind for _, kind, _ in client.parts} == {"inference.delta"}


async def test_the_text_of_a_run_that_waits(scene: Scene) -> None:
    """Each answer streams, before and after the wait, to a client that stays."""
    client = Client()

    async def answer(request: Any) -> AsyncIterator[Any]:
        text, calls = ("Wait. ", [ToolCall("job")]) if len(request.messages) == 1 else ("Done. ", [])
        yield ModelDelta("text", text)
        await client.until(lambda: client.text.endswith(text))
        yield Message("assistant", [TextPart(text), *calls])

    agent = Agent("a", model=LiveModel(answer), tools=[scene.job(pending="wait")])
    async with scene.serve(agent), anyio.create_task_group() as tasks:

        async def submit() -> None:
            await client.follow(scene, "POST", "/runs?wait=true", {"input": "Hi"}, accept="text/event-stream")

        tasks.start_soon(submit)
        await client.until(lambda: any(kind == "run.waiting" for _, kind, _ in client.parts))
        assert (await scene.complete(scene.jobs[0], output=1)).status_code == 202
    assert client.text == "Wait. Done. "
    claims = [data["claim"] for _, kind, data in client.parts if kind == "inference.delta"]
    assert claims[0] < claims[-1]
