from __future__ import annotations

import gc
import json
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from pellucid import (
    Agent,
    CancelToken,
    CapturePolicy,
    ConfigError,
    Limits,
    Message,
    ModelDelta,
    ModelError,
    ModelResponse,
    RunCancelled,
    RunTimeout,
    ToolCall,
    semconv,
    tool,
)
from pellucid.events import InferenceDelta
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters.testing import capture, check_telemetry
from support.processes import PATIENCE
from support.runs import CANCELLED, COMPLETED, attributes, ending, iteration, within, words_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pellucid import ModelRequest, RunStream
    from pellucid.events import Event
    from pellucid.models import StreamItem
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = ToolCall("add", {"a": 1, "b": 2})


class Endless:
    """A model that never comes to its end."""

    name = "endless"
    provider_name = "test"

    def __init__(self) -> None:
        self.closed = anyio.Event()

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Wait."""
        await anyio.sleep_forever()
        raise AssertionError

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Go on and on."""
        try:
            while True:
                yield ModelDelta("text", "more ")
                await anyio.lowlevel.checkpoint()
        finally:
            self.closed.set()


def endless() -> Agent:
    """Return an agent that never comes to its end."""
    return Agent("a", model=Endless(), tools=[add])


async def settle(telemetry: Captured) -> None:
    """Wait until every span has ended."""
    with anyio.fail_after(60):
        while telemetry.unended or not telemetry.spans:
            gc.collect()
            for _ in range(10):  # what was collected ends in a few steps of the event loop
                await anyio.lowlevel.checkpoint()


async def read(stream: RunStream) -> list[Event]:
    """Read a stream to its end."""
    with anyio.fail_after(60):
        return [event async for event in stream]


async def hear(stream: RunStream, listen: Callable[[Event], object]) -> None:
    """Enter a stream, and call a listener with each event."""
    with anyio.fail_after(60):
        async with stream as events:
            async for event in events:
                listen(event)


# --- to the end -------------------------------------------------------------------------------------------------------


async def test_a_stream_read_to_its_end_is_the_run(telemetry: Captured) -> None:
    """A stream gives every event in order, the answer piece by piece, and then the result."""
    agent = Agent("a", model=ScriptedModel(ADD, "It is three."), tools=[add])
    async with agent.stream("Add.") as events:
        heard = await read(events)
    assert [event.name for event in heard] == [event.name for event in telemetry.events]
    assert (heard[0].name, heard[-1].name) == ("run.started", "run.completed")
    pieces = [event.content for event in heard if isinstance(event, InferenceDelta) and event.type == "text"]
    assert pieces == ["It", " is", " three."]
    assert events.result.output == "It is three."
    assert telemetry.tree() == [("invoke_agent a", [*iteration("add"), *iteration()])]
    assert {ending(span) for span in telemetry.spans} == {COMPLETED}
    check_telemetry(telemetry)


async def test_a_streamed_answer_is_measured(telemetry: Captured) -> None:
    """Histograms have the time to the first chunk of a streamed answer and the times between later chunks."""
    async with Agent("a", model=ScriptedModel("one two three")).stream("x") as events:
        await read(events)
    found = attributes(telemetry.span("chat"))
    assert found[semconv.REQUEST_STREAM] is True
    first = telemetry.histogram(semconv.TIME_TO_FIRST_CHUNK)
    assert (first.count, first.value) == (1, found[semconv.RESPONSE_TIME_TO_FIRST_CHUNK])
    assert telemetry.histogram(semconv.TIME_PER_OUTPUT_CHUNK).count == 2


@pytest.mark.parametrize("mode", ["metadata", "off"])
async def test_a_streamed_answer_has_the_times_of_its_pieces(mode: Any) -> None:
    """The span of a streamed answer has the time, type and characters of each piece, unless the mode is `off`."""
    with capture(capture=CapturePolicy(mode)) as telemetry:
        async with Agent("a", model=ScriptedModel("one two three")).stream("x") as events:
            await read(events)
    span = telemetry.span("chat")
    found = attributes(span)
    if mode == "off":
        assert semconv.RESPONSE_CHUNKS not in found
        return
    pieces = json.loads(found[semconv.RESPONSE_CHUNKS])
    assert [piece[1:] for piece in pieces] == [["text", 3], ["text", 4], ["text", 6]]
    times = [piece[0] for piece in pieces]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= ((span.end_time or 0) - (span.start_time or 0)) / 1e6


