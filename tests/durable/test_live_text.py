"""The text of durable runs while the model writes it: who gets it, what it costs the others, and what follows it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from pellucid import Agent, ConfigError, Limits, Message, ModelError, TextPart, ToolCall
from pellucid.durable import DurableRuns, RunDelta, RunEvent
from pellucid.models import ModelDelta
from pellucid.reliability import Reliability, Rule, retry
from support.durable_agents import DO
from support.live_runs import LiveModel, Reader, deltas, names, said, text_of
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid.durable import RunStore
    from pellucid_exporters.testing import Captured
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def followed(runs: DurableRuns, run_id: str, after: int = 0) -> list[RunEvent | RunDelta]:
    """Return what a reader of a run gets while the run is worked on."""
    reader = Reader()
    with anyio.fail_after(PATIENCE):
        await reader.read(runs, run_id, after)
    return reader.seen


async def test_a_reader_gets_the_pieces_and_then_the_whole_answer(store: RunStore) -> None:
    """Text, reasoning and names of tools as the model writes them; the stored event of the step has its text."""
    reader = Reader()

    async def answer(request: Any) -> AsyncIterator[Any]:
        if len(request.messages) == 1:
            yield ModelDelta("reasoning", "Hm.")
            yield ModelDelta("tool_call", "do")
            yield ModelDelta("text", "Let me ")
            yield ModelDelta("text", "look.")
            await reader.until("look.")
            yield Message("assistant", [TextPart("Let me look."), ToolCall("do")])
            return
        async for piece in reader.said("It ", "is ", "done."):
            yield piece

    agent = Agent("a", model=LiveModel(answer), tools=[DO])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "Hi")
    with anyio.fail_after(PATIENCE):
        await reader.read(runs, run_id)
    seen = reader.seen
    assert names(seen) == [
        "delta",
        "step.answer",
        *(event.type for event in seen if isinstance(event, RunEvent) and event.type.startswith("step.st")),
        "step.result",
        "delta",
        "step.answer",
        "run.completed",
    ]
    first = [piece for piece in deltas(seen) if piece.key == "1"]
    second = [piece for piece in deltas(seen) if piece.key == "2"]
    assert (text_of(first), text_of(second)) == ("Let me look.", "It is done.")
    assert [(piece.content, piece.iteration) for piece in deltas(seen, "reasoning")] == [("Hm.", 1)]
    assert [piece.content for piece in deltas(seen, "tool_call")] == ["do"]
    answers = [event for event in seen if isinstance(event, RunEvent) and event.type == "step.answer"]
    assert [event.data["content"] for event in answers] == ["Let me look.", "It is done."]
    stored = [event async for event in runs.events(run_id)]
    assert [event.seq for event in stored] == [event.seq for event in seen if isinstance(event, RunEvent)]
    assert not any("content" in event.data for event in stored)


async def test_without_readers_models_answer_whole(store: RunStore, telemetry: Captured) -> None:
    """Nothing is paid for pieces that nobody reads, and telemetry is what it was."""
    model = LiveModel(lambda _: said("Hello."))
    agent = Agent("a", model=model)
    runs = DurableRuns(store, [agent])
    await runs.submit(agent, "Hi")
    await runs.work_until_idle()
    assert model.calls == ["generate"]
    (chat,) = telemetry.find("chat")
    assert "gen_ai.request.stream" not in chat.attributes


async def test_a_call_that_somebody_reads_is_recorded_as_streamed(store: RunStore, telemetry: Captured) -> None:
    """As it was made: with the time to its first chunk."""
    agent = Agent("a", model=LiveModel(lambda _: said("Hello.")))
    runs = DurableRuns(store, [agent])
    await followed(runs, await runs.submit(agent, "Hi"))
    (chat,) = telemetry.find("chat")
    assert chat.attributes["gen_ai.request.stream"] is True
    assert "gen_ai.response.time_to_first_chunk" in chat.attributes


@pytest.mark.parametrize(("stream", "call"), [("always", "stream"), ("never", "generate")])
async def test_models_can_stream_always_and_never(store: RunStore, stream: Any, call: str) -> None:
    """Always, for readers who come while the model writes; never, where no text may leave the store."""
    model = LiveModel(lambda _: said("Hello."))
    agent = Agent("a", model=model)
    runs = DurableRuns(store, [agent], stream=stream)
    run_id = await runs.submit(agent, "Hi")
    if stream == "always":
        await runs.work_until_idle()
    else:
        seen = await followed(runs, run_id)
        assert names(seen) == ["step.answer", "run.completed"]
        assert "content" not in seen[0].data  # type: ignore[union-attr]
    assert model.calls == [call]


async def test_another_value_of_the_option(store: RunStore) -> None:
    """The error names the values."""
    with pytest.raises(ConfigError, match="'read', 'always' or 'never'"):
        DurableRuns(store, [], stream="sometimes")  # type: ignore[arg-type]


async def test_a_reader_that_comes_late_gets_what_follows(store: RunStore) -> None:
    """From where the model is; the offset says how much it has missed. Readers that leave cost nothing afterwards."""
    has_begun, may_go_on, is_late = anyio.Event(), anyio.Event(), anyio.Event()

    async def answer(request: Any) -> AsyncIterator[Any]:
        if len(request.messages) > 1:
            yield "Bye."
            return
        yield ModelDelta("text", "Hello, ")
        has_begun.set()
        await may_go_on.wait()
        yield ModelDelta("text", "world.")
        await is_late.wait()
        yield Message("assistant", [TextPart("Hello, world."), ToolCall("do")])

    model = LiveModel(answer)
    agent = Agent("a", model=model, tools=[DO])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "Hi")
    early: list[Any] = []
    with anyio.fail_after(PATIENCE):
        async with runs.stream(run_id) as first, anyio.create_task_group() as tasks:

            async def work() -> None:
                await runs.work_until_idle()

            tasks.start_soon(work)
            await has_begun.wait()
            async with runs.stream(run_id) as second:
                may_go_on.set()
                late = await anext(second)
                is_late.set()
            assert (late.offset, late.content) == (7, "world.")  # type: ignore[union-attr]
            async for event in first:
                early.append(event)
                if isinstance(event, RunEvent):
                    break
    assert early[-1].data["content"] == "Hello, world."
    assert model.calls[0] == "stream"


async def test_a_reader_that_has_left_is_forgotten(store: RunStore) -> None:
    """The next model call of the run is made whole again, and nothing is kept of the reader."""
    has_left = anyio.Event()

    async def answer(request: Any) -> AsyncIterator[Any]:
        if len(request.messages) == 1:
            yield ModelDelta("text", "Hello.")
            await has_left.wait()
            yield Message("assistant", [TextPart("Hello."), ToolCall("do")])
        else:
            yield "Bye."

    model = LiveModel(answer)
    agent = Agent("a", model=model, tools=[DO])
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "Hi")
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            async with runs.stream(run_id) as events:
                tasks.start_soon(runs.work_until_idle)
                assert (await anext(events)).content == "Hello."  # type: ignore[union-attr]
            has_left.set()
    assert model.calls == ["stream", "generate"]
    del events
    gc.collect()
    assert not [item for item in gc.get_objects() if type(item).__name__ == "Follower"]


async def test_another_attempt_starts_over(store: RunStore) -> None:
    """A stream that fails is repeated as a whole call would be, and its pieces have the number of the attempt."""
    attempts: list[int] = []

    async def answer(_request: Any) -> AsyncIterator[Any]:
        attempts.append(1)
        yield ModelDelta("text", "It " if len(attempts) == 1 else "Now it ")
        if len(attempts) == 1:
            await reader.until("It ")
            raise ModelError("live", "cut off")
        yield ModelDelta("text", "works.")
        await reader.until("works.")
        yield "Now it works."

    reader = Reader()
    reliability = Reliability([Rule(when=lambda s: s.attempt < 3, then=retry(backoff=0), kind="transient")])
    agent = Agent("a", model=LiveModel(answer), reliability=reliability)
    runs = DurableRuns(store, [agent])
    with anyio.fail_after(PATIENCE):
        await reader.read(runs, await runs.submit(agent, "Hi"))
    pieces = deltas(reader.seen)
    assert [piece.content for piece in pieces if piece.attempt == 1] == ["It "]
    assert text_of(pieces) == "Now it works."
    assert {piece.attempt for piece in pieces} == {1, 2}
    assert names(reader.seen)[-1] == "run.completed"


async def test_a_pass_that_lost_its_lease_is_not_mixed_in(store: RunStore, location: Location) -> None:
    """Pieces of the pass that continues have a greater claim, and none of the one before follows them."""
    has_begun, may_go_on, has_ended = anyio.Event(), anyio.Event(), anyio.Event()
    reader = Reader()
    claims: list[int] = []

    async def answer(_request: Any) -> AsyncIterator[Any]:
        claims.append(len(claims) + 1)
        if claims[-1] == 2:
            yield ModelDelta("text", "The second.")
            await reader.until("The second.")
            may_go_on.set()
            await has_ended.wait()
            yield "The second."
            return
        yield ModelDelta("text", "The ")
        await reader.until("The ")
        has_begun.set()
        await may_go_on.wait()
        for _ in range(20):
            yield ModelDelta("text", "first.")
            await anyio.lowlevel.checkpoint()
        has_ended.set()
        yield "The first."

    agent = Agent("a", model=LiveModel(answer))
    lost, next_one = DurableRuns(store, [agent], lease=600), DurableRuns(store, [agent])
    run_id = await lost.submit(agent, "Hi")
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.read, lost, run_id)
            await has_begun.wait()
            location.end_leases()
            tasks.start_soon(next_one.work_until_idle)
    assert [piece.content for piece in deltas(reader.seen)] == ["The ", "The second."]
    first, second = deltas(reader.seen)
    assert (first.claim < second.claim, second.offset) == (True, 0)
    assert names(reader.seen) == ["delta", "step.answer", "run.completed"]


async def test_a_slow_reader_delays_nobody(store: RunStore) -> None:
    """Its oldest pieces are dropped, which the offset shows, and the answer is whole."""
    text, number = "0123456789abcde ", 20_000
    reader = Reader()
    is_written = anyio.Event()

    async def answer(_request: Any) -> AsyncIterator[Any]:
        for _ in range(number):
            yield ModelDelta("text", text)
        is_written.set()
        await reader.until(text)
        yield text * number

    agent = Agent("a", model=LiveModel(answer))
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "Hi")
    with anyio.fail_after(PATIENCE):
        async with runs.stream(run_id) as events, runs.stream(run_id), anyio.create_task_group() as tasks:
            tasks.start_soon(runs.work_until_idle)
            await is_written.wait()
            async for event in events:
                reader.add(event)
    pieces = deltas(reader.seen)
    assert pieces[0].offset > 0
    assert sum(len(piece.content) for piece in pieces) <= 65_536
    assert pieces[-1].offset + len(pieces[-1].content) == len(text) * number
    assert isinstance(reader.seen[-2], RunEvent)
    assert reader.seen[-2].data["content"] == text * number


async def test_the_first_reader_comes_in_the_middle_of_an_answer(store: RunStore) -> None:
    """With `always` it gets what follows."""
    has_begun, has_come = anyio.Event(), anyio.Event()
    reader = Reader()

    async def answer(_request: Any) -> AsyncIterator[Any]:
        yield ModelDelta("text", "Hello, ")
        has_begun.set()
        await has_come.wait()
        async for piece in reader.said("world."):
            yield piece

    agent = Agent("a", model=LiveModel(answer))
    runs = DurableRuns(store, [agent], stream="always")
    run_id = await runs.submit(agent, "Hi")
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runs.work_until_idle)
            await has_begun.wait()
            async with runs.stream(run_id) as events:
                has_come.set()
                async for event in events:
                    reader.add(event)
    assert [(piece.offset, piece.content) for piece in deltas(reader.seen)] == [(7, "world.")]


async def test_a_reader_that_returns_gets_no_text_of_steps_that_it_has(store: RunStore) -> None:
    """The answer of the step took its place, in another stream."""
    agent = Agent("a", model=LiveModel(lambda _: said("Hel", "lo.")))
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "Hi")
    seen = await followed(runs, run_id)
    last = [event.seq for event in seen if isinstance(event, RunEvent)][-2]
    again = await followed(runs, run_id, last)
    assert names(again) == ["run.completed"]
    assert names(await followed(runs, run_id)) == ["step.answer", "run.completed"]


async def test_the_closing_answer_has_a_key_of_its_own(store: RunStore) -> None:
    """It belongs to the last iteration, whose answer is stored."""
    reader = Reader()

    async def answer(request: Any) -> AsyncIterator[Any]:
        if request.tools:
            yield ToolCall("do")
            return
        async for piece in reader.said("That is ", "all."):
            yield piece

    agent = Agent("a", model=LiveModel(answer), tools=[DO], limits=Limits(max_iterations=1))
    runs = DurableRuns(store, [agent])
    with anyio.fail_after(PATIENCE):
        await reader.read(runs, await runs.submit(agent, "Hi"))
    assert text_of(deltas(reader.seen)) == "That is all."
    assert {piece.key for piece in deltas(reader.seen)} == {"1:closing"}
