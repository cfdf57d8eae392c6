"""Workers on hosts of their own, whose links to the database and to NATS are cut and mended."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import psycopg
import pytest

from durable.test_durable_storm import LEASE, SCRIPT, TESTS, attend, check
from pellucid import Identity
from pellucid.durable import DurableRuns, open_store
from support.durable_scene import Journey, scene
from support.nats_faults import FaultyQueue
from support.nats_server import NATSServer, nats_server
from support.network import Host, hosts
from support.postgres_server import PostgresServer, postgres_server
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid.durable import RunStore

RUNS = int(os.environ.get("PELLUCID_STORM_RUNS", "8"))
BATCH = max(4, RUNS // 10)
"""Runs of a cut; the long form, `make storm`, has 200 runs."""


def start(stack: ExitStack, host: Host, server: PostgresServer, nats: NATSServer, path: Path, backend: str) -> None:
    """Start a worker on a host, whose messages are lost and doubled besides."""
    url = f"postgresql://pellucid@{host.peer}:{server.port}/postgres"
    arguments = (str(TESTS), url, "{}", str(path), backend, str(LEASE), f"nats://{host.peer}:{nats.port}")
    command = host.command(sys.executable, "-W", "error", "-c", SCRIPT, *arguments)
    stack.callback(stack.enter_context(subprocess.Popen(command)).kill)


def connected(server: PostgresServer) -> int:
    """Return the number of hosts that have opened the store."""
    with psycopg.connect(server.url) as connection:
        addresses = connection.execute("SELECT count(DISTINCT client_addr) FROM pg_stat_activity").fetchone()
    return int(addresses[0]) if addresses is not None else 0


async def lost_claims(store: RunStore, run_ids: list[str]) -> int:
    """Return how many claims have ended without the end of their pass."""
    records = [await store.run(run_id) for run_id in run_ids]
    return sum(run.fence - (run.pass_no if run.status == "completed" else run.pass_no - 1) for run in records if run)


@pytest.mark.anyio
@pytest.mark.timeout((4 + RUNS / 8) * PATIENCE)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the workers run on both
async def test_links_that_are_cut(tmp_path: Path) -> None:
    """The other host continues; the one that was cut off writes no more of its runs, and works on when it is back."""
    journey, dice = Journey(tmp_path / "log.txt"), random.Random(17)
    with ExitStack() as stack, anyio.fail_after((3 + RUNS / 8) * PATIENCE):
        left, right = stack.enter_context(hosts(2))
        server = stack.enter_context(postgres_server(addresses=[left.peer, right.peer]))
        nats = stack.enter_context(nats_server("0.0.0.0"))
        start(stack, left, server, nats, journey.path, "asyncio")
        start(stack, right, server, nats, journey.path, "trio")
        async with open_store(server.url) as store, FaultyQueue(nats.url) as queue:
            agent = scene(journey)
            runs = DurableRuns(store, [agent], queue=queue)
            run_ids: list[str] = []
            while await anyio.to_thread.run_sync(connected, server) < 2:  # noqa: ASYNC110  (other processes)
                await anyio.sleep(0.1)
            for host, number in ((left, RUNS // 2), (right, RUNS)):
                before = await lost_claims(store, run_ids)
                # A cut must hit a worker that has a run.
                while len(run_ids) < number or await lost_claims(store, run_ids) == before:
                    batch = [f"run-{len(run_ids) + number}" for number in range(BATCH)]
                    run_ids += batch
                    for run_id in batch:
                        await runs.submit(agent, "go", run_id=run_id, identity=Identity(principal=run_id))
                    await anyio.sleep(dice.random() / 5)
                    await anyio.to_thread.run_sync(host.cut)
                    while not await attend(runs, run_ids):  # noqa: ASYNC110  (another process)
                        await anyio.sleep(0.05)
                    await anyio.to_thread.run_sync(host.mend)
            await anyio.to_thread.run_sync(right.cut)
            await runs.submit(agent, "go", run_id="last", identity=Identity(principal="last"))
            while not await attend(runs, ["last"]):  # noqa: ASYNC110  (the process that was cut off at last)
                await anyio.sleep(0.05)
            await anyio.to_thread.run_sync(right.mend)
            await check(store, runs, {run_id: run_id for run_id in (*run_ids, "last")}, journey)
