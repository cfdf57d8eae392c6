"""Spans of OTLP in JSON: one document, or one in each line, as the file exporter of the Collector writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pellucid.errors import ConfigError
from pellucid_commands.receiving.decoding import from_json, spans_of

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

SIGNS: Final = ("resourceSpans", "resource_spans")
"""Keys of a document."""


def read_spans(path: Path) -> Iterator[ReadableSpan]:
    """Yield the spans of a file.

    Raises:
        ConfigError: it is not OTLP in JSON.
    """
    try:
        for document in _documents(path):
            for span in spans_of(from_json(document, ExportTraceServiceRequest())):
                if span is None:
                    raise ConfigError(f"{path}: a span has no valid ids or times")
                yield span
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
