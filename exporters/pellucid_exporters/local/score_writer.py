"""Writer of scores into a store that other processes write to: each score of a run once, or again."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid.feature_events import ScoreRecorded
from pellucid_exporters.local.options import Local
from pellucid_exporters.local.records import EventRecord, event_record
from pellucid_exporters.local.writer import StoreWriter

if TYPE_CHECKING:
    import os

_LARGEST: Final = 2**62
_SCORES: Final = """
SELECT payload FROM events WHERE run = (SELECT key FROM runs WHERE run_id = ?) AND name = ?
"""


def kept(path: str | os.PathLike[str]) -> Local:
    """Return the options of a store from which this process deletes nothing: how long it keeps runs is for others."""
    return Local(path, max_age=math.inf, max_bytes=_LARGEST)


class ScoreWriter:
    """Writer of scores. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._writer = StoreWriter(kept(path), "pellucid-score", dict)

    def write(self, scores: Sequence[ScoreRecorded], *, is_once: bool) -> list[bool]:
        """Write the scores of a run in one transaction; return which were written.

        Args:
            scores: The scores.
            is_once: Whether to leave out a score if the run has one of this name and author, from any process.

        Raises:
            OSError, StoreError, sqlite3.Error: the store cannot be written to; nothing was written.
        """
        records = [event_record(score) for score in scores]
        written = self._writer.write_new(records, _is_new if is_once else _is_of_a_run)
        return [record in written for record in records]

    def close(self) -> None:
        """Close the store."""
        self._writer.close()


def _is_of_a_run(connection: sqlite3.Connection, event: EventRecord) -> bool:
    """Return whether the store still has the run."""
    return connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (event.run_id,)).fetchone() is not None


def _is_new(connection: sqlite3.Connection, event: EventRecord) -> bool:
    rows = connection.execute(_SCORES, (event.run_id, event.name)).fetchall()
    return _is_of_a_run(connection, event) and _facts(event.payload) not in {_facts(payload) for (payload,) in rows}


def _facts(payload: bytes) -> tuple[Any, Any]:
    found = json.loads(payload)
    return found.get("score"), found.get("by")
