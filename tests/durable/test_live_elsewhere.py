"""The text of durable runs in another process than the worker's, by way of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, Limits, ToolCall
from pellucid.durable import DurableRuns, RunDelta, RunEvent
from pellucid.models import ModelDelta
from support.live_runs import AGAIN, LiveModel, deltas, said, text_of, until_read
from support.lossy_proxy import lossy_proxy
from support.processes import PATIENCE
from support.stores import Location

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pellucid import ModelRequest

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

STEPS = 2
"""Model calls of a worker before its reader's database listens."""


@pytest.mark.parametrize("text", ["It's 20,000 \\ characters\x00 \U0001f600", "short"], ids=["long", "short"])
async def test_a_reader_in_another_process(location: Location, text: str) -> None:
    """PostgreSQL's notifications carry the pieces, whatever their length; with SQLite there are whole answers only."""
    long = text * (1_000 if len(text) > 5 else 1)
    is_read = anyio.Event()

    async def pieces() -> AsyncIterator[Any]:
        yield ModelDelta("text", long)
        await is_read.wait()
        yield ModelDelta("text", ".")
        yield f"{long}."

    model = until_read(pieces) if location.server is not None else LiveModel(lambda _: said(f"{long}."))
    agent = Agent("a", model=model, tools=[AGAIN], limits=Limits(max_iterations=100_000))
    seen: list[RunEvent | RunDelta] = []
    with anyio.fail_after(PATIENCE):
        async with location.open() as worker_store, location.open() as reader_store:
            worker, reader = DurableRuns(worker_store, [agent]), DurableRuns(reader_store, [])
            run_id = await reader.submit("a", "Hi")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.work)
                async with reader.stream(run_id) as events:
                    async for event in events:
                        seen.append(event)
                        if isinstance(event, RunDelta):
                            is_read.set()
                tasks.cancel_scope.cancel()
    answer = [event for event in seen if isinstance(event, RunEvent) and event.type == "step.answer"][-1]
    if location.server is None:
        assert deltas(seen) == []
        assert model.calls == ["generate"]
    else:
        assert text_of(deltas(seen)).startswith(long)
    assert answer.data["content"] == f"{long}."


@pytest.mark.parametrize("location", ["postgres"], indirect=True)
async def test_a_reader_listens_before_it_is_announced(location: Location, tmp_path: Path) -> None:
    """A worker that streams at once loses no piece, however long the reader's database takes to listen."""
    assert location.server is not None
    with lossy_proxy(tmp_path, location.server.folder) as proxy:
        proxy.hold(b"LISTEN")
        is_read = anyio.Event()

        async def answer(_request: ModelRequest) -> AsyncIterator[Any]:
            if model.calls[-1] == "stream":
                yield ModelDelta("text", "Hello.")
                proxy.release()
                await is_read.wait()
                yield "Hello."
            else:
                if len(model.calls) == STEPS:
                    proxy.release()
                yield ToolCall("again")

        model = LiveModel(answer)
        agent = Agent("a", model=model, tools=[AGAIN], limits=Limits(max_iterations=100_000))
        reader_store = Location(proxy.url, location.options).open()
        with anyio.fail_after(PATIENCE):
            async with location.open() as worker_store, reader_store, anyio.create_task_group() as tasks:
                worker, reader = DurableRuns(worker_store, [agent]), DurableRuns(reader_store, [])
                run_id = await reader.submit("a", "Hi")
                tasks.start_soon(worker.work)
                async with reader.stream(run_id) as events:
                    async for event in events:
                        if isinstance(event, RunDelta):
                            is_read.set()
                tasks.cancel_scope.cancel()
        assert model.calls.index("stream") >= STEPS
