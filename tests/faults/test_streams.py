"""Streams that end early or fail: each leaves one complete trace, and OpenTelemetry logs no complaint."""

from __future__ import annotations

import contextvars
import gc
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from opentelemetry import trace

from pellucid import (
    Agent,
    CancelToken,
    Message,
    ModelDelta,
    ModelError,
    ModelResponse,
    RunCancelled,
    ToolCall,
    semconv,
    tool,
)
from pellucid.events import InferenceDelta
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import check_telemetry
from support.runs import CANCELLED, attributes, ending, words_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from pellucid import ModelRequest
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


class Talking:
    """A model that goes on; what happens when it is closed can be chosen."""

    name = "talking"
    provider_name = "test"

    def __init__(self, *, slow_close: bool = False, broken_close: bool = False) -> None:
        self._slow_close = slow_close
        self._broken_close = broken_close
        self.closed = anyio.Event()

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Answer."""
        return ModelResponse(message=Message("assistant", "x"))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        """Go on and on."""
        try:
            while True:
                yield ModelDelta("text", "more ")
                await anyio.lowlevel.checkpoint()
        finally:
            self.closed.set()
            if self._slow_close:
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
            if self._broken_close:
                raise OSError("could not be closed")


async def ended(telemetry: Captured) -> None:
    """Wait until the run was started and all of its spans have ended."""
    with anyio.fail_after(60):
        while telemetry.unended or not telemetry.spans:
            gc.collect()
            await anyio.sleep(0.001)


def assert_cancelled_whole(telemetry: Captured) -> None:
    """One trace, its root and its chat span cancelled, the chat span's answer recorded as unfinished."""
    check_telemetry(telemetry)
    assert ending(telemetry.span("invoke_agent")) == CANCELLED
    assert ending(telemetry.span("chat")) == CANCELLED
    assert attributes(telemetry.span("chat"))[semconv.RESPONSE_FINISH_REASONS] == ("error",)
    assert len(telemetry.tree()) == 1


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # trio mentions what this test is about
async def test_a_generator_that_the_garbage_collector_closes(telemetry: Captured) -> None:
    """A half-read generator that the garbage collector closes ends its run with a complete, cancelled trace."""
    reading = words_of(Agent("a", model=Talking()))
    assert await anext(reading) == "more "
    del reading
    await ended(telemetry)
    assert_cancelled_whole(telemetry)
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_generator_closed_in_another_context(telemetry: Captured) -> None:
    """Closing a generator in a task with an empty context raises nothing and ends its run with a complete trace."""
    reading = words_of(Agent("a", model=Talking()))
    assert await anext(reading) == "more "
    failures: list[BaseException] = []
    done = anyio.Event()

    async def close() -> None:
        try:
            await reading.aclose()
        except BaseException as error:  # noqa: BLE001  (looked at below)
            failures.append(error)
        done.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            contextvars.Context().run(tasks.start_soon, close)
            await done.wait()
    assert failures == []
    assert_cancelled_whole(telemetry)


async def test_each_item_read_in_a_task_of_its_own(telemetry: Captured) -> None:
    """A stream of which each item is read in a task of its own completes with consistent telemetry."""
    stream = Agent("a", model=ScriptedModel("one two three")).stream("x")
    heard: list[str] = []

    async def step() -> None:
        with suppress(StopAsyncIteration):
            heard.append((await anext(stream)).name)

    async def open_it() -> None:
        await stream.__aenter__()

    with anyio.fail_after(60):
        for action in (open_it, *(step for _ in range(30))):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(action)
        await stream.__aexit__(None, None, None)
    assert heard[0] == "run.started"
    assert heard[-1] == "run.completed"
    check_telemetry(telemetry)


@pytest.mark.parametrize("how", ["break", "return", "raise", "exit"])
async def test_a_reader_that_leaves(telemetry: Captured, how: str) -> None:
    """A run is over and cancelled when the block of its stream is left, in whatever way."""

    async def read() -> None:
        async with Agent("a", model=Talking()).stream("x") as events:
            async for event in events:
                if not isinstance(event, InferenceDelta):
                    continue
                if how == "break":
                    break
                if how == "return":
                    return
                raise (KeyError("mine") if how == "raise" else GeneratorExit)

    with anyio.fail_after(60), suppress(KeyError, GeneratorExit):
        await read()
    assert_cancelled_whole(telemetry)


