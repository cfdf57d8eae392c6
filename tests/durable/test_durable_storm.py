"""Many durable runs on workers that are killed, drained and stopped at random, with a model that fails at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from pellucid import Decision, Identity, ToolResult
from pellucid.durable import DurableRuns, RunDelta
from pellucid.run.pausing.fold import INTERRUPTED
from support.durable_scene import FIRST, Journey, scene
from support.nats_faults import FaultyQueue
from support.nats_server import Admin, nats_server
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pellucid.durable import RunEvent, RunStore
    from support.stores import Location

SCRIPT = """
import sys

sys.path.insert(0, sys.argv[1])
from support.durable_scene import work

work(*sys.argv[2:])
"""
TESTS = Path(__file__).parents[1]
RUNS = int(os.environ.get("PELLUCID_STORM_RUNS", "16"))
KILLS = int(os.environ.get("PELLUCID_STORM_KILLS", "6"))
WORKERS = int(os.environ.get("PELLUCID_STORM_WORKERS", "2"))
"""The long form, `make storm`, has 200 runs, 100 kills, half as many drains, and 4 workers."""

WITH_NATS = ["postgres", "sqlite"] if "PELLUCID_STORM_RUNS" in os.environ else ["postgres"]
"""Databases of the storm with NATS; with SQLite in the long form only."""

ERRORS = 0.3
"""Share of the model's calls that fail; two failures in a row fail the run, which is then retried."""

LEASE = 2.0


class Workers:
    """Processes that work on the runs of a store; the runs' tools write into one file."""

    def __init__(self, stack: ExitStack, location: Location, path: Path, nats: str = "", errors: float = 0.0) -> None:
        self._stack = stack
        self._arguments = (*location.arguments, str(path))
        self._trouble = (nats, str(errors))
        self._started = 0
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start another one."""
        backend = ("asyncio", "trio")[self._started % 2]
        self._started += 1
        arguments = (str(TESTS), *self._arguments, backend, str(LEASE), *self._trouble)
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

    def drain(self, number: int) -> None:
        """Start another one, and let one end its work."""
        process = self.processes.pop(number)
        process.terminate()
        self.start()
        # A process that has just been started does not listen yet.
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)


async def attend(runs: DurableRuns, run_ids: Sequence[str]) -> bool:
    """Decide and settle what the runs wait for, and retry those that the model has failed; return whether all ended."""
    states = [await runs.status(run_id) for run_id in run_ids]
    for state in states:
        if state.status == "failed":
            assert "down" in str(state.error), state
            await runs.retry(state.run_id)
        if state.status == "waiting":
            await runs.decide(state.run_id, [Decision(item.approval_id, approved=True) for item in state.approvals])
            for call in state.external:
                await runs.settle(call.id, output=f"{call.tool} settled")
    return all(state.is_over and state.status != "failed" for state in states)


class Readers:
    """Readers of runs, from their first event to the last, also if the runs fail meanwhile."""

    def __init__(self) -> None:
        self._seen: dict[str, list[list[RunEvent]]] = {}

    async def read(self, runs: DurableRuns, run_id: str, *, is_live: bool) -> None:
        """Read the events of a run, or follow it with `stream`."""
        seen: list[RunEvent] = []
        self._seen.setdefault(run_id, []).append(seen)
        while not seen or seen[-1].type != "run.completed":
            after = seen[-1].seq if seen else 0
            if is_live:
                async with runs.stream(run_id, after) as live:
                    seen += [event async for event in live if not isinstance(event, RunDelta)]
            else:
                seen += [event async for event in runs.events(run_id, after)]
            await anyio.sleep(0.2)  # a run that has failed is retried soon

    async def check(self, runs: DurableRuns) -> None:
        """Check that all have read what is in the store."""
        for run_id, readers in self._seen.items():
            stored = [(event.seq, event.type) for event in (await runs.event_page(run_id)).events]
            for seen in readers:
                assert [(event.seq, event.type) for event in seen] == stored, run_id


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
    """Kill and drain workers at random while they work on runs, and make other trouble; check that runs end right."""
    journey, readers = Journey(path), Readers()
    dice, kills = random.Random(15), 0
    async with AsyncExitStack() as stack:
        workers = Workers(stack.enter_context(ExitStack()), location, journey.path, nats, ERRORS)
        store = await stack.enter_async_context(location.open())
        queue = await stack.enter_async_context(FaultyQueue(nats)) if nats else None
        agent = scene(journey)
        runs = DurableRuns(store, [agent], queue=queue)
        elsewhere = DurableRuns(await stack.enter_async_context(location.open()), [])
        run_ids = [f"run-{number}" for number in range(RUNS)]
        for _ in range(WORKERS):
            workers.start()

        async def submit_and_kill() -> None:
            nonlocal kills
            for run_id in run_ids[RUNS * kills // KILLS : RUNS * (kills + 1) // KILLS]:
                await runs.submit(agent, "go", run_id=run_id, identity=Identity(principal=run_id))
                if run_id in run_ids[::4]:
                    tasks.start_soon(partial(readers.read, runs, run_id, is_live=True))
                    tasks.start_soon(partial(readers.read, elsewhere, run_id, is_live=False))
            if kills < KILLS:
                kills += 1
                await anyio.sleep(dice.random())
                await anyio.to_thread.run_sync(workers.kill, dice.randrange(WORKERS))
                if kills % 2:
                    await anyio.to_thread.run_sync(workers.drain, dice.randrange(WORKERS))
                if trouble is not None:
                    await trouble(dice)

        async with anyio.create_task_group() as tasks:
            await submit_and_kill()
            while kills < KILLS:
                await submit_and_kill()
                await attend(runs, run_ids[: RUNS * kills // KILLS])
            while not await attend(runs, run_ids):  # noqa: ASYNC110  (other processes)
                await anyio.sleep(0.1)
        await readers.check(runs)
        await check(store, runs, {run_id: run_id for run_id in run_ids}, journey)
        types = Counter([event.type for run_id in run_ids for event in (await runs.event_page(run_id)).events])
        assert types["run.retrying"] > 0


@pytest.mark.anyio
@pytest.mark.timeout((5 + KILLS / 8) * PATIENCE)
async def test_storm(location: Location, tmp_path: Path) -> None:
    """All runs end right although their workers are killed at random."""
    with anyio.fail_after((4 + KILLS / 8) * PATIENCE):
        await storm(location, tmp_path / "log.txt")


@pytest.mark.anyio
@pytest.mark.timeout((5 + KILLS / 8) * PATIENCE)
@pytest.mark.parametrize("location", WITH_NATS, indirect=True)
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
