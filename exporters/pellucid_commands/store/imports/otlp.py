"""Import of OTLP in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pellucid import semconv
from pellucid_commands.store.imports.otlp_json import read_spans
from pellucid_commands.store.imports.target import Imported
from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.local.records import span_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid_commands.store.imports.target import Writers
    from pellucid_exporters.local.writer import Record


def import_otlp(source: Path, store: Path, writers: Writers) -> Imported:
    """Import the spans of a file, which is read twice.

    Raises:
        ConfigError: it is not OTLP in JSON.
    """
    counts = Imported()
    writers.write_all(_new_spans(source, store, counts))
    return counts


def _new_spans(source: Path, store: Path, counts: Imported) -> Iterator[tuple[str, Record]]:
    """Yield the spans that the store does not have, each with its service, and count all."""
    membership = _Membership(read_spans(source))
    target = StoreReader(store) if store.exists() else None
    there: dict[str, set[str]] = {}
    for span in read_spans(source):
        run_id, parent_run_id = membership.of(span)
        if run_id not in there:
            there[run_id] = {row.span_id for row in target.spans(run_id)} if target is not None else set()
            counts.runs += bool(run_id) and not there[run_id]
        name = f"{_ids(span)[0]:016x}"
        if name in there[run_id]:
            counts.there += 1
            continue
        there[run_id].add(name)
        counts.spans += 1
        yield str(span.resource.attributes.get("service.name", "")), span_record(span, run_id, parent_run_id)


class _Membership:
    """Runs of the spans of a file: a span that names none belongs to that of its parent, else of its trace."""

    def __init__(self, spans: Iterable[ReadableSpan]) -> None:
        self._runs: dict[int, str] = {}
        self._parents: dict[int, int] = {}
        self._traces: dict[int, tuple[int, str]] = {}
        for span in spans:  # only ids are kept
            span_id, trace_id, parent = _ids(span)
            if parent:
                self._parents[span_id] = parent
            run_id = _attributes(span).get(semconv.RUN_ID)
            if isinstance(run_id, str):
                self._runs[span_id] = run_id
                begun = (span.start_time or 0, run_id)
                self._traces[trace_id] = min(begun, self._traces.get(trace_id, begun))

    def of(self, span: ReadableSpan) -> tuple[str, str | None]:
        """Return the run of a span, and, if it is the span of a run, that of its parent."""
        span_id, trace_id, parent = _ids(span)
        run_id = self._run_of(span_id, trace_id)
        if not parent or _attributes(span).get(semconv.PHASE) != semconv.RUN:
            return run_id, None
        outer = self._run_of(parent, trace_id)
        return run_id, outer if outer not in {"", run_id} else None

    def _run_of(self, span_id: int, trace_id: int) -> str:
        seen = set[int]()
        while span_id and span_id not in seen:
            if span_id in self._runs:
                return self._runs[span_id]
            seen.add(span_id)
            span_id = self._parents.get(span_id, 0)
        return self._traces.get(trace_id, (0, ""))[1]


def _ids(span: ReadableSpan) -> tuple[int, int, int]:
    """Return the ids of a span, its trace and its parent, which is 0 if there is none."""
    assert span.context is not None  # read so
    return span.context.span_id, span.context.trace_id, span.parent.span_id if span.parent is not None else 0


def _attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}