async def test_the_times_of_an_answer_with_many_pieces_are_bounded(telemetry: Captured) -> None:
    """The span has times of at most 1,000 pieces, and the last one has the characters of all that follow."""
    async with Agent("a", model=ScriptedModel("word " * 1_200)).stream("x") as events:
        await read(events)
    pieces = json.loads(attributes(telemetry.span("chat"))[semconv.RESPONSE_CHUNKS])
    assert len(pieces) == 1_000
    assert sum(piece[2] for piece in pieces) == len("word " * 1_200)


async def test_the_first_chunk_may_have_no_content(telemetry: Captured) -> None:
    """A model that reports its chunks is measured by them, and the whole answer at the end is not a chunk."""

    class Reporting:
        name, provider_name = "reporting", "test"

        async def generate(self, request: ModelRequest) -> ModelResponse:
            return ModelResponse(message=Message("assistant", "one two"), model="reporting-1")

        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
            request.on_chunk()
            for piece in ("one ", "two"):
                request.on_chunk()
                yield ModelDelta("text", piece)
            yield await self.generate(request)

    async with Agent("a", model=Reporting()).stream("x") as events:
        await read(events)
    labels = {"gen_ai_response_model": "reporting-1"}
    first = telemetry.histogram(semconv.TIME_TO_FIRST_CHUNK, **labels)
    others = telemetry.histogram(semconv.TIME_PER_OUTPUT_CHUNK, **labels)
    assert (first.count, others.count) == (1, 2)


async def test_the_result_of_a_run_that_is_not_over_is_refused() -> None:
    """Reading the result of a run that is not over raises an error that says what to do."""
    async with endless().stream("x") as events:
        with pytest.raises(ConfigError, match="read its events to the end"):
            _ = events.result


async def test_a_failing_run_raises_after_its_last_event(telemetry: Captured) -> None:
    """The reader of a failing run gets the event `run.failed` and then the error."""
    heard: list[Event] = []
    cause = OSError("down")
    with pytest.raises(ModelError, match="down") as caught:
        await hear(stream := Agent("a", model=ScriptedModel(cause)).stream("x"), heard.append)
    assert heard[-1].name == "run.failed"
    with pytest.raises(ConfigError, match="the run has no result, because it failed") as refused:
        _ = stream.result
    assert refused.value.__cause__ is caught.value
    assert caught.value.__cause__ is cause
    check_telemetry(telemetry)


async def test_a_stream_that_ends_without_a_response_is_an_error(telemetry: Captured) -> None:
    """A stream of a model that ends without a response fails, and its text until then is recorded."""

    class Cut(Endless):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
            yield ModelDelta("text", "half an ans")

    with pytest.raises(ModelError, match="a stream must end with one"):
        await hear(Agent("a", model=Cut()).stream("x"), lambda event: None)
    span = telemetry.span("chat")
    assert ending(span) == ("failed", "ERROR", "invalid_response")
    assert "half an ans" in attributes(span)[semconv.OUTPUT_MESSAGES]
    assert attributes(span)[semconv.RESPONSE_FINISH_REASONS] == ("error",)


async def test_a_model_stream_that_is_no_generator_is_read() -> None:
    """A model's stream may be any async iterator."""

    class Items:
        def __init__(self) -> None:
            self.items: list[Any] = [ModelDelta("text", "hi"), ModelResponse(message=Message("assistant", "hi"))]

        def __aiter__(self) -> Items:
            return self

        async def __anext__(self) -> Any:
            if not self.items:
                raise StopAsyncIteration
            return self.items.pop(0)

    class Plain(Endless):
        def stream(self, request: ModelRequest) -> Any:
            return Items()

    async with Agent("a", model=Plain()).stream("x") as events:
        await read(events)
    assert events.result.output == "hi"


async def test_a_reader_that_is_late_misses_nothing() -> None:
    """A reader that starts late gets every event."""
    words = " ".join(["word"] * 3000)
    async with Agent("a", model=ScriptedModel(words)).stream("x") as events:
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        heard = await read(events)
    assert sum(isinstance(event, InferenceDelta) for event in heard) == 3000


