"""Rows of the lines in a recording: those of the file exporter, and those of `pellucid store export`."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid_exporters.stored.log_lines import LogLineRow
from pellucid_exporters.stored.rows import EventRow, RunRow, SpanRow, count_of, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    Line = Mapping[str, Any]

_ENVELOPE: Final = frozenset(
    {"type", "time", "service", "name", "agent", "run_id", "iteration", "trace_id", "span_id", "conversation_id"}
)
_SECOND: Final = len("2026-01-01T00:00:00")
_RUN: Final = {field.name for field in fields(RunRow)} - {"total"}
_SPAN: Final = {field.name for field in fields(SpanRow)}
_EVENT: Final = {field.name for field in fields(EventRow)}
_LOG_LINE: Final = {field.name for field in fields(LogLineRow)}


def time_of(text: str) -> int:
    """Return the nanoseconds since the epoch of a time in ISO 8601 with nine decimals."""
    seconds = datetime.fromisoformat(f"{text[:_SECOND]}+00:00").timestamp()
    return int(seconds) * 10**9 + int(text[_SECOND + 1 : _SECOND + 10])


def times_of(line: Line) -> tuple[int, int | None]:
    """Return the start and the end of a span."""
    if "start" in line:
        return line["start"], line["end"]
    start = time_of(line["time"])
    return start, start + round(line["duration_ms"] * 1e6)


def is_own(line: Line) -> bool:
    """Return whether a span is one of Pellucid's boundaries, and has the attributes of one."""
    attributes = line["attributes"]
    return line.get("scope") == semconv.SCOPE and isinstance(attributes.get(semconv.RUN_ID), str)


def run_row(line: Line) -> RunRow:
    """Return a run of an export."""
    known = {name: value for name, value in line.items() if name in _RUN}
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    return RunRow(**values)


def span_row(line: Line, run_id: str, sequence: int) -> SpanRow:
    """Return a span."""
    if "start" in line:
        values = {name: value for name, value in line.items() if name in _SPAN}
        parts = {name: values.get(name) or () for name in ("events", "links")}
        return SpanRow(**{**values, **parts, "run_id": run_id, "sequence": sequence})
    attributes = line["attributes"]
    start, end = times_of(line)
    return SpanRow(
        run_id=run_id,
        sequence=sequence,
        trace_id=line["trace_id"],
        span_id=line["span_id"],
        parent_span_id=line.get("parent_span_id"),
        name=line["name"],
        phase=text_of(attributes, semconv.PHASE),
        iteration=count_of(attributes, semconv.ITERATION),
        start=start,
        end=end,
        status=text_of(attributes, semconv.OUTCOME) or ("error" if line["status"] == "error" else "ok"),
        error_type=text_of(attributes, semconv.ERROR_TYPE),
        error=line.get("status_text"),
        attributes=attributes,
        events=[{**event, "time": time_of(event["time"])} for event in line["events"]] or (),
        links=[{"trace_id": link["trace_id"], "span_id": link["span_id"]} for link in line["links"]] or (),
        kind=line["kind"],
        scope=line.get("scope") or "",
    )


def event_row(line: Line) -> EventRow:
    """Return an event."""
    if "payload" in line:
        return EventRow(**{name: value for name, value in line.items() if name in _EVENT})
    return EventRow(
        run_id=line["run_id"],
        time=time_of(line["time"]),
        name=line["name"],
        span_id=line.get("span_id"),
        payload={name: value for name, value in line.items() if name not in _ENVELOPE},
    )


def log_line_row(line: Line) -> LogLineRow:
    """Return a log line of an export."""
    return LogLineRow(**{name: value for name, value in line.items() if name in _LOG_LINE})
