"""`pellucid demo durable`, as its users run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from pellucid.durable import SQLiteStore
from pellucid_exporters import StoreReader
from support.nats_server import nats_server
from support.otlp_receiver import otlp_receiver
from support.postgres_server import postgres_server
from support.processes import PATIENCE, python

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

MAIN = "import sys; from pellucid.cli import main; sys.exit(main())"


def run_process(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the demo to its end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PELLUCID_"))}
    command = python("-c", MAIN, "demo", "durable", "--no-color", *options)
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def run_demo(*options: str, cwd: Path) -> str:
    """Run the demo to its end, and return what it prints into a pipe."""
    ran = run_process(*options, cwd=cwd)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    return ran.stdout


def tree(shown: str) -> set[tuple[str, str]]:
    """Return the spans of the trace with their parents."""
    found, path = set(), list[str]()
    for line in shown.partition("Trace: ")[2].partition("\n\n")[0].splitlines()[2:]:
        match = re.match(r"  ([│├└─ ]*)(\S+(?: \S+)?)", line)
        assert match is not None, line
        path = [*path[: len(match[1]) // 3], re.sub("freight-.*", "freight", match[2])]
        found.add((path[-1], path[-2] if len(path) > 1 else ""))
    return found


def check(shown: str, workers: set[str]) -> None:
    """Check what the demo shows; `workers` are those that may have continued the run."""
    assert {
        ("POST /runs", ""),
        ("invoke_agent freight", "POST /runs"),
        ("invoke_agent freight", "invoke_agent freight"),
        ("chat scripted", "invoke_agent freight"),
        ("execute_tool reserve_dock", "invoke_agent freight"),
        ("execute_tool quote_truck", "invoke_agent freight"),
        ("await_tool quote_truck", "execute_tool quote_truck"),
        ("POST /async-tools/{result_id}/complete", "execute_tool quote_truck"),
        ("execute_tool book_truck", "invoke_agent freight"),
    } <= tree(shown)
    passes = re.findall(r"^  (worker \d) .* (lost|awaiting_\w+|completed) ", shown, re.MULTILINE)
    assert passes[0] == ("worker 1", "lost")
    assert [status for _, status in passes[-2:]] == ["awaiting_approval", "completed"]
    assert {worker for worker, _ in passes[1:]} <= workers
    assert shown.index("kills worker 1") < shown.index("async_tool.settled") < shown.index("approves book_truck")
    assert "Reserved: dock 4, for 12 pallets to Turin. Booked: a truck for 1,860 EUR." in shown
    assert "WRONG" not in shown
    assert shown.count("  ok  ") == 3
    assert [line for line in shown.splitlines() if len(line) > 100] == []


def test_continues_a_killed_run_on_sqlite(tmp_path: Path) -> None:
    """Another worker continues, nothing is done twice, and the rows and the trace stay where the demo says."""
    with otlp_receiver("http/protobuf") as receiver:
        shown = run_demo("--store", "sqlite:///durable.db", "--otlp", receiver.endpoint, cwd=tmp_path)
    check(shown, {"worker 2"})
    assert "stays in sqlite:///durable.db" in shown
    assert shown.rstrip().endswith("pellucid view .pellucid/telemetry.db")
    (trace_id,) = {run.trace_id for run in StoreReader(tmp_path / ".pellucid" / "telemetry.db").runs()}
    assert trace_id in shown
    assert trace_id in {span.trace_id.hex() for span in receiver.spans if span.name == "execute_tool reserve_dock"}


def test_continues_a_killed_run_on_postgresql_twice(tmp_path: Path) -> None:
    """Two workers share what is left of the run; on the same database it can be repeated, also with NATS."""
    with postgres_server() as server, nats_server() as nats:
        for options in ((), ("--queue", nats.url)):
            check(run_demo("--store", server.url, *options, cwd=tmp_path), {"worker 2", "worker 3"})


def test_says_that_it_always_serves(tmp_path: Path) -> None:
    """The option from when it did not is accepted, and said to be deprecated."""
    ran = run_process("--serve", "--store", "mysql://localhost/x", cwd=tmp_path)
    assert "--serve is deprecated" in ran.stderr


def test_an_interrupt_ends_all_processes_and_the_run(tmp_path: Path) -> None:
    """Ctrl-C after the kill ends the demo with 130 and no traceback; in a database that stays, the run is cancelled."""
    command = [sys.executable, "-c", MAIN, "demo", "durable", "--store", "sqlite:///durable.db"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "kills worker 1" not in (line := process.stdout.readline()):
            assert line
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 130
        assert process.stderr.read() == ""
    assert list(tmp_path.glob("pellucid-demo-*")) == []

    async def statuses() -> list[str]:
        async with SQLiteStore(tmp_path / "durable.db") as store:
            return [run.status for run in (await store.list_runs()).runs]

    assert anyio.run(statuses) == ["cancelled"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--store", "mysql://localhost/x"), "it must start with sqlite:/// or postgresql://"),
        (("--store", "sqlite:////nowhere/durable.db"), "check --store"),
        (("--store", "postgresql://ann:secret@127.0.0.1:9/x"), "check --store"),
    ],
)
def test_names_the_remedy(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    """A store that cannot be opened ends the demo at once, with the remedy and without a password."""
    ran = run_process(*options, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert problem in ran.stderr
    assert "secret" not in ran.stderr