# --- leaving early ----------------------------------------------------------------------------------------------------


async def test_leaving_early_cancels_the_run(telemetry: Captured) -> None:
    """Leaving the block early ends the run, closes its model's stream and ends every span."""
    model = Endless()
    with anyio.fail_after(60):
        async with Agent("a", model=model).stream("x") as events:
            async for event in events:
                if isinstance(event, InferenceDelta):
                    break
    assert model.closed.is_set()
    assert ending(telemetry.span("chat")) == ending(telemetry.span("invoke_agent")) == CANCELLED
    check_telemetry(telemetry)


async def test_an_exception_in_the_block_is_the_caller_s(telemetry: Captured) -> None:
    """An exception in the block reaches the caller unchanged and cancels the run."""

    def listen(event: Event) -> None:
        if isinstance(event, InferenceDelta):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await hear(endless().stream("x"), listen)
    assert ending(telemetry.span("invoke_agent")) == CANCELLED
    check_telemetry(telemetry)


async def test_a_cancelled_reader_cancels_the_run(telemetry: Captured) -> None:
    """Cancelling the task that reads cancels the run."""
    reading = anyio.Event()

    async def consume() -> None:
        async with endless().stream("x") as events:
            async for event in events:
                if isinstance(event, InferenceDelta):
                    reading.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            await reading.wait()
            tasks.cancel_scope.cancel()
    assert ending(telemetry.span("invoke_agent")) == CANCELLED
    check_telemetry(telemetry)


async def test_a_generator_over_a_stream_can_be_closed(telemetry: Captured) -> None:
    """Closing a generator that yields inside the block ends the run."""
    with anyio.fail_after(60):
        words = words_of(endless())
        assert await anext(aiter(words)) == "more "
        await words.aclose()
    assert ending(telemetry.span("invoke_agent")) == CANCELLED
    check_telemetry(telemetry)


async def test_a_generator_closed_in_another_task_ends_the_run(telemetry: Captured) -> None:
    """A generator over a stream may be closed in another task than the one that read it."""
    words = words_of(endless())

    async def begin() -> None:
        assert await anext(aiter(words)) == "more "

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(begin)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(words.aclose)
    assert ending(telemetry.span("invoke_agent")) == CANCELLED
    check_telemetry(telemetry)


async def test_an_abandoned_stream_ends_its_run(telemetry: Captured) -> None:
    """A stream that is entered and then collected as garbage cancels its run."""
    stream = endless().stream("x")
    await stream.__aenter__()
    with anyio.fail_after(60):
        assert (await anext(stream)).name == "run.started"
    del stream
    await settle(telemetry)
    assert ending(telemetry.span("invoke_agent")) == CANCELLED
    check_telemetry(telemetry)


async def test_a_stream_that_is_never_entered_starts_nothing(telemetry: Captured) -> None:
    """A stream that is never entered has no spans and no events."""
    endless().stream("x")
    gc.collect()
    await anyio.lowlevel.checkpoint()
    assert telemetry.tree() == []
    assert telemetry.events == []


async def test_a_stream_is_entered_before_it_is_read_and_once() -> None:
    """A stream that is read before it is entered, or entered twice, raises an error that says what to do."""
    stream = Agent("a", model=ScriptedModel("x")).stream("y")
    with pytest.raises(ConfigError, match=r"async with agent\.stream"):
        await anext(stream)
    async with stream:
        await read(stream)
    with pytest.raises(ConfigError, match="can be entered only once"):
        await within(stream.__aenter__())


async def test_a_stream_that_is_left_in_another_task_ends_its_run(telemetry: Captured) -> None:
    """A stream may be entered in one task and left in another."""
    stream = endless().stream("x")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.__aenter__)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.__aexit__, None, None, None)
    assert ending(telemetry.span("invoke_agent")) == CANCELLED
    check_telemetry(telemetry)


