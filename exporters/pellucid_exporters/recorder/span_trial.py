"""Trial whether the installed SDK supports our spans, which rely on private parts of it."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, set_span_in_context

from pellucid import semconv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan


def needs_sdk() -> str | None:
    """Return why the SDK's `TracerProvider` must be used instead of `RecorderTracerProvider`, or `None` if it need not.

    The reason is the SDK's version: it lacks a private part, or both record a few spans differently.
    """
    try:
        from pellucid_exporters.recorder.spans import RecorderTracerProvider

        with _silent(logging.getLogger("opentelemetry.attributes")):  # warns of None before 1.45
            if _recorded(RecorderTracerProvider) == _recorded(TracerProvider):
                return None
        reason = "it records differently"
    except Exception as error:  # noqa: BLE001  (what a missing part causes is unknown, and the SDK itself is there)
        reason = f"{type(error).__name__}: {error}"
    return f"opentelemetry-sdk {version('opentelemetry-sdk')} does not support Pellucid's recorder of spans ({reason})"


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """Leave out what this thread logs."""
    thread = threading.get_ident()

    def is_of_another(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_another)
    try:
        yield
    finally:
        logger.removeFilter(is_of_another)


def _recorded(kind: type[TracerProvider]) -> list[Any]:
    """Record with tracers of a provider, and return what its processors get."""
    kept = _Kept()
    limits = SpanLimits(max_span_attributes=4, max_events=2, max_links=2)
    provider = kind(None, Resource({}), shutdown_on_exit=False, id_generator=_Counted(), span_limits=limits)
    provider.add_span_processor(kept)
    tracer = provider.get_tracer(f"{semconv.SCOPE}.trial", "1")
    parent = tracer.start_span("parent", Context(), SpanKind.CLIENT, attributes={"a": 1, "b": ["x"]}, start_time=1)
    context = set_span_in_context(parent)
    span = tracer.start_span("child", context, links=[Link(parent.get_span_context(), {"a": 1})], start_time=2)
    span.set_attributes({"a": "x", "b": (1, 2), "c": None, "d": True})
    span.set_attribute("a", 2.5)
    span.update_name("renamed")
    for moment in (3, 4, 5):
        span.add_event("event", {"a": moment}, moment)
        span.add_link(parent.get_span_context())
    span.set_status(Status(StatusCode.ERROR, "broken"))
    span.end(6)
    parent.end(7)
    return kept.spans


class _Kept(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[Any] = []

    def on_end(self, span: ReadableSpan) -> None:
        dropped = span.dropped_attributes, span.dropped_events, span.dropped_links
        self.spans.append((span.to_json(), dropped, span.instrumentation_scope))


class _Counted(IdGenerator):
    def __init__(self) -> None:
        self._ids = count(1)

    def generate_span_id(self) -> int:
        return next(self._ids)

    def generate_trace_id(self) -> int:
        return next(self._ids)
