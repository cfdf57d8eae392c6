"""Runs through a server that is killed with SIGKILL: at each of its commits, and at random beside its workers."""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import httpx
import pytest

from durable.test_durable_crashes import check
from durable.test_durable_storm import Workers
from durable.test_durable_storm import check as check_all
from pellucid.durable import DurableRuns
from support.durable_scene import Journey, scene
from support.http_scene import Client, ServerProcess
from support.nats_server import nats_server
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from support.stores import Location

pytestmark = [pytest.mark.parametrize("anyio_backend", ["asyncio"]), pytest.mark.anyio]
"""The server is the same on both event loops of the test; its workers are on both."""

RUNS = int(os.environ.get("PELLUCID_STORM_RUNS", "12"))
KILLS = int(os.environ.get("PELLUCID_STORM_KILLS", "6"))


async def complete(client: Client, path: str, location: Location, journey: Journey) -> None:
    """Work on a run, attend to it over HTTP until it is completed, and check it."""
    async with location.open() as store, anyio.create_task_group() as tasks:
        tasks.start_soon(DurableRuns(store, [scene(journey)], poll=0.1).work)
        while await client.attend(path) != "completed":  # noqa: ASYNC110  (other processes)
            await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
        await check(store, journey, path.rpartition("/")[2])


@pytest.mark.timeout(4 * PATIENCE)
async def test_killed_at_every_commit(location: Location, tmp_path: Path) -> None:
    """Before or after a commit, the client repeats its request to another process, and the run ends right."""
    reached = 0
    with ExitStack() as stack:
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            while True:
                journey = Journey(tmp_path / f"{reached}.txt")
                where = location.at(str(reached))
                server = ServerProcess(stack, where, journey.path)
                with anyio.fail_after(PATIENCE):
                    server.start(kill_at=reached + 1)
                    client = Client(server, http)
                    path = await client.submit()
                    await complete(client, path, where, journey)
                server.kill()
                if not any(line.startswith("killed at") for line in journey.lines):
                    break
                reached += 1
    assert reached >= 2 * len(("submit", "approval", "job", "owed", "inner"))


@pytest.mark.timeout((5 + KILLS / 8) * PATIENCE)
async def test_storm_over_http(location: Location, tmp_path: Path) -> None:
    """All runs end right although the server and the workers are killed at random, and everything is sent twice.

    On PostgreSQL, NATS announces them, which loses and doubles messages, and is killed too.
    """
    journey = Journey(tmp_path / "log.txt")
    dice, kills = random.Random(16), 0
    with ExitStack() as stack, anyio.fail_after((4 + KILLS / 8) * PATIENCE):
        nats = stack.enter_context(nats_server()) if location.server is not None else None
        url = nats.url if nats is not None else ""
        workers = Workers(stack, location, journey.path, url)
        for _ in range(2):
            workers.start()
        server = ServerProcess(stack, location, journey.path, url)
        async with httpx.AsyncClient(timeout=PATIENCE) as http, anyio.create_task_group() as tasks:
            client = Client(server, http)
            paths = {f"user-{number}": await client.submit(f"user-{number}") for number in range(RUNS)}

            async def kill() -> None:
                nonlocal kills
                while kills < KILLS:
                    kills += 1
                    await anyio.sleep(dice.random())
                    await anyio.to_thread.run_sync(workers.kill, dice.randrange(2))
                    await anyio.to_thread.run_sync(server.kill)
                    if nats is not None and dice.randrange(2):
                        await anyio.to_thread.run_sync(nats.kill)
                        await anyio.to_thread.run_sync(nats.start)

            tasks.start_soon(kill)
            statuses = dict.fromkeys(paths, "")
            while open_runs := [user for user, status in statuses.items() if status != "completed"]:
                statuses |= {user: await client.attend(paths[user], user) for user in open_runs}
        assert kills == KILLS
        async with location.open() as store:
            runs = DurableRuns(store, [scene(journey)])
            await check_all(store, runs, {path.rpartition("/")[2]: user for user, path in paths.items()}, journey)


@pytest.mark.parametrize("location", ["postgres"], indirect=True)
async def test_database_restarted(location: Location, tmp_path: Path) -> None:
    """Without its database the server lives, is not ready, and answers 503; then it goes on, and the run ends right."""
    assert location.server is not None
    journey = Journey(tmp_path / "log.txt")
    with ExitStack() as stack, anyio.fail_after(PATIENCE):
        server = ServerProcess(stack, location, journey.path)
        server.start()
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            client = Client(server, http)
            path = await client.submit()
            base = f"http://127.0.0.1:{server.port}"
            await anyio.to_thread.run_sync(location.server.stop)
            try:
                assert (await http.get(f"{base}/healthz")).status_code == 200
                for refused in (await http.get(f"{base}/readyz"), await http.get(f"{base}{path}")):
                    assert refused.status_code == 503
                    assert int(refused.headers["retry-after"]) > 0
            finally:
                await anyio.to_thread.run_sync(location.server.start)
            assert (await client.request("GET", "/readyz")).json() == {"status": "ready"}
            assert server.is_running
            await complete(client, path, location, journey)
