"""`pellucid serve` and `pellucid worker`, as `docs/server.md` shows them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from pellucid.cli import main
from pellucid_exporters import StoreReader
from support.nats_server import nats_server
from support.ports import free_port
from support.processes import PATIENCE, with_programs

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHELL = [
    "\n".join(line.removeprefix("$ ") for line in block.splitlines())
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
]


@contextmanager
def started(command: str, folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of the page in a shell's place within the context; `pellucid` is that of the `PATH`, if given."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PELLUCID_"))}
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=folder,
        env={**variables, "PATH": with_programs(folder / ".bin"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read a process's output up to a line with this text."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    pytest.fail(f"no {text!r} in: {''.join(seen)}")


def test_five_minutes(tmp_path: Path) -> None:
    """From the agent to a completed external call by curl; SIGTERM ends the server."""
    port = free_port()
    (tmp_path / "freight.py").write_text(PYTHON[0])
    _install, serve, submit, complete = (block.replace("8000", str(port)) for block in SHELL[:4])
    export, command = serve.splitlines()
    key = subprocess.run(
        ["bash", "-c", f"{export}; echo $PELLUCID_CALL_KEYS"], capture_output=True, text=True, check=True
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with started(f"{command} --port {port}", tmp_path, PELLUCID_CALL_KEYS=key.stdout.strip(), PATH=path) as server:
        wait_for(server, "Uvicorn running")
        ran = subprocess.run(
            ["bash", "-e", "-c", f"{submit}\n{complete}"],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert '"status":"awaiting_tools"' in ran.stdout
        assert '"status":"accepted"' in ran.stdout
        assert '"output": "It costs 1,860 EUR."' in ran.stdout
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) in (0, -signal.SIGTERM)


@pytest.mark.parametrize("has_queue", [False, True])
def test_a_worker_continues_what_a_server_has_accepted(tmp_path: Path, has_queue: bool) -> None:
    """They share the stores only, or a queue as well; the worker ends with SIGTERM."""
    port = free_port()
    (tmp_path / "freight.py").write_text(PYTHON[0])
    with ExitStack() as stack:
        queue = {"PELLUCID_QUEUE": stack.enter_context(nats_server()).url} if has_queue else {}
        server = stack.enter_context(
            started(f"pellucid serve freight:agent --no-worker --port {port} --local local.db", tmp_path, **queue)
        )
        wait_for(server, "Uvicorn running")
        with started("pellucid worker freight:agent --local local.db --service worker", tmp_path, **queue) as worker:
            wait_for(worker, "working on freight in sqlite:///durable.db")
            submit = f'curl -s http://127.0.0.1:{port}/runs -d \'{{"input": "?"}}\''
            ran = subprocess.run(["bash", "-c", submit], capture_output=True, text=True, timeout=PATIENCE, check=True)
            assert '"status":"awaiting_tools"' in ran.stdout
            assert "URL=None" in (tmp_path / "job.env").read_text()
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(PATIENCE) == 0
        server.send_signal(signal.SIGTERM)
        server.wait(PATIENCE)
    reader = StoreReader(tmp_path / "local.db")
    (run,) = reader.runs()
    assert (run.service, run.status) == ("worker", "awaiting_tools")
    assert ("POST /runs", run.trace_id) in {(span.name, span.trace_id) for span in reader.spans("")}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["worker", "freight"], "'freight' is not a place; write module:name"),
        (["worker", "no_such_module:agent"], "there is no module 'no_such_module'"),
        (["worker", "json:dumps"], "'json:dumps' is of type function; name an agent, or a list of agents"),
        (["worker", "json:nope"], "'json:nope': the module 'json' has no 'nope'"),
        (["serve", "pellucid_examples_none:a", "--host", "0.0.0.0"], "there is no module"),
    ],
)
def test_what_cannot_be_served_is_refused(
    arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the remedy, and exit code 2."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the command adds the current folder
    assert main(arguments) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--concurrency", "0"), "'0' is not a number of 1 or more"),
        (("--metrics-port", "99999"), "'99999' is not a port"),
    ],
)
def test_numbers_are_checked(options: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything starts."""
    with pytest.raises(SystemExit, match="2"):
        main(["worker", "freight:agent", *options])
    assert text in capsys.readouterr().err


def test_a_worker_says_what_it_cannot_reach(tmp_path: Path) -> None:
    """A queue that is away is a warning; a database that is away ends it, with the database's reason."""
    (tmp_path / "freight.py").write_text(PYTHON[0])
    with started("pellucid worker freight:agent --queue nats://127.0.0.1:1", tmp_path) as worker:
        wait_for(worker, "nats.unavailable servers=127.0.0.1:1")
    with started("pellucid worker freight:agent --store postgresql://ann@127.0.0.1:1/x", tmp_path) as worker:
        wait_for(worker, "'127.0.0.1:1/x' is not available; nothing was written (connection failed")
        assert worker.wait(PATIENCE) == 2


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_queue_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Its password is not shown."""
    (tmp_path / "freight_queue.py").write_text(PYTHON[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main([command, "freight_queue:agent", "--queue", "amqp://ann:p4ssw0rd@host"]) == 2
    shown = capsys.readouterr()
    assert "nats://host:port" in shown.err
    assert "p4ssw0rd" not in shown.out + shown.err


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_the_former_default_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Its runs are not forgotten for a new store: the command says how to continue them."""
    (tmp_path / "freight_former.py").write_text(PYTHON[0])
    (tmp_path / "runs.db").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main([command, "freight_former:agent"]) == 2
    assert "--store sqlite:///runs.db" in capsys.readouterr().err
    assert not (tmp_path / "durable.db").exists()


def test_a_server_for_others_needs_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one it does not listen on other addresses than this machine's."""
    (tmp_path / "freight_open.py").write_text(PYTHON[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["serve", "freight_open:agent", "--host", "0.0.0.0"]) == 2
    assert "set PELLUCID_API_TOKEN" in capsys.readouterr().err
    assert main(["serve", "freight_open:agent", "--public-url", "http://x"]) == 2
    assert "set PELLUCID_CALL_KEYS" in capsys.readouterr().err


def test_without_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The agent of the page, whose tool needs a store, is refused; so are options of workers."""
    port = free_port()
    (tmp_path / "freight_bare.py").write_text(PYTHON[0])
    with started(f"pellucid serve freight_bare:agent --no-store --port {port}", tmp_path) as server:
        wait_for(server, "Uvicorn running")
        answer = httpx.post(f"http://127.0.0.1:{port}/runs", json={"input": "?"}, timeout=PATIENCE)
        assert (answer.status_code, answer.json()["toolName"]) == (422, "quote")
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) in (0, -signal.SIGTERM)
    assert not list(tmp_path.glob("*.db"))
    assert main(["serve", "freight_bare:agent", "--no-store", "--no-worker"]) == 2
    assert "omit --no-worker" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["serve", "freight_bare:agent", "--roles", "manager"])
    assert "'manager' is no role" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_callbacks_need_keys_and_urls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """One without the other is refused."""
    (tmp_path / "freight_hooks.py").write_text(PYTHON[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PELLUCID_CALLBACK_URLS", "https://example.org/")
    assert main([command, "freight_hooks:agent"]) == 2
    assert "callbacks need both PELLUCID_CALLBACK_KEYS and PELLUCID_CALLBACK_URLS" in capsys.readouterr().err
