"""Recordings of captured telemetry, from which tests load tapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pellucid import semconv
from pellucid.replay import Tape
from pellucid.tools.catalog_records import CatalogListing, catalog_json
from pellucid_exporters.stored.rows import RunRow
from pellucid_exporters.testing import Captured, capture
from support.sample_reader import SampleReader


class CapturedRecording(SampleReader):
    """Recording of one `Captured`, with the whole catalogues."""

    def __init__(self, captured: Captured, listings: Iterable[CatalogListing]) -> None:
        super().__init__(captured)
        self._listings = {listing.digest: listing for listing in listings}

    def trace(self, trace_id: str) -> list[RunRow]:
        """Return the runs of a trace."""
        return [row for row in self.runs(limit=1_000_000) if row.trace_id == trace_id]

    def catalogs(self, digests: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return catalogues."""
        found = {digest: self._listings[digest] for digest in digests if digest in self._listings}
        return {digest: json.loads(catalog_json(listing) or "") for digest, listing in found.items()}


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
        for rows in reader.span_rows.values()
        for span in rows
        if span.phase == semconv.RUN and str(span.attributes[semconv.AGENT_NAME]).startswith(agent)
    ]
    continued = {span.attributes.get(semconv.RESUMED_FROM) for span in roots}
    return [
        Tape.load(reader, span.run_id)
        for span in roots
        if span.run_id not in continued and (span.parent_span_id is None or semconv.RESUMED_FROM in span.attributes)
    ]
