"""The SQL of docs/queries.md, on an export of runs whose answers are known."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from pellucid import Agent, DiscoveryProvider, Identity, PellucidError, ToolCall, tool
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_commands.store.command import COMMAND
from support.local_store import storing
from support.pages import ROOT, blocks_of

duckdb: Any = pytest.importorskip("duckdb", reason="DuckDB is not installed")

PAGE = ROOT / "docs" / "queries.md"


@tool
async def look(what: str) -> str:
    """Look something up."""
    if what == "nothing":
        raise ValueError("there is nothing")
    return f"{what} is fine"


async def fill(path: Path) -> None:
    """Record runs of two tenants: one goes round in circles, one fails after a tool has failed."""
    hub = DiscoveryProvider(FakeHub([look]), id="hub", ttl=0)
    again, nothing = ToolCall("look", {"what": "umbrella"}), ToolCall("look", {"what": "nothing"})
    with storing(path) as telemetry:
        for tenant, answers in (
            ("acme", (again, again, again, "Take an umbrella.")),
            ("umbrella", (nothing, ConnectionError("overloaded"))),
            ("acme", ("Hello.",)),
        ):
            agent = Agent("guide", model=ScriptedModel(*answers), providers=[hub], telemetry=telemetry)
            with suppress(PellucidError):
                await agent.run("What now?", identity=Identity(tenant=tenant, principal="ann"))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Give a connection with the views of the page over an export."""
    folder = tmp_path_factory.mktemp("queries")
    anyio.run(fill, folder / "store.db")
    parser = ArgumentParser()
    COMMAND.add_arguments(parser)
    arguments = ["export", "--store", str(folder / "store.db"), "--parquet", str(folder / "tables")]
    assert COMMAND.run(parser.parse_args(arguments)) == 0
    connection = duckdb.connect()
    connection.execute(queries()[0].replace("'tables/", f"'{folder}/tables/"))
    return connection


def queries() -> list[str]:
    """Return the blocks of SQL of the page, of which the first makes the views."""
    return [code for page, _, code in blocks_of("sql") if page == PAGE]


def rows(database: Any, word: str) -> list[dict[str, Any]]:
    """Return what the query with a word in it answers."""
    [query] = [query for query in queries()[1:] if word in query]
    cursor = database.execute(query)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def test_every_query_of_the_page_has_an_answer(database: Any) -> None:
    """None is wrong, and none is empty."""
    assert len(queries()) == 12
    for query in queries()[1:]:
        assert database.execute(query).fetchall(), query


def test_the_queries_say_what_was_recorded(database: Any) -> None:
    """Failures, tenants, circles, causes and hubs are those of the runs."""
    [day] = rows(database, "GROUP BY ALL ORDER BY day DESC")
    assert (day["agent"], day["runs"], day["failed"]) == ("guide", 3, 1)
    tenants = rows(database, "AS tenant")
    assert {row["tenant"]: row["runs"] for row in tenants} == {"acme": 2, "umbrella": 1}
    [told] = rows(database, "ILIKE")
    assert (told["user"], told["question"], told["answer"]) == ("ann", "What now?", "Take an umbrella.")
    [cause] = rows(database, "first(name")
    assert (cause["boundary"], cause["error"]) == ("execute_tool look", "there is nothing")
    [hub] = rows(database, "AS hub")
    assert (hub["hub"], hub["discoveries"], hub["failed"]) == ("hub", 7, 0)
    [called] = rows(database, "AS for_example")
    assert (called["tool"], called["calls"], called["failed"]) == ("look", 4, 1)
    [circle] = rows(database, "HAVING times > 1")
    assert (circle["tool"], circle["times"]) == ("look", 3)
    assert re.search("umbrella", circle["arguments"])
    assert sum(row["share"] for row in rows(database, "AS share")) == pytest.approx(1)
