"""Many durable runs on workers that are killed and stopped at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from pellucid import Decision, Identity, ToolResult
from pellucid.durable import DurableRuns
from pellucid.run.pausing.fold import INTERRUPTED
from support.durable_scene import FIRST, Journey, scene
from support.nats_faults import FaultyQueue
from support.nats_server import Admin, nats_server
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pellucid.durable import RunStore
    from support.stores import Location

SCRIPT = """
import sys

sys.path.insert(0, sys.argv[1])
from support.durable_scene import work

work(*sys.argv[2:])
"""
TESTS = Path(__file__).parents[1]
RUNS = int(os.environ.get("PELLUCID_STORM_RUNS", "16"))
KILLS = int(os.environ.get("PELLUCID_STORM_KILLS", "8"))
WORKERS = int(os.environ.get("PELLUCID_STORM_WORKERS", "2"))
"""The long form, `make storm`, has 200 runs, 100 kills and 4 workers."""

LEASE = 2.0


class Workers:
    """Processes that work on the runs of a store; the runs' tools write into one file."""

    def __init__(self, stack: ExitStack, location: Location, path: Path, nats: str = "") -> None:
        self._stack = stack
        self._location = location
        self._path = path
        self._nats = nats
        self._started = 0
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start another one."""
        backend = ("asyncio", "trio")[self._started % 2]
        self._started += 1
        arguments = (str(TESTS), *self._location.arguments, str(self._path), backend, str(LEASE), self._nats)
        # Not from the fork server, whose client would receive the signals.
        command = [sys.executable, "-W", "error", "-c", SCRIPT, *arguments]
        process = self._stack.enter_context(subprocess.Popen(command))
        self._stack.callback(process.kill)
        self.processes.append(process)

    def kill(self, number: int) -> None:
        """Kill one, and start another one."""
        process = self.processes.pop(number)
        process.kill()
        process.wait()
        self.start()


async def attend(runs: DurableRuns, run_ids: Sequence[str]) -> bool:
    """Decide and settle what the runs wait for; return whether all have ended."""
    states = [await runs.status(run_id) for run_id in run_ids]
    for state in states:
        if state.status == "waiting":
            await runs.decide(state.run_id, [Decision(item.approval_id, approved=True) for item in state.approvals])
            for call in state.external:
                await runs.settle(call.id, output=f"{call.tool} settled")
    return all(state.is_over for state in states)


async def check(store: RunStore, runs: DurableRuns, principals: Mapping[str, str], journey: Journey) -> None:
    """Check that each run, here with its principal, has ended right, and that no tool ran twice that must not."""
    counts = journey.counts()
    for run_id, principal in principals.items():
        state = await runs.status(run_id)
        assert (state.status, state.error) == ("completed", None), run_id
        results = [part for message in state.messages for part in message.parts if isinstance(part, ToolResult)]
        by_id = {result.id: result.response for result in results}
        assert {f"c-{name}" for name in FIRST} | {"c-again"} <= by_id.keys()
        assert len(by_id) == len(results) == len(FIRST) + 2, run_id
        for call_id, line in (("c-once", "once c-once"), ("c-pay", "pay c-pay"), ("c-again", "once c-again")):
            assert counts[f"{principal} {line}"] == 1 or by_id[call_id] == INTERRUPTED, run_id
            assert counts[f"{principal} {line}"] <= 1, run_id
        assert by_id["c-safe"] == "safe done", run_id
        assert by_id["c-owed"] == "owed settled", run_id
        run = await store.run(run_id)
        assert run is not None
        assert run.pending == 0
    before = await store.list_runs()
    await runs.recover()
    assert await store.list_runs() == before


async def storm(
    location: Location, path: Path, nats: str = "", trouble: Callable[[random.Random], Awaitable[None]] | None = None
) -> None:
    """Kill workers at random while they work on runs, and make other trouble; check that all runs end right."""
    journey = Journey(path)
    dice, kills = random.Random(15), 0
    async with AsyncExitStack() as stack:
        workers = Workers(stack.enter_context(ExitStack()), location, journey.path, nats)
        store = await stack.enter_async_context(location.open())
        queue = await stack.enter_async_context(FaultyQueue(nats)) if nats else None
        agent = scene(journey)
        runs = DurableRuns(store, [agent], queue=queue)
        run_ids = [f"run-{number}" for number in range(RUNS)]
        for _ in range(WORKERS):
            workers.start()

        async def submit_and_kill() -> None:
            nonlocal kills
            for run_id in run_ids[RUNS * kills // KILLS : RUNS * (kills + 1) // KILLS]:
                await runs.submit(agent, "go", run_id=run_id, identity=Identity(principal=run_id))
            if kills < KILLS:
                kills += 1
                await anyio.sleep(dice.random())
                await anyio.to_thread.run_sync(workers.kill, dice.randrange(WORKERS))
                if trouble is not None:
                    await trouble(dice)

        await submit_and_kill()
        while kills < KILLS:
            await submit_and_kill()
            await attend(runs, run_ids[: RUNS * kills // KILLS])
        while not await attend(runs, run_ids):  # noqa: ASYNC110  (other processes)
            await anyio.sleep(0.1)
        await check(store, runs, {run_id: run_id for run_id in run_ids}, journey)


@pytest.mark.anyio
@pytest.mark.timeout((5 + KILLS / 8) * PATIENCE)
async def test_storm(location: Location, tmp_path: Path) -> None:
    """All runs end right although their workers are killed at random."""
    with anyio.fail_after((4 + KILLS / 8) * PATIENCE):
        await storm(location, tmp_path / "log.txt")


@pytest.mark.anyio
@pytest.mark.timeout((5 + KILLS / 8) * PATIENCE)
@pytest.mark.parametrize("location", ["postgres"], indirect=True)
async def test_storm_with_nats(location: Location, tmp_path: Path) -> None:
    """So they do if messages are lost and doubled, NATS is killed and started, and its streams are deleted."""
    with anyio.fail_after((4 + KILLS / 8) * PATIENCE), nats_server() as server:

        async def trouble(dice: random.Random) -> None:
            match dice.randrange(3):
                case 0:
                    await anyio.to_thread.run_sync(server.kill)
                    await anyio.sleep(dice.random())
                    await anyio.to_thread.run_sync(server.start)
                case 1:
                    async with Admin(server.url) as admin:
                        await admin.request(f"$JS.API.STREAM.DELETE.pellucid_{dice.choice(['work', 'events'])}")

        await storm(location, tmp_path / "log.txt", server.url, trouble)


@pytest.mark.anyio
async def test_stopped_beyond_the_lease(location: Location, tmp_path: Path) -> None:
    """A process that was stopped for longer than its lease writes nothing; another one ends its runs."""
    journey = Journey(tmp_path / "log.txt")
    with ExitStack() as stack, anyio.fail_after(4 * PATIENCE):
        workers = Workers(stack, location, journey.path)
        async with location.open() as store:
            agent = scene(journey)
            runs = DurableRuns(store, [agent])
            run_ids = [f"run-{number}" for number in range(4)]
            workers.start()
            for run_id in run_ids:
                await runs.submit(agent, "go", run_id=run_id, identity=Identity(principal=run_id))
            while not (await store.list_runs(status="running")).runs:  # noqa: ASYNC110  (another process)
                await anyio.sleep(0.001)
            # Stopped within a transaction of SQLite, a process would hold the file, and nobody else could write.
            workers.processes[0].send_signal(signal.SIGSTOP if location.server is not None else signal.SIGUSR1)
            workers.start()
            while not await attend(runs, run_ids):  # noqa: ASYNC110  (other processes)
                await anyio.sleep(0.1)
            workers.processes[0].send_signal(signal.SIGCONT)
            await anyio.sleep(LEASE / 2)
            await check(store, runs, {run_id: run_id for run_id in run_ids}, journey)


@pytest.mark.anyio
@pytest.mark.parametrize("location", ["postgres"], indirect=True)
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_database_restarted(location: Location, tmp_path: Path, how: str) -> None:
    """While the database restarts, workers wait or lose their claims; all runs end right."""
    assert location.server is not None
    journey = Journey(tmp_path / "log.txt")
    run_ids = [f"run-{number}" for number in range(6)]
    with anyio.fail_after(4 * PATIENCE):
        async with location.open(patience=60.0) as store, anyio.create_task_group() as tasks:
            agent = scene(journey)
            runs = DurableRuns(store, [agent], lease=LEASE, poll=0.1)
            for run_id in run_ids:
                await runs.submit(agent, "go", run_id=run_id, identity=Identity(principal=run_id))
            tasks.start_soon(runs.work)
            while not journey.lines:  # noqa: ASYNC110  (a file)
                await anyio.sleep(0.001)
            await anyio.to_thread.run_sync(getattr(location.server, how))
            await anyio.to_thread.run_sync(location.server.start)
            while not await attend(runs, run_ids):  # noqa: ASYNC110  (a worker)
                await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
        async with location.open() as store:
            await check(store, DurableRuns(store, [agent]), {run_id: run_id for run_id in run_ids}, journey)
