"""Keys by which events and log lines that are there already are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pellucid_exporters.stored.log_lines import LogLineRow


def event_key(time: int, name: str, span_id: str | None, payload: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key of an event."""
    return time, name, span_id, payload.get("score"), payload.get("run_id")


def log_key(line: LogLineRow) -> tuple[Any, ...]:
    """Return the key of a log line."""
    return line.time, line.span_id, line.logger, line.body
