"""A run that ends the processes of its workers, beside runs that do not."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent
from pellucid.durable import DurableRuns
from pellucid.testing import FunctionModel
from support.processes import PATIENCE, command
from support.runs import within

if TYPE_CHECKING:
    from pellucid.durable import RunStore
    from support.stores import Location

pytestmark = pytest.mark.anyio

WORKER = """
    import json
    import os
    import sys

    import anyio

    from pellucid import Agent
    from pellucid.durable import DurableRuns, open_store
    from pellucid.durable.store import values
    from pellucid.testing import FunctionModel

    url, options, backend, max_expired_leases = sys.argv[1:]

    async def answer(request):
        await anyio.sleep(0.1)
        if request.messages[0].text == "poison":
            os._exit(1)
        await anyio.sleep(0.4)
        return "done"

    def from_json(text):
        if "a value that ends the process" in text:
            os._exit(1)
        return json.loads(text)

    values.from_json = from_json

    async def main():
        async with open_store(url, **json.loads(options), poll=0.1) as store:
            agent = Agent("a", model=FunctionModel(answer))
            await DurableRuns(store, [agent], lease=1.0, poll=0.1, max_expired_leases=int(max_expired_leases)).work()

    anyio.run(main, backend=backend)
"""


async def work(location: Location, backend: str, runs: DurableRuns, run_ids: list[str], *, workers: int) -> int:
    """Let processes work until these runs are over; return how many have ended before."""
    ended = 0
    start = partial(subprocess.Popen, command(WORKER, *location.arguments, backend, 1), stderr=subprocess.PIPE)
    with ExitStack() as stack, anyio.fail_after(PATIENCE):
        processes = [stack.enter_context(start()) for _ in range(workers)]
        try:
            while not all([(await runs.status(run_id)).is_over for run_id in run_ids]):
                for number, process in enumerate(processes):
                    if process.poll() is not None:
                        ended += 1
                        processes[number] = stack.enter_context(start())
                await anyio.sleep(0.05)
        finally:
            for process in processes:
                process.kill()
    return ended


@pytest.mark.parametrize("workers", [1, 3])
async def test_runs_beside_one_that_ends_its_processes(location: Location, anyio_backend: str, workers: int) -> None:
    """All of them complete, however many workers there are; the one that ends them is given up."""
    async with location.open() as store:
        runs = DurableRuns(store, [Agent("a", model=FunctionModel(lambda request: ""))])
        harmless = [await runs.submit("a", f"harmless {number}") for number in range(7)]
        poison = await runs.submit("a", "poison")
        ended = await work(location, anyio_backend, runs, [*harmless, poison], workers=workers)
        assert [(await runs.status(run_id)).status for run_id in harmless] == ["completed"] * 7
        assert (await runs.status(poison)).error_type == "given_up"
        assert ended >= 3


@pytest.mark.parametrize("column", ["journal", "checkpoint"])
async def test_a_run_whose_reading_ends_the_process(location: Location, anyio_backend: str, column: str) -> None:
    """Its claim is committed before its journal and its checkpoint are read, so it is given up, too."""
    async with location.open() as store:
        runs = DurableRuns(store, [Agent("a", model=FunctionModel(lambda request: ""))])
        harmless = await runs.submit("a", "harmless")
        poison = await runs.submit("a", "x", run_id="poison")
        claim = await store.claim_run(poison, "a", "worker", 60.0)
        assert claim is not None
        await store.append(claim, "answer:1", {"step": "answer", "state": "a value that ends the process"})
        if column == "checkpoint":
            await store.end_pass(claim, {"version": "a value that ends the process"})
        else:
            await store.release(claim)
        ended = await work(location, anyio_backend, runs, [harmless, poison], workers=1)
        assert (await runs.status(harmless)).status == "completed"
        assert (await runs.status(poison)).error_type == "given_up"
        assert ended >= 3


class Room:
    """A model that waits until its requests are as many as can be, and counts them."""

    def __init__(self, number: int) -> None:
        self.running = self.most = 0
        self.order: list[str] = []
        self.is_full = anyio.Event()
        self._number = number

    async def __call__(self, request: Any) -> str:
        """Answer once there have been that many requests at the same time."""
        self.order.append(request.messages[0].text)
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running == self._number:
            self.is_full.set()
        await self.is_full.wait()
        await anyio.lowlevel.checkpoint()
        self.running -= 1
        return "done"


async def suspect(store: RunStore, run_id: str) -> None:
    """Let two leases of a run expire in a row."""
    await DurableRuns(store, []).submit("a", run_id, run_id=run_id)
    for _ in range(2):
        assert await store.claim_run(run_id, "a", "worker that ends", 0.0) is not None


async def test_runs_of_an_outage_recover_at_once(store: RunStore, location: Location) -> None:
    """Runs whose leases have all expired once, such as in an outage of the database, continue side by side."""
    room = Room(10)
    runs = DurableRuns(store, [Agent("a", model=FunctionModel(room))], max_expired_leases=1)
    run_ids = [await runs.submit("a", str(number)) for number in range(100)]
    for _ in run_ids:
        assert await store.claim("worker", ["a"], 60.0) is not None
    location.end_leases()
    await within(runs.work_until_idle(concurrency=10))
    assert [(await runs.status(run_id)).status for run_id in run_ids] == ["completed"] * 100
    assert room.most == 10


async def test_a_suspect_has_the_worker_for_itself(store: RunStore) -> None:
    """Nothing else is claimed while it runs, also by `work_until_idle`."""
    beside: list[int] = []
    running = 0

    async def answer(request: Any) -> str:
        nonlocal running
        running += 1
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
            if request.messages[0].text.startswith("suspect"):
                beside.append(running)
        running -= 1
        return "done"

    runs = DurableRuns(store, [Agent("a", model=FunctionModel(answer))])
    for name in ("suspect 1", "suspect 2"):
        await suspect(store, name)
    run_ids = [await runs.submit("a", str(number)) for number in range(5)]
    await within(runs.work_until_idle())
    states = [(await runs.status(run_id)).status for run_id in ("suspect 1", "suspect 2", *run_ids)]
    assert states == ["completed"] * 7
    assert beside == [1] * 40


async def test_a_busy_worker_leaves_a_suspect_to_an_idle_one(store: RunStore) -> None:
    """It neither claims it nor looks for it again and again."""
    is_over = anyio.Event()
    reached = anyio.Event()

    async def wait(request: Any) -> str:
        reached.set()
        await is_over.wait()
        return "of the busy one"

    busy = DurableRuns(store, [Agent("a", model=FunctionModel(wait))], worker="busy")
    idle = DurableRuns(store, [Agent("a", model=FunctionModel(lambda request: "of the idle one"))])
    run_id = await busy.submit("a", "x")
    await suspect(store, "suspect")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(busy.work)
        await within(reached.wait())
        assert not await within(store.wait_for_work(["a"], 0.01, with_suspects=False))
        assert await within(store.wait_for_work(["a"], 60))
        assert await store.claim("worker", ["a"], 60.0, with_suspects=False) is None
        await within(idle.work_until_idle())
        is_over.set()
        with anyio.fail_after(60):
            while not (await busy.status(run_id)).is_over:  # noqa: ASYNC110  (another worker)
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert (await busy.status("suspect")).output == "of the idle one"
    assert (await busy.status(run_id)).output == "of the busy one"


async def test_a_worker_that_is_always_busy_makes_room_for_a_suspect(location: Location) -> None:
    """Once it has waited for the length of a lease, though there is always another run that is due."""
    async with location.open(poll=0.05) as store:
        is_over = False

        async def answer(request: Any) -> str:
            nonlocal is_over
            if request.messages[0].text == "suspect":
                is_over = True
            elif not is_over:
                await runs.submit("a", "another")
                await runs.submit("a", "another")
            return "done"

        runs = DurableRuns(store, [Agent("a", model=FunctionModel(answer))], lease=0.5, poll=0.05)
        await runs.submit("a", "another")
        await runs.submit("a", "another")
        await suspect(store, "suspect")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(runs.work, concurrency=2))
            with anyio.fail_after(60):
                while not (await runs.status("suspect")).is_over:  # noqa: ASYNC110  (a worker)
                    await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
        assert (await runs.status("suspect")).output == "done"
