"""The SDK's exporters, each behind one that counts failures, bounds what it sends at once, and survives a fork."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from pellucid_exporters.exemplars import Withheld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from enum import Enum

    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.trace import ReadableSpan

_log: Final = logging.getLogger(__name__)

QUEUE_SIZE: Final = 16384
"""Spans that wait for export unless `OTEL_BSP_MAX_QUEUE_SIZE` says otherwise: a burst of runs fits into it."""

MAX_BATCH_TEXT: Final = 1024 * 1024
"""Characters of attributes in one request. Receivers refuse gRPC messages of more than 4 MiB."""

ExporterT = TypeVar("ExporterT", SpanExporter, MetricExporter, LogRecordExporter)


class Outlet(Generic[ExporterT]):
    """What the three below share.

    Attributes:
        failures: Exports that did not succeed. Written by one export at a time, which the SDK sees to.
    """

    def __init__(self, make: Callable[[], ExporterT], on_failure: Callable[[], None]) -> None:
        self._make: Callable[[], ExporterT] = make
        self._on_failure = on_failure
        self._exporter: ExporterT | None = make()
        self._inherited: ExporterT | None = None
        self._closed = False
        self.failures = 0

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        """Close the exporter at once, which also ends its wait for the next retry; from any thread, repeatedly."""
        if not self._closed and self._exporter is not None:
            self._closed = True
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # one of the three has no types

    def force_flush(self, timeout_millis: float = 0) -> bool:
        """Do nothing: exporters keep nothing back."""
        return True

    def renew(self) -> None:
        """Forget the exporter in a forked child: its connections are the parent's, and closing them could hang."""
        self._inherited, self._exporter = self._exporter, None

    def _attempt(self, export: Callable[[ExporterT], Enum]) -> bool:
        if self._exporter is None:
            self._exporter = self._make()
        try:
            succeeded = export(self._exporter).name == "SUCCESS"
        except Exception:  # noqa: BLE001  (counted; the SDK would only log it)
            _log.exception("exporting with %s failed", type(self._exporter).__name__)
            succeeded = False
        if not succeeded:
            self.failures += 1
            self._on_failure()
        return succeeded


class SpanOutlet(Outlet[SpanExporter], SpanExporter):
    """Exports spans in requests of bounded size. Attributes: taken: spans that have left the queue."""

    def __init__(self, make: Callable[[], SpanExporter], on_failure: Callable[[], None]) -> None:
        super().__init__(make, on_failure)
        self.taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export all spans; one failed request does not keep back the next."""
        self.taken += len(spans)
        sent = [self._attempt(lambda exporter, batch=batch: exporter.export(batch)) for batch in _batches(spans)]  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        return SpanExportResult.SUCCESS if all(sent) else SpanExportResult.FAILURE


class MetricOutlet(Outlet[MetricExporter], MetricExporter):
    """Exports metrics with the temporality and aggregation that its exporter prefers.

    Exemplars of traces that `is_dropped` says were dropped are left out; while `is_undecided` says that they may still
    be dropped, they wait for a later export.
    """

    def __init__(
        self,
        make: Callable[[], MetricExporter],
        on_failure: Callable[[], None],
        is_dropped: Callable[[int], bool] = lambda _: False,
        is_undecided: Callable[[int], bool] = lambda _: False,
    ) -> None:
        Outlet.__init__(self, make, on_failure)
        self._withheld = Withheld(is_dropped, is_undecided)
        assert self._exporter is not None
        MetricExporter.__init__(
            self,
            preferred_temporality=self._exporter._preferred_temporality,  # noqa: SLF001  (as the SDK's own reader does)
            preferred_aggregation=self._exporter._preferred_aggregation,  # noqa: SLF001
        )

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        """Export one collection."""
        self._withheld.release_into(metrics_data)
        sent = self._attempt(lambda exporter: exporter.export(metrics_data, timeout_millis))
        return MetricExportResult.SUCCESS if sent else MetricExportResult.FAILURE


class LogOutlet(Outlet[LogRecordExporter], LogRecordExporter):
    """Exports log records."""

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Export one batch."""
        sent = self._attempt(lambda exporter: exporter.export(batch))
        return LogRecordExportResult.SUCCESS if sent else LogRecordExportResult.FAILURE


class SpanQueue(BatchSpanProcessor):
    """The SDK's batch processor behind a door that counts whom it turns away.

    The SDK drops the oldest span of a full queue and tells nobody but its log. Spans are let in here only while there
    is room, so its queue never overflows, and each one turned away is counted.
    """

    def __init__(self, outlet: SpanOutlet, on_drop: Callable[[], None]) -> None:
        self._size = queue_size()
        batch = None if os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") else min(512, self._size)
        super().__init__(outlet, max_queue_size=self._size, max_export_batch_size=batch)
        self._outlet = outlet
        self._on_drop = on_drop
        self._door = threading.Lock()
        self._admitted = 0

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a sampled span, or drop and count it."""
        if not (span.context and span.context.trace_flags.sampled):
            return
        with self._door:
            has_room = self._admitted - self._outlet.taken < self._size
            self._admitted += has_room
        if has_room:
            super().on_end(span)
        else:
            self._on_drop()

    def renew(self) -> None:
        """Start afresh in a forked child, where the SDK has emptied the queue: its spans are the parent's."""
        self._door = threading.Lock()
        self._admitted = self._outlet.taken


def queue_size() -> int:
    """Return how many spans may wait."""
    named = os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", "").strip()
    if not named:
        return QUEUE_SIZE
    if named.isascii() and named.isdigit() and int(named) > 0:
        return int(named)
    _log.warning("OTEL_BSP_MAX_QUEUE_SIZE=%r is not a number above 0; using %d", named, QUEUE_SIZE)
    return QUEUE_SIZE


def _batches(spans: Sequence[ReadableSpan]) -> Iterator[Sequence[ReadableSpan]]:
    batch: list[ReadableSpan] = []
    total = 0
    for span in spans:
        size = _text_of(span)
        if batch and total + size > MAX_BATCH_TEXT:
            yield batch
            batch, total = [], 0
        batch.append(span)
        total += size
    if batch:
        yield batch


def _text_of(span: ReadableSpan) -> int:
    """Return the characters in the attributes of a span and its events: all that makes a span big."""
    carriers = [span.attributes, *(event.attributes for event in span.events)]
    return sum(len(value) for found in carriers for value in (found or {}).values() if isinstance(value, str))
