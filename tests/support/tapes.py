"""Recordings of captured telemetry, from which tests load tapes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import format_span_id, format_trace_id

from pellucid import semconv
from pellucid.tools.catalog_records import CatalogListing, catalog_json
from pellucid_exporters.stored.rows import RUNNING, EventRow, RunRow, SpanRow
from pellucid_exporters.testing import Captured, capture
from pellucid_replay import Tape


class CapturedRecording:
    """Recording of one `Captured`, with the whole catalogues."""

    def __init__(self, captured: Captured, listings: Iterable[CatalogListing]) -> None:
        self.rows: dict[str, list[SpanRow]] = defaultdict(list)
        self._listings = {listing.digest: listing for listing in listings}
        for span in captured.started:
            run_id = str((span.attributes or {}).get(semconv.RUN_ID, ""))
            self.rows[run_id].append(_row(run_id, len(self.rows[run_id]), span))

    def runs(self, **filters: Any) -> list[RunRow]:
        """Refuse: tests name the run."""
        raise NotImplementedError

    def run(self, run_id: str) -> RunRow | None:
        """Return the row of a run."""
        return _run_of(self.rows[run_id][0]) if run_id in self.rows else None

    def trace(self, trace_id: str) -> list[RunRow]:
        """Return the rows of the runs of a trace."""
        return [_run_of(rows[0]) for run_id, rows in self.rows.items() if run_id and rows[0].trace_id == trace_id]

    def spans(self, run_id: str) -> list[SpanRow]:
        """Return the spans of a run."""
        return self.rows[run_id]

    def bodies(self, digests: Iterable[str]) -> dict[str, str]:
        """Return nothing: all texts are on the spans."""
        return {}

    def catalogs(self, digests: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return catalogues."""
        found = {digest: self._listings[digest] for digest in digests if digest in self._listings}
        return {digest: json.loads(catalog_json(listing) or "") for digest, listing in found.items()}

    def events(self, run_id: str) -> list[EventRow]:
        """Return nothing: tapes need none."""
        return []


@contextmanager
def recording(
    clock: Callable[[], int] | None = None, **options: Any
) -> Iterator[tuple[Captured, list[CatalogListing]]]:
    """Capture telemetry, with the catalogues that runs list."""
    listings: list[CatalogListing] = []
    with capture(**options) as captured:
        vars(captured)["catalog_sinks"] = [listings.append]
        captured.clock = clock or captured.clock
        yield captured, listings


def tapes_of(captured: Captured, listings: Iterable[CatalogListing], agent: str = "") -> list[Tape]:
    """Return the tape of each run that no other run continues, and that is not nested in another."""
    reader = CapturedRecording(captured, listings)
    roots = [
        span
        for rows in reader.rows.values()
        for span in rows
        if span.phase == semconv.RUN and str(span.attributes[semconv.AGENT_NAME]).startswith(agent)
    ]
    continued = {span.attributes.get(semconv.RESUMED_FROM) for span in roots}
    return [
        Tape.load(reader, span.run_id)
        for span in roots
        if span.run_id not in continued and (span.parent_span_id is None or semconv.RESUMED_FROM in span.attributes)
    ]


def _run_of(span: SpanRow) -> RunRow:
    """Return the row of a run, from its first span."""
    agent = str(span.attributes.get(semconv.AGENT_NAME))
    return RunRow(
        run_id=span.run_id, trace_id=span.trace_id, agent=agent, service="", status=span.status, start=span.start
    )


def _row(run_id: str, sequence: int, span: ReadableSpan) -> SpanRow:
    attributes = dict(span.attributes or {})
    context = span.get_span_context()
    assert context is not None
    return SpanRow(
        run_id=run_id,
        sequence=sequence,
        trace_id=format_trace_id(context.trace_id),
        span_id=format_span_id(context.span_id),
        parent_span_id=format_span_id(span.parent.span_id) if span.parent else None,
        name=span.name,
        phase=str(attributes[semconv.PHASE]) if semconv.PHASE in attributes else None,
        iteration=attributes.get(semconv.ITERATION),  # type: ignore[arg-type]
        start=span.start_time or 0,
        end=span.end_time,
        status=RUNNING if span.end_time is None else str(attributes.get(semconv.OUTCOME)),
        error_type=attributes.get(semconv.ERROR_TYPE),  # type: ignore[arg-type]
        error=span.status.description,
        attributes=attributes,
        events=[
            {"name": event.name, "time": event.timestamp, "attributes": dict(event.attributes or {})}
            for event in span.events
        ],
    )
