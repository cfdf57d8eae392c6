"""Trace context of requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import propagate
from opentelemetry.context import attach, detach
from opentelemetry.trace import get_current_span
from starlette.requests import Request


@contextmanager
def in_trace_of(request: Request) -> Iterator[None]:
    """Continue the trace of the client, unless the application's instrumentation has started a span already."""
    if get_current_span().get_span_context().is_valid:
        yield
        return
    token = attach(propagate.extract(request.headers))
    try:
        yield
    finally:
        detach(token)
