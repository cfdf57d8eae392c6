"""Processes to measure: `pellucid serve`, `pellucid worker`, the baseline, and the time and memory that they use."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY: Final = "k" * 32
"""Key of the tokens of calls."""

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_TESTS: Final = Path(__file__).parents[1]
_PATIENCE: Final = 60.0


@contextmanager
def running(*command: str, stdout: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    """Run `pellucid` or a Python module, with arguments, within the context."""
    name, *arguments = command
    start = ["-c", "from pellucid.cli import main; raise SystemExit(main())"] if name == "pellucid" else ["-m", name]
    path = os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PELLUCID_"))}
    process = subprocess.Popen(
        [sys.executable, *start, *arguments],
        env={**environment, "PYTHONPATH": path, "PELLUCID_CALL_KEYS": KEY},
        stdout=stdout,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(_PATIENCE)
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def worker(agent: str, store: str) -> Iterator[int]:
    """Run `pellucid worker` within the context; the value is the id of its process, once it works."""
    with running("pellucid", "worker", agent, "--store", store, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("working on")
        yield process.pid


@contextmanager
def listening(*command: str) -> Iterator[tuple[int, int]]:
    """Run a module that serves on `--port`; the value is the id of its process and the port, once it accepts."""
    port = free_port()
    with running(*command, "--port", str(port)) as process:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                break
        yield process.pid, port


def processor_time(pid: int) -> float:
    """Return the seconds of processor time that a process has used, with all its threads."""
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def family_time(pid: int) -> float:
    """Return the processor time of a process and its children, those that have ended included."""
    fields = _fields(pid)
    ended = (int(fields[13]) + int(fields[14])) / _TICKS
    return processor_time(pid) + ended + sum(map(processor_time, _children(pid)))


def memory(pid: int) -> int:
    """Return the resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak(pid: int) -> int:
    """Return the largest resident memory of a process until now, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _fields(pid: int) -> list[str]:
    """Return the fields of `/proc/<pid>/stat` from the third on: the second may contain spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
