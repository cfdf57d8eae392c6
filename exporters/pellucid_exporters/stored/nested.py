"""Runs that tool calls of another run have started."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from pellucid import semconv
from pellucid_exporters.stored.reader import Recording
from pellucid_exporters.stored.rows import RunRow

MOST: Final = 50
"""Nested runs of one run that are looked up."""


def nested_runs(reader: Recording, run: RunRow, trace: Sequence[RunRow]) -> dict[str, RunRow]:
    """Return the first runs of a trace that are nested in a run, by the id of the span below which they ran."""
    nested = (row for row in trace if row.parent_run_id == run.run_id)
    found: dict[str, RunRow] = {}
    for row in islice(nested, MOST):
        root = next((span for span in reader.spans(row.run_id) if span.phase == semconv.RUN), None)
        if root is not None and root.parent_span_id is not None:
            found[root.parent_span_id] = row
    return found
