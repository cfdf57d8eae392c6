"""Messages about what readers read and get, by the notifications of the database."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Final

from pellucid.durable.store import RunStore
from pellucid.errors import StoreUnavailable

_log = logging.getLogger("pellucid.durable_runs")

_READERS: Final = "readers"
_PIECES: Final = "pieces"


class StoreRelay:
    """Relay of a database that has notifications. All processes get all messages."""

    def __init__(self, store: RunStore) -> None:
        self._store = weakref.ref(store)  # the store is the key under which the hub is found
        self._is_warned = False

    def open(self, announced: Callable[[str], None], received: Callable[[str], None]) -> None:
        """Pass announcements and pieces on, in the thread that listens."""
        if (store := self._store()) is not None:
            store.receive(_READERS, announced)
            store.receive(_PIECES, received)

    async def follow(self, run_id: str) -> None:
        """Wait until pieces arrive: a worker may send the first ones as soon as it knows of a reader."""
        if (store := self._store()) is not None:
            await store.listen()

    def leave(self, run_id: str) -> None:
        """Do nothing."""

    async def announce(self, texts: Sequence[str]) -> None:
        """Send announcements."""
        await self._send([(_READERS, text) for text in texts])

    async def send(self, messages: Sequence[tuple[str, str]]) -> None:
        """Send pieces."""
        await self._send([(_PIECES, text) for _, text in messages])

    async def _send(self, messages: Sequence[tuple[str, str]]) -> None:
        if (store := self._store()) is None:
            return
        try:
            await store.send(messages)
            self._is_warned = False
        except StoreUnavailable as error:  # readers get the whole answer
            if not self._is_warned:
                _log.warning("durable_runs.text_not_sent %s", error)
            self._is_warned = True
