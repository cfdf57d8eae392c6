"""Reading a run while it happens.

The run is produced by one task that owns its spans; the reader takes events from a memory stream. Nothing of the run,
no span, scope or task group, is ever held across a `yield` of the reader's.
"""

from __future__ import annotations

import math
import weakref
from types import TracebackType
from typing import Self

import anyio
from anyio.lowlevel import EventLoopToken, current_token
from anyio.streams.memory import MemoryObjectSendStream

from pellucid.background import call_soon, spawn
from pellucid.errors import ConfigError
from pellucid.events import Event
from pellucid.run import Run, RunResult
from pellucid.runtime import execute
from pellucid.telemetry import Listeners


class RunStream:
    """The events of one run, as they happen: `async with agent.stream(...) as events: async for event in events: ...`.

    Leaving the block cancels the run if it is not over. If the run fails, its exception comes after its last event.
    """

    def __init__(self, listeners: Listeners, make: Run) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[Event](math.inf)
        listeners.add("*", self._send.send_nowait)
        self._production = _Production(make, self._send)

    @property
    def result(self) -> RunResult:
        """What the run came to, once its events have been read to the end.

        Raises:
            ConfigError: the run is not over.
        """
        if self._production.result is None:
            raise ConfigError("the run is not over; read its events to the end before you ask for the result")
        return self._production.result

    async def __aenter__(self) -> Self:
        production = self._production
        production.loop = current_token()
        # A stream that is dropped without being left, as in a forgotten generator, cancels its run all the same.
        weakref.finalize(self, production.cancel)
        spawn(production.produce)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._production.cancel()
        with anyio.CancelScope(shield=True):
            await self._production.over.wait()
        self._receive.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            if self._production.error is not None:
                raise self._production.error from None
            raise StopAsyncIteration from None


class _Production:
    """The task that runs the run."""

    def __init__(self, run: Run, send: MemoryObjectSendStream[Event]) -> None:
        self._run = run
        self._send = send
        self._scope = anyio.CancelScope()
        self.over = anyio.Event()
        self.loop: EventLoopToken | None = None
        self.result: RunResult | None = None
        self.error: Exception | None = None

    def cancel(self) -> None:
        """Cancel the run if it is under way; from any thread."""
        if self.loop is not None:
            call_soon(self.loop, self._scope.cancel)

    async def produce(self) -> None:
        """Run to the end, and close the stream whatever happens."""
        try:
            with self._scope:
                self.result = await execute(self._run)
        except Exception as error:  # noqa: BLE001  (raised again where the events are read)
            self.error = error
        finally:
            self._send.close()
            self.over.set()
