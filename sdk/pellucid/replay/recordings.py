"""Recordings: the readers of stored telemetry that tapes are loaded from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Protocol

from pellucid.errors import ConfigError

GROUP: Final = "pellucid.recordings"
"""Entry points that open the file of a recording: functions of a path, which raise a `ConfigError` for other files."""


class Recording(Protocol):
    """Reader of stored telemetry, such as `pellucid_exporters.StoreReader`; see there for the rows."""

    def runs(self, *, limit: int) -> Sequence[Any]:
        """Return the rows of the newest runs."""
        ...

    def run(self, run_id: str) -> Any:
        """Return the row of a run by its id or an unambiguous prefix of it; None if there is none."""
        ...

    def trace(self, trace_id: str) -> Sequence[Any]:
        """Return the rows of the runs of a trace."""
        ...

    def spans(self, run_id: str) -> Sequence[Any]:
        """Return the rows of the spans of a run."""
        ...

    def bodies(self, digests: Iterable[str]) -> Mapping[str, str]:
        """Return large texts by their digests."""
        ...

    def catalogs(self, digests: Iterable[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return whole catalogues by their digests."""
        ...


def open_recording(path: Path) -> Recording:
    """Return a reader of a store or of a file.

    Raises:
        ConfigError: it is neither, or the exporters are not installed.
    """
    [*openers] = entry_points(group=GROUP)
    if not openers:
        raise ConfigError(f"{str(path)!r} cannot be read: no package that reads recordings is installed")
    recording: Recording = openers[0].load()(path)
    return recording
