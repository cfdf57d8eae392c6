"""Event loops that are closed in mid-flight, without cancelling what runs in them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import threading
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from mcp.server.mcpserver import MCPServer

from pellucid import Agent, DiscoveryContext, DiscoveryProvider, gated_tools, semconv
from pellucid.concurrency import tasks
from pellucid.mcp import MCPProvider
from pellucid.testing import FakeHub, ScriptedModel
from support.clock import Clock
from support.hubs import named, names

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from pellucid_exporters.testing import Captured

pytestmark = pytest.mark.anyio

CTX = DiscoveryContext()


@contextlib.contextmanager
def closed_hard(function: Callable[..., Coroutine[Any, Any, Any]], *args: object) -> Iterator[threading.Event]:
    """Run an async function in an event loop of a thread, which stops once the event is set and is closed as it is."""
    stop = threading.Event()

    def work() -> None:
        loop = asyncio.new_event_loop()
        loop.run_in_executor(None, stop.wait, 30).add_done_callback(lambda _: loop.stop())
        task = loop.create_task(function(*args))
        loop.run_forever()
        loop.close()
        # asyncio complains of a task that is collected before it has ended; other tests count those that are running.
        left = [each for each in tasks.running if each.get_loop() is loop]
        tasks.running.difference_update(left)
        kept.extend([task, *left])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(60)


kept: list[object] = []


async def until(condition: Any) -> None:
    """Wait until something holds."""
    while not condition():
        await checkpoint()


async def test_who_waits_for_a_fetch_of_a_loop_that_is_closed_asks_by_itself(telemetry: Captured) -> None:
    """It does not wait for the timeout, and the fetch is not in flight any longer."""
    hub = FakeHub(named("a"), latency=math.inf)
    provider = DiscoveryProvider(hub, id="hub", timeout=None)
    found: list[str] = []

    async def wait() -> None:
        found.extend(names(await provider.list_tools(CTX)))

    with anyio.fail_after(60), closed_hard(provider.list_tools, CTX) as stop:
        await until(lambda: hub.calls)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            hub.latency = 0
            stop.set()
    assert found == ["a"]
    assert len(hub.calls) == 2
    assert telemetry.value(semconv.DISCOVERY_INFLIGHT, pellucid_provider_id="hub") == 0


@pytest.mark.parametrize("kind", ["fetch", "refresh", "plain"])
async def test_a_fetch_of_a_closed_loop_is_over(telemetry: Captured, kind: str) -> None:
    """Later callers fetch anew, and the age of the old fetch does not grow; also of a refresh and a plain provider."""
    clock = Clock()
    hub = FakeHub(lambda number: named(f"v{number}"), latency=math.inf)
    provider = DiscoveryProvider(hub, id="hub", timeout=None, ttl=10, stale_while_revalidate=10, clock=clock)
    with anyio.fail_after(60):
        if kind == "refresh":
            hub.latency = 0
            await provider.list_tools(CTX)
            hub.latency = math.inf
            clock.now += 11
        calls = len(hub.calls)
        listed = gated_tools(provider, lambda tool, ctx: True) if kind == "plain" else provider
        agent = Agent("a", model=ScriptedModel("done"), providers=[listed])
        with closed_hard(agent.run, "x"):
            await until(lambda: len(hub.calls) > calls)
        telemetry.is_checked = False  # the run has not ended, and never will
        hub.latency = 0
        await provider.list_tools(CTX)
        await until(lambda: len(hub.calls) == calls + 2)
        await anyio.wait_all_tasks_blocked()
        assert names(await provider.list_tools(CTX)) == [f"v{calls + 2}"]
    for metric in (semconv.DISCOVERY_INFLIGHT, semconv.DISCOVERY_INFLIGHT_AGE):
        assert {point.value for point in telemetry.metrics if point.name == metric.name} == {0}


def test_loops_that_have_ended_are_released() -> None:
    """A provider that was used in many event loops, one after the other, keeps at most the last one alive."""
    server = MCPServer("sums")
    provider = MCPProvider.connect(server, id="sums")
    loops: list[weakref.ref[Any]] = []

    async def work() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await Agent("a", model=ScriptedModel("done"), providers=[provider]).run("go")

    for _ in range(5):
        anyio.run(work)
    gc.collect()
    assert sum(loop() is not None for loop in loops) <= 1
