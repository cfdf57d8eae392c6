"""Ended spans as tests read them: nothing is optional that an ended span has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from opentelemetry.sdk.trace import ReadableSpan, Span
from opentelemetry.trace import SpanContext


class CapturedSpan(ReadableSpan):
    """Ended span, whose attributes, context and times are never None for type checkers either."""

    @classmethod
    def of(cls, span: ReadableSpan) -> Self:
        """Return an ended span as one of this class, with the same content."""
        captured = cls.__new__(cls)
        # The SDK copies a `Span` before it calls processors; the recorder leaves that to them.
        vars(captured).update(vars(span._readable_span() if isinstance(span, Span) else span))  # noqa: SLF001
        return captured

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes by name."""
        return super().attributes or {}

    @property
    def context(self) -> SpanContext:
        """Ids of the span and its trace."""
        assert self._context is not None
        return self._context

    def get_span_context(self) -> SpanContext:
        """Return the ids of the span and its trace."""
        return self.context

    @property
    def start_time(self) -> int:
        """Nanoseconds since the epoch."""
        assert self._start_time is not None
        return self._start_time

    @property
    def end_time(self) -> int:
        """Nanoseconds since the epoch."""
        assert self._end_time is not None
        return self._end_time
