"""Streams of events: many clients, clients that leave and return, runs and stores that end."""

from __future__ import annotations

import gc
import json
import random
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, ToolCall
from pellucid.durable import open_store
from pellucid.durable.store.database import TransactionLost
from pellucid.testing import FunctionModel, ScriptedModel
from support.server_scene import Scene, events

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Return a scene that does not serve yet."""
    return Scene(tmp_path)


async def follow(
    scene: Scene, path: str, after: int, receive_next: Callable[[bytes], Awaitable[bool]], *, query: str = "wait=true"
) -> None:
    """Read a stream until it ends, or until `receive_next` returns False: then the client leaves."""
    is_requested = False
    left = anyio.Event()

    async def receive() -> Any:
        nonlocal is_requested
        if not is_requested:
            is_requested = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and not await receive_next(message.get("body", b"")):
            left.set()
            await anyio.sleep_forever()  # nobody reads any longer

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "method": "GET",
        "path": path,
        "headers": [(b"host", b"localhost"), (b"last-event-id", str(after).encode())],
        "query_string": query.encode(),
        "client": ("127.0.0.1", 1),
        "scheme": "http",
        "server": ("127.0.0.1", 80),
    }
    await scene.app(scope, receive, send)


async def test_clients_that_return_at_random_get_each_event_once(scene: Scene, tmp_path: Path) -> None:
    """In order, while they are written: 10,000 events, for clients that leave after any number of them."""
    total, clients = 10_000, 3
    chance = random.Random(7)
    agent = Agent("a", model=ScriptedModel(ToolCall("job"), "wait"), tools=[scene.job()])
    async with scene.serve(agent):
        answer = await scene.http.post("/runs", json={"input": "Hi"})
        run_id, path = answer.json()["id"], f"{answer.headers['location']}/events"
        start = int(events((await scene.http.get(path)).text)[-2][0] or 0)
        seen: list[list[tuple[int, int]]] = [[] for _ in range(clients)]

        async def client(mine: list[tuple[int, int]]) -> None:
            after = start
            while len(mine) < total:
                remaining = chance.choice([1, 7, 400, 3000])

                async def take(part: bytes) -> bool:
                    nonlocal after, remaining
                    for seq, _, data in events(part.decode()):
                        assert seq is not None
                        after = int(seq)
                        mine.append((after, data["n"]))
                        remaining -= 1
                    return remaining > 0 and len(mine) < total

                await follow(scene, path, after, take)

        async with open_store(f"sqlite:///{tmp_path}/runs.db") as store, anyio.create_task_group() as tasks:
            for mine in seen:
                tasks.start_soon(client, mine)
            for first in range(0, total, 250):
                await store.emit(run_id, [{"type": "app.tick", "n": n} for n in range(first, first + 250)])
        for mine in seen:
            assert [n for _, n in mine] == list(range(total))
            assert [seq for seq, _ in mine] == sorted({seq for seq, _ in mine})


async def test_a_client_that_leaves_leaves_nothing_behind(scene: Scene) -> None:
    """Its task, its subscription of the store and its stream end with it."""
    agent = Agent("a", model=ScriptedModel(ToolCall("job"), "wait"), tools=[scene.job()])
    async with scene.serve(agent, heartbeat=60):
        path = (await scene.http.post("/runs", json={"input": "Hi"})).headers["location"] + "/events"

        async def leave(_part: bytes) -> bool:
            return False

        def waiters() -> int:
            gc.collect()
            return sum(type(item).__name__ in {"Waiter", "EventStream"} for item in gc.get_objects())

        before = waiters()
        for _ in range(4):
            async with anyio.create_task_group() as tasks:
                for _ in range(50):
                    tasks.start_soon(follow, scene, path, 0, leave)
        async with anyio.create_task_group() as tasks:  # clients that leave in the middle of a wait
            for _ in range(50):
                tasks.start_soon(follow, scene, path, 10**6, leave)
            await anyio.sleep(0.2)
            tasks.cancel_scope.cancel()
        assert waiters() <= before + 2


async def test_a_run_that_is_cancelled_ends_its_streams(scene: Scene) -> None:
    """Clients that follow it learn that it was cancelled."""
    agent = Agent("a", model=ScriptedModel(ToolCall("job"), "wait"), tools=[scene.job()])
    async with scene.serve(agent):
        location = (await scene.http.post("/runs", json={"input": "Hi"})).headers["location"]
        texts: list[str] = []

        async def stream() -> None:
            texts.append((await scene.http.get(f"{location}/events?wait=true")).text)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(stream)
            await scene.http.post(f"{location}/cancel", json={"reason": "no"})
        for text in texts:
            kinds = [(kind, data.get("status")) for _, kind, data in events(text)]
            assert kinds[-2:] == [("run.cancelled", None), ("run", "cancelled")]


async def test_a_drain_ends_streams_and_waits(scene: Scene) -> None:
    """A stream ends without a state, a waiting request with 202; readiness ends, and what is short is answered."""
    agent = Agent("a", model=FunctionModel(lambda _: ToolCall("job")), tools=[scene.job()])
    async with scene.serve(agent, heartbeat=0.05):
        location = (await scene.http.post("/runs", json={"input": "Hi"})).headers["location"]
        texts: list[str] = []

        async def stream() -> None:
            texts.append((await scene.http.get(f"{location}/events?wait=true")).text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream)
            tasks.start_soon(stream)
            await anyio.sleep(0.2)
            scene.app.state.drain()
        assert ["event: run\n" in text for text in texts] == [False, False]
        assert (await scene.http.get("/readyz")).status_code == 503
        assert (await scene.http.get("/healthz")).status_code == 200
        assert (await scene.http.post("/runs", json={"input": "Hi"})).status_code == 202


async def test_the_store_goes_away(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are answered with 503 and when to come back; a stream ends, and the client continues it later."""
    agent = Agent("a", model=ScriptedModel(ToolCall("job"), "wait"), tools=[scene.job()])
    async with scene.serve(agent, heartbeat=0.05):
        location = (await scene.http.post("/runs", json={"input": "Hi"})).headers["location"]
        (job,) = scene.jobs
        parts: list[bytes] = []

        async def take(part: bytes) -> bool:
            parts.append(part)
            if part.startswith(b": "):
                monkeypatch.setattr("pellucid.durable.store.sqlite.SQLiteDatabase.read", lost)
                monkeypatch.setattr("pellucid.durable.store.sqlite.SQLiteDatabase.write", lost)
            return True

        def lost(*_arguments: Any, **_options: Any) -> Any:
            raise TransactionLost(is_transient=False)

        await follow(scene, f"{location}/events", 0, take)
        assert not any(b"event: run\n" in part for part in parts)
        for answer in (
            await scene.http.get(location),
            await scene.http.get(f"{location}/events"),
            await scene.http.post("/runs", json={"input": "Hi"}),
            await scene.complete(job, output=1),
            await scene.http.get("/readyz"),
        ):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert json.loads(answer.content) == {"error": "the store is not available"}
        monkeypatch.undo()
        assert (await scene.http.get("/readyz")).status_code == 200
        assert (await scene.complete(job, output=1)).status_code == 202
