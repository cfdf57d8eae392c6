"""Stores: how they are opened, and databases that they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import psycopg
import pytest

from pellucid import ConfigError
from pellucid.durable import PostgresStore, SQLiteStore, open_store
from pellucid.durable.store.statements import schema
from pellucid.errors import StoreUnavailable
from support.processes import run_python
from support.stores import claimed

if TYPE_CHECKING:
    from pathlib import Path

    from support.stores import Location


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        ("runs.db", {}, "starts with 'runs.db'"),
        ("mysql://host/db", {}, "starts with 'mysql'"),
        (5, {}, r"open_store\(5\): must be a URL, such as 'sqlite:///runs.db'"),
        ("sqlite://host/runs.db", {}, "has a host"),
        ("sqlite:///", {}, "needs a file"),
        ("sqlite:///:memory:", {}, "needs a file"),
        ("sqlite:///runs.db", {"synchronous": "off"}, "'off' is not 'full' or 'normal'"),
        ("sqlite:///runs.db", {"schema": "x"}, "'schema'"),
        ("postgresql://host/db", {"schema": "Not; one"}, "'Not; one' must be lower-case"),
        ("postgresql://host/db", {"connections": 0}, "connections=0"),
        ("postgresql://user:secret@host/db?nothing=1", {}, "connection string is invalid"),
    ],
)
def test_options(url: Any, options: dict[str, Any], named: str) -> None:
    """A URL or option that is not valid is named, without a password."""
    with pytest.raises(ConfigError, match=named) as caught:
        open_store(url, **options)
    assert "secret" not in str(caught.value)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SQLite file is relative after three slashes, and absolute after four; its options are those of the class."""
    monkeypatch.chdir(tmp_path)

    async def open_all() -> None:
        for store in (
            open_store("sqlite:///a.db"),
            open_store(f"sqlite:///{tmp_path}/b.db", synchronous="normal"),
            SQLiteStore(tmp_path / "c.db", poll=0.5),
        ):
            async with store:
                await claimed(store)

    anyio.run(open_all)
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["a.db", "b.db", "c.db"]


def test_contents_outlive_the_store(location: Location) -> None:
    """A store that is opened again, in another event loop, holds what it held."""

    async def submit() -> None:
        async with location.open() as store:
            await store.submit("run", "agent", {"question": "?"})

    async def claim() -> None:
        async with location.open() as store:
            assert (await claimed(store)).run.request == {"question": "?"}

    anyio.run(submit)
    anyio.run(claim, backend="trio")


