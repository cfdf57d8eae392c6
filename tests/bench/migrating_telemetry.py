"""Recorder that is put before a program of any framework: it prints the spans and metrics of the program at its end."""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import sys
from datetime import datetime
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

_exporter = InMemorySpanExporter()
_reader = InMemoryMetricReader()
_rows: list[tuple[Any, Any, str, float, float]] = []
"""Id, id of the parent, name, start and end in seconds."""


class Recorder:
    """Records the spans of openai-agents, which are not OpenTelemetry's."""

    def on_trace_start(self, trace: Any) -> None:
        """Ignore the start."""

    def on_trace_end(self, trace: Any) -> None:
        """Record a trace, which has no times."""
        _rows.append((trace.trace_id, None, f"trace {trace.name}", 0, 0))

    def on_span_start(self, span: Any) -> None:
        """Ignore the start."""

    def on_span_end(self, span: Any) -> None:
        """Record a span."""
        name = getattr(span.span_data, "name", None) or getattr(span.span_data, "server", None) or ""
        start, end = (datetime.fromisoformat(text).timestamp() for text in (span.started_at, span.ended_at))
        _rows.append((span.span_id, span.parent_id or span.trace_id, f"{span.span_data.type} {name}", start, end))

    def shutdown(self) -> None:
        """Do nothing."""

    def force_flush(self) -> None:
        """Do nothing."""


def show() -> None:
    """Print the tree of spans, and the names of metrics."""
    if "langsmith" in sys.modules:
        importlib.import_module("langchain_core.tracers.langchain").wait_for_all_tracers()
    for span in _exporter.get_finished_spans():
        scope = span.instrumentation_scope.name if span.instrumentation_scope else ""
        parent = span.parent.span_id if span.parent else None
        assert span.context is not None
        assert span.start_time is not None
        assert span.end_time is not None
        _rows.append(
            (span.context.span_id, parent, f"{span.name}  [{scope}]", span.start_time / 1e9, span.end_time / 1e9)
        )
    known = {row[0] for row in _rows}

    def print_below(parent: Any, depth: int) -> None:
        for row in sorted(_rows, key=lambda row: row[3]):
            if (row[1] if row[1] in known else None) == parent:
                print(f"{'  ' * depth}{row[2]}  {(row[4] - row[3]) * 1e3:.0f} ms")
                print_below(row[0], depth + 1)

    print_below(None, 0)
    measured = _reader.get_metrics_data()
    resources = measured.resource_metrics if measured is not None else []
    names = sorted({metric.name for part in resources for scope in part.scope_metrics for metric in scope.metrics})
    print("metrics:", ", ".join(names) or "none")


trace.set_tracer_provider(_provider := TracerProvider())
_provider.add_span_processor(SimpleSpanProcessor(_exporter))
metrics.set_meter_provider(MeterProvider([_reader]))
if importlib.util.find_spec("agents") is not None:
    importlib.import_module("agents").set_trace_processors([Recorder()])
atexit.register(show)
