"""Writing of the stream of events: any process appends in order, by compare-and-set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from nats.js.errors import APIError, NotFoundError

from pellucid.durable.queue.connection import Connection
from pellucid.durable.runs.live.pieces import body_of
from pellucid.durable.states.records import RunEvent
from pellucid.types import JSONObject

_FIELDS: Final = {"seq": int, "previous": int, "type": str, "data": dict, "time": int | float}

_WRONG_LAST_SEQUENCE: Final = 10071
_STREAM_NOT_FOUND: Final = 10059
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"


@dataclass(frozen=True, slots=True)
class Position:
    """Last event of a run in the stream.

    Attributes:
        stream_seq: Sequence number of its message in the stream; 0 if there is none.
        seq: Sequence number of the event in the run; 0 if there is none.
    """

    stream_seq: int = 0
    seq: int = 0


def decoded(data: bytes) -> dict[str, Any] | None:
    """Return the body of a message about an event; None for a message of something else."""
    return body_of(data, **_FIELDS)


class EventLog:
    """Writes events. Use it in the thread's event loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._names = connection.options.names
        self.warn = connection.warn

    async def position(self, run_id: str) -> Position:
        """Return the last event of a run in the stream.

        Raises:
            nats.errors.Error, TimeoutError: the server did not answer.
        """
        stream = await self._connection.stream()
        try:
            last = await stream.get_last_msg(self._names.stream("events"), self._names.subject("events", run_id))
        except NotFoundError as error:
            if error.err_code == _STREAM_NOT_FOUND:
                await self._connection.repair()
            return Position()
        body = decoded(last.data or b"")
        return Position(last.seq or 0, body["seq"] if body is not None else 0)

    async def append(self, run_id: str, position: Position, events: Sequence[RunEvent]) -> tuple[Position, bool]:
        """Append the events that follow a position; return the new one, and False if another process was faster.

        Raises:
            nats.errors.Error, TimeoutError: an event may not have been stored.
        """
        subject = self._names.subject("events", run_id)
        for event in events:
            body: JSONObject = {
                "run_id": run_id,
                "seq": event.seq,
                "previous": position.seq,
                "type": event.type,
                "data": event.data,
                "time": event.time,
            }
            headers = {_EXPECTED: str(position.stream_seq)}
            try:
                stored = await self._connection.publish(subject, json.dumps(body).encode(), headers)
            except APIError as error:
                if error.err_code == _WRONG_LAST_SEQUENCE:
                    return position, False
                raise
            position = Position(stored, event.seq)
        return position, True
