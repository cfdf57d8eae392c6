"""Processor that writes spans, events and boundaries to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import SpanProcessor

from pellucid.events import EVENTS
from pellucid.tools.catalog_records import CatalogListing
from pellucid_exporters.file.line_file import LineFile
from pellucid_exporters.file.records import NEVER_WRITTEN, catalog_line, lines_of
from pellucid_exporters.listings import Listings
from pellucid_exporters.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid.events import Event
    from pellucid.telemetry.pipeline import CatalogSink, Listener
    from pellucid_exporters.file.options import File

PATIENCE: Final = 2.0
"""Timeout of a flush or shutdown in seconds: a hanging disk must not block the flush of other exporters."""


class FileProcessor(SpanProcessor):
    """Span processor and event listener that write to a file. The caller's thread only queues items."""

    def __init__(
        self, options: File, resource: Resource, *, on_failure: Callable[[], None], on_drop: Callable[[str, int], None]
    ) -> None:
        """Open the file.

        Raises:
            ConfigError: the file can never be written to.
        """
        file = LineFile(options)
        file.check()
        self._file = file
        self._types = tuple(options.types)
        self._has_spans = not {"span", "boundary"}.isdisjoint(self._types)
        self._resource = resource
        self._listings = Listings()
        self._on_drop = on_drop
        self._spool: Spool[Any, bytes] = Spool(
            file,
            self._encode,
            on_failure=on_failure,
            on_drop=on_drop,
        )

    @property
    def listeners(self) -> Sequence[tuple[str, Listener]]:
        """Event listeners for a pipeline."""
        return [(pattern, self.hear) for pattern in _patterns()] if "event" in self._types else ()

    @property
    def catalog_sinks(self) -> Sequence[CatalogSink]:
        """Catalogue sinks for a pipeline."""
        return [self.queue_catalog] if "catalog" in self._types else ()

    def queue_catalog(self, listing: CatalogListing) -> None:
        """Queue a catalogue, once for each file."""
        if self._listings.may_be_new(listing, self._file.number):
            self._spool.put(listing, 0)

    def hear(self, event: Event) -> None:
        """Queue an event."""
        self._spool.put(event, len(getattr(event, "error", None) or ""))

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a sampled span."""
        if self._has_spans and span.context is not None and span.context.trace_flags.sampled:
            self._spool.put(span, _text_of(span))

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Write queued items; return whether all of them are in the file."""
        return self._spool.flush(min(PATIENCE, timeout_millis / 1000))

    def shutdown(self) -> None:
        """Write queued items and close the file."""
        self._spool.close(PATIENCE)

    def renew(self) -> None:
        """Reset in a forked child."""
        self._listings = Listings()
        self._spool.renew()

    def _encode(self, item: ReadableSpan | Event | CatalogListing) -> bytes:
        """Return the lines of an item; none for a catalogue that is too large, which is counted as dropped."""
        if not isinstance(item, CatalogListing):
            return b"".join(lines_of(item, self._types, self._resource))
        if not self._listings.is_new(item, self._file.number):
            return b""
        if (line := catalog_line(item, self._resource)) is None:
            self._on_drop("too_large", 1)
        return line or b""


def _patterns() -> Iterator[str]:
    """Yield patterns that cover all written events, as few as possible: every run subscribes to every pattern."""
    for group in dict.fromkeys(name.partition(".")[0] for name in EVENTS):
        members = [name for name in EVENTS if name.startswith(f"{group}.")]
        yield from [f"{group}.*"] if NEVER_WRITTEN.isdisjoint(members) else sorted({*members} - NEVER_WRITTEN)


def _text_of(span: ReadableSpan) -> int:
    """Return the number of characters in the attributes of a span and its events, which determine its size."""
    carriers = [span.attributes, *(event.attributes for event in span.events)]
    return sum(len(value) for found in carriers for value in (found or {}).values() if isinstance(value, str))
