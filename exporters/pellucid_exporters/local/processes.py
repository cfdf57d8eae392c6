"""Identity of a process, and whether a process is alive.

On the same machine the process itself is looked up: by its id and its start, because ids are used again. Of processes
of other machines and containers, and where `/proc` is missing, the store has the heartbeat only.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HEARTBEAT: Final = 5.0
"""Seconds between two heartbeats of a process that has boundaries in flight."""

SILENCE: Final = 20.0
"""Seconds without a heartbeat after which a process of another machine is gone."""

_STATE, _STARTED = 0, 19
"""Fields of `/proc/<pid>/stat` after the name of the program; see proc(5)."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identity of a process.

    Attributes:
        host: Boot of the machine, and the namespace of process ids.
        started: Start in clock ticks since the boot; None if unknown.
        token: Unique for each writer of each process.
    """

    host: str
    pid: int
    started: int | None
    token: str


def this_process() -> ProcessIdentity:
    """Return the identity of this process, with a new token."""
    pid = os.getpid()
    return ProcessIdentity(_host(), pid, _started(pid), uuid.uuid4().hex)


def is_alive(host: str, pid: int, started: int | None, heartbeat: int) -> bool:
    """Return whether a process that has not said goodbye is alive; `heartbeat` is in nanoseconds since the epoch."""
    if host == _host() and started is not None:
        return _started(pid) == started
    return time.time_ns() - heartbeat < SILENCE * 1e9


def _host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()} {uuid.getnode():x}"


def _started(pid: int) -> int | None:
    """Return the start of a process in clock ticks; None if it has ended, or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[_STARTED]) if fields[_STATE] not in {"Z", "X"} else None
