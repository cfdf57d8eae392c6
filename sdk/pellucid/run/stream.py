"""Reading a run while it happens.

The run is produced by one task that owns its spans; the reader takes events from a memory stream. Nothing of the run,
no span, scope or task group, is ever held across a `yield` of the reader's.
"""

from __future__ import annotations

import math
import weakref
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self

import anyio
from anyio.lowlevel import current_token

from pellucid.concurrency.tasks import call_soon, spawn
from pellucid.errors import ConfigError
from pellucid.events import Event
from pellucid.run.loop import execute
from pellucid.run.outcomes import RunResult
from pellucid.run.state import Run
from pellucid.run.structured_output import OutputT
from pellucid.telemetry import Listeners


class RunStream(Generic[OutputT]):
    """The events of one run, as they happen: `async with agent.stream(...) as events: async for event in events: ...`.

    Leaving the block cancels the run if it is not over. If the run fails, its exception comes after its last event.
    """

    def __init__(self, listeners: Listeners, run: Run) -> None:
        self._listeners = listeners
        self._run = run
        self._production: _Production | None = None

    @property
    def result(self) -> RunResult[OutputT]:
        """What the run came to, once its events have been read to the end.

        Raises:
            ConfigError: the run is not over, or failed.
        """
        production = self._production
        if production is not None and production.error is not None:
            raise ConfigError("the run has no result, because it failed") from production.error
        if production is None or production.result is None:
            raise ConfigError("the run is not over; read its events to the end before you ask for the result")
        return production.result

    async def __aenter__(self) -> Self:
        if self._production is not None:
            raise ConfigError("a stream can be entered once; call agent.stream() again for another run")
        self._production = production = _Production(self._run)
        self._listeners.add("*", production.send.send_nowait)
        # A stream that is dropped without being left, as in a forgotten generator, cancels its run all the same.
        weakref.finalize(self, production.abandon)
        spawn(production.produce)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._production is not None  # it was entered
        await self._production.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        production = self._production
        if production is None:
            raise ConfigError("a stream is read inside of its block: async with agent.stream(...) as events: ...")
        with suppress(anyio.EndOfStream):
            return await production.receive.receive()
        if production.error is not None:
            raise production.error
        raise StopAsyncIteration


class _Production:
    """The task that runs the run. It knows nothing of its reader, which may be gone at any time."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop = current_token()
        self._scope = anyio.CancelScope()
        self._over = anyio.Event()
        self._abandoned = False
        self.send, self.receive = anyio.create_memory_object_stream[Event](math.inf)
        self.result: RunResult[Any] | None = None
        self.error: Exception | KeyboardInterrupt | None = None

    async def produce(self) -> None:
        """Run to the end, and close the stream whatever happens."""
        try:
            with self._scope:
                self.result = await execute(self._run)
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and self._scope.cancel_called:
                raise  # nobody reads any longer
            self.error = error  # raised again where the events are read
        finally:
            self.send.close()
            self._over.set()
            if self._abandoned:
                self.receive.close()

    async def stop(self) -> None:
        """Cancel the run if it is under way, and wait until it is over."""
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._over.wait()
        self.receive.close()

    def abandon(self) -> None:
        """Cancel the run because nobody reads any longer; garbage is collected in any thread."""
        call_soon(self._loop, self._abandon)

    def _abandon(self) -> None:
        self._abandoned = True
        self._scope.cancel()
        if self._over.is_set():
            self.receive.close()
