"""Processes that are killed, databases that restart, answers that are lost."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from pellucid.durable import Claim, FailedPass, NewCall, Retry, RunStore, Settlement
from pellucid.errors import StoreUnavailable
from support.lossy_proxy import lossy_proxy
from support.processes import PATIENCE, command
from support.stores import Location, claimed, waiting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

SCRIPT = """
import json, os, signal, sys

import anyio

from pellucid.durable import NewCall, open_store
from pellucid.durable.store.database import Database

url, options, prepare, act, point = sys.argv[1:]


def deadly(database):
    write = database.write

    def write_and_die(work, **arguments):
        def die_before_commit():
            if point == "before":
                os.kill(os.getpid(), signal.SIGKILL)

        def work_and_die(transaction):
            if url.startswith("postgresql:") and arguments.get("is_single"):
                die_before_commit()  # each statement is committed by itself
            result = work(transaction)
            die_before_commit()
            return result

        write(work_and_die, **arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    database.write = write_and_die


async def main():
    async with open_store(url, **json.loads(options)) as store:
        names = {"store": store, "NewCall": NewCall}
        for line in prepare.splitlines():
            names["it"] = await eval(line, names)
            names[type(names["it"]).__name__] = names["it"]
        deadly(store._database)
        await eval(act, names)


anyio.run(main)
"""
"""Dies before or after the commit of a transaction."""

SUBMIT = 'store.submit("run", "agent", 1)'
CLAIM = f'{SUBMIT}\nstore.claim("worker", ["agent"], 0)'
REGISTER = f'{CLAIM}\nstore.register(Claim, [NewCall("call", "tool", "t", timeout=0)])'
END_PASS = f'{REGISTER}\nstore.end_pass(Claim, {{"pass": 1}})'


@dataclass(frozen=True)
class Crash:
    """A transaction, and what the store holds before and after it."""

    prepare: str
    act: str
    before: str
    after: str


CRASHES = {
    "submit": Crash("", SUBMIT, "nothing", "due 0"),
    "claim": Crash(SUBMIT, 'store.claim("worker", ["agent"], 0)', "due 0", "running 1"),
    "renew": Crash(CLAIM, "store.renew(Claim)", "running 1", "running 1"),
    "append": Crash(CLAIM, 'store.append(Claim, "a", 1, ["e"])', "running 1", "running 1 a e"),
    "register": Crash(
        CLAIM, 'store.register(Claim, [NewCall("call", "tool", "t")])', "running 1", "running 1 pending processing"
    ),
    "mark_dispatched": Crash(
        REGISTER,
        'store.mark_dispatched("call")',
        "running 1 pending processing",
        "running 1 pending processing dispatched",
    ),
    "heartbeat": Crash(
        REGISTER, 'store.progress("call", 1)', "running 1 pending processing", "running 1 pending processing alive"
    ),
    "end_pass": Crash(
        REGISTER,
        'store.end_pass(Claim, 1, entries={"a": 1}, events=["e"])',
        "running 1 pending processing",
        "waiting 1 pending a e processing",
    ),
    "settle": Crash(
        END_PASS.replace("timeout=0", "timeout=60"),
        'store.settle("call", "completed", 1, events=["e"])',
        "waiting 1 pending processing",
        "due 1 e completed",
    ),
    "settle late": Crash(
        END_PASS,
        'store.settle("call", "completed", 1, events=["e"])',
        "waiting 1 pending processing",
        "due 1 async_tool.settled expired",
    ),
    "expire": Crash(END_PASS, "store.expire()", "waiting 1 pending processing", "due 1 async_tool.settled expired"),
    "cancel": Crash(
        END_PASS, 'store.cancel("run", "why", ["e"])', "waiting 1 pending processing", "cancelled 1 e cancelled"
    ),
    "recover": Crash(CLAIM, "store.recover()", "running 1", "due 1"),
    "release": Crash(CLAIM, "store.release(Claim)", "running 1", "due 1"),
    "emit": Crash(CLAIM, 'store.emit("run", ["e"])', "running 1", "running 1 e"),
    "finish": Crash(
        REGISTER,
        'store.finish(Claim, "completed", 1, entries={"a": 1}, events=["e"])',
        "running 1 pending processing",
        "completed 1 a e cancelled",
    ),
}


async def state(store: RunStore) -> str:
    """Return what the store holds: status, fence, pending; keys, events; status of the call, and its marks."""
    run = await store.run("run")
    if run is None:
        return "nothing"
    words = [run.status, str(run.fence), *(["pending"] * run.pending)]
    words += [entry.key for entry in await store.journal("run")]
    words += [_name(event.value) for event in (await store.events("run")).events]
    for call in await store.calls("run"):
        words.append(call.status)
        words += ["dispatched"] * (call.dispatched_at is not None) + ["alive"] * (call.heartbeat_at is not None)
    return " ".join(words)


def _name(event: Any) -> str:
    """Return an event of these tests, or the type of one that the store writes itself."""
    return str(event["type"]) if isinstance(event, dict) else str(event)


async def go_on(store: RunStore) -> None:
    """Bring the run to its end as another process would, and check that it ends once."""
    await store.submit("run", "agent", 1)
    await store.recover()
    await store.settle("call", "completed", 1)
    states = await store.list_runs()
    await store.recover()
    assert await store.list_runs() == states
    claim = await store.claim("other", ["agent"], 60)
    if claim is not None:
        await store.finish(claim, "completed")
    run = await store.run("run")
    assert run is not None
    assert run.status in {"completed", "cancelled"}
    assert run.pending == 0
    assert await store.claim("other", ["agent"], 60) is None


@pytest.mark.parametrize("name", CRASHES)
def test_killed_around_a_commit(location: Location, name: str) -> None:
    """A process killed before a commit has written nothing, after it everything; the run ends in both cases."""
    crash = CRASHES[name]

    async def check(point: str, where: Location) -> None:
        with anyio.fail_after(60):
            async with where.open() as store:
                assert await state(store) == (crash.before if point == "before" else crash.after)
                await go_on(store)

    for point in ("before", "after"):
        where = location.at(point)
        process = subprocess.run(
            command(SCRIPT, *where.arguments, crash.prepare, crash.act, point),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert process.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}, process.stderr
        anyio.run(check, point, where)


def test_opened_by_many_processes(location: Location) -> None:
    """Eight processes that open the same empty database at once find one schema, and all can write."""
    script = """
        import json, sys
        import anyio
        from pellucid.durable import open_store

        async def main():
            print("ready", flush=True)
            sys.stdin.readline()
            async with open_store(sys.argv[1], **json.loads(sys.argv[2])) as store:
                await store.submit(sys.argv[3], "agent", None)

        anyio.run(main)
    """
    processes = [
        subprocess.Popen(
            command(script, *location.arguments, number), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(8)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0

    async def check() -> None:
        async with location.open() as store:
            assert len((await store.list_runs()).runs) == 8

    anyio.run(check)


@pytest.mark.anyio
@pytest.mark.parametrize("location", ["postgres"], indirect=True)
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_database_restarted(location: Location, how: str) -> None:
    """Over a restart of the database, writers and waiters go on: no entry is lost, and none is written twice."""
    assert location.server is not None
    end = getattr(location.server, how)
    progress = anyio.Event()
    is_up = anyio.Event()

    with anyio.fail_after(120):
        async with location.open(patience=60.0) as store:

            async def write(claim: Claim) -> None:
                for step in range(10_000):
                    await store.append(claim, str(step), step, [step])
                    if step == 5:
                        progress.set()
                    if is_up.is_set():
                        break
                await store.append(claim, "last", None)

            claims = [await claimed(store, f"run-{number}") for number in range(4)]
            async with anyio.create_task_group() as group:
                for claim in claims:
                    group.start_soon(write, claim)
                await progress.wait()
                await anyio.to_thread.run_sync(end)
                await anyio.to_thread.run_sync(location.server.start)
                is_up.set()
            for number in range(4):
                keys = [entry.key for entry in await store.journal(f"run-{number}")]
                assert keys == [*map(str, range(len(keys) - 1)), "last"]
                events = [event.value for event in (await store.events(f"run-{number}", limit=20_000)).events]
                assert events == list(range(len(keys) - 1))
            await waiting(store, "call", run_id="another")
            async with anyio.create_task_group() as group:
                group.start_soon(store.settle, "call", "completed")
                assert await store.wait_for_work(["agent"], 60)


@pytest.mark.anyio
@pytest.mark.parametrize("location", ["postgres"], indirect=True)
async def test_database_that_stays_away(location: Location) -> None:
    """A database that does not come back is an error that names it, after the store's patience."""
    assert location.server is not None
    with anyio.fail_after(120):
        async with location.open(patience=0.05) as store:
            await anyio.to_thread.run_sync(location.server.stop)
            try:
                with pytest.raises(StoreUnavailable, match=r"postgres.* is not available; nothing was written"):
                    await store.submit("run", "agent", None)
                with pytest.raises(StoreUnavailable):
                    async with location.open(patience=0.05):
                        pass
            finally:
                await anyio.to_thread.run_sync(location.server.start)
            await store.submit("run", "agent", None)


@pytest.mark.anyio
@pytest.mark.parametrize("location", ["sqlite"], indirect=True)
async def test_file_that_another_process_writes(location: Location) -> None:
    """A file that stays locked is an error that names it, after the store's patience; readers are not affected."""
    with anyio.fail_after(120):
        async with location.open(busy_timeout=0.01, patience=0.05) as store:
            await store.submit("run", "agent", None)
            with closing(sqlite3.connect(location.url.removeprefix("sqlite:///"), isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                with pytest.raises(StoreUnavailable, match=r"runs\.db' is not available; nothing was written"):
                    await store.claim("worker", ["agent"], 60)
                assert (await store.events("run")).run_status == "due"
                other.execute("ROLLBACK")
            assert await store.claim("worker", ["agent"], 60) is not None


@pytest.mark.anyio
@pytest.mark.parametrize("location", ["postgres"], indirect=True)
async def test_lost_answers_to_commits(location: Location, tmp_path: Path) -> None:
    """A transaction whose commit was not answered is repeated, and has happened once; `emit` says that it cannot."""
    assert location.server is not None
    with anyio.fail_after(120), lossy_proxy(tmp_path, location.server.folder) as proxy:
        async with Location(proxy.url, location.options).open() as store:

            async def lost(operation: Callable[[], Awaitable[object]], message: bytes = b"COMMIT") -> object:
                proxy.lose_next_commit(message)
                return await operation()

            await lost(partial(store.submit, "run", "agent", {"question": "?"}))
            claim = await claimed(store)
            await lost(partial(store.renew, claim))
            await lost(partial(store.append, claim, "a", 1, ["event"]))
            await lost(partial(store.register, claim, [NewCall("x", "tool", "t"), NewCall("y", "tool", "t")]))
            assert await lost(partial(store.end_pass, claim, {"pass": 1}, entries={"b": 2})) == "waiting"
            # One statement, which is committed by itself; then a notification, without which it counts all the same.
            first = await lost(partial(store.settle, "x", "completed", events=["settled"]), b"NOTIFY")
            second = await lost(partial(store.settle, "y", "completed", 1, events=["settled"]), b"UPDATE calls")
            assert isinstance(first, Settlement) and isinstance(second, Settlement)  # noqa: PT018  (one thing)
            assert (first.outcome, second.outcome) == ("settled", "duplicate")
            assert await lost(partial(store.give_score, "run", "digest", "thumb", {"value": 1})) is None
            assert await store.give_score("run", "digest", "thumb", {"value": 0}) == {"value": 1}
            with pytest.raises(StoreUnavailable, match="may have been committed") as caught:
                await lost(partial(store.emit, "run", ["once"]))
            assert caught.value.is_outcome_unknown
            claim = await claimed(store)
            await lost(partial(store.release, claim))
            claim = await claimed(store)
            await lost(partial(store.retry_later, claim, FailedPass(1, "503", "down"), delay=0.0))
            claim = await claimed(store)
            await lost(partial(store.finish, claim, "failed", 0, events=["failed"], failure=FailedPass(2, "401", "no")))
            retry = await lost(partial(store.retry, "run", ["retried"]))
            assert isinstance(retry, Retry)
            assert retry.outcome == "due"
            claim = await claimed(store)
            await lost(partial(store.finish, claim, "completed", 1, events=["end"]))
            run = await store.run("run")
            assert run is not None
            assert (run.status, run.result, run.pending) == ("completed", 1, 0)
            assert [entry.key for entry in await store.journal("run")] == ["a", "b", f"retried:{claim.run.fence - 1}"]
            events = [event.value for event in (await store.events("run")).events]
            [retrying] = [event for event in events if isinstance(event, dict)]
            assert (retrying["type"], retrying["attempt"]) == ("run.retrying", 1)
            assert [event for event in events if isinstance(event, str)] == [
                "event", "settled", "settled", "once", "failed", "retried", "end"
            ]  # fmt: skip
