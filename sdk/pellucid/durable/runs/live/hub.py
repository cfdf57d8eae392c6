"""Hub of the pieces of answers in a process: from workers to readers, its own and those of other processes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import EventLoopToken, current_token

from pellucid.concurrency.tasks import call_later, call_soon, spawn
from pellucid.durable.runs.live.pieces import Pieces, announcements_of, body_of, messages_of, piece_of
from pellucid.durable.runs.live.store_relay import StoreRelay
from pellucid.durable.states.records import RunDelta
from pellucid.durable.states.work_queue import Relay
from pellucid.durable.store import RunStore

RENEWAL: Final = 10.0
"""Seconds after which a process says again which runs it reads."""

EXPIRY: Final = 30.0
"""Seconds after which a process is forgotten that does not."""

INTERVAL: Final = 0.05
"""Seconds between two messages with pieces: at most 20 a second for each run, unless one is too long."""


class Inbox:
    """Pieces that wait for one reader.

    Attributes:
        pieces: The pieces.
        wake: Called when there are new ones.
    """

    def __init__(self) -> None:
        self.pieces = Pieces()
        self.wake: Callable[[], None] = lambda: None

    def put(self, piece: RunDelta) -> None:
        """Add a piece."""
        self.pieces.add(piece)
        self.wake()


class LiveHub:
    """Readers of one store in this process, and what is known of those in other ones.

    Use it in the event loop of the store. A piece that nobody reads costs a look into two dictionaries.

    Args:
        relay: Carries messages between the processes, if anything does.
    """

    def __init__(self, relay: Relay | None) -> None:
        self._relay = relay
        self._is_open = False
        self._name = uuid.uuid4().hex  # by which a process knows its own messages
        self._token: EventLoopToken | None = None
        self._inboxes: dict[str, list[Inbox]] = {}
        self._expected: dict[str, tuple[Inbox, Callable[[], object]]] = {}
        self._elsewhere: dict[str, float] = {}  # by time, because each is valid for the same time
        self._outgoing: dict[str, Pieces] = {}
        self._is_sending = False
        self._renewed_at = 0.0

    def use(self, relay: Relay) -> None:
        """Use another relay from now on."""
        if relay is not self._relay:
            self._relay, self._is_open = relay, False

    def open(self) -> None:
        """Start to receive messages."""
        self._token = current_token()
        if not self._is_open and self._relay is not None:
            self._is_open = True
            self._relay.open(self._announced, self._received)

    # Readers

    async def expect(self, run_id: str) -> bool:
        """Keep the pieces of a run that is to be submitted for the reader that comes next, for a while.

        Returns:
            False if that was done before.
        """
        if run_id in self._expected:
            return False
        inbox = Inbox()
        forget = call_later(current_token(), EXPIRY, partial(self._forget, run_id, inbox))
        self._expected[run_id] = inbox, forget
        self._inboxes.setdefault(run_id, []).append(inbox)
        await self.announce(run_id)
        return True

    def unexpect(self, run_id: str) -> None:
        """Forget the reader that was to come, unless it has."""
        if (expected := self._expected.get(run_id)) is not None:
            inbox, forget = expected
            forget()
            self._forget(run_id, inbox)

    def _forget(self, run_id: str, inbox: Inbox) -> None:
        del self._expected[run_id]
        self.leave(run_id, inbox)

    def join(self, run_id: str) -> Inbox:
        """Return the inbox of a new reader; that of an expected one, if there is any."""
        if (expected := self._expected.pop(run_id, None)) is not None:
            inbox, forget = expected
            forget()
            return inbox
        inbox = Inbox()
        self._inboxes.setdefault(run_id, []).append(inbox)
        return inbox

    def leave(self, run_id: str, inbox: Inbox) -> None:
        """Forget a reader; other processes forget it when its time is over."""
        self._inboxes[run_id].remove(inbox)
        if not self._inboxes[run_id]:
            del self._inboxes[run_id]
            if self._relay is not None:
                self._relay.leave(run_id)

    async def announce(self, run_id: str) -> None:
        """Tell other processes that a run is read."""
        self.open()
        if self._relay is not None:
            await self._relay.follow(run_id)
            await self._relay.announce(announcements_of([run_id], self._name))

    async def renew(self) -> None:
        """Tell other processes which runs are still read, if it is time to: one reader does so for all."""
        if self._relay is None or time.monotonic() < self._renewed_at + RENEWAL:
            return
        self._renewed_at = time.monotonic()
        if self._inboxes:
            await self._relay.announce(announcements_of(list(self._inboxes), self._name))

    def _announced(self, text: str | bytes) -> None:
        """Note which runs another process reads; from any one thread."""
        body = body_of(text, runs=list)
        if body is None or body.get("from") == self._name:
            return
        now = time.monotonic()
        for run_id in body["runs"]:
            if isinstance(run_id, str):
                self._elsewhere.pop(run_id, None)
                self._elsewhere[run_id] = now + EXPIRY
        while self._elsewhere and self._elsewhere[oldest := next(iter(self._elsewhere))] <= now:
            del self._elsewhere[oldest]

    def _received(self, text: str | bytes) -> None:
        """Pass a piece of another process on; from any thread."""
        body = body_of(text, run_id=str)
        if body is None or body.get("from") == self._name or body["run_id"] not in self._inboxes:
            return
        piece = piece_of(body)
        if piece is not None and self._token is not None:
            call_soon(self._token, partial(self._deliver, body["run_id"], piece))

    # Workers

    def is_read(self, run_id: str) -> bool:
        """Return whether anybody reads a run, as far as is known."""
        return run_id in self._inboxes or self._is_read_elsewhere(run_id)

    def _is_read_elsewhere(self, run_id: str) -> bool:
        until = self._elsewhere.get(run_id)
        return until is not None and time.monotonic() < until

    def publish(self, run_id: str, piece: RunDelta) -> None:
        """Give a piece to the readers of this process, and send it to others soon."""
        self._deliver(run_id, piece)
        if self._is_read_elsewhere(run_id):
            self._outgoing.setdefault(run_id, Pieces()).add(piece)
            if not self._is_sending:
                self._is_sending = True
                spawn(self._send)

    def _deliver(self, run_id: str, piece: RunDelta) -> None:
        for inbox in self._inboxes.get(run_id, ()):
            inbox.put(piece)

    async def _send(self) -> None:
        """Send what waits, and what is added meanwhile."""
        try:
            while self._outgoing and self._relay is not None:
                outgoing, self._outgoing = self._outgoing, {}
                await self._relay.send(
                    [
                        (run_id, text)
                        for run_id, pieces in outgoing.items()
                        for piece in pieces.take()
                        for text in messages_of(run_id, piece, self._name)
                    ]
                )
                await anyio.sleep(INTERVAL)
        finally:
            self._is_sending = False


_hubs: WeakKeyDictionary[RunStore, LiveHub] = WeakKeyDictionary()


def hub_of(store: RunStore) -> LiveHub:
    """Return the hub of a store, which everything in this process shares that uses the store."""
    hub = _hubs.get(store)
    if hub is None:
        hub = _hubs[store] = LiveHub(StoreRelay(store) if store.can_send else None)
    return hub
