"""Costs of the store of durable runs, beside raw transactions that update one row, in one process and interleaved.

Run it with `make bench WHAT=durable`. It starts a PostgreSQL of its own, with `fsync`. Raw transactions run in plain
threads, each with a connection; clients of the store are tasks of one event loop. Processor time is that of this
process, with all its threads, and not of the server. Medians of rounds are compared; only the ratios carry over to
another machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import psycopg

from pellucid import Agent, Limits, ModelRequest, Tool, ToolCall, ToolContext
from pellucid.durable import Claim, DurableRuns, NewCall, RunStore, open_store
from pellucid.testing import FunctionModel
from support.postgres_server import postgres_server

ENTRY = {"role": "assistant", "text": "x" * 2000}
Seconds = tuple[float, float]
"""Seconds that elapsed, and seconds of processor time."""


@dataclass
class Database:
    """A database to measure. Attributes: open: Returns a store; connect: a raw connection."""

    name: str
    url: str
    connect: Callable[[], sqlite3.Connection | psycopg.Connection]
    begin: str
    update: str
    ids: Iterator[int] = field(default_factory=count)

    def open(self) -> RunStore:
        return open_store(self.url)

    def prepare(self) -> None:
        with closing(self.connect()) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS raw (id INTEGER PRIMARY KEY, value TEXT)")
            for number in range(8):
                connection.execute(f"INSERT INTO raw (id, value) VALUES ({number}, '')")

    def raw(self, clients: int, transactions: int) -> Seconds:
        """Update single rows, each client its own."""

        def work(number: int) -> None:
            with closing(self.connect()) as connection:
                for value in range(transactions // clients):
                    connection.execute(self.begin)
                    connection.execute(self.update, (str(value), number))
                    connection.execute("COMMIT")

        with ThreadPoolExecutor(clients) as pool:
            start = now()
            list(pool.map(work, range(clients)))
            return since(start)


def now() -> Seconds:
    """Return both clocks."""
    return time.perf_counter(), time.process_time()


def since(start: Seconds) -> Seconds:
    """Return what has passed by both clocks."""
    return time.perf_counter() - start[0], time.process_time() - start[1]


async def at_once(clients: int, work: Callable[[int], Coroutine[Any, Any, None]]) -> Seconds:
    """Run a function for each client, and return what it took."""
    start = now()
    async with anyio.create_task_group() as group:
        for client in range(clients):
            group.start_soon(work, client)
    return since(start)


async def claimed(store: RunStore, run_id: str) -> Claim:
    """Submit a run and claim it."""
    await store.submit(run_id, "agent", {"question": "?"})
    claim = await store.claim("worker", ["agent"], 3600)
    assert claim is not None
    return claim


async def wait_for_calls(store: RunStore, database: Database, runs: int) -> list[str]:
    """Make runs that wait for one call each, and return the ids of the calls."""
    ids = [f"{next(database.ids)}" for _ in range(runs)]

    async def make(client: int) -> None:
        for id_ in ids[client::8]:
            await store.submit(id_, "agent", {"question": "?"})
            while (claim := await store.claim("worker", ["agent"], 3600)) is None:
                pass  # another client has claimed this run, and its own was submitted after this claim had begun
            await store.register(claim, [NewCall(claim.run.id, "tool", "t", {"query": "?"}, timeout=3600)])
            await store.end_pass(claim, {"messages": [ENTRY]})

    await at_once(8, make)
    return ids


async def settlements(store: RunStore, database: Database, clients: int, number: int) -> Seconds:
    """Settle calls, each the only one of its run."""
    ids = await wait_for_calls(store, database, number)

    async def settle(client: int) -> None:
        for id_ in ids[client::clients]:
            settlement = await store.settle(id_, "completed", {"answer": "x" * 200})
            assert settlement.is_run_due

    seconds = await at_once(clients, settle)
    while (claim := await store.claim("worker", ["agent"], 3600)) is not None:
        await store.finish(claim, "completed")
    return seconds


async def steps(store: RunStore, database: Database, clients: int, number: int) -> Seconds:
    """Append journal entries, each client to a run of its own."""
    claims = [await claimed(store, f"{next(database.ids)}") for _ in range(clients)]

    async def append(client: int) -> None:
        for key in range(number // clients):
            await store.append(claims[client], str(key), ENTRY)

    seconds = await at_once(clients, append)
    for claim in claims:
        await store.finish(claim, "completed")
    return seconds


async def throughput(database: Database, rounds: int, number: int) -> None:
    """Print settlements and journal steps, beside raw transactions."""
    async with database.open() as store:
        for clients in (1, 8):
            samples: dict[str, list[Seconds]] = {"raw": [], "settlement": [], "journal step of 2 kB": []}
            for _ in range(rounds):
                samples["raw"].append(await anyio.to_thread.run_sync(database.raw, clients, number))
                samples["settlement"].append(await settlements(store, database, clients, number))
                samples["journal step of 2 kB"].append(await steps(store, database, clients, number))
            for name, seconds in samples.items():
                elapsed = statistics.median(one for one, _ in seconds)
                processor = statistics.median(one for _, one in seconds)
                # Of a disk that others use too, only what was measured one after the other can be compared.
                ratio = statistics.median(raw / one for (raw, _), (one, _) in zip(samples["raw"], seconds, strict=True))
                print(
                    f"{database.name:11} {clients} client{'s' if clients > 1 else ' '}  {name:21} "
                    f"{number / elapsed:7.0f} /s   {ratio:5.2f} of raw   "
                    f"{processor / number * 1000:6.3f} ms of processor time each"
                )


async def growth(database: Database, sizes: tuple[int, ...], number: int) -> None:
    """Print what a claim and a settlement take with few and with many waiting runs."""
    async with database.open() as store:
        waiting = 0
        first: dict[str, float] = {}
        for size in sizes:
            await wait_for_calls(store, database, size - waiting)
            waiting = size
            ids = await wait_for_calls(store, database, number)
            took: dict[str, list[float]] = {"settle": [], "claim": []}
            for id_ in ids:
                start = now()
                await store.settle(id_, "completed", {"answer": "x" * 200})
                took["settle"].append(since(start)[0])
                start = now()
                claim = await store.claim("worker", ["agent"], 3600)
                took["claim"].append(since(start)[0])
                assert claim is not None
                assert claim.run.id == id_
                await store.finish(claim, "completed")
            for name, seconds in took.items():
                median = statistics.median(seconds)
                ratio = median / first.setdefault(name, median)
                print(f"{database.name:11} {size:6} waiting   {name:6} {median * 1000:6.2f} ms   {ratio:5.2f} of first")


LISTS: dict[str, dict[str, Any]] = {
    "newest": {},
    "open": {"status": "open"},
    "failed": {"status": "failed"},
    "agent": {"agent": "agent-1"},
    "agent, completed": {"agent": "agent-1", "status": "completed"},
    "older": {"older_than": 86_400.0},
    "worker": {"worker": "worker-2"},
    "key": {"key": "key-7"},
    "text, not found": {"text": "nothing like this"},
}


async def lists(database: Database, folder: Path, rounds: int, number: int) -> None:
    """Print what pages of lists and descriptions take with 1,000 and with 100,000 runs, in pairs."""
    sizes = (1_000, 100_000)
    async with AsyncExitStack() as stack:
        stores = []
        for size in sizes:
            url = f"sqlite:///{folder}/list-{size}.db" if database.name == "SQLite" else database.url
            options = {} if database.name == "SQLite" else {"schema": f"list_{size}"}
            store = await stack.enter_async_context(open_store(url, **options))
            await anyio.to_thread.run_sync(fill, database, url, options.get("schema"), size)
            stores.append(store)

        async def describe(store: RunStore) -> None:
            await DurableRuns(store, []).describe("run-7")

        works: dict[str, Callable[[RunStore], Coroutine[Any, Any, Any]]] = {
            name: partial(page, filters=filters) for name, filters in LISTS.items()
        }
        for name, work in {**works, "describe": describe}.items():
            samples: list[list[float]] = [[], []]
            for _ in range(rounds * number // 10):
                for store, seconds in zip(stores, samples, strict=True):
                    start = time.perf_counter()
                    await work(store)
                    seconds.append(time.perf_counter() - start)
            few, many = (statistics.median(seconds) for seconds in samples)
            ratio = statistics.median(b / a for a, b in zip(*samples, strict=True))
            print(
                f"{database.name:11} list {name:17} {few * 1000:6.2f} ms of {sizes[0]:,} runs   "
                f"{many * 1000:6.2f} ms of {sizes[1]:,}   {ratio:5.2f} of it"
            )


async def page(store: RunStore, filters: dict[str, Any]) -> None:
    """Read the first page of a list."""
    await store.list_runs(**filters)


def fill(database: Database, url: str, schema: str | None, size: int) -> None:
    """Store runs of three agents, in all statuses, of which 20 are running, and analyze the table."""
    statement = (
        f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {size}) "
        "INSERT INTO runs (id, agent, status, fence, lease_owner, lease_until, due_at, idempotency_key, request, "
        "request_digest, created_at, updated_at) SELECT 'run-' || n, 'agent-' || (n % 3), CASE WHEN n % 20 = 0 THEN "
        f"'failed' WHEN n % 2 = 1 THEN 'completed' WHEN n % 50 = 2 AND n > {size - 1000} THEN 'running' "
        "ELSE 'waiting' END, 1, 'worker-' || "
        "(n % 4), CASE WHEN n % 50 = 2 THEN 4e9 END, NULL, 'key-' || n, "
        f'\'{{"messages": ["{"x" * 1000}"], "identity": null}}\', \'\', 1.7e9 + n, 1.7e9 + n FROM numbers'
    )
    if schema is None:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            file.execute(statement)
            file.execute("ANALYZE")
        return
    with closing(database.connect()) as connection:
        connection.execute(f"SET search_path = {schema}")
        connection.execute(statement)
        connection.execute("VACUUM ANALYZE runs")


async def latency(database: Database, number: int) -> None:
    """Print the time from a settlement, of another store, to the claim of the run."""
    claims: dict[str, float] = {}
    done = anyio.Event()

    async def work(store: RunStore) -> None:
        while len(claims) < number:
            await store.wait_for_work(["agent"], 60)
            claim = await store.claim("worker", ["agent"], 3600)
            if claim is not None:
                claims[claim.run.id] = time.perf_counter()
                await store.finish(claim, "completed")
        done.set()

    async with database.open() as store, database.open() as other:
        ids = await wait_for_calls(store, database, number)
        starts: dict[str, float] = {}
        async with anyio.create_task_group() as group:
            group.start_soon(work, other)
            for id_ in ids:
                await anyio.sleep(0.02)
                starts[id_] = time.perf_counter()
                await store.settle(id_, "completed", {"answer": "x" * 200})
            await done.wait()
    took = sorted(claims[id_] - starts[id_] for id_ in ids)
    print(
        f"{database.name:11} settlement to claim   p50 {statistics.median(took) * 1000:5.1f} ms   "
        f"p95 {took[int(0.95 * number)] * 1000:5.1f} ms"
    )


ITERATIONS = 10
"""Iterations of a measured run with a tool call; each is two steps."""


def looping_agent() -> Agent:
    """Return an agent that calls a tool in each iteration, and answers."""

    def answer(request: ModelRequest) -> Any:
        number = len(request.messages) // 2
        return ToolCall("look", {"query": "x" * 200}, f"c{number}") if number < ITERATIONS else "x" * 200

    async def look(arguments: Any, ctx: ToolContext) -> str:
        return "x" * 1500

    tool = Tool(name="look", run=look, idempotent=True)
    return Agent("loops", model=FunctionModel(answer), tools=[tool], limits=Limits(max_iterations=ITERATIONS + 1))


def waiting_agent() -> Agent:
    """Return an agent that waits for one external call."""

    async def enqueue(arguments: Any, ctx: ToolContext) -> None:
        """Do nothing."""

    tool = Tool(name="ask", run=enqueue, execution="external-dispatch", pending="wait")
    model = FunctionModel(lambda request: "x" if len(request.messages) > 1 else ToolCall("ask", {}, "c"))
    return Agent("waits", model=model, tools=[tool])


async def passes(database: Database, rounds: int, number: int) -> None:
    """Print what the steps of a run and its passes take beyond the same run without a store."""
    loops, waits = looping_agent(), waiting_agent()
    async with database.open() as store:
        runs = DurableRuns(store, [loops, waits])
        samples: dict[str, list[Seconds]] = {"step": [], "run that waits once": []}
        for _ in range(rounds):
            start = now()
            for _ in range(number):
                await loops.run("go")
            plain = since(start)
            for _ in range(number):
                await runs.submit(loops, "go")
            start = now()
            await runs.work_until_idle(concurrency=1)
            durable = since(start)
            steps = number * (2 * ITERATIONS + 1)
            samples["step"].append(((durable[0] - plain[0]) / steps, (durable[1] - plain[1]) / steps))
            start = now()
            run_ids = [await runs.submit(waits, "go") for _ in range(number)]
            await runs.work_until_idle(concurrency=1)
            for run_id in run_ids:
                [call] = (await runs.status(run_id)).external
                await runs.settle(call.id, output="x" * 200)
            await runs.work_until_idle(concurrency=1)
            waited = since(start)
            samples["run that waits once"].append((waited[0] / number, waited[1] / number))
        for name, seconds in samples.items():
            elapsed = statistics.median(one for one, _ in seconds)
            processor = statistics.median(one for _, one in seconds)
            print(
                f"{database.name:11} {name:21} {elapsed * 1000:6.2f} ms   "
                f"{processor * 1000:6.3f} ms of processor time each"
            )


def databases(folder: Path, url: str) -> list[Database]:
    """Return both databases."""

    def connect_sqlite() -> sqlite3.Connection:
        connection = sqlite3.connect(folder / "raw.db", timeout=60, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    return [
        Database(
            "SQLite",
            f"sqlite:///{folder}/runs.db",
            connect_sqlite,
            "BEGIN IMMEDIATE",
            "UPDATE raw SET value = ? WHERE id = ?",
        ),
        Database(
            "PostgreSQL",
            url,
            lambda: psycopg.connect(url, autocommit=True),
            "BEGIN",
            "UPDATE raw SET value = %s WHERE id = %s",
        ),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each measurement (5)")
    parser.add_argument("--number", type=int, default=400, help="transactions of a round (400)")
    parser.add_argument("--only", choices=["SQLite", "PostgreSQL"], help="one database; both unless given")
    parser.add_argument("--lists", action="store_true", help="only lists and descriptions")
    parser.add_argument("--folder", type=Path, help="where SQLite's file is; a temporary folder unless given")
    arguments = parser.parse_args()
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, postgres_server(fsync=True) as server:
        for database in databases(Path(folder), server.url):
            if arguments.only not in {None, database.name}:
                continue
            if arguments.lists:
                anyio.run(lists, database, Path(folder), arguments.rounds, arguments.number)
                continue
            database.prepare()
            anyio.run(throughput, database, arguments.rounds, arguments.number)
            anyio.run(passes, database, arguments.rounds, max(arguments.number // 20, 1))
            anyio.run(latency, database, 100)
            anyio.run(growth, database, (100, 10_000), 100)
            anyio.run(lists, database, Path(folder), arguments.rounds, arguments.number)


if __name__ == "__main__":
    main()
