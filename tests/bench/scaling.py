"""Number of durable runs that one PostgreSQL carries: measured on a real one, simulated for more workers and load.

`python -m bench.scaling` simulates; with `--measure` it measures on a PostgreSQL of its own, with `fsync`, and compares
the simulation with real workers. `docs/scaling.md` explains both.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any, Final

import anyio
import psycopg

from bench.copies import copy, ended_template, submitted_template, waiting_template
from bench.processes import processor_time, worker
from bench.server import database, prefixes, worked_off
from bench.simulation import Load, simulate
from pellucid.durable import Claim, RunStore, open_store
from support.postgres_server import PostgresServer, postgres_server

CHUNK: Final = 20_000
SAMPLES: Final = 200
TRANSACTIONS: Final = 3
"""Transactions of a run of one pass and one step: claim, step, end."""
TABLES: Final = ("runs", "calls", "journal", "events")
_SIZES: Final = """
SELECT relname, pg_table_size(c.oid) AS rows, pg_indexes_size(c.oid) AS indexes
FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname = 'pellucid' AND relname = ANY(%s)
"""


def load_copies(connection: psycopg.Connection, template: str, number: int) -> list[str]:
    """Insert copies of a run in portions; return their ids."""
    ids: list[str] = []
    while len(ids) < number:
        ids += copy(connection, template, next(prefixes), min(CHUNK, number - len(ids)))
    connection.execute("ANALYZE")
    return ids


def sizes(connection: psycopg.Connection) -> dict[str, tuple[int, int]]:
    """Return the bytes of rows and of indexes by table."""
    return {name: (rows, indexes) for name, rows, indexes in connection.execute(_SIZES, [list(TABLES)])}


async def timed(*functions: Callable[[], Awaitable[Any]]) -> float:
    """Return the median of the milliseconds that functions take, one after the other."""
    took = []
    for function in functions:
        start = time.perf_counter()
        await function()
        took.append(time.perf_counter() - start)
    return statistics.median(took) * 1000


async def measure_growth(url: str, counts: list[int]) -> None:
    """Print what operations take, and the bytes of a waiting run, by the number of waiting runs."""
    async with open_store(url) as store:
        template = await waiting_template(store)
        with psycopg.connect(url, autocommit=True) as connection:
            ids: list[str] = []
            ended: set[str] = set()
            for number in counts:
                ids += load_copies(connection, template, number - len(ids))
                connection.execute("CHECKPOINT")
                chosen = random.Random(number).sample(sorted({*ids} - ended), 2 * SAMPLES)
                ended |= {*chosen}
                await settle_and_claim(store, connection, chosen, number)
                await store.recover()
                idle = await timed(*[store.recover] * 20)
                gauges = await timed(*[lambda: store.statistics(is_open_only=True)] * 5)
                print(f"{number:9,} waiting   sweep without work {idle:5.2f} ms   gauges {gauges:6.1f} ms")
            for name, (rows, indexes) in sizes(connection).items():
                print(
                    f"    {name:8} {rows / len(ids):7.0f} bytes of rows and {indexes / len(ids):5.0f} of indexes a run"
                )


async def settle_and_claim(store: RunStore, connection: psycopg.Connection, ids: list[str], number: int) -> None:
    """Settle calls of runs all over the table, and claim and end the runs; print times and the write-ahead log."""
    for part, chosen in (("after a checkpoint", ids[:SAMPLES]), ("later", ids[SAMPLES:])):
        start = _wal(connection)
        settle = await timed(*[lambda id_=id_: store.settle(f"async_tool_{id_}", "completed", "x") for id_ in chosen])
        wal = (_wal(connection) - start) / len(chosen)
        claims: list[Claim] = []

        async def claim() -> None:
            found = await store.claim("worker", ["typical"], 3600)
            assert found is not None
            claims.append(found)  # noqa: B023  (called within the round)

        claimed = await timed(*[claim for _ in chosen])
        for found in claims:
            await store.finish(found, "completed")
        print(
            f"{number:9,} waiting   {part:18} settle {settle:5.2f} ms, {wal:6.0f} bytes of WAL   "
            f"claim {claimed:5.2f} ms"
        )


async def measure_ended(url: str, number: int) -> None:
    """Print the bytes of a run that has ended, and how many `purge` deletes in a second."""
    async with open_store(url) as store:
        template = await ended_template(store)
        with psycopg.connect(url, autocommit=True) as connection:
            first = 0
            while first < number:
                copy(connection, template, next(prefixes), CHUNK, "completed")
                first += CHUNK
            total = sum(map(sum, sizes(connection).values()))
            start = time.perf_counter()
            purged = await store.purge(older_than=0.0)
            seconds = time.perf_counter() - start
        print(f"{number:9,} ended     {total / number:6.0f} bytes a run   purge {purged / seconds:6.0f} runs/s")


async def measure_churn(url: str, number: int) -> None:
    """Print dead rows and sizes of runs that real workers end one after the other, under autovacuum."""
    async with open_store(url) as store:
        template = await submitted_template(store)
        await store.cancel(template, "its copies run")
        with psycopg.connect(url, autocommit=True) as connection, worker("bench.agents:answers", url):
            for round_number in range(1, 5):
                seconds = await worked_off(store, url, template, number)
                dead = "SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables WHERE relname = 'runs'"
                await anyio.sleep(1.0)  # statistics are written once a second
                [(_, dead_rows, live)] = connection.execute(dead).fetchall()
                rows, indexes = sizes(connection)["runs"]
                print(
                    f"{round_number * number:9,} passes    {number / seconds:5.0f} /s   "
                    f"dead rows of runs {dead_rows:,} beside {live:,}   "
                    f"{rows / live:5.0f} bytes of rows and {indexes / live:5.0f} of indexes a run"
                )


async def compare(url: str, number: int) -> None:
    """Print the passes a second of a real worker and of one that is simulated with service times of the same minute."""
    async with open_store(url) as store:
        template = await submitted_template(store)
        await store.cancel(template, "its copies run")
        with worker("bench.agents:answers", url) as pid:
            await worked_off(store, url, template, number // 4)
            transaction, parallel = await service_times(store)
            before = processor_time(pid)
            seconds = await worked_off(store, url, template, number)
            used = processor_time(pid) - before
    load = Load(
        rate=0.0,
        passes=1,
        steps=1,
        model=0.0,
        slots=8,
        transaction=transaction,
        parallel=parallel,
        processor=used / number / TRANSACTIONS,
    )
    simulated = simulate(load, 10.0, backlog=100_000)
    print(
        f"one worker, no model: {number / seconds:.0f} passes/s measured, {simulated.ended / 10:.0f} simulated with "
        f"--transaction {load.transaction:.5f} --parallel {parallel} --processor {load.processor:.5f}"
    )


async def service_times(store: RunStore) -> tuple[float, int]:
    """Return the seconds that the database takes for a transaction, and how many it makes at once."""
    ids = [next(prefixes) for _ in range(8)]
    for id_ in ids:
        await store.submit(id_, "nobody", None)
        await store.cancel(id_, "no worker must have it")

    async def emit(id_: str, number: int) -> None:
        for _ in range(number):
            await store.emit(id_, [{"type": "measured"}])

    elapsed, used = time.perf_counter(), time.process_time()
    await emit(ids[0], SAMPLES)
    transaction = (time.perf_counter() - elapsed - (time.process_time() - used)) / SAMPLES
    elapsed = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for id_ in ids:
            tasks.start_soon(emit, id_, SAMPLES)
    rate = len(ids) * SAMPLES / (time.perf_counter() - elapsed)
    return transaction, max(1, round(rate * transaction))


def _wal(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert row is not None
    return int(row[0])


def _values(load: Load) -> dict[str, Any]:
    return {each.name: getattr(load, each.name) for each in fields(load)}


def print_simulation(load: Load, seconds: float) -> None:
    """Print waits and shares for rising rates, with workers enough, up to a full database."""
    most = load.parallel / load.transaction / load.transactions
    print(f"{load.transactions} transactions a run: the database is full at {most:.0f} runs/s")
    print("  runs/s  workers  slots used  database   due to claimed p50     p95")
    for share in (0.05, 0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95):
        rate = share * most
        busy = load.passes * (load.model + (load.steps + 2) * (load.transaction + load.processor))
        workers = max(load.workers, round(rate * busy / load.slots / 0.7 + 0.5))
        found = simulate(Load(**{**_values(load), "rate": rate, "workers": workers}), seconds)
        print(
            f"{rate:8.1f} {workers:8} {found.slots:11.0%} {found.database:9.0%} "
            f"{found.due_wait(0.5) * 1000:18.1f} ms {found.due_wait(0.95) * 1000:7.1f} ms"
        )


def measure(server: PostgresServer, counts: list[int], number: int) -> None:
    """Measure all."""
    anyio.run(measure_growth, database(server, "growth"), counts)
    anyio.run(measure_ended, database(server, "ended"), CHUNK)
    anyio.run(measure_churn, database(server, "churn"), number)
    anyio.run(compare, database(server, "compared"), number)


def main() -> None:
    """Simulate, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measure", action="store_true", help="measure on a real PostgreSQL, and compare")
    parser.add_argument("--counts", type=int, nargs="+", default=[10_000, 100_000], help="waiting runs to measure with")
    parser.add_argument("--number", type=int, default=2000, help="runs of a round of real workers (2000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated seconds (60)")
    for option in fields(Load):
        if option.name != "rate":
            parser.add_argument(
                f"--{option.name}", type=type(option.default), default=option.default, help=f"({option.default})"
            )
    arguments = parser.parse_args()
    load = Load(rate=0.0, **{each.name: getattr(arguments, each.name) for each in fields(Load) if each.name != "rate"})
    if not arguments.measure:
        print_simulation(load, arguments.seconds)
        return
    print(f"{os.cpu_count()} processors")
    with postgres_server(fsync=True) as server:
        measure(server, arguments.counts, arguments.number)


if __name__ == "__main__":
    main()
