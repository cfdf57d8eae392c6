"""Costs of the server and the workers of durable runs, beside a baseline of the same run.

Run it with `make bench WHAT=server`. It starts a PostgreSQL of its own, with `fsync`, and `pellucid serve` and
`pellucid worker` as they are shipped. Processor time is that of one process with all its threads; clients, database and
server share the machine, so only what was measured in turns can be compared.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from itertools import count
from typing import Any, Final

import anyio
import psycopg
from psycopg import sql

from bench.agents import waits
from bench.baseline import TABLES
from bench.copies import copy, submitted_template, waiting_template
from bench.http_load import EventStreams, post, send
from bench.processes import KEY, family_time, listening, memory, processor_time, worker
from pellucid.durable import CallTokens, Claim, DurableRuns, NATSQueue, RunStore, open_store
from support.nats_server import nats_server
from support.postgres_server import PostgresServer, postgres_server

SERVE: Final = ("pellucid", "serve", "bench.agents:waits", "--no-worker", "--public-url", "http://127.0.0.1")
BODY: Final = b'{"status": "completed", "output": {"answer": "' + b"x" * 200 + b'"}}'
IDLE: Final = 1000
"""Idle streams."""
QUIET: Final = 30.0
"""Seconds for which idle streams are watched: two heartbeats."""
WARM_UP: Final = 30
"""Settlements while a worker connects to its queue."""
prefixes = (f"copy{number}-" for number in count())
"""Beginnings of ids."""


def database(server: PostgresServer, name: str) -> str:
    """Create a database and return its URL."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return server.url.replace("/postgres?", f"/{name}?")


def quantiles(seconds: Sequence[float]) -> str:
    """Return the median and the 99th percentile as a text."""
    p50, p99 = (sorted(seconds)[int(share * (len(seconds) - 1))] * 1000 for share in (0.5, 0.99))
    return f"p50 {p50:5.1f} ms   p99 {p99:6.1f} ms"


async def completions(url: str, rounds: int, number: int, clients: int) -> None:
    """Print completions through the server beside the baseline, in turns."""
    tokens = CallTokens(KEY)
    rates: dict[str, list[float]] = {"baseline": [], "same writes": [], "pellucid serve": []}
    costs: dict[str, list[float]] = {name: [] for name in rates}
    waits_of: dict[str, list[float]] = {name: [] for name in rates}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES)
        async with open_store(url) as store:
            template = await waiting_template(store)
        with (
            listening(*SERVE, "--store", url) as ours,
            listening("bench.baseline", "--store", url) as baseline,
            listening("bench.baseline", "--store", url, "--same") as same,
        ):
            for round_number in range(rounds + 1):
                ids = copy(connection, template, next(prefixes), number)
                others = copy(connection, template, next(prefixes), number)
                connection.cursor().executemany("INSERT INTO raw (id) VALUES (%s)", [(id_,) for id_ in ids])
                authorization = {id_: tokens.issue(f"async_tool_{id_}", id_) for id_ in ids}
                requests = {
                    "baseline": [post(f"/async-tools/{id_}/complete", BODY) for id_ in ids],
                    "same writes": [post(f"/async-tools/async_tool_{id_}/complete", BODY) for id_ in others],
                    "pellucid serve": [
                        post(f"/async-tools/async_tool_{id_}/complete", BODY, f"Authorization: Bearer {token}\r\n")
                        for id_, token in authorization.items()
                    ],
                }
                for name, (pid, port) in (("baseline", baseline), ("same writes", same), ("pellucid serve", ours)):
                    before = processor_time(pid)
                    seconds, took = await send(port, requests[name], clients)
                    if round_number > 0:  # the first one opens connections
                        rates[name].append(number / seconds)
                        costs[name].append((processor_time(pid) - before) / number)
                        waits_of[name] += took
    for name, values in rates.items():
        beside = ", ".join(f"{_ratio(costs[name], costs[other]):.2f} of {other}" for other in rates if other != name)
        print(
            f"{name:15} {clients:3} clients {statistics.median(values):6.0f} /s   {quantiles(waits_of[name])}\n"
            f"{'':15} {statistics.median(costs[name]) * 1000:6.3f} ms of processor time each: {beside}"
        )


def _ratio(costs: Sequence[float], others: Sequence[float]) -> float:
    """Return the median ratio of what was measured in turns."""
    return statistics.median(cost / other for cost, other in zip(costs, others, strict=True))


async def continuations(name: str, url: str, number: int, queue: str | None = None) -> None:
    """Print the time from a settlement to the claim of the run, by another store of the same process.

    Args:
        name: Name of the database.
        url: URL of the store.
        number: Number of settlements, of which the first are not measured.
        queue: URL of a NATS server that wakes the worker instead of the database.
    """
    claimed: dict[str, tuple[float, float]] = {}
    async with AsyncExitStack() as stack:
        store, other = [await stack.enter_async_context(open_store(url)) for _ in range(2)]
        ours, theirs = [
            await stack.enter_async_context(NATSQueue(queue, prefix=name)) if queue is not None else None
            for _ in range(2)
        ]
        tasks = await stack.enter_async_context(anyio.create_task_group())
        observe(other, claimed)
        runs = DurableRuns(store, [waits], queue=ours)
        ids = [await runs.submit(waits, "?") for _ in range(number)]
        await runs.work_until_idle()
        tasks.start_soon(DurableRuns(other, [waits], queue=theirs).work)
        starts: dict[str, float] = {}
        for id_ in ids:
            [call] = (await runs.status(id_)).external
            starts[id_] = time.perf_counter()
            await runs.settle(call.id, output="x" * 200)
            await anyio.sleep(0.02)
        while len(claimed) < number:  # noqa: ASYNC110  (no event)
            await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    measured = ids[WARM_UP:]
    for what, took in (
        ("call of settle to claim", [claimed[id_][0] - starts[id_] for id_ in measured]),
        ("commit of it to claim", [claimed[id_][1] for id_ in measured]),
    ):
        print(f"{name:15} {what:24} {quantiles(took)}")