async def migrate_while_in_use(location: Location) -> None:
    """Open a store of version 2 that another process is using."""
    async with location.open() as older:
        claim = await claimed(older)
        for table in ("turns", "conversations", "budgets", "budget_reservations"):
            location.execute(f"DROP TABLE {table}")
        location.execute("UPDATE schema_version SET version = 2")
        async with location.open() as newer:
            await older.append(claim, "step", 1)
            await older.finish(claim, "completed", {"output": "x"})
            submissions = [
                await newer.submit(run_id, "agent", None, conversation="c", if_busy="queue") for run_id in ("a", "b")
            ]
            assert [submission.run.status for submission in submissions] == ["due", "queued"]
            assert [turn.run.id for turn in (await older.conversation("c")).turns] == ["a", "b"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_version_2(location: Location, backend: str) -> None:
    """A store of version 2 is migrated while it is used, and has conversations then."""
    anyio.run(migrate_while_in_use, location, backend=backend)


@pytest.mark.parametrize("statement", ["UPDATE schema_version SET version = 99", "DELETE FROM schema_version"])
def test_other_versions(location: Location, statement: str) -> None:
    """A schema of a version that is not known is refused by name, and left alone."""

    async def open_it() -> None:
        async with location.open():
            pass

    anyio.run(open_it)
    location.execute(statement)
    with pytest.raises(
        ConfigError, match=r"has schema version 99, and this version of Pellucid needs 4|something else"
    ):
        anyio.run(open_it)


def test_a_store_of_version_1(location: Location) -> None:
    """A store of version 1 is migrated when it is opened, also by several processes at once, and keeps its runs."""

    async def prepare() -> None:
        async with location.open() as store:
            await store.submit("old", "agent", 1)

    async def use() -> None:
        stores = [location.open() for _ in range(4)]
        async with anyio.create_task_group() as tasks:
            for store in stores:
                tasks.start_soon(store.__aenter__)
        await stores[1].submit("new", "agent", 1, callback="https://example.org/")
        await stores[2].cancel("old", "no")
        await stores[3].cancel("new", "no")
        callback = await stores[0].callback("new")
        assert callback is not None
        assert callback.version == 1
        assert await stores[0].callback("old") is None
        for store in stores:
            await store.__aexit__(None, None, None)

    anyio.run(prepare)
    for table in ("callbacks", "turns", "conversations", "budgets", "budget_reservations"):
        location.execute(f"DROP TABLE {table}")
    location.execute("UPDATE schema_version SET version = 1")
    anyio.run(use)


REVISED = ("retries", "run_versions", "workers", "given_scores", "schema_revision")


@pytest.mark.anyio
async def test_the_state_of_a_schema(location: Location) -> None:
    """The state of a schema is read without a change: of nothing, and of an older, a current and a newer store."""
    new = await location.open().schema_state()
    assert (new.version, new.revision, new.needed, bool(new.statements)) == (0, 0, 6, True)
    assert (await location.open().schema_state()).version == 0
    async with location.open():
        assert not (await location.open().schema_state()).statements
    for table in REVISED:
        location.execute(f"DROP TABLE {table}")
    old = await location.open().schema_state()
    assert (old.version, old.revision) == (4, 4)
    assert any("CREATE TABLE IF NOT EXISTS retries" in statement for statement in old.statements)
    async with location.open():
        pass
    location.execute("UPDATE schema_revision SET revision = 99")
    newer = await location.open().schema_state()
    assert (newer.revision, newer.statements) == (99, ())
    async with location.open() as store:
        await claimed(store)
    assert (await location.open().schema_state()).revision == 99


@pytest.mark.anyio
@pytest.mark.parametrize("location", ["postgres"], indirect=True)
async def test_statements_that_older_processes_have_prepared(location: Location) -> None:
    """Statements that older processes have prepared still work while and after a new process migrates the schema."""
    revisions = schema("x", 4, 4)
    with psycopg.connect(location.url, autocommit=True) as older:
        older.execute(f"CREATE SCHEMA {location.options['schema']}".encode())
        older.execute("SELECT set_config('search_path', %s, false)", [location.options["schema"]])
        for statement in schema("x", 0)[: -len(revisions)]:
            older.execute(statement.encode())
        tables = [row[0] for row in older.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema")]
        assert {"runs", "calls", "turns"} <= {*tables}
        for table in tables:
            older.execute(f"SELECT * FROM {table}".encode(), prepare=True)
        async with location.open() as store:
            await store.submit("run", "agent", 1)
            for table in tables:
                older.execute(f"SELECT * FROM {table}".encode(), prepare=True)


def test_tables_of_something_else(location: Location) -> None:
    """A database with other tables is not written to."""
    if location.server is not None:
        location.execute(f"CREATE SCHEMA {location.options['schema']}")
    location.execute("CREATE TABLE runs (id TEXT)")

    async def open_it() -> None:
        async with location.open():
            pass

    with pytest.raises(ConfigError, match="something else"):
        anyio.run(open_it)


def test_file_of_something_else(tmp_path: Path) -> None:
    """A file that is not a SQLite database is refused by name, and left alone."""
    file = tmp_path / "notes.txt"
    file.write_text("Not a database.\n" * 100)

    async def open_it() -> None:
        async with SQLiteStore(file):
            pass

    with pytest.raises(ConfigError, match=r"notes\.txt' is not a SQLite database"):
        anyio.run(open_it)
    assert file.read_text() == "Not a database.\n" * 100


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing/runs.db", r"cannot be opened: the folder '.*/missing' does not exist; create it"),
        ("a_file/runs.db", r"cannot be opened: '.*/a_file' is not a folder; give another path"),
        ("folder", r"cannot be opened: it is a folder; give the path of a file in it"),
    ],
)
def test_a_file_that_cannot_be_opened(tmp_path: Path, name: str, problem: str) -> None:
    """A file that cannot be opened is an error that names it, the cause and the remedy."""
    (tmp_path / "a_file").touch()
    (tmp_path / "folder").mkdir()

    async def open_it() -> None:
        async with SQLiteStore(tmp_path / name):
            pass

    with pytest.raises(StoreUnavailable, match=rf"^store '.*{name}' {problem}; nothing was written$"):
        anyio.run(open_it)


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions")
def test_a_folder_that_may_not_be_written_to(tmp_path: Path) -> None:
    """A file in a folder of somebody else is an error that says so."""
    script = """
        import os
        import sys
        import anyio
        import pellucid.durable.store.sqlite  # before this process may read nothing anymore
        from pellucid.durable import SQLiteStore
        from pellucid.errors import StoreUnavailable

        if os.geteuid() == 0:
            os.setuid(65534)  # root may write everywhere

        async def open_it() -> None:
            async with SQLiteStore(sys.argv[1]):
                pass

        try:
            anyio.run(open_it)
        except StoreUnavailable as error:
            assert "cannot be opened: this user may not write it; change the permissions" in str(error), error
        else:
            raise AssertionError("accepted")
        """
    (tmp_path / "folder").mkdir(mode=0o500)
    run_python(script, tmp_path / "folder" / "runs.db")


def test_postgres_without_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PostgreSQL store without the extra raises an error that says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "pellucid.durable.store.postgres", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'pellucid\[postgres\]'"):
        PostgresStore("postgresql://host/db")


def test_imports() -> None:
    """`import pellucid` loads neither database; the names of `pellucid.durable` do not load psycopg."""
    script = """
import json, sys
import pellucid
first = {"sqlite3", "psycopg", "pellucid.durable"} & set(sys.modules)
from pellucid.durable import DurableRuns, NATSQueue, open_store
print(json.dumps([sorted(first), "psycopg" in sys.modules]))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110, check=True)
    assert json.loads(result.stdout) == [[], False]
