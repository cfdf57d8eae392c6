"""OTLP in JSON: one document, or one in each line, as the file exporter of the Collector writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pellucid.errors import ConfigError
from pellucid_commands.receiving.decoding import from_json, log_records_of, spans_of

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

SIGNS: Final = tuple(
    name for kind in ("Spans", "Logs", "Metrics") for name in (f"resource{kind}", f"resource_{kind.lower()}")
)
"""Keys of a document."""


def read_spans(path: Path) -> Iterator[ReadableSpan]:
    """Yield the spans of a file.

    Raises:
        ConfigError: it is not OTLP in JSON.
    """
    for request in _requests(path, ExportTraceServiceRequest):
        for span in spans_of(request):
            if span is None:
                raise ConfigError(f"{path}: a span has no valid ids or times")
            yield span


def read_log_records(path: Path) -> Iterator[tuple[str, str, Any]]:
    """Yield the log records of a file, each with the names of its service and logger.

    Raises:
        ConfigError: it is not OTLP in JSON.
    """
    for request in _requests(path, ExportLogsServiceRequest):
        yield from log_records_of(request)


def _requests(path: Path, kind: Callable[[], Any]) -> Iterator[Any]:
    """Yield a request for each document; it is empty if the document is of another signal."""
    try:
        for document in _documents(path):
            yield from_json(document, kind())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: this is no OTLP in JSON ({error})") from error


def _documents(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        try:
            first = json.loads(file.readline())
        except ValueError:  # not one in each line
            file.seek(0)
            yield json.load(file)
            return
        yield first
        for line in file:
            if line.strip():
                yield json.loads(line)
