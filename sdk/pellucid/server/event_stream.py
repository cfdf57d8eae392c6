"""Server-sent events of a run (WHATWG HTML, section 9.2), which a client can continue after the last one it has."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from pellucid.durable import DurableRuns, RunDelta, RunEvent
from pellucid.durable.states.bodies import state_json
from pellucid.errors import StoreUnavailable, UnknownRun
from pellucid.events import InferenceDelta
from pellucid.server.draining import Draining
from pellucid.server.event_json import api_name
from pellucid.server.problems import Problem

_log = logging.getLogger("pellucid.server")

MAX_DIGITS: Final = 18
"""Digits of a sequence number; databases have 63 bits for it."""

BEAT: Final = b": waiting\n\n"
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(frozen=True, slots=True)
class EventStream:
    """Events of a run, with pieces of its answers between them, and its state at the end.

    Attributes:
        runs: The runs.
        run_id: The run.
        heartbeat: Seconds between comments while there are no events.
        stays: Whether the stream stays open while the run waits for approvals or results.
        draining: Ends the stream when the server shuts down.
    """

    runs: DurableRuns
    run_id: str
    heartbeat: float
    stays: bool
    draining: Draining

    def response(self, after: int, headers: Mapping[str, str], *, has_body: bool) -> Response:
        """Return the response with the events after a sequence number."""
        headers = {**headers, **HEADERS}
        if not has_body:
            return Response(media_type="text/event-stream", headers=headers)
        return _ClosedStream(self._content(after), media_type="text/event-stream", headers=headers)

    async def _content(self, after: int) -> AsyncGenerator[bytes]:
        """Yield the stream. It ends without the state if the store goes away, or the server shuts down."""
        try:
            async with aclosing(self._events(after)) as parts:
                async for part in parts:
                    yield part
        except (StoreUnavailable, UnknownRun) as error:
            _log.warning("server.stream_ended run_id=%s %s", self.run_id, error)

    async def _events(self, after: int) -> AsyncGenerator[bytes]:
        with self.runs._follower(self.run_id, after) as follower:  # noqa: SLF001  (not public: it has no heartbeat)
            await follower.announce()
            while not self.draining.is_active:
                page = await follower.page()
                for event in page.events:
                    yield _event(event)
                if not page.has_more and (page.is_over or (page.status == "waiting" and not self.stays)):
                    yield encoded("run", state_json(await self.runs.status(self.run_id)))
                    return
                while not (follower.is_stale or self.draining.is_active):
                    for piece in await follower.pieces():
                        yield _piece(piece)
                    is_new = False
                    with self.draining.interruptible():
                        is_new = await follower.wait(self.heartbeat)
                    if not is_new and not self.draining.is_active:
                        yield BEAT


class _ClosedStream(StreamingResponse):
    """Response that closes its content when the client leaves, and does not wait for the garbage collector."""

    async def stream_response(self, send: Send) -> None:
        """Send the response."""
        async with aclosing(cast("AsyncGenerator[bytes]", self.body_iterator)):
            await super().stream_response(send)


def position(request: Request) -> int:
    """Return the sequence number after which a client wants events: `Last-Event-ID`, or `after` in the query.

    Raises:
        Problem: 400, it is not a number.
    """
    seq = None
    for name, text in (
        ("Last-Event-ID", request.headers.get("last-event-id")),
        ("after", request.query_params.get("after")),
    ):
        if text is not None:
            if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
                raise Problem(400, "not the id of an event", path=name)
            seq = int(text) if seq is None else seq
    return seq or 0


def _event(event: RunEvent) -> bytes:
    data = {api_name(name): value for name, value in event.data.items()}
    return encoded(event.type, {**data, "time": event.time}, event.seq)


def _piece(piece: RunDelta) -> bytes:
    """Return a piece of an answer; without a number, so that a client continues after the last stored event."""
    return encoded(InferenceDelta.name, {"iteration": piece.iteration, **asdict(piece)})


def encoded(kind: str, data: Any, seq: int | None = None) -> bytes:
    """Return an event; `seq` if a client can continue after it."""
    lines = [f"id: {seq}"] if seq is not None else []
    lines += [f"event: {kind}", f"data: {json.dumps(data, ensure_ascii=False)}"]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")
