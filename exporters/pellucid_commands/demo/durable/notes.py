"""Notes on disk of what each process did: they survive it, and do not depend on store and telemetry."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Action: TypeAlias = Literal["model", "stall", "tool", "enqueue", "answer", "kill", "listen"]
"""A request to the model, one that it does not answer, an effect of a tool, a job added to the queue, an answer of the
job process, a kill, the address of a server."""


@dataclass(frozen=True, slots=True)
class Note:
    """A note. Attributes: time: Seconds since the epoch. facts: Details, by name."""

    time: float
    process: str
    action: Action
    facts: dict[str, Any] = field(default_factory=dict)


class Notebook:
    """File of notes to which several processes write, a line at a time."""

    def __init__(self, path: Path, process: str) -> None:
        self._path = path
        self._process = process

    def write(self, action: Action, **facts: Any) -> None:
        """Append a note."""
        line = json.dumps([time.time(), self._process, action, facts]).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)  # one call, which no other process interrupts
        finally:
            os.close(descriptor)

    def read(self) -> list[Note]:
        """Return all notes, in order."""
        return list(self._notes())

    def _notes(self) -> Iterator[Note]:
        if self._path.exists():
            for line in self._path.read_bytes().splitlines():
                yield Note(*json.loads(line))
