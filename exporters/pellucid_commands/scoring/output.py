"""Output of the commands that score, and their telemetry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pellucid_commands.inspection.runs import SHOWN
from pellucid_exporters.local.score_writer import kept
from pellucid_exporters.pipeline import configure

if TYPE_CHECKING:
    from argparse import Namespace

    from pellucid.scores import Score
    from pellucid_exporters import Telemetry
    from pellucid_exporters.stored.rows import RunRow


@contextmanager
def telemetry_of(options: Namespace) -> Iterator[Telemetry]:
    """Give the telemetry of this process: runs of judges are in the store, too."""
    telemetry = configure("pellucid-score", local=kept(options.store), otlp=options.otlp)
    try:
        yield telemetry
    finally:
        telemetry.shutdown()


def cells(row: RunRow, score: Score) -> tuple[str, ...]:
    """Return a score as cells of a table."""
    value = "" if score.value is None else f"{score.value:g}"
    return row.run_id[:SHOWN], score.name, value, score.label or score.error_type or "", score.explanation or ""


def document(score: Score) -> dict[str, Any]:
    """Return a score as a JSON object."""
    names = ("name", "value", "label", "explanation", "by", "error_type")
    return {name: value for name in names if (value := getattr(score, name)) is not None}
