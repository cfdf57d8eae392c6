"""Events of durable runs, read from NATS alone."""

from __future__ import annotations

import json
import random
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import pytest

from pellucid import Agent
from pellucid.durable import DurableRuns, open_store
from pellucid.durable.queue.subjects import token
from pellucid.errors import EventsExpired, UnknownRun
from pellucid.testing import ScriptedModel
from support.nats_server import Admin
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pellucid.durable import Claim, NATSQueue, RunStore
    from support.nats_server import NATSServer

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.usefixtures("quiet_opentelemetry")]

RUN = "order 7.*>"
EVENTS = 10_000


async def claimed(store: RunStore) -> Claim:
    """Submit a run and claim it."""
    await store.submit(RUN, "agent", {"question": "?"})
    claim = await store.claim("worker", ["agent"], 600.0)
    assert claim is not None
    return claim


async def emit(store: RunStore, number: int) -> None:
    """Write events."""
    await store.emit(RUN, [{"type": "step", "number": number} for number in range(number)])


async def finish(store: RunStore, claim: Claim) -> None:
    """End the run, with an event."""
    await store.finish(claim, "completed", None, events=[{"type": "run.completed"}])


async def read(queue: NATSQueue, after: int = 0) -> list[int]:
    """Return the sequence numbers of the events until the run has ended."""
    return [event.seq async for event in queue.events(RUN, after)]


async def seqs_of(store: RunStore) -> list[int]:
    """Return the sequence numbers of all events in the store."""
    page = await store.events(RUN, limit=2 * EVENTS)
    return [event.seq for event in page.events]


async def test_random_reconnections(
    store: RunStore, queue: NATSQueue, make_queue: Callable[..., NATSQueue], nats: NATSServer, prefix: str
) -> None:
    """A client that reconnects at random over 10,000 events gets each once, in order, also if the stream is deleted."""
    dice = random.Random(7)
    DurableRuns(store, [], queue=queue)
    claim = await claimed(store)
    seqs: list[int] = []

    async def write() -> None:
        for number in range(EVENTS // 100):
            await emit(store, 100)
            if number == EVENTS // 200:
                async with Admin(nats.url) as admin:
                    await admin.call("STREAM.DELETE", f"{prefix}_events")
        await finish(store, claim)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            is_over = False
            while not is_over:
                async with make_queue() as client:
                    events, limit = client.events(RUN, seqs[-1] if seqs else 0), dice.randrange(1, EVENTS // 8)
                    async for event in events:
                        seqs.append(event.seq)
                        is_over = event.type == "run.completed"
                        limit -= 1
                        if limit == 0:
                            break
                    await events.aclose()  # type: ignore[attr-defined]
    assert len(seqs) == EVENTS + 1
    assert seqs == await seqs_of(store)


async def test_events_of_an_agent(store: RunStore, queue: NATSQueue) -> None:
    """The events are those of `DurableRuns.events`, with their data and times."""
    agent = Agent("a", model=ScriptedModel("hi"))
    runs = DurableRuns(store, [agent], queue=queue)
    run_id = await runs.submit(agent, "go", run_id=RUN)
    await runs.work_until_idle()
    with anyio.fail_after(PATIENCE):
        assert [event async for event in queue.events(run_id)] == [event async for event in runs.events(run_id)]
        assert [event async for event in queue.events(run_id, 2)] == [event async for event in runs.events(run_id, 2)]


async def test_two_processes_copy(
    store: RunStore, make_queue: Callable[..., NATSQueue], tmp_path: Path, nats: NATSServer, prefix: str
) -> None:
    """Processes that copy the events of one run at once store each once, in order."""
    with anyio.fail_after(PATIENCE):
        async with (
            open_store(f"sqlite:///{tmp_path}/runs.db") as other,
            make_queue() as first,
            make_queue() as second,
            Admin(nats.url) as admin,
        ):
            DurableRuns(store, [], queue=first)
            DurableRuns(other, [], queue=second)
            claim = await claimed(store)
            async with anyio.create_task_group() as tasks:
                for each in (store, other):
                    for _ in range(20):
                        tasks.start_soon(emit, each, 5)
            await finish(store, claim)
            assert await read(second) == await seqs_of(store)
            stored = [json.loads(body) for body in await admin.bodies(f"{prefix}_events")]
    assert [body["seq"] for body in stored] == await seqs_of(store)
    assert [body["previous"] for body in stored] == [0, *(body["seq"] for body in stored[:-1])]


async def test_nobody_has_copied(store: RunStore, make_queue: Callable[..., NATSQueue]) -> None:
    """Events that a process did not copy before it ended are copied when a client waits for them."""
    claim = await claimed(store)
    await emit(store, 3)
    await finish(store, claim)
    with anyio.fail_after(PATIENCE):
        async with make_queue() as client:
            async with anyio.create_task_group() as tasks:
                seqs: list[int] = []

                async def follow() -> None:
                    seqs.extend(await read(client, after=1))

                tasks.start_soon(follow)
                async with make_queue() as server:
                    DurableRuns(store, [], queue=server)
                    while len(seqs) < 3:  # noqa: ASYNC110  (another task)
                        await anyio.sleep(0.01)
            async with make_queue() as server:
                DurableRuns(store, [], queue=server)
                with pytest.raises(UnknownRun):
                    await anext(client.events("another"))
    assert seqs == (await seqs_of(store))[1:]


async def test_foreign_messages(store: RunStore, queue: NATSQueue, nats: NATSServer, prefix: str) -> None:
    """Messages of others on the subject of a run are skipped, and prevent no event."""
    DurableRuns(store, [], queue=queue)
    claim = await claimed(store)
    with anyio.fail_after(PATIENCE):
        async with Admin(nats.url) as admin:
            await emit(store, 2)
            async with aclosing(queue.events(RUN)) as events:  # type: ignore[type-var]
                first = await anext(events)
            for body in (b"\xff", b"[]", b'{"seq": "9"}'):
                await admin.publish(f"{prefix}.events.{token(RUN)}", body)
            await emit(store, 2)
            await finish(store, claim)
            assert await read(queue) == await seqs_of(store)
    assert first.seq == (await seqs_of(store))[0]


async def test_deleted_by_limits(store: RunStore, queue: NATSQueue, nats: NATSServer, prefix: str) -> None:
    """A client whose next events were deleted from the stream is told so, instead of missing them."""
    DurableRuns(store, [], queue=queue)
    claim = await claimed(store)
    await emit(store, 5)
    await finish(store, claim)
    with anyio.fail_after(PATIENCE):
        assert len(await read(queue)) == 6
        async with Admin(nats.url) as admin:
            await admin.call("STREAM.PURGE", f"{prefix}_events", {"keep": 2})
        assert len(await read(queue, after=4)) == 2
        with pytest.raises(EventsExpired, match=r"DurableRuns\.events"):
            await read(queue, after=2)


async def test_server_stopped(store: RunStore, queue: NATSQueue, nats: NATSServer) -> None:
    """A client waits while the server is away; events that were written meanwhile follow."""
    DurableRuns(store, [], queue=queue)
    claim = await claimed(store)
    await emit(store, 2)
    seqs: list[int] = []

    async def follow() -> None:
        seqs.extend([event.seq async for event in queue.events(RUN)])

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await anyio.to_thread.run_sync(nats.stop)
            await emit(store, 2)
            await finish(store, claim)
            await anyio.to_thread.run_sync(nats.start)
    assert seqs == await seqs_of(store)
