"""Models that follow a script or a function."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias, cast

import anyio.lowlevel

from pellucid.errors import ConfigError
from pellucid.messages import Message, ReasoningPart, TextPart, ToolCall, Usage
from pellucid.models import ModelDelta, ModelRequest, ModelResponse, StreamItem

Answer: TypeAlias = str | ToolCall | Sequence[ToolCall] | Message | ModelResponse
Pieces: TypeAlias = AsyncIterator[ModelDelta | Answer]
"""An answer that arrives bit by bit: what a stream yields, and last the answer itself."""
Step: TypeAlias = Answer | BaseException | Callable[[ModelRequest], Any]


class FunctionModel:
    """A model that is a function of the request.

    Args:
        function: Sync or async; returns a text, a `ToolCall`, a list of them, a `Message` or a `ModelResponse`. An
            async generator yields `ModelDelta`s as they are to arrive, and last one of these.
        name: Value of `gen_ai.request.model`.

    Attributes:
        requests: What it was asked, in order.
    """

    provider_name = "pellucid.testing"

    def __init__(
        self,
        function: Callable[[ModelRequest], Answer | Awaitable[Answer | Pieces] | Pieces],
        *,
        name: str = "function",
    ) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._function = function

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return what the function makes of the request."""
        made = await self._ask(request)
        if not isinstance(made, AsyncIterator):
            return _response(made)
        last: ModelDelta | Answer | None = None
        async with aclosing(cast("Any", made)) as pieces:
            async for piece in pieces:
                last = piece
        return self._last(last)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield the answer word by word, or the pieces that the function yields; then the answer."""
        made = await self._ask(request)
        if not isinstance(made, AsyncIterator):
            response = _response(made)
            for delta in _deltas(response):
                yield delta
                await anyio.lowlevel.checkpoint()
            yield response
            return
        last: ModelDelta | Answer | None = None
        async with aclosing(cast("Any", made)) as pieces:
            async for piece in pieces:
                last = piece
                if isinstance(piece, ModelDelta):
                    yield piece
        yield self._last(last)

    async def _ask(self, request: ModelRequest) -> Answer | Pieces:
        self.requests.append(request)
        made = self._function(request)
        return await made if inspect.isawaitable(made) else made

    def _last(self, piece: ModelDelta | Answer | None) -> ModelResponse:
        if piece is None or isinstance(piece, ModelDelta):
            raise AssertionError(
                f"the pieces that the function of model {self.name!r} yields end with {piece!r}; yield the answer last"
            )
        return _response(piece)


class ScriptedModel(FunctionModel):
    """A model that follows a script.

    A step is a text (a final answer), a `ToolCall`, a list of them, a `Message` or `ModelResponse`, an exception to
    raise, or a function of the request that returns one of these, or yields `ModelDelta`s and last one of these. Being
    asked more often than there are steps is a `ConfigError` that ends the run: the test is wrong, not a model.
    """

    def __init__(self, *steps: Step, name: str = "scripted") -> None:
        super().__init__(self._next, name=name)
        self._steps = list(steps)
        self._asked = 0

    async def _next(self, request: ModelRequest) -> Answer | Pieces:
        self._asked += 1
        if self._asked > len(self._steps):
            raise ConfigError(
                f"the script of model {self.name!r} has {len(self._steps)} steps and was asked for step {self._asked}; "
                f"give ScriptedModel(...) a step more, or find out why it was asked again; "
                f"the last message was {request.messages[-1].to_dict() if request.messages else None}"
            )
        step: Any = self._steps[self._asked - 1]
        if callable(step):
            step = step(request)
            if inspect.isawaitable(step):
                step = await step
        if isinstance(step, BaseException):
            raise step
        answer: Answer | Pieces = step
        return answer


def _deltas(response: ModelResponse) -> Iterator[ModelDelta]:
    """Yield what a stream tells of an answer, texts word by word."""
    for part in response.message.parts:
        if isinstance(part, ToolCall):
            yield ModelDelta("tool_call", part.name)
        elif isinstance(part, (TextPart, ReasoningPart)):
            for word in re.findall(r"\s*\S+|\s+\Z", part.content):
                yield ModelDelta("text" if isinstance(part, TextPart) else "reasoning", word)


def _response(answer: Answer) -> ModelResponse:
    if isinstance(answer, ModelResponse):
        return answer
    if isinstance(answer, Message):
        message = answer
    elif isinstance(answer, str):
        message = Message("assistant", answer)
    else:
        message = Message("assistant", (answer,) if isinstance(answer, ToolCall) else tuple(answer))
    return ModelResponse(message=message, usage=Usage(), finish_reason="tool_call" if message.tool_calls else "stop")
