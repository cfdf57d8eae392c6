"""The stream of events, as far as reading goes: the events of one run, from NATS alone."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import anyio
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from pellucid.durable.queue.connection import TIMEOUT, UNAVAILABLE, Connection
from pellucid.durable.queue.event_log import decoded
from pellucid.durable.queue.inbox import IDLE, Inbox, status_of
from pellucid.durable.states.records import RunEvent
from pellucid.errors import EventsExpired, UnknownRun

_BATCH: Final = 500
"""Events of one request."""

_EXPIRES: Final = 30.0
"""Seconds of one request."""

_FIRST_SYNC: Final = 0.5
_MAX_SYNC: Final = 15.0
"""Seconds without an event after which the reader asks a process with the store to copy what is missing; doubled each
time, up to the second number."""

_INACTIVE: Final = 60.0
"""Seconds after which the server deletes the consumer of a reader that has gone."""

_RETRY: Final = 0.2
"""Seconds between two requests to a server that has refused one."""


class _Broken(Exception):
    """The consumer has gone, or has lost a message: another one reads on."""


class EventReader:
    """Reads the events of a run in order, without a gap and each once. Use it in the thread's event loop.

    Each reader has a consumer of its own, which is replaced when it is lost. Events that are read again are skipped by
    their sequence number.

    Args:
        connection: The connection.
        run_id: Id of the run.
        after: Sequence number of the last event that the reader has seen.
    """

    def __init__(self, connection: Connection, run_id: str, after: int) -> None:
        self._connection = connection
        self._names = connection.options.names
        self._run_id = run_id
        self._after = after
        self._silence = _FIRST_SYNC
        self._inbox: Inbox | None = None
        self._consumer = ""
        self._expected = 1
        self._requested = 0
        self._answers: deque[Msg] = deque()
        self._is_answered = anyio.Event()

    async def read(self) -> list[RunEvent]:
        """Wait for the next events.

        Raises:
            EventsExpired: events that follow have been deleted from the stream.
            UnknownRun: there is no such run.
        """
        while True:
            try:
                with anyio.move_on_after(self._silence):
                    events = await self._receive()
                    if events:
                        self._silence = _FIRST_SYNC
                        return events
                    continue
                await self._sync()
                self._silence = min(2 * self._silence, _MAX_SYNC)
            except (_Broken, *UNAVAILABLE):
                await self.close()
                await anyio.sleep(_RETRY)

    async def _receive(self) -> list[RunEvent]:
        """Wait for answers, and return their events."""
        client = await self._connection.client()
        if self._inbox is None or self._inbox.client is not client:
            await self._open()
        if self._requested <= 0 and self._inbox is not None:
            self._requested = _BATCH
            await self._inbox.request(self._names.stream("events"), self._consumer, batch=_BATCH, expires=_EXPIRES)
        while not self._answers:
            self._is_answered = anyio.Event()
            await self._is_answered.wait()
        answers = list(self._answers)
        self._answers.clear()
        return self._accept(answers)

    async def _open(self) -> None:
        await self.close()
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.ALL,
            filter_subject=self._names.subject("events", self._run_id),
            ack_policy=AckPolicy.NONE,
            inactive_threshold=_INACTIVE,
            mem_storage=True,
            num_replicas=1,
        )
        try:
            info = await (await self._connection.stream()).add_consumer(self._names.stream("events"), config)
        except NotFoundError:  # the stream was deleted
            await self._connection.repair()
            raise
        inbox = Inbox(await self._connection.client(), self._deliver)
        await inbox.open()
        self._inbox, self._consumer = inbox, info.name

    async def _deliver(self, answer: Msg) -> None:
        self._answers.append(answer)
        self._is_answered.set()

    def _accept(self, answers: Sequence[Msg]) -> list[RunEvent]:
        events: list[RunEvent] = []
        for answer in answers:
            status = status_of(answer)
            if status is not None:
                self._requested = 0
                if status not in IDLE and not events:
                    raise _Broken
                continue
            self._requested -= 1
            if answer.metadata.sequence.consumer != self._expected:
                if events:
                    self._expected = 0  # what follows is read by another consumer
                    return events
                raise _Broken
            self._expected += 1
            body = decoded(answer.data)
            if body is None or body["seq"] <= self._after:
                continue
            if body["previous"] > self._after:
                if events:
                    self._expected = 0
                    return events
                raise EventsExpired(self._run_id, self._after)
            self._after = body["seq"]
            events.append(RunEvent(body["seq"], body["type"], body["data"], body["time"]))
        return events

    async def _sync(self) -> None:
        """Ask a process with the store to copy what the stream lacks.

        Raises:
            UnknownRun: there is no such run.
        """
        with anyio.move_on_after(TIMEOUT):
            client = await self._connection.client()
            subject = self._names.subject("sync", self._run_id)
            try:
                reply = await client.request(subject, b"", timeout=TIMEOUT)
            except NoRespondersError:
                return
            answer = json.loads(reply.data)
            if answer["outcome"] == "unknown":
                raise UnknownRun(self._run_id)
            if answer["seq"] > self._after and not self._answers:
                raise _Broken

    async def close(self) -> None:
        """Delete the consumer and the inbox, without waiting for an answer."""
        inbox, consumer = self._inbox, self._consumer
        self._inbox, self._consumer, self._expected, self._requested = None, "", 1, 0
        self._answers.clear()
        if inbox is None:
            return
        with suppress(*UNAVAILABLE):
            await inbox.close()
            await inbox.client.publish(f"$JS.API.CONSUMER.DELETE.{self._names.stream('events')}.{consumer}")
