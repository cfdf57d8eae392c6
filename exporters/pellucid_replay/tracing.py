"""Spans of a replay: marked, linked to the recording, and kept to be compared with it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import Attributes, AttributeValue

from pellucid import semconv
from pellucid.telemetry import TelemetryOptions
from pellucid.telemetry.pipeline import CatalogSink, Pipeline, complete
from pellucid.tools.catalog_records import CatalogListing, catalog_json
from pellucid_replay.tape import TapedSpan
from pellucid_replay.taped_tools import tools_of


@dataclass(slots=True, eq=False)
class ReplayedSpan(Span):
    """A span of a replay, which is kept and passed on.

    Attributes:
        name: Name of the span.
        attributes: Its attributes so far.
        parent: Span that it is below, if that belongs to the replay.
        start: Nanoseconds since the epoch.
        stop: The same of its end; None if it has not ended.
    """

    name: str
    attributes: dict[str, Any]
    parent: ReplayedSpan | None
    start: int
    stop: int | None = field(default=None, init=False)
    _inner: Span = field(repr=False)

    def get_span_context(self) -> SpanContext:
        """Return the context of the span that it is passed on to."""
        return self._inner.get_span_context()

    def is_recording(self) -> bool:
        """Return True: content is compared whether anybody else records it or not."""
        return True

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set attributes."""
        self.attributes.update(attributes)
        self._inner.set_attributes(attributes)

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """Set an attribute."""
        self.set_attributes({key: value})

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        """Add an event."""
        self._inner.add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        """Add a link."""
        self._inner.add_link(context, attributes)

    def update_name(self, name: str) -> None:
        """Change the name."""
        self.name = name
        self._inner.update_name(name)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status."""
        self._inner.set_status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Record an exception."""
        self._inner.record_exception(exception, attributes, timestamp, escaped)

    def end(self, end_time: int | None = None) -> None:
        """End the span."""
        self.stop = self.stop or end_time or time.time_ns()
        self._inner.end(end_time)


class ReplayTracerProvider(trace.TracerProvider):
    """Tracer provider whose spans have `pellucid.replay.of`, and whose runs link to the recorded ones.

    Attributes:
        spans: The spans in the order of their starts.
        catalogs: Catalogues that providers listed, by digest.
        recorded: Catalogues of the recording, by digest.
        of: Root of the recorded run that is replayed; None while a run is none of a replay.
        marks: Further attributes of runs.
    """

    def __init__(self, inner: trace.TracerProvider, marks: Mapping[str, AttributeValue] | None = None) -> None:
        """Create a provider that passes spans on to `inner`; `marks` are further attributes of runs."""
        self.marks = marks or {}
        self.spans: list[ReplayedSpan] = []
        self.catalogs: dict[str, Mapping[str, Any]] = {}
        self.recorded: Mapping[str, Mapping[str, Any]] = {}
        self.of: TapedSpan | None = None
        self._inner = inner

    def keep(self, listing: CatalogListing) -> None:
        """Keep a catalogue, unless it is too large."""
        if listing.digest not in self.catalogs and (text := catalog_json(listing)) is not None:
            self.catalogs[listing.digest] = json.loads(text)

    def pass_on(self, sink: CatalogSink, listing: CatalogListing) -> None:
        """Give a catalogue to a sink, as it was recorded: the options of stand-ins are not those of the tools."""
        recorded = self.recorded.get(listing.digest)
        tools = listing.tools if recorded is None else tuple(tools_of(recorded, lambda tool: tool))
        sink(replace(listing, tools=tools))

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> trace.Tracer:
        """Return a tracer."""
        inner = self._inner.get_tracer(instrumenting_module_name, instrumenting_library_version, schema_url, attributes)
        return _Tracer(self, inner)


class _Tracer(trace.Tracer):
    def __init__(self, provider: ReplayTracerProvider, inner: trace.Tracer) -> None:
        self._provider = provider
        self._inner = inner

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        """Start a marked span."""
        provider, marked = self._provider, dict(attributes or {})
        if marked.get(semconv.PHASE) == semconv.RUN:
            marked.update(provider.marks)
        if (recorded := provider.of) is not None:
            marked[semconv.REPLAY_OF] = recorded.run_id
            if marked.get(semconv.PHASE) == semconv.RUN:
                links = [*(links or ()), Link(_context_of(recorded))]
        inner = self._inner.start_span(
            name, context, kind, marked, links, start_time, record_exception, set_status_on_exception
        )
        outer = trace.get_current_span(context)
        outermost = outer if isinstance(outer, ReplayedSpan) else None
        span = ReplayedSpan(name, marked, outermost, start_time or time.time_ns(), inner)
        provider.spans.append(span)
        return span

    @contextmanager
    def start_as_current_span(  # type: ignore[override]  # noqa: PLR0917  (the API's, whose value is a decorator, too)
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> Iterator[Span]:
        """Start a marked span and make it the current one."""
        span = self.start_span(
            name, context, kind, attributes, links, start_time, record_exception, set_status_on_exception
        )
        with trace.use_span(span, end_on_exit, record_exception, set_status_on_exception):
            yield span


def kept_pipeline(
    own: Pipeline | None, marks: Mapping[str, AttributeValue] | None = None
) -> tuple[Pipeline, ReplayTracerProvider]:
    """Return a pipeline that keeps its spans, and records no metrics."""
    usual = complete(own)
    tracers = ReplayTracerProvider(usual.tracer_provider or trace.get_tracer_provider(), marks)
    return (
        TelemetryOptions(
            tracer_provider=tracers,
            meter_provider=metrics.NoOpMeterProvider(),
            log_sinks=usual.log_sinks,
            capture=usual.capture,
            listeners=usual.listeners,
            catalog_sinks=(
                tracers.keep,
                *(partial(tracers.pass_on, sink) for sink in getattr(usual, "catalog_sinks", None) or ()),
            ),
        ),
        tracers,
    )


def _context_of(span: TapedSpan) -> SpanContext:
    return SpanContext(
        trace_id=int(span.trace_id, 16),
        span_id=int(span.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
