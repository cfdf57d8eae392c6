"""Events: order, pages, and readers that come back."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import anyio
import pytest

from pellucid.durable import EventPage
from support.stores import claimed

if TYPE_CHECKING:
    from pellucid.durable import RunStore
    from support.stores import Location

pytestmark = pytest.mark.anyio

EVENTS = 10_000
READERS = 20


async def test_pages(store: RunStore) -> None:
    """Events are read in pages, each with the status of the run and whether there are more."""
    claim = await claimed(store)
    assert await store.events("run") == EventPage((), has_more=False, run_status="running")
    assert await store.emit("run", ["a", {"b": 1}, None]) == 3
    first = await store.events("run", limit=2)
    assert [(event.seq, event.value) for event in first.events] == [(1, "a"), (2, {"b": 1})]
    assert first.has_more
    await store.finish(claim, "completed", events=["end"])
    last = await store.events("run", after=2, limit=2)
    assert [(event.seq, event.value) for event in last.events] == [(3, None), (4, "end")]
    assert (last.has_more, last.run_status) == (False, "completed")


async def test_events_of_an_ended_run(store: RunStore) -> None:
    """A run that has ended still takes events, such as that of a late result."""
    await store.finish(await claimed(store), "completed")
    assert await store.emit("run", ["late"]) == 1


async def test_readers_that_reconnect(location: Location, store: RunStore) -> None:
    """Readers that reconnect at random get each of 10,000 events once and in order, whoever writes them."""
    claim = await claimed(store)
    chance = random.Random(1)
    written: list[int] = []
    streams: list[list[tuple[int, int]]] = [[] for _ in range(READERS)]

    async def write(own: RunStore, *, has_claim: bool) -> None:
        while len(written) < EVENTS:
            numbers = range(len(written), min(len(written) + chance.randrange(100, 400), EVENTS))
            written.extend(numbers)
            if has_claim:
                await own.append(claim, f"key-{numbers.start}", None, list(numbers))
            else:
                await own.emit("run", list(numbers))

    async def read(own: RunStore, stream: list[tuple[int, int]]) -> None:
        after = 0
        while len(stream) < EVENTS:
            page = await own.events("run", after=after, limit=chance.randrange(1, 1500))
            kept = page.events[: chance.randrange(len(page.events) + 1)] if chance.random() < 0.3 else page.events
            stream.extend((event.seq, event.value) for event in kept)
            after = stream[-1][0] if stream else 0
            if not page.has_more:
                await own.wait_for_events("run", after, 1)

    with anyio.fail_after(240):
        async with location.open() as other, anyio.create_task_group() as group:
            for number, stream in enumerate(streams):
                group.start_soon(read, (store, other)[number % 2], stream)
            for number in range(4):
                # Of one claim, only the process that holds it writes.
                group.start_soon(lambda own, mine: write(own, has_claim=mine), (store, other)[number % 2], number == 0)
    assert sorted(value for _, value in streams[0]) == list(range(EVENTS))
    assert [seq for seq, _ in streams[0]] == sorted({seq for seq, _ in streams[0]})
    assert all(stream == streams[0] for stream in streams)
