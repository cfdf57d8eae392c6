"""`pellucid serve` at signals, and with slow or wrong clients, as a process."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import sqlite3
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from integration.test_serve import started, wait_for
from support.ports import free_port
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

AGENT = """
import anyio
from pellucid import Agent, Tool, ToolCall
from pellucid.testing import FunctionModel

async def sleep(_arguments, _ctx):
    await anyio.sleep(600)

tool = Tool(name="sleep", run=sleep, timeout=900)
agent = Agent("slow", model=FunctionModel(lambda _: ToolCall("sleep")), tools=[tool])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an agent whose tool does not return."""
    (tmp_path / "slow.py").write_text(AGENT)
    return tmp_path


def test_sigterm_gives_the_run_back_and_ends_streams(folder: Path) -> None:
    """The process exits with 0 within seconds, in the middle of a run that clients follow; the run is due at once."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    with started(f"pellucid serve slow:agent --port {port} --lease 600 --drain-timeout 0", folder) as server:
        wait_for(server, "Uvicorn running")
        with httpx.Client(base_url=base, timeout=PATIENCE) as http, contextlib.ExitStack() as streams:
            location = http.post("/runs", json={"input": "?"}, headers={"Prefer": "respond-async"}).headers["location"]
            follow = [streams.enter_context(http.stream("GET", f"{location}/events?token=s3cret")) for _ in range(3)]
            lines = [stream.iter_lines() for stream in follow]
            assert [next(line for line in one if line.startswith("id: ")) for one in lines] == ["id: 3"] * 3
            start = time.monotonic()
            server.send_signal(signal.SIGTERM)
            rest = [list(line) for line in lines]  # a stream that was cut off would raise
            assert server.wait(PATIENCE) == 0
            assert time.monotonic() - start < 30
            assert all("event: run" not in line for line in rest)
        assert server.stdout is not None
        log = server.stdout.read()
        assert "Traceback" not in log
        assert "s3cret" not in log
        assert f"GET {location}/events HTTP/1.1" in log
    with contextlib.closing(sqlite3.connect(folder / "durable.db")) as database:
        assert database.execute("SELECT status FROM runs").fetchall() == [("due",)]


OWN = """
from contextlib import asynccontextmanager

import anyio
from pellucid.durable import open_store
from pellucid.durable import DurableRuns
from pellucid.server import create_app, drain_at_signals
from slow import agent
from starlette.applications import Starlette

@asynccontextmanager
async def lifespan(app):
    async with open_store("sqlite:///durable.db") as store, anyio.create_task_group() as tasks:
        runs = DurableRuns(store, [agent])
        agents = create_app(runs)
        app.mount("/agents", agents)
        tasks.start_soon(runs.work)
        with drain_at_signals(agents):
            yield
        tasks.cancel_scope.cancel()

app = Starlette(lifespan=lifespan)
"""


def test_an_application_of_ones_own_ends_its_streams(folder: Path) -> None:
    """At SIGTERM uvicorn would wait for them before the lifespan ends; the run is given back then."""
    (folder / "own.py").write_text(OWN)
    port = free_port()
    base = f"http://127.0.0.1:{port}/agents"
    with started(f"python -m uvicorn own:app --port {port}", folder) as server:
        wait_for(server, "Uvicorn running")
        with httpx.Client(timeout=PATIENCE) as http:
            run = http.post(f"{base}/runs", json={"input": "?"}, headers={"Prefer": "respond-async"}).json()
            with http.stream("GET", f"{base}/runs/{run['id']}/events") as stream:
                lines = stream.iter_lines()
                assert next(line for line in lines if line.startswith("id: ")) == "id: 2"
                server.send_signal(signal.SIGTERM)
                assert "event: run" not in list(lines)
        assert server.wait(PATIENCE) in (0, -signal.SIGTERM)
    with contextlib.closing(sqlite3.connect(folder / "durable.db")) as database:
        assert database.execute("SELECT status FROM runs").fetchall() == [("due",)]


