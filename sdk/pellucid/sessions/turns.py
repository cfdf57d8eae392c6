"""Stores of the turns of a session: memory, or runs of a conversation in the store of durable runs."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import anyio

from pellucid.concurrency.tasks import spawn
from pellucid.errors import ConversationBusy, StoreError, UnknownRun
from pellucid.messages import Message, dump_messages, load_messages

LEASE: Final = 60.0
"""Seconds after which the turn of a process that was killed no longer keeps others waiting."""

PAGE: Final = 20
"""Turns that are read at once."""

_AGAIN: Final = "send it again when that run has ended"
_AGAIN_IN_STORE: Final = f"{_AGAIN}, or {LEASE:g} seconds after its process was killed"

EndTurn: TypeAlias = Callable[[Sequence[Message]], Any]
"""Async function that ends a turn with the messages that it adds to the conversation."""


class Turns(Protocol):
    """The turns of one conversation."""

    async def begin(self, window: int | None) -> tuple[Sequence[Message], EndTurn]:
        """Begin a turn; return the latest messages before it, of whole turns, and the function that ends it.

        Raises:
            ConversationBusy: another turn has not ended.
        """
        ...

    async def read(self, window: int | None) -> Sequence[Message]:
        """Return the latest messages, of whole turns."""
        ...


@dataclass(slots=True)
class Kept:
    """A conversation in memory. Attributes: turns: its messages; open: id of the turn that has not ended."""

    turns: list[Sequence[Message]] = field(default_factory=list)
    open: str | None = None
    lock: Any = field(default_factory=threading.Lock)


class MemoryTurns:
    """Turns in memory. Thread-safe."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    async def begin(self, window: int | None) -> tuple[Sequence[Message], EndTurn]:
        """Begin a turn; see `Turns`."""
        kept, turn_id = self._kept, uuid.uuid4().hex
        with kept.lock:
            if kept.open is not None:
                raise ConversationBusy(kept.open, _AGAIN)
            kept.open = turn_id
            history = _latest(kept.turns, window)

        async def end(messages: Sequence[Message]) -> None:
            with kept.lock:
                kept.turns += [messages] if messages else []
                kept.open = None

        return history, end

    async def read(self, window: int | None) -> Sequence[Message]:
        """Return the latest messages."""
        with self._kept.lock:
            return _latest(self._kept.turns, window)


def _latest(turns: Sequence[Sequence[Message]], window: int | None) -> list[Message]:
    """Return the last turns with at least so many messages."""
    found: list[Message] = []
    for turn in reversed(turns):
        if window is not None and len(found) >= window:
            break
        found[:0] = turn
    return found


class StoredTurns:
    """Turns as runs of a conversation in a store, which no worker continues: their agent is of this name alone.

    Args:
        store: An open `RunStore`.
        agent: Name for the agent of the runs.
        conversation: Id of the conversation in the store.
    """

    def __init__(self, store: Any, agent: str, conversation: str) -> None:
        self._store = store
        self._agent = agent
        self._conversation = conversation

    async def begin(self, window: int | None) -> tuple[Sequence[Message], EndTurn]:
        """Begin a turn; see `Turns`. One whose process was killed is ended first, once its lease has."""
        run_id = uuid.uuid4().hex
        try:
            await self._submit(run_id)
        except ConversationBusy as busy:
            if (abandoned := await self._claim(busy.run_id)) is None:
                raise
            await self._store.finish(abandoned, "failed", {"messages": []})
            await self._submit(run_id)
        if (claim := await self._claim(run_id)) is None:
            raise ConversationBusy(run_id, _AGAIN_IN_STORE)
        stop = spawn(self._renew, claim)

        async def end(messages: Sequence[Message]) -> None:
            stop()
            await self._store.finish(claim, "completed", {"messages": dump_messages(messages)})

        try:
            return await self._messages(window, claim.turn), end
        except BaseException:
            with anyio.CancelScope(shield=True), suppress(StoreError):
                await end(())
            raise

    async def read(self, window: int | None) -> Sequence[Message]:
        """Return the latest messages."""
        return await self._messages(window, None)

    async def _submit(self, run_id: str) -> None:
        try:
            await self._store.submit(run_id, self._agent, {"messages": []}, conversation=self._conversation)
        except ConversationBusy as busy:  # of durable runs, which can be cancelled and queue
            raise ConversationBusy(busy.run_id, _AGAIN_IN_STORE) from None

    async def _claim(self, run_id: str) -> Any:
        return await self._store.claim_run(run_id, self._agent, "session", LEASE)

    async def _renew(self, claim: Any) -> None:
        """Renew the lease at a third of its length, until the claim is lost or the turn has ended."""
        with suppress(StoreError, UnknownRun):
            while True:
                await anyio.sleep(LEASE / 3)
                await self._store.renew(claim)

    async def _messages(self, window: int | None, before: int | None) -> Sequence[Message]:
        """Return the messages of the latest turns, read in pages until there are enough."""
        found: list[Message] = []
        while window is None or len(found) < window:
            page = await self._store.conversation(self._conversation, before=before, limit=PAGE)
            turns = [load_messages((turn.run.result or {}).get("messages") or []) for turn in page.turns]
            found[:0] = _latest(turns, window if window is None else window - len(found))
            if not page.has_more:
                break
            before = page.turns[0].number
        return found
