"""Databases for the stores of tests."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psycopg

from pellucid.durable import Claim, NewCall, RunStore, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from support.postgres_server import PostgresServer


@dataclass(frozen=True)
class Location:
    """Location of a store. Attributes: server: of PostgreSQL; None for SQLite."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    server: PostgresServer | None = None

    def open(self, **options: Any) -> RunStore:
        """Return another store of the same database."""
        return open_store(self.url, **{**self.options, **options})

    def at(self, name: str) -> Location:
        """Return another, empty store beside this one."""
        if self.server is None:
            return replace(self, url=f"{self.url}-{name}")
        return replace(self, options={**self.options, "schema": f"{self.options['schema']}_{name}"})

    def execute(self, statement: str) -> None:
        """Run a statement in the database."""
        if self.server is None:
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)) as file:
                file.execute(statement)
            return
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT set_config('search_path', %s, false)", [self.options["schema"]])
            connection.execute(statement)

    def plan(self, statement: str, parameters: Mapping[str, Any]) -> list[str]:
        """Return the lines of the database's plan of a statement with `:name` for parameters."""
        if self.server is None:
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as file:
                return [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT set_config('search_path', %s, false)", [self.options["schema"]])
            named = re.sub(r"(?<!:):(\w+)", r"%(\1)s", statement.replace("%", "%%"))
            return [row[0] for row in connection.execute(f"EXPLAIN {named}", parameters)]

    def end_leases(self) -> None:
        """Let the leases of all runs have ended."""
        self.execute("UPDATE runs SET lease_until = lease_until - 1000")

    @property
    def arguments(self) -> tuple[str, str]:
        """Arguments from which a script makes the store: `open_store(sys.argv[1], **json.loads(sys.argv[2]))`."""
        return self.url, json.dumps(self.options)


async def claimed(store: RunStore, run_id: str = "run", *, lease: float = 60.0) -> Claim:
    """Submit a run and claim it."""
    await store.submit(run_id, "agent", {"question": "?"})
    claim = await store.claim("worker", ["agent"], lease)
    assert claim is not None
    assert claim.run.id == run_id
    return claim


async def waiting(store: RunStore, *call_ids: str, run_id: str = "run", expires_after: float | None = None) -> Claim:
    """Submit a run, register calls of it, and end its pass; return the claim, which is over."""
    claim = await claimed(store, run_id)
    calls = [NewCall(call_id, "tool", f"of {call_id}", {"for": call_id}, timeout=expires_after) for call_id in call_ids]
    await store.register(claim, calls)
    assert await store.end_pass(claim, {"pass": 1}) == "waiting"
    return claim
