"""Rows of spans, from the form in which they are stored."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pellucid import semconv
from pellucid_exporters.local.stored_attributes import StoredAttributes
from pellucid_exporters.stored.rows import INTERRUPTED, RUNNING, SpanRow, text_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable


def span_row(
    row: sqlite3.Row,
    definition: str,
    run_id: str,
    trace_id: str | None,
    sequence: int,
    seen_until: Callable[[int], int | None],
) -> SpanRow:
    """Return a span of a shape.

    Args:
        row: Its row.
        definition: Text of its shape.
        run_id: Id of its run.
        trace_id: Trace of its run.
        sequence: Its number in the run.
        seen_until: Says when a process that is gone was last seen.
    """
    attributes = StoredAttributes(definition, row["values"], row["digests"], run_id)
    extra: dict[str, Any] = json.loads(row["extra"]) if row["extra"] is not None else {}
    seen: int | None = None
    if row["duration"] is None:
        seen = seen_until(row["process"])
        shown = RUNNING if seen is None else INTERRUPTED
    else:
        shown = text_of(attributes, semconv.OUTCOME) or ("error" if attributes.status == "error" else "ok")
    return SpanRow(
        run_id=run_id,
        sequence=sequence,
        trace_id=row["trace_id"].hex() if row["trace_id"] is not None else trace_id or "",
        span_id=row["span_id"].hex(),
        # Many spans have the same parent.
        parent_span_id=sys.intern(row["parent_span_id"].hex()) if row["parent_span_id"] is not None else None,
        name=attributes.name,
        phase=text_of(attributes, semconv.PHASE),
        iteration=row["iteration"],
        start=row["start"],
        end=row["start"] + row["duration"] if row["duration"] is not None else None,
        status=shown,
        error_type=text_of(attributes, semconv.ERROR_TYPE),
        error=extra.get("error"),
        attributes=attributes,
        events=extra.get("events", ()),
        links=extra.get("links", ()),
        kind=attributes.kind,
        scope=attributes.scope,
        seen_until=max(seen, row["start"]) if seen is not None else None,
    )
