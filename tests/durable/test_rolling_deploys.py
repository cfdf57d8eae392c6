"""Workers that are replaced one by one, by SIGTERM, with those of another version of the code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import ExitStack
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from pellucid import Decision, Identity, ToolResult
from pellucid.durable import DurableRuns
from support.deploy_scene import CALLS
from support.durable_scene import Journey
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid.durable import OnChange
    from support.stores import Location

SCRIPT = """
import sys

sys.path.insert(0, sys.argv[1])
from support.deploy_scene import work

work(*sys.argv[2:])
"""
TESTS = Path(__file__).parents[1]
RUNS = int(os.environ.get("PELLUCID_DEPLOY_RUNS", "20"))
SECONDS = float(os.environ.get("PELLUCID_DEPLOY_SECONDS", "0.2"))
"""Size of the test: runs, and seconds that a tool takes. `make storm` has 200 runs and 2 s."""

DRAIN = float(os.environ.get("PELLUCID_DEPLOY_DRAIN", "30"))
WORKERS = 2


class Deployment:
    """The workers of a store, of an old and a new version."""

    def __init__(
        self, stack: ExitStack, location: Location, runs: DurableRuns, path: Path, on_change: OnChange
    ) -> None:
        self._stack = stack
        self._arguments = (str(TESTS), *location.arguments, str(path))
        self._options = (str(SECONDS), on_change, str(DRAIN))
        self._runs = runs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._backends = cycle(("asyncio", "trio"))

    async def start(self, worker: str) -> None:
        """Start a worker, and wait until it works."""
        arguments = (*self._arguments, next(self._backends), worker, *self._options)
        command = [sys.executable, "-W", "error", "-c", SCRIPT, *arguments]
        process = await anyio.to_thread.run_sync(subprocess.Popen, command)
        self._processes[worker] = self._stack.enter_context(process)
        self._stack.callback(process.kill)
        while worker not in [record.name for record in await self._runs.workers()]:  # noqa: ASYNC110  (another process)
            await anyio.sleep(0.05)

    async def end(self, worker: str) -> None:
        """Let a worker end."""
        process = self._processes[worker]
        process.terminate()
        assert await anyio.to_thread.run_sync(process.wait, PATIENCE) == 0


async def approve(runs: DurableRuns, run_ids: Sequence[str]) -> bool:
    """Approve what runs wait for; return whether all have ended."""
    states = [await runs.status(run_id) for run_id in run_ids]
    for state in states:
        await runs.decide(state.run_id, [Decision(item.approval_id, approved=True) for item in state.approvals])
    return all(state.is_over for state in states)


async def check(runs: DurableRuns, run_ids: Sequence[str], journey: Journey) -> dict[str, list[str]]:
    """Check that all runs are complete, and no tool ran twice; return the digests of the code of each run's passes."""
    digests: dict[str, list[str]] = defaultdict(list)
    for span in journey.spans:
        if span["name"] == "invoke_agent deployed":
            digests[span["durable run"]].append(span["digest"])
    effects = Counter(line.rpartition(" ")[0] for line in journey.lines)
    assert effects == dict.fromkeys([f"{run_id} {call_id}" for run_id in run_ids for call_id in CALLS], 1)
    for run_id in run_ids:
        state = await runs.status(run_id)
        assert (state.status, state.output) == ("completed", "done")
        results = [part for message in state.messages for part in message.parts if isinstance(part, ToolResult)]
        assert {result.id: result.response for result in results} == {call_id: f"{call_id} done" for call_id in CALLS}
        changes = [
            (event.data["previous_digest"], event.data["digest"])
            for event in (await runs.event_page(run_id)).events
            if event.type == "run.code_changed"
        ]
        passes = digests[run_id]
        assert changes == [pair for pair in pairwise(passes) if pair[0] != pair[1]]
    return digests


@pytest.mark.anyio
@pytest.mark.timeout((2 + RUNS / 100) * PATIENCE)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the workers run on both
@pytest.mark.parametrize("on_change", ["continue", "wait"])
async def test_rolling_deploy(location: Location, tmp_path: Path, on_change: OnChange) -> None:
    """A rolling deploy repeats no tool and loses no result; runs go on with the new code or wait for their own."""
    journey = Journey(tmp_path / "log.txt")
    run_ids = [f"run-{number}" for number in range(RUNS)]
    submitted: list[str] = []
    old = [f"old-{number}" for number in range(WORKERS)]
    with ExitStack() as stack, anyio.fail_after((1 + RUNS / 100) * PATIENCE):
        async with location.open() as store:
            runs = DurableRuns(store, [])
            deployment = Deployment(stack, location, runs, journey.path, on_change)
            async with anyio.create_task_group() as tasks:
                for worker in old:
                    tasks.start_soon(deployment.start, worker)
            for number, worker in enumerate(old):
                batch = run_ids[number::WORKERS]
                await deployment.start(f"new-{number}")
                for run_id in batch:
                    await runs.submit("deployed", "go", run_id=run_id, identity=Identity(principal=run_id))
                while not any(line.split()[0] in batch and line.endswith(worker) for line in journey.lines):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                if on_change == "continue" or worker != old[-1]:
                    await deployment.end(worker)
                submitted += batch
                await approve(runs, submitted)
            while not await approve(runs, run_ids):  # noqa: ASYNC110  (other processes)
                await anyio.sleep(0.1)
            if on_change == "wait":
                assert await store.pinned() == ()
                await deployment.end(old[-1])
            assert [record.name for record in await runs.workers()] == [f"new-{number}" for number in range(WORKERS)]
            digests = await check(runs, run_ids, journey)
    versions = Counter(len(set(passes)) for passes in digests.values())
    assert len({digest for passes in digests.values() for digest in passes}) == 2
    assert versions[2] > 0 if on_change == "continue" else versions == {1: RUNS}
