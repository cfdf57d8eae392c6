"""Streams: the events of a run as they happen.

One task runs the run and owns its spans; the reader receives events from a memory stream. No span, cancel scope or task
group of the run is ever held across a `yield` of the reader.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final, Generic, Self

import anyio
from anyio.lowlevel import current_token

from pellucid.concurrency.tasks import call_soon, spawn
from pellucid.errors import ConfigError
from pellucid.events import Event, InferenceDelta
from pellucid.run.failure import carrying
from pellucid.run.loop import execute
from pellucid.run.outcomes import RunResult
from pellucid.run.state import Run
from pellucid.types import OutputT_co

MOST_TAKEN: Final = 16
"""Maximum number of events that a reader takes before other tasks get a turn of the event loop."""


class RunStream(Generic[OutputT_co]):
    """Events of one run, as they happen: `async with agent.stream(...) as events: async for event in events: ...`.

    Leaving the block cancels the run if it has not ended. If the run fails, its exception is raised after the last
    event.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._production: _Production | None = None

    @property
    def result(self) -> RunResult[OutputT_co]:
        """Result of the run, once its events have been read to the end.

        Raises:
            ConfigError: the run has not ended, or has no result; the error then carries its conversation, as that of
                the run does.
        """
        production = self._production
        if production is None or not production.has_ended:
            raise ConfigError("the run has not ended; read its events to the end before using the result")
        if production.result is None:
            reason = "it failed" if production.error is not None else "its block was left before it ended"
            raise carrying(self._run, ConfigError(f"the run has no result, because {reason}")) from production.error
        return production.result

    async def text(self) -> AsyncIterator[str]:
        """Yield the text of the answers as it arrives, of all iterations; for use in place of reading the events.

        ```python
        async with agent.stream("Will it rain in Bergen?") as events:
            async for piece in events.text():
                print(piece, end="")
        ```
        """
        async for event in self:
            if isinstance(event, InferenceDelta) and event.type == "text":
                yield event.content

    def partial(self) -> AsyncIterator[OutputT_co]:
        """Yield the output as far as it has arrived, and last the whole; for use in place of reading the events.

        ```python
        async with agent.stream("Cities of Norway?") as events:
            async for cities in events.partial():  # an agent with output=list[City]
                show(cities)
        ```

        A value is yielded when it differs from the one before it, and pydantic's partial validation accepts it:

        - Lists, sets and mappings grow; a last member that is not valid yet is left out.
        - Models, dataclasses and `TypedDict`s appear once all required fields have arrived; then the others are added.
        - Texts grow, also the last one within a value. A last number may have more digits to come.
        - Other types, such as enumerations, appear when they are complete. Without an output type, texts are yielded.

        Validators of the type see partial values; one that raises delays the value. A new answer starts from nothing:
        a model calls tools in between, or repairs an answer that did not fit.
        """
        from pellucid.run.partial_output import partial_outputs

        return partial_outputs(self, lambda: self.result, self._run.setup.output)

    async def __aenter__(self) -> Self:
        if self._production is not None:
            raise ConfigError("a stream can be entered only once; call agent.stream() again for another run")
        self._production = production = _Production(self._run)
        assert self._run.caller.stream is not None  # the run is streamed
        self._run.caller.stream.add("*", production.deliver)
        # A stream that is garbage collected inside its block, as in a forgotten generator, cancels its run too.
        weakref.finalize(self, production.abandon)
        spawn(production.produce)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._production is not None  # it was entered
        await self._production.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        production = self._production
        if production is None:
            raise ConfigError("read a stream inside its block: async with agent.stream(...) as events: ...")
        with suppress(anyio.EndOfStream):
            return await production.next_event()
        if production.error is not None:
            raise production.error
        raise StopAsyncIteration


class _Production:
    """The task that runs the run. It is independent of the reader, which may disappear at any time."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop = current_token()
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._abandoned = False
        self.send, self.receive = anyio.create_memory_object_stream[Event](math.inf)
        self._taken = 0
        self.result: RunResult[Any] | None = None
        self.error: Exception | KeyboardInterrupt | None = None

    def deliver(self, event: Event) -> None:
        """Give an event of the run to the reader, and none of a round trip that outlives the run."""
        if event.run_id == self._run.scope.run_id:
            self.send.send_nowait(event)

    @property
    def has_ended(self) -> bool:
        """True if the run has ended."""
        return self._ended.is_set()

    async def produce(self) -> None:
        """Run to the end, and always close the stream."""
        try:
            with self._scope:
                self.result = await execute(self._run)
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and self._scope.cancel_called:
                raise  # there is no reader any more
            self.error = error  # raised again in the reader
        finally:
            self.send.close()
            self._ended.set()
            if self._abandoned:
                self.receive.close()

    async def next_event(self) -> Event:
        """Return the next event; of those that have arrived, a few without a turn of the event loop.

        Raises:
            anyio.EndOfStream: there are no more events.
        """
        if self._taken < MOST_TAKEN:
            with suppress(anyio.WouldBlock):
                event = self.receive.receive_nowait()
                self._taken += 1
                return event
        self._taken = 0
        return await self.receive.receive()

    async def stop(self) -> None:
        """Cancel the run if it is active, and wait until it has ended."""
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()
        self.receive.close()

    def abandon(self) -> None:
        """Cancel the run of a stream that was garbage collected, from any thread."""
        call_soon(self._loop, self._abandon)

    def _abandon(self) -> None:
        self._abandoned = True
        self._scope.cancel()
        if self._ended.is_set():
            self.receive.close()
