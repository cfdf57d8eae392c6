"""Scripts that tests run in a process of their own."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Final

PATIENCE: Final = 110
"""Seconds to wait for a process that does its work and ends, on a machine that is busy; pytest waits for 120."""

_SHARED: Final = "FORK_SERVER_OF_TESTS"
_HERE: Final = Path(__file__).parent
_START: Final = "import sys; sys.path[0] = sys.argv[1]; import fork_server; fork_server.main(sys.argv[2])"


def run_python(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own; it must succeed."""
    finished = subprocess.run(
        command(script, *arguments),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished


def run_pytest(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder as a user of Pellucid would, who has no plugin that takes a second to load."""
    plugins = ("cacheprovider", "schemathesis", "hypothesispytest")
    refused = [part for name in plugins for part in ("-p", f"no:{name}")]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *refused, "--strict-markers", "--rootdir=.", *options],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def command(script: str, *arguments: object) -> list[str]:
    """Return the command for a script, which finds `arguments` in `sys.argv`."""
    return python("-c", dedent(script), *map(str, arguments))


def python(*arguments: str) -> list[str]:
    """Return the command `python -W error` with arguments: `-c` and a script, `-m` and a module, or a file.

    On Linux its process has most packages imported already (see `fork_server`); `sys.executable` starts with none.
    """
    if sys.platform != "linux":
        return [sys.executable, "-W", "error", *arguments]
    return [sys.executable, "-S", "-E", str(_HERE / "fork_client.py"), _fork_server(os.getpid()), *arguments]


def with_programs(folder: Path) -> str:
    """Make programs `pellucid` (see `python`) and `python` (this one) in a folder; return a `PATH` that has them."""
    folder.mkdir(exist_ok=True)
    for name, command in {"pellucid": python("-m", "pellucid"), "python": [sys.executable]}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (folder / name).chmod(0o755)
    return os.pathsep.join([str(folder), os.environ["PATH"]])


def share_fork_server() -> None:
    """Start the server that this process and the processes that it starts, those of pytest-xdist, use together."""
    if sys.platform == "linux":
        os.environ[_SHARED] = _start_fork_server()


@cache
def _fork_server(_pid: int) -> str:
    """Return the path of the server's socket when it has imported all; start it at the first call if none is shared."""
    path = os.environ.get(_SHARED) or _start_fork_server()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""  # what it answers to no request
    return path


def _start_fork_server() -> str:
    folder = tempfile.mkdtemp()
    path = f"{folder}/socket"
    server = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _START, str(_HERE), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # an interrupt from the keyboard is for the scripts
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == b"listening\n"

    def stop() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return path
