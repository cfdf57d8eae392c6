"""A NATS server, queues on it, and a store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from pellucid.durable import NATSQueue, open_store
from support.nats_server import NATSServer, nats_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from pellucid.durable import RunStore


@pytest.fixture(scope="session")
def nats() -> Iterator[NATSServer]:
    """Run a server that all tests share; tests that stop it start it again."""
    with nats_server() as server:
        yield server


@pytest.fixture
def prefix() -> str:
    """Return a prefix of one test's subjects."""
    return f"test-{uuid4().hex[:12]}"


@pytest.fixture
def make_queue(nats: NATSServer, prefix: str) -> Callable[..., NATSQueue]:
    """Return a maker of queues that share their streams."""
    return partial(NATSQueue, nats.url, prefix=prefix)


@pytest.fixture
async def queue(make_queue: Callable[..., NATSQueue], store: RunStore) -> AsyncIterator[NATSQueue]:
    """Open a queue."""
    async with make_queue() as queue:
        yield queue


@pytest.fixture
async def store(tmp_path: Path, anyio_backend: str) -> AsyncIterator[RunStore]:
    """Open an empty store."""
    async with open_store(f"sqlite:///{tmp_path}/runs.db") as store:
        yield store
