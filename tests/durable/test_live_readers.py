"""Readers of the text of durable runs that are stopped, slow or late, and what must not disturb them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.lowlevel
import pytest

from pellucid import Agent, Message, TextPart, ToolCall
from pellucid.durable import DurableRuns, RunDelta, RunEvent
from pellucid.durable.runs.live import hub
from pellucid.models import ModelDelta
from support.durable_agents import DO
from support.live_runs import LiveModel, Reader, deltas, names, said
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from pellucid.durable import RunStore
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


class Wire:
    """A queue's relay between processes. Attributes: announced: announcements; held: pieces that wait for `release`."""

    def __init__(self, *others: Wire) -> None:
        self.others = others
        self.announced: list[str] = []
        self.held: list[str] = []
        self.relay = self

    def attach(self, store: RunStore) -> None:
        """Do nothing."""

    async def receive(self, agents: object, timeout: float) -> None:  # noqa: ASYNC109
        """Have no messages."""
        await anyio.sleep(timeout)

    def open(self, announced: Callable[[str], None], received: Callable[[str], None]) -> None:
        """Note the receivers."""
        self.receivers = announced, received

    async def follow(self, run_id: str) -> None:
        """Do nothing."""

    def leave(self, run_id: str) -> None:
        """Do nothing."""

    async def announce(self, texts: Sequence[str]) -> None:
        """Announce to the other processes."""
        self.announced += texts
        for other in self.others:
            for text in texts:
                other.receivers[0](text)

    async def send(self, messages: Sequence[tuple[str, str]]) -> None:
        """Hold pieces back."""
        self.held += [text for _, text in messages]

    def release(self, to: Wire) -> None:
        """Send what was held back."""
        for text in self.held:
            to.receivers[1](text)
        self.held.clear()


async def test_a_reader_that_is_stopped_while_it_looks_misses_no_event(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was notified of the event once, and would wait for its next look otherwise."""
    agent = Agent("a", model=LiveModel(lambda _: said("Hello.")))
    async with location.open(poll=PATIENCE) as store:
        runs = DurableRuns(store, [agent])
        run_id = await runs.submit(agent, "Hi")
        has_events, scopes = store.has_events, [anyio.CancelScope()]

        async def stopped(run_id: str, after: int) -> bool:
            found = await has_events(run_id, after)
            if found and scopes:
                scopes.pop().cancel()
            await anyio.lowlevel.checkpoint()
            return found

        monkeypatch.setattr(store, "has_events", stopped)
        with anyio.fail_after(PATIENCE / 5):
            async with runs.stream(run_id) as events, anyio.create_task_group() as tasks:
                with anyio.move_on_after(0.2):
                    await anext(events)
                tasks.start_soon(runs.cancel, run_id, "Enough.")
                with scopes[0] as scope:
                    await anext(events)
                assert scope.cancelled_caught
                assert cast("RunEvent", await anext(events)).type == "run.cancelled"


async def test_a_reader_that_always_has_something_to_read_stays_known(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process says that it reads while it never waits; otherwise others would stop sending."""
    monkeypatch.setattr(hub, "RENEWAL", 0.0)
    number, ahead = 30, anyio.Semaphore(2)
    seen: list[RunEvent | RunDelta] = []

    async def answer(_request: Any) -> AsyncIterator[Any]:
        for _ in range(number):
            await ahead.acquire()
            yield ModelDelta("text", "0")
        yield "0" * number

    agent, wire = Agent("a", model=LiveModel(answer)), Wire()
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "Hi")
    with anyio.fail_after(PATIENCE):
        reading = DurableRuns(store, [], queue=wire)
        async with reading.stream(run_id) as events, anyio.create_task_group() as tasks:
            tasks.start_soon(runs.work_until_idle)
            async for event in events:
                seen.append(event)
                ahead.release()
                await anyio.sleep(0.01)  # the next piece is there
    assert len(wire.announced) >= len(deltas(seen)) > number / 2


async def test_a_reader_that_is_stopped_while_it_catches_up_gets_no_old_text(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late pieces of an answer that it has."""
    may_end = anyio.Event()

    async def answer(request: Any) -> AsyncIterator[Any]:
        if len(request.messages) == 1:
            yield ModelDelta("text", "Let me look.")
            yield Message("assistant", [TextPart("Let me look."), ToolCall("do")])
            return
        await may_end.wait()
        yield "Done."

    agent, near = Agent("a", model=LiveModel(answer), tools=[DO]), Wire()
    far = Wire(near)
    seen: list[RunEvent | RunDelta] = []
    with anyio.fail_after(PATIENCE):
        async with location.open() as store, location.open() as other, anyio.create_task_group() as tasks:
            runs, reading = DurableRuns(store, [agent], queue=near), DurableRuns(other, [], queue=far)
            tasks.start_soon(runs.work)
            await anyio.wait_all_tasks_blocked()
            async with reading.stream("run") as events:
                run_id = await runs.submit(agent, "Hi", run_id="run")
                first = cast("RunEvent", await anext(events))
            page_of, scope = other.events, anyio.CancelScope()

            async def stopped(run_id: str, *, after: int) -> Any:
                if after == 0:
                    scope.cancel()
                return await page_of(run_id, after=after)

            monkeypatch.setattr(other, "events", stopped)
            async with reading.stream(run_id, first.seq) as events:
                near.release(far)
                with scope:
                    seen += [event async for event in events]
                monkeypatch.undo()
                may_end.set()
                seen += [event async for event in events]
            assert scope.cancelled_caught
            tasks.cancel_scope.cancel()
    assert "1" not in {piece.key for piece in deltas(seen)}


@pytest.mark.parametrize("value", ["{}", '{"state": {"messages": []}}', '{"state": {"messages": 1}}', "[]"])
async def test_a_reader_of_a_damaged_answer_gets_its_event(store: RunStore, location: Location, value: str) -> None:
    """Without the text that is not there; it could not read on otherwise."""
    agent = Agent("a", model=LiveModel(lambda _: said("Hello.")))
    runs = DurableRuns(store, [agent])
    run_id = await runs.submit(agent, "Hi")
    await runs.work_until_idle()
    location.execute(f"UPDATE journal SET value = '{value}' WHERE key = 'answer:1'")
    async with runs.stream(run_id) as events:
        seen = [event async for event in events]
    assert names(seen) == ["step.answer", "run.completed"]
    assert "content" not in cast("RunEvent", seen[0]).data


async def test_pieces_of_a_kind_of_the_models_own(store: RunStore) -> None:
    """A run does not fail because somebody reads it."""
    reader = Reader()

    async def answer(_request: Any) -> AsyncIterator[Any]:
        yield ModelDelta(cast("Any", "citation"), "[1]")
        async for piece in reader.said("Hello."):
            yield piece

    agent = Agent("a", model=LiveModel(answer))
    runs = DurableRuns(store, [agent])
    with anyio.fail_after(PATIENCE):
        await reader.read(runs, await runs.submit(agent, "Hi"))
    assert names(reader.seen) == ["delta", "step.answer", "run.completed"]
    assert [piece.content for piece in deltas(reader.seen, "citation")] == ["[1]"]
