"""Models whose answers are streamed, and readers of the text of durable runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import anyio

from pellucid import Tool, ToolCall
from pellucid.durable import RunDelta, RunEvent
from pellucid.models import ModelDelta
from pellucid.testing import FunctionModel
from support.durable_agents import nothing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from pellucid.durable import DurableRuns
    from pellucid.models import ModelRequest, ModelResponse, StreamItem

AGAIN = Tool(name="again", run=nothing)


class LiveModel(FunctionModel):
    """Model that records how it is called. Attributes: calls: `generate` or `stream`, in order."""

    def __init__(self, function: Callable[[ModelRequest], Any]) -> None:
        super().__init__(function)
        self.calls: list[Literal["generate", "stream"]] = []

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Answer whole."""
        self.calls.append("generate")
        return await super().generate(request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Answer piece by piece."""
        self.calls.append("stream")
        async for item in super().stream(request):
            yield item


def until_read(pieces: Callable[[], AsyncIterator[Any]]) -> LiveModel:
    """Return a model that calls the tool `again` until somebody reads, and then yields the pieces."""

    async def answer(_request: ModelRequest) -> AsyncIterator[Any]:
        if model.calls[-1] == "generate":
            await anyio.sleep(0.02)  # not too many steps
            yield ToolCall("again")
            return
        async for piece in pieces():
            yield piece

    model = LiveModel(answer)
    return model


class Reader:
    """A reader of one run. Attributes: seen: what it has got."""

    def __init__(self) -> None:
        self.seen: list[RunEvent | RunDelta] = []
        self._has_more = anyio.Event()

    async def read(self, runs: DurableRuns, run_id: str, after: int = 0) -> None:
        """Read to the end while the run is worked on."""
        async with runs.stream(run_id, after) as events, anyio.create_task_group() as tasks:
            tasks.start_soon(runs.work_until_idle)
            async for event in events:
                self.add(event)

    def add(self, event: RunEvent | RunDelta) -> None:
        """Note what was read."""
        self.seen.append(event)
        self._has_more.set()
        self._has_more = anyio.Event()

    async def until(self, end: str) -> None:
        """Wait until the reader has got a text that ends like this."""
        while not "".join(piece.content for piece in deltas(self.seen)).endswith(end):
            await self._has_more.wait()

    async def said(self, *pieces: str) -> AsyncIterator[Any]:
        """Yield the pieces of a text, and end once the reader has them."""
        for piece in pieces:
            yield ModelDelta("text", piece)
        await self.until(pieces[-1])
        yield "".join(pieces)


async def said(*pieces: str) -> AsyncIterator[Any]:
    """Yield the pieces of a text."""
    for piece in pieces:
        yield ModelDelta("text", piece)
    yield "".join(pieces)


def deltas(seen: Sequence[RunEvent | RunDelta], kind: str = "text") -> list[RunDelta]:
    """Return the pieces of one type."""
    return [item for item in seen if isinstance(item, RunDelta) and item.type == kind]


def text_of(pieces: Sequence[RunDelta]) -> str:
    """Return the text of the last attempt, as a client puts it together; it has no gap."""
    text, attempt = "", None
    for piece in pieces:
        if (piece.key, piece.claim, piece.attempt) != attempt:
            text, attempt = "", (piece.key, piece.claim, piece.attempt)
        assert piece.offset == len(text)
        text += piece.content
    return text


def names(seen: Sequence[RunEvent | RunDelta]) -> list[str]:
    """Return the types of the stored events, and `delta` for a row of pieces."""
    found: list[str] = []
    for item in seen:
        name = item.type if isinstance(item, RunEvent) else "delta"
        if name != "delta" or found[-1:] != ["delta"]:
            found.append(name)
    return found
