"""The text of durable runs in other processes, by way of NATS."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from nats import connect

from pellucid import Agent, Limits
from pellucid.durable import DurableRuns, RunDelta, RunEvent, open_store
from pellucid.models import ModelDelta
from support.live_runs import AGAIN, LiveModel, Reader, deltas, text_of, until_read
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from pellucid.durable import NATSQueue
    from support.nats_server import NATSServer

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.usefixtures("quiet_opentelemetry")]


@asynccontextmanager
async def process(
    url: str, make_queue: Callable[..., NATSQueue], *agents: Agent[Any, Any], **options: Any
) -> AsyncIterator[DurableRuns]:
    """Return runs with a store and a connection of their own, as another process has."""
    async with open_store(url) as store, make_queue() as queue:
        yield DurableRuns(store, agents, queue=queue, **options)


def agent_of(model: LiveModel) -> Agent[Any, Any]:
    """Return an agent that goes on until somebody reads."""
    return Agent("a", model=model, tools=[AGAIN], limits=Limits(max_iterations=1_000_000))


async def test_readers_in_other_processes(tmp_path: Path, make_queue: Callable[..., NATSQueue]) -> None:
    """Each gets the pieces, with SQLite too; a worker learns from them that its run is read."""
    url = f"sqlite:///{tmp_path}/runs.db"
    readers = Reader(), Reader()

    async def pieces() -> AsyncIterator[Any]:
        yield ModelDelta("text", "Hel")
        for reader in readers:
            await reader.until("Hel")
        yield ModelDelta("text", "lo.")
        for reader in readers:
            await reader.until("lo.")
        yield "Hello."

    agent = agent_of(until_read(pieces))
    with anyio.fail_after(PATIENCE):
        async with (
            process(url, make_queue, agent) as worker,
            process(url, make_queue) as first,
            process(url, make_queue) as second,
        ):
            run_id = await first.submit("a", "Hi")
            async with anyio.create_task_group() as tasks:

                async def read(runs: DurableRuns, reader: Reader) -> None:
                    async with runs.stream(run_id) as events:
                        async for event in events:
                            reader.add(event)

                async with anyio.create_task_group() as reading:
                    reading.start_soon(read, first, readers[0])
                    reading.start_soon(read, second, readers[1])
                    tasks.start_soon(worker.work)
                tasks.cancel_scope.cancel()
    for reader in readers:
        assert text_of(deltas(reader.seen)).endswith("lo.")
        assert isinstance(reader.seen[-1], RunEvent)
        assert reader.seen[-1].type == "run.completed"


async def test_a_client_of_another_language(
    tmp_path: Path, make_queue: Callable[..., NATSQueue], nats: NATSServer, prefix: str
) -> None:
    """It says what it reads on one subject, and gets JSON on another; nothing is sent before, and nothing is stored."""
    url = f"sqlite:///{tmp_path}/runs.db"
    received: list[dict[str, Any]] = []
    has_received = anyio.Event()

    async def pieces() -> AsyncIterator[Any]:
        yield ModelDelta("text", "Hello.")
        await has_received.wait()
        yield "Hello."

    with anyio.fail_after(PATIENCE):
        async with process(url, make_queue, agent_of(until_read(pieces))) as worker, anyio.create_task_group() as tasks:
            run_id = await worker.submit("a", "Hi", run_id="order-7")
            tasks.start_soon(_client, nats.url, prefix, run_id, received, has_received)
            tasks.start_soon(worker.work)
            await has_received.wait()
            while not (await worker.status(run_id)).is_over:  # noqa: ASYNC110  (by another worker)
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert {name: received[0][name] for name in ("run_id", "type", "offset", "content", "attempt")} == {
        "run_id": "order-7",
        "type": "text",
        "offset": 0,
        "content": "Hello.",
        "attempt": 1,
    }


async def _client(url: str, prefix: str, run_id: str, received: list[Any], has_received: anyio.Event) -> None:
    """Announce a reader until it has got a piece, with a client of NATS alone, in a thread of its own."""

    async def read() -> None:
        client = await connect(url)
        subscription = await client.subscribe(f"{prefix}.pieces.{run_id}")
        while not received:
            await client.publish(f"{prefix}.readers", json.dumps({"runs": [run_id]}).encode())
            try:
                received.append(json.loads((await subscription.next_msg(timeout=0.2)).data))
            except TimeoutError:
                continue
        await client.close()

    await anyio.to_thread.run_sync(anyio.run, read)
    has_received.set()


async def test_a_server_that_is_away(tmp_path: Path, make_queue: Callable[..., NATSQueue], nats: NATSServer) -> None:
    """Readers get whole answers meanwhile, and no run waits; afterwards those that stay get pieces."""
    url = f"sqlite:///{tmp_path}/runs.db"
    reader = Reader()

    async def pieces() -> AsyncIterator[Any]:
        yield ModelDelta("text", "Hello.")
        await reader.until("Hello.")
        yield "Hello."

    model = until_read(pieces)
    agent, plain = agent_of(model), Agent("plain", model=LiveModel(lambda _: "Hello."))
    with anyio.fail_after(PATIENCE):
        async with process(url, make_queue, agent, plain) as worker, process(url, make_queue) as server:
            nats.stop()
            late = server.stream(await server.submit("a", "Hi"))
            try:
                await late.__aenter__()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(worker.work)
                    async with server.stream(await server.submit("plain", "Hi")) as events:
                        seen = [event async for event in events]
                    tasks.cancel_scope.cancel()
            finally:
                nats.start()
            assert not any(isinstance(event, RunDelta) for event in seen)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.work)
                async for event in late:
                    reader.add(event)
                await late.__aexit__(None, None, None)
                tasks.cancel_scope.cancel()
    assert deltas(reader.seen)


async def test_a_queue_that_closes_under_a_reader(tmp_path: Path, make_queue: Callable[..., NATSQueue]) -> None:
    """The reader goes on with stored events, and leaves without an error."""
    url = f"sqlite:///{tmp_path}/runs.db"
    agent = Agent("a", model=LiveModel(lambda _: "Hello."))
    with anyio.fail_after(PATIENCE):
        async with open_store(url) as store:
            async with make_queue() as queue:
                runs = DurableRuns(store, [agent], queue=queue)
                run_id = await runs.submit(agent, "Hi")
                stream = runs.stream(run_id)
                events = await stream.__aenter__()
            await DurableRuns(store, [agent]).work_until_idle()
            seen = [event async for event in events]
            await stream.__aexit__(None, None, None)
    assert [event.type for event in seen if isinstance(event, RunEvent)][-1] == "run.completed"
