"""Wrappers of the SDK's exporters that count failures, bound the size of requests, and survive a fork."""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from pellucid_exporters.otlp.batches import split, weigh_record, weigh_span
from pellucid_exporters.sampling.exemplars import ExemplarBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from enum import Enum

    from opentelemetry.sdk._logs import ReadableLogRecord, ReadWriteLogRecord
    from opentelemetry.sdk.trace import ReadableSpan

_log: Final = logging.getLogger("pellucid_exporters.outlets")

QUEUE_SIZE: Final = 16384
"""Spans, and log records, that wait for export unless `OTEL_BSP_MAX_QUEUE_SIZE` and `OTEL_BLRP_MAX_QUEUE_SIZE` say
otherwise: a burst of runs fits into it."""

ExporterT = TypeVar("ExporterT", SpanExporter, MetricExporter, LogRecordExporter)


class Outlet(Generic[ExporterT]):
    """Common base of exporters of spans, metrics and logs.

    Attributes:
        failures: Number of failed exports. The SDK runs one export at a time.
    """

    def __init__(self, make: Callable[[], ExporterT], on_failure: Callable[[], None]) -> None:
        self._make: Callable[[], ExporterT] = make
        self._on_failure = on_failure
        self._exporter: ExporterT | None = make()
        self._inherited: ExporterT | None = None
        self._closed = False
        self.failures = 0

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        """Close the exporter at once and interrupt its wait for the next retry. Idempotent."""
        if not self._closed and self._exporter is not None:
            self._closed = True
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # one of the three has no types

    def force_flush(self, timeout_millis: float = 0) -> bool:
        """Do nothing: exporters do not buffer."""
        return True

    def renew(self) -> None:
        """Discard the exporter in a forked child: its connections belong to the parent, and closing them could hang."""
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


class ItemOutlet(Outlet[ExporterT]):
    """Exporter of items in requests of bounded size. A failed request does not stop the next one.

    Attributes:
        taken: Number of items removed from the queue.
    """

    def __init__(self, make: Callable[[], Any], on_failure: Callable[[], None], on_loss: Callable[[int], None]) -> None:
        super().__init__(make, on_failure)
        self._on_loss = on_loss
        self._told_of_size = False
        self.taken = 0

    def _send(self, items: Sequence[Any], weigh: Callable[[Any], int]) -> bool:
        self.taken += len(items)
        failed = self.failures
        for batch in split(items, weigh, self._refuse):
            if not self._attempt(partial(_export, batch=batch)):
                self._on_loss(len(batch))
        return self.failures == failed

    def _refuse(self, item: object, weight: int) -> None:
        self.failures += 1
        self._on_loss(1)
        if not self._told_of_size:
            self._told_of_size = True
            _log.warning(
                "left out a %s of %d bytes: no receiver would take it; more such are only counted",
                type(item).__name__,
                weight,
            )


def _export(exporter: Any, *, batch: Sequence[Any]) -> Enum:
    result: Enum = exporter.export(batch)
    return result


class SpanOutlet(ItemOutlet[SpanExporter], SpanExporter):
    """Exporter of spans."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans."""
        return SpanExportResult.SUCCESS if self._send(spans, weigh_span) else SpanExportResult.FAILURE


class MetricOutlet(Outlet[MetricExporter], MetricExporter):
    """Exports metrics with the temporality and aggregation that its exporter prefers.

    Exemplars of traces for which `is_dropped` returns True are omitted. Those for which `is_undecided` returns True
    wait for a later export.
    """

    def __init__(
        self,
        make: Callable[[], MetricExporter],
        on_failure: Callable[[], None],
        is_dropped: Callable[[int], bool] = lambda _: False,
        is_undecided: Callable[[int], bool] = lambda _: False,
    ) -> None:
        Outlet.__init__(self, make, on_failure)
        self._exemplars = ExemplarBuffer(is_dropped, is_undecided)
        assert self._exporter is not None
        MetricExporter.__init__(
            self,
            preferred_temporality=self._exporter._preferred_temporality,  # noqa: SLF001  (as the SDK's own reader does)
            preferred_aggregation=self._exporter._preferred_aggregation,  # noqa: SLF001
        )

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        """Export one collection."""
        self._exemplars.release_into(metrics_data)
        sent = self._attempt(lambda exporter: exporter.export(metrics_data, timeout_millis))
        return MetricExportResult.SUCCESS if sent else MetricExportResult.FAILURE


class LogOutlet(ItemOutlet[LogRecordExporter], LogRecordExporter):
    """Exporter of log records."""

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Export log records."""
        return LogRecordExportResult.SUCCESS if self._send(batch, weigh_record) else LogRecordExportResult.FAILURE


class Admission:
    """Admission to a queue: counts items, and drops those for which there is no room.

    The SDK drops the oldest item of a full queue and only logs it. Items are admitted here only while there is room,
    so its queue never overflows, and each dropped item is counted.
    """

    def __init__(self, size: int, outlet: ItemOutlet[Any], on_drop: Callable[[int], None]) -> None:
        self._size = size
        self._outlet = outlet
        self._on_drop = on_drop
        self._lock = threading.RLock()  # reentrant: garbage collection may end a span while the lock is held
        self._admitted = 0

    def admits(self) -> bool:
        """Reserve room for an item that must then be queued. Without room, count a drop and return False."""
        with self._lock:
            has_room = self._admitted - self._outlet.taken < self._size
            self._admitted += has_room
        if not has_room:
            self._on_drop(1)
        return has_room

    def renew(self) -> None:
        """Reset in a forked child, where the SDK has emptied the queue: its items belong to the parent."""
        self._lock = threading.RLock()
        self._admitted = self._outlet.taken


class SpanQueue(BatchSpanProcessor):
    """The SDK's batch processor for spans, with bounded admission."""

    def __init__(self, outlet: SpanOutlet, on_drop: Callable[[int], None]) -> None:
        size, batch = _bounds("OTEL_BSP")
        super().__init__(outlet, max_queue_size=size, max_export_batch_size=batch)
        self.admission = Admission(size, outlet, on_drop)

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a sampled span, or drop and count it."""
        if span.context and span.context.trace_flags.sampled and self.admission.admits():
            super().on_end(span)


class LogQueue(BatchLogRecordProcessor):
    """The SDK's batch processor for log records, with bounded admission."""

    def __init__(self, outlet: LogOutlet, on_drop: Callable[[int], None]) -> None:
        size, batch = _bounds("OTEL_BLRP")
        super().__init__(outlet, max_queue_size=size, max_export_batch_size=batch)
        self.admission = Admission(size, outlet, on_drop)

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Queue a record, or drop and count it."""
        if self.admission.admits():
            super().on_emit(log_record)

    def put(self, record: Any) -> None:
        """Queue what has the attributes of a `ReadableLogRecord`, or drop and count it."""
        if self.admission.admits():
            self._batch_processor.emit(record)  # as `on_emit` does with what it makes of a record


def _bounds(prefix: str) -> tuple[int, int | None]:
    """Return the queue size and the batch size; `None` leaves them to the environment."""
    size = _queue_size(f"{prefix}_MAX_QUEUE_SIZE")
    return size, None if os.environ.get(f"{prefix}_MAX_EXPORT_BATCH_SIZE") else min(512, size)


def _queue_size(variable: str) -> int:
    named = os.environ.get(variable, "").strip()
    if not named:
        return QUEUE_SIZE
    if named.isascii() and named.isdigit() and int(named) > 0:
        return int(named)
    _log.warning("%s=%r is not a number above 0; using %d", variable, named, QUEUE_SIZE)
    return QUEUE_SIZE
