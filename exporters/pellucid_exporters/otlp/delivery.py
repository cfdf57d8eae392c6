"""Wrappers of the SDK's exporters that count failures and losses, bound requests, and survive a fork."""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from pellucid_exporters.collected import overflowing
from pellucid_exporters.otlp.batches import split
from pellucid_exporters.otlp.encoding import Encoded, Encoder
from pellucid_exporters.otlp.line_records import LineRecord
from pellucid_exporters.otlp.points import PointFilter
from pellucid_exporters.sampling.exemplars import ExemplarBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence, Sized

    from opentelemetry.sdk._logs import ReadableLogRecord, ReadWriteLogRecord
    from opentelemetry.sdk.trace import ReadableSpan

_log: Final = logging.getLogger("pellucid_exporters.outlets")

QUEUE_SIZE: Final = 16384
"""Spans, and log records, that wait for export unless `OTEL_BSP_MAX_QUEUE_SIZE` and `OTEL_BLRP_MAX_QUEUE_SIZE` say
otherwise: a burst of runs fits into it."""

SLACK: Final = 1024
"""Places beyond that, for threads that find the last place at once: the SDK would drop the oldest item, uncounted."""

ExporterT = TypeVar("ExporterT", SpanExporter, MetricExporter, LogRecordExporter)


class Outlet(Generic[ExporterT]):
    """Common base of exporters of spans, metrics and logs.

    Attributes:
        items: Noun for log messages.
        failures: Number of exports that failed, or of which the receiver rejected items. The SDK runs one at a time.
    """

    items: ClassVar[str]

    def __init__(
        self, make: Callable[..., Any], on_failure: Callable[[], None], on_loss: Callable[[str, int], None]
    ) -> None:
        """Create the exporter.

        Args:
            make: Creates an exporter; takes `on_answer`.
            on_failure: Called for each failed export.
            on_loss: Called with the reason and the number of lost items.
        """
        self._make: Callable[[], ExporterT] = partial(make, on_answer=self._take_answer)
        self._on_failure = on_failure
        self._on_loss = on_loss
        self._told: set[str] = set()
        self._exporter: ExporterT | None = self._make()
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

    def _attempt(self, send: Callable[[ExporterT], bool]) -> bool:
        if self._exporter is None:
            self._exporter = self._make()
        try:
            succeeded = send(self._exporter)
        except Exception:  # noqa: BLE001  (counted; the SDK would only log it)
            _log.exception("exporting with %s failed", type(self._exporter).__name__)
            succeeded = False
        if not succeeded:
            self.failures += 1
            self._on_failure()
        return succeeded

    def _take_answer(self, rejected: int, message: str) -> None:
        """Count the items of a delivered request that the receiver rejected."""
        if rejected:
            self.failures += 1
            self._on_failure()
            self._on_loss("rejected", rejected)
            text = "the receiver rejected %d %s: %.300r; more are only counted"
            self._tell("rejected", text, rejected, self.items, message)
        else:
            self._tell("answer", "the receiver took %s and warned: %.300r; more is not logged", self.items, message)

    def _tell(self, topic: str, text: str, *values: object) -> None:
        """Log a warning, once for each topic."""
        if topic not in self._told:
            self._told.add(topic)
            _log.warning(text, *values)


class ItemOutlet(Outlet[ExporterT]):
    """Exporter of items in requests of bounded size. A failed request does not stop the next one."""

    def __init__(
        self, make: Callable[..., Any], on_failure: Callable[[], None], on_loss: Callable[[str, int], None]
    ) -> None:
        super().__init__(make, on_failure, on_loss)
        self._encoder = Encoder()

    def _send(self, items: Sequence[Any], encode: Callable[[Encoder, Any], Encoded]) -> bool:
        failed = self.failures
        for batch in split(self._encoded(items, encode), self._refuse):
            request = self._encoder.request(batch)
            if not self._attempt(partial(_send, request=request, batch=batch)):
                self._on_loss("export_failed", len(batch))
        return self.failures == failed

    def _encoded(self, items: Sequence[Any], encode: Callable[[Encoder, Any], Encoded]) -> Iterator[Encoded]:
        for item in items:
            try:
                yield encode(self._encoder, item)
            except Exception as error:  # noqa: BLE001  (a value of the application; the others are sent)
                self._lose(item, "not_encodable", f"it cannot be encoded ({type(error).__name__})")

    def _refuse(self, encoded: Encoded) -> None:
        self._lose(encoded.item, "too_large", f"no receiver would take {len(encoded.content)} bytes")

    def _lose(self, item: object, reason: str, text: str) -> None:
        self.failures += 1
        self._on_loss(reason, 1)
        kind = type(item).__name__
        self._tell(kind, "left out a %s: %s; more such are only counted", kind, text)


