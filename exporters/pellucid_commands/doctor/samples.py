"""Test span, metric and log record, distinguishable from those of the application."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from pellucid_exporters.options import Signal

SERVICE: Final = "pellucid-doctor"
NAME: Final = "pellucid.doctor.test"
"""Name of the span and of the metric, and the text of the log record."""


def _resource() -> Resource:
    """Return the resource of the environment with our own name: test items must not count as the application's."""
    return Resource.create().merge(Resource({"service.name": SERVICE}))


def make_spans() -> Any:
    """Return one ended span."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(sampler=ALWAYS_ON, resource=_resource(), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    provider.get_tracer(SERVICE).start_span(NAME).end()
    return kept.get_finished_spans()


def make_metrics() -> Any:
    """Return one counter with the value 1."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource=_resource(), shutdown_on_exit=False)
    provider.get_meter(SERVICE).create_counter(NAME, description="Sent by `pellucid doctor`.").add(1)
    return reader.get_metrics_data()


def make_logs() -> Any:
    """Return one log record."""
    kept = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]  # a constructor without types
    provider = LoggerProvider(resource=_resource(), shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(kept))
    provider.get_logger(SERVICE).emit(LogRecord(severity_number=SeverityNumber.INFO, body=NAME))
    return kept.get_finished_logs()


MAKERS: Final[Mapping[Signal, Callable[[], Any]]] = {"traces": make_spans, "metrics": make_metrics, "logs": make_logs}
WORDS: Final[Mapping[Signal, str]] = {"traces": "span", "metrics": "metric", "logs": "log record"}