def observe(store: RunStore, claimed: dict[str, tuple[float, float]]) -> None:
    """Note when a store claims a run, and for how long it had been due."""

    async def observed(claim: Any, *arguments: Any, **options: Any) -> Claim | None:
        found: Claim | None = await claim(*arguments, **options)
        if found is not None:
            claimed[found.run.id] = time.perf_counter(), found.waited
        return found

    for method in ("claim", "claim_run"):
        setattr(store, method, partial(observed, getattr(store, method)))


async def workers(url: str, rounds: int, number: int, database_pid: int) -> None:
    """Print the passes a second of one worker process and of two, and the processors that they used."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    used: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    async with open_store(url) as store:
        template = await submitted_template(store)
        await store.cancel(template, "its copies run")
        for _ in range(rounds):
            for processes, found in rates.items():
                with ExitStack() as stack:
                    pids = [stack.enter_context(worker("bench.agents:answers", url)) for _ in range(processes)]
                    before = sum(map(processor_time, pids)), family_time(database_pid)
                    seconds = await worked_off(store, url, template, number)
                    found.append(number / seconds)
                    after = sum(map(processor_time, pids)), family_time(database_pid)
                    used[processes].append(((after[0] - before[0]) / seconds, (after[1] - before[1]) / seconds))
    for processes, values in rates.items():
        ratio = statistics.median(many / one for many, one in zip(values, rates[1], strict=True))
        of_workers, of_database = (statistics.median(column) for column in zip(*used[processes], strict=True))
        print(
            f"{processes} worker{'s' if processes > 1 else ' '} {statistics.median(values):6.0f} passes/s "
            f"{ratio:5.2f} of one   "
            f"processors: workers {of_workers:4.2f}, PostgreSQL {of_database:4.2f} of {os.cpu_count()}"
        )


async def worked_off(store: RunStore, url: str, template: str, number: int) -> float:
    """Return the seconds in which the workers end so many due runs."""
    with psycopg.connect(url, autocommit=True) as connection:
        copy(connection, template, next(prefixes), number, "due")
        start = time.perf_counter()
        await DurableRuns(store, []).submit("answers", "?")  # wakes the workers
        open_runs = "SELECT 1 FROM pellucid.runs WHERE status IN ('due', 'running') LIMIT 1"
        while connection.execute(open_runs).fetchone() is not None:  # noqa: ASYNC110  (no event)
            await anyio.sleep(0.02)
        return time.perf_counter() - start


async def streams(url: str, number: int) -> None:
    """Print the processor time of an event on 1 stream and on 100, and what 1,000 idle streams cost."""
    async with open_store(url) as store:
        template = await waiting_template(store)
        with psycopg.connect(url, autocommit=True) as connection:
            ids = copy(connection, template, next(prefixes), IDLE)
        for clients in (1, 100):
            with listening(*SERVE, "--store", url) as (pid, port):
                opened = EventStreams()
                await opened.open(port, ids[:1] * clients, after=0)
                await opened.until(clients * 2)  # those that the copy has
                await emit(store, ids[0], 5, opened, clients)
                before = processor_time(pid)
                await emit(store, ids[0], number, opened, clients)
                each = (processor_time(pid) - before) / (number * clients)
                print(f"{clients:4} streams   {each * 1000:6.3f} ms of processor time of an event on a stream")
                await opened.close()
        with listening(*SERVE, "--store", url) as (pid, port):
            opened = EventStreams()
            await opened.open(port, ids[:1], after=0)
            empty = memory(pid)
            await opened.open(port, ids, after=0)
            full, before = memory(pid), processor_time(pid)
            await anyio.sleep(QUIET)
            share = (processor_time(pid) - before) / QUIET
            print(
                f"{IDLE} idle streams   {share:6.1%} of a processor   "
                f"{(full - empty) / IDLE / 1024:5.1f} KiB of memory each, {full / 2**20:.0f} MiB in all"
            )
            await opened.close()


async def emit(store: RunStore, run_id: str, number: int, opened: EventStreams, clients: int) -> None:
    """Emit events one by one, each when all streams have the one before."""
    for _ in range(number):
        expected = opened.received + clients
        await store.emit(run_id, [{"type": "measured"}])
        await opened.until(expected)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each measurement (5)")
    parser.add_argument("--number", type=int, default=1000, help="completions and runs of a round (1000)")
    parts = ("completions", "continuations", "workers", "streams")
    parser.add_argument("--only", choices=parts, help="one part; all unless given")
    arguments = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as folder, postgres_server(fsync=True) as server:
        wanted = [part for part in parts if arguments.only in {None, part}]
        if "completions" in wanted:
            for clients in (1, 16):
                url = database(server, f"completions{clients}")
                anyio.run(completions, url, arguments.rounds, arguments.number, clients)
        if "continuations" in wanted:
            anyio.run(continuations, "PostgreSQL", database(server, "continuations"), 200)
            anyio.run(continuations, "SQLite", f"sqlite:///{folder}/runs.db", 200)
            with nats_server() as nats:
                anyio.run(continuations, "PostgreSQL-NATS", database(server, "nats"), 200, nats.url)
        if "workers" in wanted:
            anyio.run(workers, database(server, "workers"), arguments.rounds, arguments.number, server.pid)
        if "streams" in wanted:
            anyio.run(streams, database(server, "streams"), 100)


if __name__ == "__main__":
    main()