async def test_a_cancellation_that_arrives_during_the_close(telemetry: Captured) -> None:
    """A reader that is cancelled while it closes the stream leaves no span open."""
    model = Talking(slow_close=True)
    reading = words_of(Agent("a", model=model))
    assert await anext(reading) == "more "
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reading.aclose)
            await model.closed.wait()
            tasks.cancel_scope.cancel()
    await ended(telemetry)
    assert_cancelled_whole(telemetry)


async def test_a_model_stream_that_cannot_be_closed(telemetry: Captured) -> None:
    """An exception while a vendor's stream is closed early does not reach the reader, and the trace stays complete."""
    with anyio.fail_after(60):
        async with Agent("a", model=Talking(broken_close=True)).stream("x") as events:
            async for event in events:
                if isinstance(event, InferenceDelta):
                    break
    await ended(telemetry)
    check_telemetry(telemetry)
    assert len(telemetry.tree()) == 1


async def test_a_stream_dropped_in_another_thread(telemetry: Captured) -> None:
    """The last reference to a stream may be dropped in any thread."""
    box: list[Any] = [Agent("a", model=Talking()).stream("x")]
    await box[0].__aenter__()
    assert (await anext(box[0])).name == "run.started"
    thread = threading.Thread(target=box.clear)
    thread.start()
    await ended(telemetry)
    thread.join(60)
    check_telemetry(telemetry)
    assert ending(telemetry.span("invoke_agent")) == CANCELLED


async def test_chunks_of_an_abandoned_stream_are_measured(telemetry: Captured) -> None:
    """A stream that ignores the cancellation of its run is measured only until then."""
    released = anyio.Event()

    class Stubborn(Talking):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
            yield ModelDelta("text", "some")
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await released.wait()
            self.closed.set()
            yield ModelDelta("text", "more")

    model, signal = Stubborn(), CancelToken()
    with anyio.fail_after(60):
        async with Agent("a", model=model).stream("x", signal=signal) as events:
            with suppress(RunCancelled):
                async for event in events:
                    if isinstance(event, InferenceDelta):
                        signal.cancel()
        assert ending(telemetry.span("invoke_agent")) == CANCELLED
        assert len([point for point in telemetry.metrics if point.name == semconv.TIME_TO_FIRST_CHUNK.name]) == 1
        check_telemetry(telemetry)
        released.set()
        await model.closed.wait()
    check_telemetry(telemetry)


async def test_a_run_awaited_within_a_generator(telemetry: Captured) -> None:
    """A generator that awaits runs between its items leaves complete traces and no context when it is closed."""
    agent = Agent("a", model=ScriptedModel("one", "two"))

    async def answers() -> AsyncGenerator[str]:
        while True:
            yield (await agent.run("x")).output

    with anyio.fail_after(60):
        items = answers()
        assert [await anext(items), await anext(items)] == ["one", "two"]
        assert not trace.get_current_span().get_span_context().is_valid
        await items.aclose()
    assert len(telemetry.tree()) == 2
    check_telemetry(telemetry)


async def test_a_stream_that_breaks_after_some_words(telemetry: Captured) -> None:
    """A stream that breaks fails with the type of its error, and the text until then is recorded as unfinished."""

    class Breaking(Talking):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
            yield ModelDelta("text", "half an ans")
            raise ConnectionResetError

    reading = words_of(Agent("a", model=Breaking()))
    with anyio.fail_after(60):
        assert await anext(reading) == "half an ans"
        with pytest.raises(ModelError):
            await anext(reading)
    chat = attributes(telemetry.span("chat"))
    assert ending(telemetry.span("chat")) == ("failed", "ERROR", "ConnectionResetError")
    assert chat[semconv.RESPONSE_FINISH_REASONS] == ("error",)
    assert "half an ans" in chat[semconv.OUTPUT_MESSAGES]
    check_telemetry(telemetry)


async def test_tools_of_an_abandoned_stream_are_cancelled(telemetry: Captured) -> None:
    """Leaving a stream cancels the tools of its run."""
    begun = anyio.Event()

    @tool
    async def wait() -> None:
        begun.set()
        await anyio.sleep_forever()

    stream = Agent("a", model=ScriptedModel(ToolCall("wait")), tools=[wait]).stream("x")
    await stream.__aenter__()
    with anyio.fail_after(60):
        await begun.wait()
    del stream
    await ended(telemetry)
    assert ending(telemetry.span("execute_tool")) == CANCELLED
    check_telemetry(telemetry)
