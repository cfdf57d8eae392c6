"""What all tests share."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import hypothesis
import pytest

from pellucid_exporters.testing import Captured, check_telemetry
from support import notes
from support.clock import SOON
from support.postgres_server import PostgresServer, postgres_server
from support.processes import share_fork_server
from support.stores import Location

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator
    from pathlib import Path

    from pellucid.durable import RunStore


def pytest_configure(config: pytest.Config) -> None:
    """Check the notes of boundaries, and let the processes that tests start be interrupted.

    A shell's background job ignores interrupts, and so would they.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        share_fork_server()
    notes.watch()
    if "CI" not in os.environ:  # there, hypothesis has such a profile itself
        hypothesis.settings.register_profile("busy", deadline=None)
        hypothesis.settings.load_profile("busy")


def pytest_sessionstart() -> None:
    """Let no terminal, real or pytest-xdist's, decide on the width and colours of what tests look at."""
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        os.environ.pop(name, None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect no garbage meanwhile: all that is made stays, and looking through it is a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep modules and collected tests out of what `gc.collect()` looks at: many tests do that, some in a loop."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run async tests on both event loops."""
    backend: str = request.param
    return backend


_getaddrinfo = socket.getaddrinfo


def _find(
    host: str | bytes | None,
    port: Any,
    family: int = 0,
    type: int = 0,  # noqa: A002  (its name in the standard library)
    proto: int = 0,
    flags: int = 0,
) -> list[Any]:
    if host is not None and os.fsdecode(host) not in ("", "localhost", socket.gethostname()):
        flags |= socket.AI_NUMERICHOST
    return _getaddrinfo(host, port, family, type, proto, flags)


@pytest.fixture(autouse=True)
def _no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Know no host but this one: a name server that is slow, or answers for what is not there, changes no test."""
    monkeypatch.setattr(socket, "getaddrinfo", _find)


@pytest.fixture(autouse=True)
def _no_late_exports() -> Iterator[None]:
    """Wait for the exports of a test: they would write to the log of the next one, and use its random numbers."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("Otel"):
            thread.join(SOON)


@pytest.fixture(autouse=True)
def _checked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the telemetry of every `with capture()` when it is left without an error; the fixture checks its own."""
    leave = Captured.__exit__

    def leave_and_check(captured: Captured, *error: Any) -> None:
        leave(captured, *error)
        is_of_the_fixture = request.node.funcargs.get("telemetry") is captured
        if error[0] is None and captured.is_checked and not is_of_the_fixture:
            check_telemetry(captured)

    monkeypatch.setattr(Captured, "__exit__", leave_and_check)


@pytest.fixture(autouse=True)
def _known_notes() -> Iterator[None]:
    """Refuse notes of a boundary that its phase does not know, which would be missing from its span without a word."""
    notes.misspelled.clear()
    yield
    assert sorted(set(notes.misspelled)) == [], "no attribute, log line or event has these notes; are they misspelled?"


@pytest.fixture
def quiet_opentelemetry(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Refuse complaints of OpenTelemetry: of a span that is ended twice, or a context that is detached elsewhere."""
    yield
    names = ("opentelemetry.context", "opentelemetry.sdk.trace", "opentelemetry.trace")
    said = [record.getMessage() for record in caplog.get_records("call") if record.name.startswith(names)]
    assert said == []


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
