"""Waiting for work and for events, without polls where a notification can come."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import psycopg
import pytest

from pellucid.durable import RunStore
from support.runs import within
from support.stores import claimed, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from support.stores import Location

pytestmark = pytest.mark.anyio

NEVER = 3600.0
"""A poll that does not come before the test has failed."""


@pytest.fixture
async def store(location: Location, anyio_backend: str) -> AsyncIterator[RunStore]:
    """Open a store whose waiters are only notified."""
    async with location.open(poll=NEVER) as store:
        yield store


async def woken(wait: Callable[[], Awaitable[bool]], cause: Callable[[], Awaitable[object]]) -> bool:
    """Start to wait, cause what is waited for, and return what the wait returned."""
    results: list[bool] = []

    async def keep() -> None:
        results.append(await wait())

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(keep)
            await anyio.wait_all_tasks_blocked()
            await cause()
    return results[0]


async def test_work_that_is_there(store: RunStore) -> None:
    """A wait for work ends at once if a run of the agents can be claimed, and else after its time."""
    await store.submit("run", "agent", None)
    assert await within(store.wait_for_work(["other", "agent"], NEVER))
    assert not await within(store.wait_for_work(["other"], 0.01))
    await store.claim("worker", ["agent"], 60)
    assert not await within(store.wait_for_work(["agent"], 0.01))


async def test_woken_by_a_settlement(location: Location, store: RunStore) -> None:
    """A settlement in another process wakes a worker that waits."""
    await waiting(store, "call")
    async with location.open() as other:
        wait = partial(store.wait_for_work, ["agent"], NEVER)
        assert await woken(wait, partial(other.settle, "call", "completed"))
        assert await store.claim("worker", ["agent"], 60) is not None


@pytest.mark.parametrize("cause", ["submit", "end_pass", "release"])
async def test_woken_by_what_makes_a_run_due(store: RunStore, cause: str) -> None:
    """Whatever makes a run due wakes a worker that waits in the same process."""
    claim = await claimed(store)
    causes: dict[str, Callable[[], Awaitable[object]]] = {
        "submit": partial(store.submit, "second", "agent", None),
        "end_pass": partial(store.end_pass, claim),
        "release": partial(store.release, claim),
    }
    assert await woken(partial(store.wait_for_work, ["agent"], NEVER), causes[cause])


async def test_woken_by_expiry(store: RunStore) -> None:
    """The expiry of the last call wakes a worker that waits."""
    await waiting(store, "call", expires_after=0.0)
    assert await woken(partial(store.wait_for_work, ["agent"], NEVER), store.expire)


async def test_expired_lease_is_noticed(location: Location) -> None:
    """A worker that waits sees a lease expire, of which nobody is notified."""
    async with location.open(poll=0.02) as store:
        await claimed(store, lease=0.1)
        assert await within(store.wait_for_work(["agent"], NEVER))


async def test_woken_by_events(location: Location, store: RunStore) -> None:
    """A reader that waits is woken by an event of its run, of another process, and by the end of the run."""
    claim = await claimed(store)
    await store.emit("run", ["seen"])
    assert await within(store.wait_for_events("run", 0, NEVER))
    assert not await within(store.wait_for_events("run", 1, 0.01))
    wait = partial(store.wait_for_events, "run", 1, NEVER)
    async with location.open() as other:
        assert await woken(wait, partial(other.emit, "run", ["new"]))
    wait = partial(store.wait_for_events, "run", 2, NEVER)
    assert await woken(wait, partial(store.finish, claim, "completed"))
    assert await within(store.wait_for_events("run", 2, NEVER))


async def test_many_waiters(store: RunStore) -> None:
    """All who wait are woken, and those who gave up are forgotten."""
    woken: list[bool] = []

    async def wait() -> None:
        woken.append(await store.wait_for_work(["agent"], NEVER))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as given_up:
            for _ in range(20):
                given_up.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            given_up.cancel_scope.cancel()
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await store.submit("run", "agent", None)
    assert woken == [True] * 20


async def test_long_names(store: RunStore) -> None:
    """An agent whose name is too long for a notification wakes its workers as others do."""
    name = "ä" * 5000
    wait = partial(store.wait_for_work, [name], NEVER)
    assert await woken(wait, partial(store.submit, "run", name, None))


@pytest.mark.parametrize("location", ["postgres"], indirect=True)
async def test_lost_listener(location: Location, store: RunStore) -> None:
    """A listening connection that is lost is made again, and what was committed meanwhile is noticed."""
    await waiting(store, "call")

    async def settle() -> None:
        with psycopg.connect(location.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = %s",
                [f"LISTEN {location.options['schema']}"],
            )
        await store.settle("call", "completed")

    assert await woken(partial(store.wait_for_work, ["agent"], NEVER), settle)