async def test_a_token_ends_a_stream(telemetry: Captured) -> None:
    """Cancelling the token of a run raises `RunCancelled` in the reader of its stream."""
    token = CancelToken()
    with pytest.raises(RunCancelled, match="enough"):
        await hear(endless().stream("x", signal=token), lambda event: token.cancel("enough"))
    assert ending(telemetry.span("invoke_agent")) == CANCELLED
    check_telemetry(telemetry)


async def test_a_deadline_ends_a_stream(telemetry: Captured) -> None:
    """The deadline of a run raises `RunTimeout` in the reader of its stream."""
    agent = Agent("a", model=Endless(), limits=Limits(timeout=0.05))
    with pytest.raises(RunTimeout):
        await hear(agent.stream("x"), lambda event: None)
    assert ending(telemetry.span("invoke_agent"))[0] == "timeout"
    check_telemetry(telemetry)


async def test_streams_of_one_agent_do_not_mix() -> None:
    """Each of several readers gets only the events of its own run."""
    agent = Agent("a", model=FunctionModel(lambda request: request.messages[0].text))

    async def consume(text: str) -> None:
        async with agent.stream(text) as events:
            heard = [event async for event in events]
        assert events.result.output == text
        assert {event.run_id for event in heard} == {events.result.run_id}

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(consume, f"run {number}")


async def test_the_context_of_the_reader_is_left_alone(telemetry: Captured) -> None:
    """Spans of the reader inside the block are not the run's, and the parent of the run is the reader's span."""
    tracer = telemetry.tracer_provider.get_tracer("application")
    with tracer.start_as_current_span("request"):
        async with Agent("a", model=ScriptedModel("one two")).stream("x") as events:
            async for event in events:
                with tracer.start_as_current_span(f"heard {event.name}"):
                    pass
    [(name, children)] = telemetry.tree()
    assert name == "request"
    assert ("invoke_agent a", iteration()) in children
    assert ("heard run.started", []) in children
    assert telemetry.unended == []


async def test_run_and_stream_agree() -> None:
    """`run` and `stream` lead to the same result."""
    ran = await within(Agent("a", model=ScriptedModel(ADD, "3"), tools=[add]).run("x"))
    async with Agent("a", model=ScriptedModel(ADD, "3"), tools=[add]).stream("x") as events:
        await read(events)
    streamed = events.result
    assert (streamed.status, streamed.output, streamed.iterations) == (ran.status, ran.output, ran.iterations)
    assert [message.role for message in streamed.messages] == [message.role for message in ran.messages]


async def test_other_tasks_run_while_arrived_pieces_are_read(telemetry: Captured) -> None:
    """Other tasks run while a reader takes pieces that have already arrived."""

    async def pieces(request: ModelRequest) -> AsyncIterator[Any]:
        for _ in range(100):
            yield ModelDelta("text", "more ")
        yield Message("assistant", "done")

    read = 0
    turns: set[int] = set()

    async def count() -> None:
        while True:
            turns.add(read)
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(count)
            async with Agent("a", model=FunctionModel(pieces)).stream("x") as events:
                async for _ in events:
                    read += 1
            group.cancel_scope.cancel()
    assert read > 100
    assert len(turns) > 3


async def test_a_model_function_that_yields_texts() -> None:
    """A model function that yields a text before the last item is refused."""

    async def answer(_request: ModelRequest) -> AsyncIterator[Any]:
        yield "Take "
        yield "an umbrella."

    agent = Agent("a", model=FunctionModel(answer))
    with pytest.raises(ModelError, match=r"after the answer 'Take '; yield pieces as ModelDelta"):
        await within(agent.run("x"))
    with pytest.raises(ModelError, match="yield pieces as ModelDelta"):
        async with agent.stream("x") as events:
            _ = [event async for event in events]


async def test_a_step_of_a_script_that_yields_deltas() -> None:
    """A scripted step that yields deltas is streamed, as a function of a model is."""

    async def answer(_request: ModelRequest) -> AsyncIterator[Any]:
        yield ModelDelta("text", "Take ")
        yield ModelDelta("text", "it.")
        yield "Take it."

    agent = Agent("a", model=ScriptedModel(answer, answer))
    assert (await within(agent.run("x"))).output == "Take it."
    async with agent.stream("x") as events:
        texts = [event.content async for event in events if isinstance(event, InferenceDelta)]
    assert texts == ["Take ", "it."]
