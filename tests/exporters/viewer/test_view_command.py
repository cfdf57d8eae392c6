"""The `view` subcommand: it serves a store on this machine, and says what is missing."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import anyio
import pytest

from pellucid import semconv
from pellucid.cli import main
from pellucid.durable import open_store
from support.local_store import emit, storing
from support.processes import PATIENCE

SCRIPT = "import sys; from pellucid.cli import main; sys.exit(main())"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return an empty store."""
    with storing(tmp_path / "store.db") as telemetry:
        emit(telemetry, "x")
    return tmp_path / "store.db"


@contextmanager
def viewing(*arguments: str | Path, folder: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `pellucid view` on a free port; give its process, and the address that it prints."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT, "view", *map(str, arguments), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().partition(" at ")[2].split()[0]
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serves_until_a_signal(path: Path, number: signal.Signals) -> None:
    """It prints one line with the address, serves the pages there, and ends at Ctrl-C or SIGTERM without noise."""
    with viewing(path, "--host", "::1" if number == signal.SIGINT else "127.0.0.1") as (process, url):
        with urlopen(f"{url}runs", timeout=PATIENCE) as answer:
            assert b"This store has no runs yet" in answer.read()
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, "", "")


def test_serves_several_stores_as_one(path: Path) -> None:
    """Stores and folders of them; the address is printed with what was named."""
    with storing(path.parent / "folder" / "other.db") as telemetry:
        facts = {semconv.RUN_ID: "run", semconv.PHASE: semconv.RUN, semconv.AGENT_NAME: "billing"}
        telemetry.tracer_provider.get_tracer(semconv.SCOPE).start_span("invoke_agent", attributes=facts).end()
    with viewing(path, str(path.parent / "folder")) as (_, url), urlopen(f"{url}runs", timeout=PATIENCE) as answer:
        assert b"billing" in answer.read()


def test_durable_runs_without_telemetry_are_served(tmp_path: Path) -> None:
    """Where there is no telemetry, `--durable` leads to the durable runs, and names their store."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    anyio.run(create_runs, url)
    with viewing("--durable", url, folder=tmp_path) as (_, address), urlopen(address, timeout=PATIENCE) as answer:
        assert address.endswith("/durable")
        page = answer.read().decode()
    assert "runs.db" in page
    assert "telemetry.db" not in page


async def create_runs(url: str) -> None:
    """Create a store of durable runs."""
    async with open_store(url):
        pass


def test_a_missing_store_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path without a store is an error with the remedy."""
    assert main(["view", str(tmp_path / "none.db")]) == 2
    assert "there is no store" in capsys.readouterr().err


def test_a_taken_port_is_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A port that another process has is an error with the remedy."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["view", str(path), "--port", str(port)]) == 2
    assert f"--port {port}: Address already in use; name another one" in capsys.readouterr().err


def test_a_missing_extra_is_named(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the packages of the extra, the message says how to install them."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["view", str(path)]) == 2
    assert "jinja2 not installed; run: pip install 'pellucid[view]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--port", "65536"], ["--host", "0.0.0.0"], ["--jaeger", "javascript:alert(1)"], ["--grafana", "x"]]
)
def test_bad_options_are_refused(path: Path, arguments: list[str]) -> None:
    """Ports that are none, addresses of other machines and URLs of other schemes are mistakes."""
    with pytest.raises(SystemExit) as exit_:
        main(["view", str(path), *arguments])
    assert exit_.value.code == 2


@pytest.mark.parametrize("name", ["PELLUCID_JAEGER_URL", "PELLUCID_GRAFANA_URL"])
def test_a_bad_variable_is_named(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The variables for Jaeger and Grafana are checked as their options are."""
    monkeypatch.setenv(name, "http://[")
    assert main(["view", str(path)]) == 2
    assert f"{name}: 'http://[' is not an address" in capsys.readouterr().err
