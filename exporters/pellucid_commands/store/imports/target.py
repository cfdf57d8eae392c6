"""The store into which something is imported."""

from __future__ import annotations

import math
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pellucid_exporters.local.options import Local
from pellucid_exporters.local.schema import LARGEST
from pellucid_exporters.local.writer import StoreWriter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pellucid_exporters.local.hub_minutes import Objective
    from pellucid_exporters.local.writer import Record


@dataclass(slots=True)
class Imported:
    """Numbers of what was imported.

    Attributes:
        there: Spans, events and log lines that the store had already.
        left_out: Spans that are under way.
        unwanted: Log records of no run in the store, and Pellucid's own, which repeat what spans say.
    """

    runs: int = 0
    spans: int = 0
    events: int = 0
    log_lines: int = 0
    there: int = 0
    left_out: int = 0
    unwanted: int = 0


_BATCH: Final = 2_000
"""Records of a service that are written at once."""


class Writers(ExitStack):
    """Writers by the service of the processes that they stand for, and by when these were seen last.

    Attributes:
        objectives: Of hubs of which the store has none.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.objectives: dict[str, Objective] = {}
        self._path = path
        self._writers: dict[tuple[str, int | None], StoreWriter] = {}

    def write_all(self, records: Iterable[tuple[str, Record]]) -> None:
        """Write records, each with its service, in batches."""
        batches: dict[str, list[Record]] = {}
        for service, record in records:
            batch = batches.setdefault(service, [])
            batch.append(record)
            if len(batch) >= _BATCH:
                self.write(service, batches.pop(service))
        for service, batch in batches.items():
            self.write(service, batch)

    def write(self, service: str, records: Iterable[Record], seen_until: int | None = None) -> None:
        """Write records of a process that has ended; `seen_until`: without having said so."""
        key = (service, seen_until)
        if key not in self._writers:
            options = Local(self._path, max_age=math.inf, max_bytes=LARGEST)  # nothing is deleted meanwhile
            self._writers[key] = StoreWriter(options, service, lambda: self.objectives)
            self._writers[key].check()
            self.callback(self._writers[key].close, ended=seen_until)
        self._writers[key].append(deque(records))
