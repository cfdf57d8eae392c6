"""Streamed answers: emit their pieces, and measure the arrival of their chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

from pellucid import semconv
from pellucid.events import InferenceDelta
from pellucid.models import Model, ModelDelta, ModelRequest, StreamItem
from pellucid.models.base import closable
from pellucid.models.response_check import check_piece
from pellucid.run.state import Run
from pellucid.telemetry import Boundary

MOST_PIECES: Final = 1_000
"""Maximum number of recorded pieces; the last one gets the characters of all later ones."""

_PIECE: Final = 32
"""Bytes of a recorded piece."""


class Chunks:
    """Arrival times of the chunks of one answer. A chunk may have no content, such as the first one of most vendors.

    Pieces of the answer are added to `partial` as they arrive.
    """

    def __init__(self, run: Run, boundary: Boundary, partial: Sequence[ModelDelta]) -> None:
        self._run = run
        self._boundary = boundary
        self._partial = partial
        self._times: list[int] = []
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
        self._times.append(self._previous)

    def _arrived(self) -> None:
        if self._is_counted:
            return  # the stream of an abandoned run may continue
        now = self._run.scope.now()
        self._durations.append((now - self._previous) / 1e9)
        self._previous = now
        if len(self._durations) == 1:
            self._boundary.note(time_to_first_chunk=self._durations[0])

    def count(self, labels: Mapping[str, Any]) -> None:
        """Record times and metrics, once: when the responding model is known, which is a label, or nobody waits."""
        if self._is_counted:
            return
        self._is_counted = True
        scope = self._run.scope
        if self._times and self._boundary.records and scope.policy.mode != "off":
            self._boundary.note(chunks=scope.guarded("recording", self._timeline))
        metric = semconv.TIME_TO_FIRST_CHUNK
        for duration in self._durations:
            scope.count(metric, duration, labels, self._boundary.context)
            metric = semconv.TIME_PER_OUTPUT_CHUNK

    def _timeline(self) -> str:
        """Return time in milliseconds, type and characters of each piece, as JSON."""
        from pellucid.telemetry.sanitize import dumps

        start, most = self._boundary.start, min(MOST_PIECES, self._run.scope.policy.max_bytes // _PIECE)
        times = [(time - start) // 10_000 / 100 for time in self._times[:most]]
        types = [delta.type for delta in self._partial]
        sizes = [len(delta.content) for delta in self._partial]
        sizes[most - 1 :] = [sum(sizes[most - 1 :])]
        return dumps(list(zip(times, types, sizes, strict=False)))


async def read_stream(
    run: Run,
    b: Boundary,
    model: Model,
    request: ModelRequest,
    partial: list[ModelDelta],
    chunks: Chunks,
    send: Callable[[ModelDelta], None] | None = None,
) -> StreamItem | None:
    """Read a stream to its end, emit and `send` each piece as it arrives, and return the last item."""
    last: StreamItem | None = None
    pieces = _Pieces(run, b)
    request = replace(request, on_chunk=chunks.report)
    async with aclosing(closable(model.stream(request))) as items:
        async for item in items:
            if b not in run.scope.open:
                break  # the run was abandoned because this stream ignored a cancellation
            check_piece(model.name, item)
            if isinstance(item, ModelDelta):
                chunks.piece()
                partial.append(item)
                pieces.emit(item)
                if send is not None:
                    send(item)
            last = item
    return last


class _Pieces:
    """Events of the pieces of one answer: as they are for the reader of the stream, redacted for other listeners."""

    def __init__(self, run: Run, b: Boundary) -> None:
        self._scope = run.scope
        self._span = b.span.get_span_context()
        self._to_reader = () if run.caller.stream is None else (run.caller.stream,)
        self._others = tuple(listeners for listeners in run.scope.listeners if listeners is not run.caller.stream)

    def emit(self, delta: ModelDelta) -> None:
        """Emit a piece."""
        scope = self._scope
        if self._to_reader:
            payload = {"type": delta.type, "content": delta.content}
            scope.emit(InferenceDelta, self._span, payload, to=self._to_reader)
        for listeners in self._others:
            if listeners.has_listener(InferenceDelta.name):
                redacted = scope.text(delta.content) or ""
                scope.emit(InferenceDelta, self._span, {"type": delta.type, "content": redacted}, to=self._others)
                return
