"""Processor that writes spans, their starts and events to the local store."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import TraceFlags

from pellucid import semconv
from pellucid.events import EVENTS, Event, InferenceDelta
from pellucid.telemetry.phases import PHASES
from pellucid.tools.catalog_records import CatalogListing
from pellucid_exporters.listings import Listings
from pellucid_exporters.local.catalogs import FRESH, catalog_record
from pellucid_exporters.local.hub_minutes import Objectives
from pellucid_exporters.local.log_lines import LogLine, LogLines
from pellucid_exporters.local.membership import Membership
from pellucid_exporters.local.records import StartRecord, copied, event_record, span_record
from pellucid_exporters.local.writer import StoreWriter
from pellucid_exporters.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Span

    from pellucid.telemetry.capture import CapturePolicy
    from pellucid.telemetry.pipeline import CatalogSink, Listener
    from pellucid_exporters.local.options import Local
    from pellucid_exporters.local.writer import Record

_log = logging.getLogger("pellucid")

PATIENCE: Final = 2.0
"""Timeout of a flush or shutdown in seconds: a hanging disk must not block the flush of other exporters."""

LINES: Final = 0.5
"""Share of the queue that log lines may take: there may be any number of them, and spans matter more."""

_SAMPLED: Final = TraceFlags.SAMPLED

LISTENED: Final = sorted(
    set(EVENTS)
    - {InferenceDelta.name}  # a secret split across two pieces of a stream cannot be masked
    - {phase.started.name for phase in PHASES.values() if phase.started is not None}
    - {phase.completed.name for phase in PHASES.values()}
)
"""Events that are written: those that say more than the spans."""


class _Start(NamedTuple):
    span: Span


class LocalProcessor(SpanProcessor):
    """Span processor and event listener that write to the store. The caller's thread only queues items.

    Attributes:
        log_lines: Intake of the application's log lines.
    """

    def __init__(
        self,
        options: Local,
        resource: Resource,
        objectives: Objectives,
        *,
        on_failure: Callable[[], None],
        on_drop: Callable[[str, int], None],
        capture: CapturePolicy | None = None,
    ) -> None:
        """Open the store.

        Raises:
            ConfigError: the store can never be written to.
        """
        writer = StoreWriter(options, str(resource.attributes.get("service.name", "")), objectives, self._refuse)
        writer.check()
        self._runs = Membership()
        self._listings = Listings()
        self._on_drop = on_drop
        self._has_refused = False
        self._spool: Spool[Any, Any] = Spool(writer, self._record, on_failure=on_failure, on_drop=on_drop)
        self.log_lines = LogLines(self._put_line, on_failure, capture)

    @property
    def listeners(self) -> Sequence[tuple[str, Listener]]:
        """Event listeners for a pipeline."""
        return [(name, self.hear) for name in LISTENED]

    @property
    def catalog_sinks(self) -> Sequence[CatalogSink]:
        """Catalogue sinks for a pipeline."""
        return [self.queue_catalog]

    def queue_catalog(self, listing: CatalogListing) -> None:
        """Queue a catalogue, once in a while as long as it is used."""
        if self._listings.may_be_new(listing, _period()):
            self._spool.put(listing, 0)

    def hear(self, event: Event) -> None:
        """Queue an event."""
        self._spool.put(event, len(getattr(event, "error", None) or ""))

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Queue the start of a sampled span."""
        context = span.get_span_context()
        if context.trace_flags & _SAMPLED:
            self._spool.put(_Start(span), 0)

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a sampled span."""
        context = span.context
        if context is not None and context.trace_flags & _SAMPLED:
            self._spool.put(span, _text_of(span))

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Write queued items; return whether all of them are in the store."""
        return self._spool.flush(min(PATIENCE, timeout_millis / 1000))

    def shutdown(self) -> None:
        """Write queued items and close the store."""
        self._spool.close(PATIENCE)

    def renew(self) -> None:
        """Reset in a forked child."""
        self._runs = Membership()
        self._listings = Listings()
        self._spool.renew()

    def _put_line(self, line: LogLine) -> None:
        if self._spool.is_filled(LINES):
            self._on_drop("queue_full", 1)
        else:
            self._spool.put(line, len(line))

    def _refuse(self, error: Exception) -> None:
        """Count a record that can never be written, and log the first one."""
        self._on_drop("not_encodable", 1)
        if not self._has_refused:
            self._has_refused = True
            _log.warning("a span or event cannot be written to the store (%s); more are only counted", error)

    def _record(self, item: ReadableSpan | _Start | Event | CatalogListing | LogLine) -> Record | bytes:
        """Return the record of an item; nothing for starts of spans that have ended, or are of other libraries."""
        if isinstance(item, _Start):
            return self._start_record(item.span)
        if isinstance(item, ReadableSpan):
            attributes = copied(item.attributes)
            return span_record(item, *self._runs.end(item, attributes), attributes)
        if type(item) is LogLine:
            item.run_id = self._runs.of(int.from_bytes(item.trace_id, "big"), int.from_bytes(item.span_id, "big"))
            return item
        return self._catalog_record(item) if isinstance(item, CatalogListing) else event_record(item)

    def _catalog_record(self, listing: CatalogListing) -> Record | bytes:
        if not self._listings.is_new(listing, _period()):
            return b""
        if (record := catalog_record(listing)) is None:
            self._on_drop("too_large", 1)
        return record or b""

    def _start_record(self, span: Span) -> StartRecord | bytes:
        run_id, parent_run_id = self._runs.start(span)
        if span.end_time is not None or (span.attributes or {}).get(semconv.PHASE) not in PHASES:
            return b""
        return StartRecord(span, run_id, parent_run_id)


def _period() -> int:
    return int(time.monotonic() // FRESH)


def _text_of(span: ReadableSpan) -> int:
    """Return the number of characters in the attributes of a span and its events, which determine its size."""
    size = _text_in(span.attributes)
    for event in span.events:
        size += _text_in(event.attributes)
    return size


def _text_in(attributes: Mapping[str, Any] | None) -> int:
    size = 0
    for value in (attributes or {}).values():  # twice as fast as a sum
        if isinstance(value, str):
            size += len(value)
    return size
