"""Runs that the export of one run needs, so that it can be replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pellucid import semconv

if TYPE_CHECKING:
    from pellucid_exporters.stored.reader import Recording
    from pellucid_exporters.stored.rows import RunRow


def needed(reader: Recording, row: RunRow) -> list[RunRow]:
    """Return a run, those of its trace that it continued, and those nested in them; the newest first."""
    rows = {other.run_id: other for other in reader.trace(row.trace_id)} | {row.run_id: row}
    continued: dict[str, str] = {}
    owners: dict[str, str] = {}
    parents: dict[str, str] = {}
    for run_id in rows:
        for span in reader.spans(run_id):
            owners[span.span_id] = run_id
            if span.phase == semconv.RUN:
                parents[run_id] = span.parent_span_id or ""
                continued[run_id] = str(span.attributes.get(semconv.RESUMED_FROM))
    found: set[str] = set()
    current = row.run_id
    while current in rows and current not in found:
        found.add(current)
        current = continued.get(current, "")
    while nested := {run_id for run_id, parent in parents.items() if owners.get(parent) in found} - found:
        found |= nested
    return sorted((rows[run_id] for run_id in found), key=lambda each: each.start, reverse=True)
