"""Streamed answers: emit their pieces, and measure the arrival of their chunks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from pellucid import semconv
from pellucid.events import InferenceDelta
from pellucid.models import Model, ModelDelta, ModelRequest, StreamItem
from pellucid.models.base import closable
from pellucid.run.state import Run
from pellucid.telemetry import Boundary


class Chunks:
    """Arrival times of the chunks of one answer. A chunk may have no content, such as the first one of most vendors."""

    def __init__(self, run: Run, boundary: Boundary) -> None:
        self._run = run
        self._boundary = boundary
        self._durations: list[float] = []
        self._previous = run.scope.now()
        self._reported = False
        self._is_counted = False

    def report(self) -> None:
        """Record a chunk that the model reports; from then on pieces do not count as chunks."""
        self._reported = True
        self._arrived()

    def piece(self) -> None:
        """Record a piece of the answer, which counts as a chunk unless the model reports chunks."""
        if not self._reported:
            self._arrived()

    def _arrived(self) -> None:
        if self._is_counted:
            return  # the stream of an abandoned run may continue
        now = self._run.scope.now()
        self._durations.append((now - self._previous) / 1e9)
        self._previous = now
        if len(self._durations) == 1:
            self._boundary.note(time_to_first_chunk=self._durations[0])

    def count(self, labels: Mapping[str, Any]) -> None:
        """Record the metrics, once: when the responding model is known, which is one of the labels, or nobody waits."""
        if self._is_counted:
            return
        self._is_counted = True
        metric = semconv.TIME_TO_FIRST_CHUNK
        for duration in self._durations:
            self._run.scope.count(metric, duration, labels, self._boundary.context)
            metric = semconv.TIME_PER_OUTPUT_CHUNK


async def read_stream(
    run: Run, b: Boundary, model: Model, request: ModelRequest, partial: list[ModelDelta], chunks: Chunks
) -> StreamItem | None:
    """Read a stream to its end, emit each piece as it arrives, and return the last item."""
    last: StreamItem | None = None
    request = replace(request, on_chunk=chunks.report)
    async with aclosing(closable(model.stream(request))) as items:
        async for item in items:
            if b not in run.scope.open:
                break  # the run was abandoned because this stream ignored a cancellation
            if isinstance(item, ModelDelta):
                chunks.piece()
                partial.append(item)
                _emit(run, b, item)
            last = item
    return last


def _emit(run: Run, b: Boundary, delta: ModelDelta) -> None:
    """Emit a piece to the reader of the stream as it is, and to other listeners as the capture policy allows."""
    span = b.span.get_span_context()
    if run.reader is not None:
        run.scope.emit(InferenceDelta, span, {"type": delta.type, "content": delta.content}, to=[run.reader])
    others = [listeners for listeners in run.scope.listeners if listeners is not run.reader]
    if any(listeners.has_listener(InferenceDelta.name) for listeners in others):
        redacted = run.scope.text(delta.content) or ""
        run.scope.emit(InferenceDelta, span, {"type": delta.type, "content": redacted}, to=others)
