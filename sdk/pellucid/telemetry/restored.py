"""Record spans that another process started and could not end, with the ids that they had there."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from pellucid.telemetry.scope import Scope


class _GivenIds:
    """Generator of the ids of one span, as OpenTelemetry's SDK asks a generator for them."""

    def __init__(self, span: SpanContext) -> None:
        self._span = span

    def generate_span_id(self) -> int:
        return self._span.span_id

    def generate_trace_id(self) -> int:
        return self._span.trace_id

    def is_trace_id_random(self) -> bool:
        return self._span.trace_flags.random_trace_id


@contextmanager
def restored(scope: Scope, span: SpanContext, parent: SpanContext) -> Iterator[None]:
    """Give the boundary that `scope` opens within the context the ids of `span`, below `parent`.

    Samplers decide as they do for any span. A tracer that is not of OpenTelemetry's SDK cannot do this; the boundary
    then has no span.
    """
    tracer: Any = copy.copy(scope.tracer)
    if hasattr(tracer, "id_generator"):
        tracer.id_generator = _GivenIds(span)
        scope.tracer = tracer
    else:
        scope.tracer = None
    token = attach(set_span_in_context(NonRecordingSpan(parent), Context()))
    try:
        yield
    finally:
        detach(token)
