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
from support.nats_server import nats_server
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


def section(shown: str, title: str) -> list[str]:
    """Return the lines below a title."""
    lines = shown.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(title)) + 2
    return lines[start : start + lines[start:].index("")]


def parents(shown: str) -> set[tuple[str, str, str]]:
    """Return the tree as names of processes, and of spans with their parents."""
    found, path = set(), list[str]()
    for line in section(shown, "Trace: 1 trace"):
        process, rest = line[:12].strip(), line[12:]
        match = re.match(r"([│├└─ ]*)(\S+(?: \S+)?)", rest)
        assert match is not None, line
        path = [*path[: len(match[1]) // 3], re.sub("freight-.*", "freight", match[2]).partition("/{")[0]]
        found.add((process, path[-1], path[-2] if len(path) > 1 else ""))
    return found


def check(shown: str, workers: set[str], *, is_served: bool = False) -> None:
    """Check what the demo shows; `workers` are those that may have continued the run."""
    tree = parents(shown)
    if is_served:
        complete = "POST /async-tools"
        assert {("server", "POST /runs", "submit"), ("server", complete, "settle quote_road")} <= tree
    assert {
        ("demo", "submit", ""),
        ("worker 1", "chat scripted", "invoke_agent freight"),
        ("worker 1", "execute_tool reserve_dock", "invoke_agent freight"),
        ("worker 1", "execute_tool quote_road", "invoke_agent freight"),
        ("jobs", "job quote_road", "execute_tool quote_road"),
        ("jobs", "settle quote_road", "job quote_road"),
        ("jobs", "settle quote_rail", "job quote_rail"),
    } <= tree
    continued = {process for process, *_ in tree} - {"demo", "worker 1", "jobs", "server"}
    assert continued
    assert continued <= workers
    for name, parent in (
        ("invoke_agent freight", "POST /runs" if is_served else "submit"),  # of the pass that was killed
        ("invoke_agent freight", "invoke_agent freight"),
        ("await_tool quote_road", "execute_tool quote_road"),
        ("await_tool quote_rail", "execute_tool quote_rail"),
        ("chat scripted", "invoke_agent freight"),
    ):
        assert any((worker, name, parent) in tree for worker in continued), name
    spans, processes = (29, 4) if is_served else (25, 3)
    assert f"{spans} spans of {processes + len(continued)} processes" in shown
    assert "WRONG" not in shown
    assert shown.count("  ok  ") == 7
    assert "Road: 1,860 EUR, 3 days. Rail: no quote" in " ".join(shown.split())
    assert "jobs      answers quote_road: duplicate" in shown
    assert "jobs      answers quote_rail: late" in shown
    assert [line for line in shown.splitlines() if len(line) > 100] == []


def test_continues_a_killed_run_on_sqlite(tmp_path: Path) -> None:
    """Four processes make one trace, what each did agrees with the rows, and these stay in the file."""
    shown = run_demo("--store", "sqlite:///durable.db", cwd=tmp_path)
    check(shown, {"worker 2"})
    assert "stays in sqlite:///durable.db" in shown


def test_continues_a_killed_run_on_postgresql_twice(tmp_path: Path) -> None:
    """Two workers share what is left of the run; on the same database it can be repeated, also by HTTP and NATS."""
    with postgres_server() as server, nats_server() as nats:
        for options in ((), ("--serve", "--queue", nats.url)):
            shown = run_demo("--store", server.url, *options, cwd=tmp_path)
            check(shown, {"worker 2", "worker 3"}, is_served=bool(options))


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
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []

    async def statuses() -> list[str]:
        async with SQLiteStore(tmp_path / "durable.db") as store:
            return [run.status for run in await store.list_runs()]

    assert anyio.run(statuses) == ["cancelled"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--store", "mysql://localhost/x"), "it must start with sqlite:/// or postgresql://"),
        (("--store", "sqlite:////nowhere/durable.db"), "check the URL, that the server runs or the folder exists"),
        (("--store", "postgresql://ann:secret@127.0.0.1:9/x"), "check the URL, that the server runs"),
    ],
)
def test_names_the_remedy(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    """A store that cannot be opened ends the demo at once, with the remedy and without a password."""
    ran = run_process(*options, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert problem in ran.stderr
    assert "secret" not in ran.stderr