def test_slow_clients_are_cut_off(folder: Path) -> None:
    """A connection whose headers or body do not arrive ends; others are served meanwhile."""
    port = free_port()
    patched = "import pellucid_commands.serving.http_server as h; h.HEADERS_TIMEOUT = 0.5\n" + AGENT
    (folder / "slow.py").write_text(patched)
    with started(f"pellucid serve slow:agent --port {port}", folder) as server:
        wait_for(server, "Uvicorn running")
        for start in (
            b"",
            b"GET /healthz HTTP/1.1\r\nHost: x",
            b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /he",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as slow:
                slow.sendall(start)
                assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
                received = b"".join(iter(lambda: slow.recv(65536), b""))
                assert (b"200 OK" in received) == start.endswith(b"GET /he")


def test_clients_that_do_not_read_are_cut_off(folder: Path) -> None:
    """A stream whose client reads nothing ends when the buffers are full; one that is read goes on."""
    port = free_port()
    patched = "import pellucid_commands.serving.http_server as h; h.READ_TIMEOUT = 0.5\n" + AGENT
    (folder / "slow.py").write_text(patched)
    with started(f"pellucid serve slow:agent --port {port}", folder) as server:
        wait_for(server, "Uvicorn running")
        location = httpx.post(
            f"http://127.0.0.1:{port}/runs", json={"input": "?"}, headers={"Prefer": "respond-async"}
        ).headers["location"]
        with contextlib.closing(sqlite3.connect(folder / "durable.db", isolation_level=None)) as database:
            value = json.dumps({"type": "app.tick", "text": "x" * 100_000})
            database.execute("UPDATE runs SET last_seq = 10000")
            rows = [(location.rpartition("/")[2], seq, value, 0.0) for seq in range(5000, 5300)]
            database.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as slow:
            slow.sendall(f"GET {location}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            with httpx.stream("GET", f"http://127.0.0.1:{port}{location}/events", timeout=PATIENCE) as read:
                lines = read.iter_lines()
                while next(lines) != "id: 5299":
                    pass
                wait_for_reset(slow)
                assert next(lines) == "event: app.tick"


def wait_for_reset(connection: socket.socket) -> None:
    """Wait until the peer has aborted a connection, without reading from it."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    assert poll.poll(PATIENCE * 1000)


def test_a_large_body_is_refused_before_it_is_read(folder: Path) -> None:
    """Also if its length is not given; and so is one that is not HTTP."""
    port = free_port()
    with started(f"pellucid serve slow:agent --port {port}", folder) as server:
        wait_for(server, "Uvicorn running")
        head = b"POST /runs HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        for request in (
            head + b"Content-Length: 52428800\r\n\r\n{",
            head + b"Transfer-Encoding: chunked\r\n\r\n" + b"200000\r\n" + b" " * 0x200000,
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
                with contextlib.suppress(ConnectionError):
                    client.sendall(request)
                with contextlib.suppress(ConnectionError):
                    assert client.recv(65536).startswith(b"HTTP/1.1 413 ")
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
            client.sendall(b"\x16\x03\x01\x00\xff\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 400 ")
        assert json.loads(httpx.get(f"http://127.0.0.1:{port}/healthz").content) == {"status": "ok"}
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
        assert server.stdout is not None
        assert "Traceback" not in server.stdout.read()


def test_a_port_that_is_taken(folder: Path) -> None:
    """The command says so, without a trace back, and exits with 2."""
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        started(f"pellucid serve slow:agent --port {other.getsockname()[1]}", folder) as server,
    ):
        assert server.wait(PATIENCE) == 2
        assert server.stdout is not None
        log = server.stdout.read()
        assert "cannot listen on 127.0.0.1" in log
        assert "Traceback" not in log


def test_more_connections_than_allowed(folder: Path) -> None:
    """They are answered with 503; those that are open stay."""
    port = free_port()
    with started(f"pellucid serve slow:agent --port {port} --max-connections 2", folder) as server:
        wait_for(server, "Uvicorn running")
        url = f"http://127.0.0.1:{port}/healthz"
        with httpx.Client() as first:
            assert first.get(url).status_code == 200
            assert httpx.get(url).status_code == 503
            assert first.get(url).status_code == 200
