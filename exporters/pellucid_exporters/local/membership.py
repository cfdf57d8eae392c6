"""Runs of spans: a span of another library belongs to the run of its parent, else of its trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pellucid.semconv.names import PHASE, RUN, RUN_ID
from pellucid_exporters.local.bodies import storable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import ReadableSpan

MOST_KNOWN: Final = 65_536
"""Maximum number of open spans, and of traces, that are known; the oldest are forgotten first."""

_NONE: Final[tuple[str, str | None]] = ("", None)


class Membership:
    """Runs of open spans, and of traces. Not thread-safe."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[str, str | None]] = {}
        self._traces: dict[int, str] = {}

    def start(self, span: ReadableSpan) -> tuple[str, str | None]:
        """Return the run of a span, and, if it is the span of a run, that of its parent."""
        attributes, context = span.attributes or {}, span.context
        assert context is not None  # it was sampled
        trace_id, run_id, run_above = context.trace_id, _named_run(attributes), None
        if not run_id:
            run_id = self._run_above(span) or self._traces.get(trace_id, "")
        else:
            if trace_id not in self._traces:
                _put(self._traces, trace_id, run_id)
            if attributes.get(PHASE) == RUN and (above := self._run_above(span)) != run_id:
                run_above = above or None
        found = run_id, run_above
        _put(self._open, context.span_id, found)
        return found

    def _run_above(self, span: ReadableSpan) -> str:
        above = span.parent
        return self._open.get(above.span_id, _NONE)[0] if above is not None else ""

    def end(self, span: ReadableSpan, attributes: Mapping[str, Any]) -> tuple[str, str | None]:
        """Return the same of a span that has ended, with these attributes."""
        context = span.context
        assert context is not None  # it was sampled
        started, run_above = self._open.pop(context.span_id, _NONE)
        return _named_run(attributes) or started or self._traces.get(context.trace_id, ""), run_above

    def of(self, trace_id: int, span_id: int) -> str:
        """Return the run of an open span, or else of its trace; an empty text if there is none."""
        return self._open.get(span_id, _NONE)[0] or self._traces.get(trace_id, "")


def _named_run(attributes: Mapping[str, Any]) -> str:
    """Return the id of the run that a span names, or an empty text."""
    run_id = attributes.get(RUN_ID)
    return storable(run_id) if isinstance(run_id, str) else ""


def _put(known: dict[int, Any], key: int, value: Any) -> None:
    known[key] = value
    if len(known) > MOST_KNOWN:
        del known[next(iter(known))]
