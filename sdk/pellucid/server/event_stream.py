"""Server-sent events of a run (WHATWG HTML, section 9.2), which a client can continue after the last one it has."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse

from pellucid.durable_runs import DurableRuns, RunEvent
from pellucid.server.problems import Problem
from pellucid.server.states import state_json

MAX_SEQ = 2**63 - 1
_BEAT = b": waiting\n\n"


def stream(
    runs: DurableRuns, run_id: str, after: int, *, heartbeat: float, stays: bool, headers: Mapping[str, str]
) -> StreamingResponse:
    """Return a response with the events of a run after a sequence number, and its state at the end.

    Args:
        runs: The runs.
        run_id: The run.
        after: Sequence number of the last event that the client has.
        heartbeat: Seconds between comments while there are no events.
        stays: Whether the stream stays open while the run waits for approvals or results.
        headers: Further headers.
    """
    headers = {**headers, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    content = _events(runs, run_id, after, heartbeat, stays=stays)
    return StreamingResponse(content, media_type="text/event-stream", headers=headers)


async def _events(runs: DurableRuns, run_id: str, after: int, heartbeat: float, *, stays: bool) -> AsyncIterator[bytes]:
    while True:
        page = await runs.event_page(run_id, after)
        for event in page.events:
            after = event.seq
            yield _event(event)
        if page.has_more:
            continue
        if page.is_over or (page.status == "waiting" and not stays):
            yield _encoded("run", state_json(await runs.status(run_id)), None)
            return
        if not await runs.wait_for_events(run_id, after, heartbeat):
            yield _BEAT


def position(request: Request) -> int:
    """Return the sequence number after which a client wants events: `Last-Event-ID`, or `after` in the query.

    Raises:
        Problem: 400, it is not a number.
    """
    for name, text in (
        ("Last-Event-ID", request.headers.get("last-event-id")),
        ("after", request.query_params.get("after")),
    ):
        if text is not None:
            if not (text.isascii() and text.isdigit() and int(text[:20]) <= MAX_SEQ):
                raise Problem(400, "not the id of an event", path=name)
            return int(text)
    return 0


def _event(event: RunEvent) -> bytes:
    return _encoded(event.type, {**event.data, "time": event.time}, event.seq)


def _encoded(kind: str, data: Any, seq: int | None) -> bytes:
    lines = [f"id: {seq}"] if seq is not None else []
    lines += [f"event: {kind}", f"data: {json.dumps(data, ensure_ascii=False)}"]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")
