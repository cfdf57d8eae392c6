"""Stores on both databases."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from support.postgres_server import PostgresServer, postgres_server
from support.stores import Location

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from pellucid.durable import RunStore


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], PostgresServer]]:
    """Return PostgreSQL, started at the first use."""
    servers: list[PostgresServer] = []
    with ExitStack() as stack:

        def start() -> PostgresServer:
            if not servers:
                servers.append(stack.enter_context(postgres_server()))
            return servers[0]

        yield start


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path, postgres: Callable[[], PostgresServer]) -> Location:
    """Return where an empty store is, on each database."""
    if request.param == "sqlite":
        return Location(f"sqlite:///{tmp_path}/runs.db")
    server = postgres()
    return Location(server.url, {"schema": f"test_{uuid4().hex[:12]}"}, server)


@pytest.fixture
async def store(location: Location, anyio_backend: str) -> AsyncIterator[RunStore]:
    """Open an empty store."""
    async with location.open() as store:
        yield store