def _send(exporter: Any, *, request: bytes, batch: Sequence[Encoded]) -> bool:
    return bool(exporter.send(request, batch))


class SpanOutlet(ItemOutlet[SpanExporter], SpanExporter):
    """Exporter of spans."""

    items = "spans"

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans."""
        return SpanExportResult.SUCCESS if self._send(spans, Encoder.span) else SpanExportResult.FAILURE


class MetricOutlet(Outlet[MetricExporter], MetricExporter):
    """Exports metrics with the temporality and aggregation that its exporter prefers.

    Exemplars of traces for which `is_dropped` returns True are omitted. Those for which `is_undecided` returns True
    wait for a later export. `on_overflow` is called with the name of each instrument at its limit of series.
    """

    items = "data points"

    def __init__(
        self,
        make: Callable[..., MetricExporter],
        on_failure: Callable[[], None],
        on_loss: Callable[[str, int], None],
        is_dropped: Callable[[int], bool] = lambda _: False,
        is_undecided: Callable[[int], bool] = lambda _: False,
        on_overflow: Callable[[str], None] = lambda _: None,
    ) -> None:
        Outlet.__init__(self, make, on_failure, on_loss)
        self._exemplars = ExemplarBuffer(is_dropped, is_undecided)
        self._points = PointFilter()
        self._on_overflow = on_overflow
        assert self._exporter is not None
        MetricExporter.__init__(
            self,
            preferred_temporality=self._exporter._preferred_temporality,  # noqa: SLF001  (as the SDK's own reader does)
            preferred_aggregation=self._exporter._preferred_aggregation,  # noqa: SLF001
        )

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        """Export one collection."""
        self._exemplars.release_into(metrics_data)
        self._points.apply(metrics_data)
        for name in overflowing([metrics_data]):
            self._on_overflow(name)
        failed = self.failures
        self._attempt(lambda exporter: exporter.export(metrics_data, timeout_millis).name == "SUCCESS")
        return MetricExportResult.SUCCESS if self.failures == failed else MetricExportResult.FAILURE

    def renew(self) -> None:
        """Discard the exporter and the exemplars that wait in a forked child."""
        super().renew()
        self._exemplars.forget()


class MetricSchedule(PeriodicExportingMetricReader):
    """The SDK's reader that exports metrics again and again."""

    def renew(self) -> None:
        """Renew the lock in a forked child: an export of the parent may hold it."""
        self._export_lock = threading.Lock()


class LogOutlet(ItemOutlet[LogRecordExporter], LogRecordExporter):
    """Exporter of log records."""

    items = "log records"

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Export log records."""
        return LogRecordExportResult.SUCCESS if self._send(batch, _encode_record) else LogRecordExportResult.FAILURE


def _encode_record(encoder: Encoder, record: ReadableLogRecord | LineRecord) -> Encoded:
    return encoder.line(record) if isinstance(record, LineRecord) else encoder.record(record)


class SpanQueue(BatchSpanProcessor):
    """The SDK's batch processor for spans; without room, the newest span is dropped and counted."""

    def __init__(self, outlet: SpanOutlet, on_drop: Callable[[str, int], None]) -> None:
        self._size, batch = _bounds("OTEL_BSP")
        super().__init__(outlet, max_queue_size=self._size + SLACK, max_export_batch_size=batch)
        self._on_drop = on_drop
        self._waiting: Sized = self._batch_processor._queue  # noqa: SLF001  (to see whether there is room)

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a sampled span, or drop and count it."""
        if span.context and span.context.trace_flags.sampled:
            if len(self._waiting) < self._size:
                self._batch_processor.emit(span)
            else:
                self._on_drop("queue_full", 1)


class LogQueue(BatchLogRecordProcessor):
    """The SDK's batch processor for log records; without room, the newest record is dropped and counted."""

    def __init__(self, outlet: LogOutlet, on_drop: Callable[[str, int], None]) -> None:
        self._size, batch = _bounds("OTEL_BLRP")
        super().__init__(outlet, max_queue_size=self._size + SLACK, max_export_batch_size=batch)
        self._on_drop = on_drop
        self._waiting: Sized = self._batch_processor._queue  # noqa: SLF001  (to see whether there is room)

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Queue a record, or drop and count it."""
        if len(self._waiting) < self._size:
            super().on_emit(log_record)
        else:
            self._on_drop("queue_full", 1)

    def put(self, record: LineRecord) -> None:
        """Queue the record of a line, or drop and count it."""
        if len(self._waiting) < self._size:
            self._batch_processor.emit(record)  # type: ignore[arg-type]  # as `on_emit` does with what it makes of a record
        else:
            self._on_drop("queue_full", 1)


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
