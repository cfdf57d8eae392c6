"""Counted boundaries as alerts read them: grouped by labels, and what fails of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pellucid import semconv
from pellucid_exporters.alerting.outcomes import COMBINED
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import CallRow

SECOND: Final = 10**9
"""Nanoseconds."""


@dataclass(frozen=True, slots=True)
class Window:
    """The boundaries that ended in the last seconds.

    Attributes:
        rows: What ended, by labels.
    """

    rows: Sequence[CallRow]

    def by(self, phase: str, *labels: str) -> dict[tuple[str, ...], list[CallRow]]:
        """Return the boundaries of a phase by their service, and by labels that all of them have."""
        groups: dict[tuple[str, ...], list[CallRow]] = {}
        for row in self.rows:
            if row.phase == phase and all(label in row.labels for label in labels):
                groups.setdefault((row.service, *(row.labels[label] for label in labels)), []).append(row)
        return groups


def window(reader: Reader, now: int, seconds: float, phases: Collection[str]) -> Window:
    """Return the boundaries of some phases that ended in the last seconds; without combined providers."""
    since = now - round(seconds * SECOND)
    rows = reader.calls(since, now, phases)
    return Window([row for row in rows if row.labels.get(semconv.PROVIDER_KIND) != COMBINED])


def number(rows: Iterable[CallRow]) -> int:
    """Return the number of boundaries."""
    return sum(row.calls for row in rows)


def first(rows: Iterable[CallRow]) -> int:
    """Return when the earliest boundary began."""
    return min(row.start for row in rows)


def exemplar(rows: Collection[CallRow]) -> tuple[str, str] | None:
    """Return the run and span of the latest boundary."""
    latest = max(rows, key=lambda row: row.end, default=None)
    return (latest.run_id, latest.span_id) if latest is not None else None


def has_failed(row: CallRow) -> bool:
    """Return whether boundaries ended with an error."""
    return semconv.ERROR_TYPE in row.labels


def mostly(
    rows: Iterable[CallRow], is_part: Callable[[CallRow], bool], *, above: float, least: float
) -> tuple[float, list[CallRow]] | None:
    """Return the share of a part, and the part, where the share exceeds a limit and the part is large enough."""
    whole = list(rows)
    part = [row for row in whole if is_part(row)]
    if not part or number(part) < least or (share := number(part) / number(whole)) <= above:
        return None
    return share, part


def named(kind: str, name: str, service: str) -> str:
    """Return the subject of a summary."""
    return f"{kind} {name} ({service})" if service else f"{kind} {name}"


def percentage(share: float) -> str:
    """Format a measured share."""
    return f"{share * 100:.4g}%"
