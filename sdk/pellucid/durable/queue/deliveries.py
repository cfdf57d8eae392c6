"""Messages that this process has received: kept while their passes run, then acknowledged, given back or buried."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import anyio
from anyio.from_thread import BlockingPortal
from nats.aio.msg import Msg
from nats.js.api import Header

from pellucid.durable.queue.connection import TIMEOUT, UNAVAILABLE, Connection
from pellucid.durable.queue.metrics import QueueMetrics
from pellucid.durable.states.work_queue import DeadReason

_log = logging.getLogger("pellucid.nats")

REASON: Final = "Pellucid-Reason"
DELIVERIES: Final = "Pellucid-Deliveries"
SUBJECT: Final = "Pellucid-Subject"
"""Headers of a dead letter: the reason, the number of its deliveries, and the subject that it had."""

End: TypeAlias = Callable[[Msg], Awaitable[None]]

_MAX_FIELD: Final = 255
"""Maximum characters of an id or a name in a message."""


class NATSDelivery:
    """A message that names a run; a `Delivery`, whose methods can be called from any thread.

    Attributes:
        run_id: Id of the run.
        agent: Name of its agent.
    """

    def __init__(self, deliveries: Deliveries, message: Msg, run_id: str, agent: str) -> None:
        self._deliveries = deliveries
        self._message = message
        self.run_id = run_id
        self.agent = agent

    def acknowledge(self) -> None:
        """Remove the message."""
        self._deliveries.end(self._message, self._deliveries.acknowledge)

    def give_back(self) -> None:
        """Let another process receive the message."""
        self._deliveries.end(self._message, self._deliveries.give_back)

    def bury(self, reason: DeadReason) -> None:
        """Move the message to the dead letters."""

        async def bury(message: Msg) -> None:
            await self._deliveries.bury(message, self.agent, reason)

        self._deliveries.end(self._message, bury)


class Deliveries:
    """Messages that this process has received and not ended. Except for `end`, use it in the thread's event loop."""

    def __init__(self, connection: Connection, metrics: QueueMetrics, portal: BlockingPortal) -> None:
        self._connection = connection
        self._metrics = metrics
        self._portal = portal
        self._kept: dict[int, Msg] = {}
        self._ending = 0

    async def accept(self, message: Msg, agent: str) -> NATSDelivery | None:
        """Return the delivery of a message; bury one that is invalid or was delivered too often, and return None."""
        deliveries = message.metadata.num_delivered
        if deliveries > 1:
            self._metrics.redelivered(agent)
        run_id = _run_id_of(message, agent)
        reason: DeadReason = "invalid" if run_id is None else "undeliverable"
        if run_id is None or deliveries > self._connection.options.max_deliveries:
            await self.bury(message, agent, reason)
            return None
        self._kept[id(message)] = message
        return NATSDelivery(self, message, run_id, agent)

    def end(self, message: Msg, end: End) -> None:
        """End a delivery without waiting, from another thread; do nothing if the queue has been closed."""
        with suppress(RuntimeError):
            self._portal.start_task_soon(self._end, message, end)

    async def _end(self, message: Msg, end: End) -> None:
        """Run the end of a delivery; a message whose end does not arrive is delivered again after `ack_wait`."""
        self._ending += 1
        self._kept.pop(id(message), None)
        try:
            await end(message)
        except UNAVAILABLE as error:
            _log.debug("nats.not_acknowledged subject=%s %s", message.subject, error)
        finally:
            self._ending -= 1

    async def acknowledge(self, message: Msg) -> None:
        """Acknowledge a message, and wait until the server has noted it."""
        await message.ack_sync(timeout=TIMEOUT)

    async def give_back(self, message: Msg) -> None:
        """Let the server deliver a message again, at once."""
        await message.nak()

    async def bury(self, message: Msg, agent: str, reason: DeadReason) -> None:
        """Copy a message to the dead letters, with its headers, and remove it."""
        names = self._connection.options.names
        headers = {name: value for name, value in (message.headers or {}).items() if not name.startswith("Nats-")}
        headers |= {REASON: reason, DELIVERIES: str(message.metadata.num_delivered), SUBJECT: message.subject}
        if original := (message.headers or {}).get(Header.MSG_ID):
            headers[Header.MSG_ID] = f"{original}:{reason}"
        _log.error("nats.dead_letter subject=%s reason=%s", message.subject, reason)
        await self._connection.publish(names.subject("dead", agent), message.data, headers)
        self._metrics.dead_lettered(agent, reason)
        await message.term()

    async def keep(self) -> None:
        """Tell the server that the passes of the kept messages still run, until cancelled."""
        while True:
            await anyio.sleep(self._connection.options.ack_wait / 3)
            for message in list(self._kept.values()):
                try:
                    await message.in_progress()
                except UNAVAILABLE as error:
                    _log.debug("nats.not_kept subject=%s %s", message.subject, error)

    async def flush(self) -> None:
        """Wait until all ends that were started have arrived."""
        while self._ending:  # noqa: ASYNC110  (once, when the queue is closed)
            await anyio.sleep(0.01)


def _run_id_of(message: Msg, agent: str) -> str | None:
    """Return the id of the run that a message names; None unless it is a message about a run of the agent."""
    try:
        body: Any = json.loads(message.data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or body.get("agent") != agent:
        return None
    run_id = body.get("run_id")
    return run_id if isinstance(run_id, str) and 0 < len(run_id) <= _MAX_FIELD and run_id.isprintable() else None
