"""Recordings of runs: local stores, and files in JSON Lines."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid_exporters.file.reader import FileReader
from pellucid_exporters.local.reader import StoreReader

if TYPE_CHECKING:
    from pellucid_exporters.stored.reader import Recording

_SQLITE: Final = b"SQLite format 3\0"


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """Return a reader of a local store, or of a file of `configure(file=...)` or `pellucid store export`.

    Raises:
        ConfigError: the file is missing, cannot be read, or is neither.
    """
    start = b""
    with suppress(OSError), Path(path).open("rb") as file:  # the reader says what is wrong
        start = file.read(len(_SQLITE))
    return StoreReader(path) if start == _SQLITE else FileReader(path)
