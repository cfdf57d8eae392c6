"""Asynchronous calls of a replay: they end in the order, and before the boundaries, as in the recording."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.lowlevel import checkpoint

from pellucid import semconv
from pellucid.run.pausing.state import pending
from pellucid.run.state import current_run
from pellucid.run.unpaused import UNPAUSED
from pellucid_replay.taped_run import TapedRun

if TYPE_CHECKING:
    from pellucid_replay.tape import TapedSpan


_PATIENCE: Final = 1.0
"""Seconds that a boundary waits for a call in the background."""


class LateResults:
    """Results of the asynchronous calls of one run.

    Attributes:
        exhausted: Set after the last recorded model call.
    """

    def __init__(self, taped: TapedRun) -> None:
        self.taped = taped
        self.exhausted = anyio.Event()
        self._chat: TapedSpan | None = None
        self._released: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self._ending: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)

    async def release(self, chat: TapedSpan) -> None:
        """Let the calls end that had ended when the run went on after a model call."""
        self._chat = chat
        due = [wait for wait in self.taped.waits.values() if self._is_due(wait, chat)]
        for wait in due:
            self._released[wait.span_id].set()
        await _settled({wait.get(semconv.ASYNC_RESULT_ID) for wait in due})
        if chat is self.taped.chats[-1]:
            self.exhausted.set()

    def _is_due(self, wait: TapedSpan, chat: TapedSpan) -> bool:
        """Return whether a call had ended by the next time that the run read results."""
        if wait.end is None or wait.get(semconv.ASYNC_STATUS) == semconv.CANCELLED:
            return False
        reader = self.taped.reader_of(wait) or self.taped.chats[-1]
        return chat.start >= reader.start

    async def take_turn(self, wait: TapedSpan) -> None:
        """Wait until a call is to end, and those have their results that had ended before it."""
        await self._released[wait.span_id].wait()
        for other in self.taped.waits.values():
            if self._released[other.span_id].is_set() and (other.end or 0) < (wait.end or 0):
                await _settled({other.get(semconv.ASYNC_RESULT_ID)})
        self._ending[wait.span_id].set()

    async def settle(self, moment: int | None) -> None:
        """Wait for the results of the calls in the background that the run had by a moment of the recording.

        At the end of a tool call these are also those that the run read after the calls of the same answer. The wait is
        bounded: a call may wait for this one to begin.
        """
        for wait in self.taped.waits.values():
            is_background = wait.get(semconv.TOOL_EXECUTION) == "same-invocation"
            is_over = wait.end is not None and moment is not None and wait.end <= moment
            is_read = self._chat is not None and self.taped.reader_of(wait) is self._chat
            if is_background and (is_over or is_read) and self._released[wait.span_id].is_set():
                with anyio.move_on_after(_PATIENCE):
                    await self._ending[wait.span_id].wait()
                    await _settled({wait.get(semconv.ASYNC_RESULT_ID)})


async def _settled(result_ids: Collection[Any]) -> None:
    """Wait until these calls of the current run, which are about to end, have their results."""
    run = current_run()
    running = pending(run).calls.running if run is not None and run.pausing is not UNPAUSED else ()
    ending = [call for call in running if call.facts.result_id in result_ids]
    while any(call.status is None for call in ending):
        await checkpoint()
