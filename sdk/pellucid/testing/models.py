"""Test doubles of models: a function, or a script."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias, cast

import anyio.lowlevel

from pellucid.errors import ConfigError
from pellucid.messages import Message, ReasoningPart, TextPart, ToolCall
from pellucid.models import ModelDelta, ModelRequest, ModelResponse, StreamItem
from pellucid.models.response_check import check_response
from pellucid.testing.request_rules import check_request

Answer: TypeAlias = str | ToolCall | Sequence[ToolCall] | Message | ModelResponse
"""An answer of a model: a text, tool calls, a message, or the whole response."""

Pieces: TypeAlias = AsyncIterator[ModelDelta | Answer]
"""A streamed answer: the deltas, then the answer itself."""

Step: TypeAlias = Answer | BaseException | Callable[[ModelRequest], Any]
"""A step of a script: an answer, an exception to raise, or a function of the request that returns one of these."""


class FunctionModel:
    """A model that is a function of the request.

    Args:
        function: Sync or async; returns a text, a `ToolCall`, a list of them, a `Message` or a `ModelResponse`. An
            async generator yields `ModelDelta`s in the order of their arrival, then one of these.
        name: Value of `gen_ai.request.model`.

    Attributes:
        requests: The requests, in order.
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
        """Return the function's answer to the request; the run checks it, as it checks that of every model."""
        answer = await self._call(request)
        if not isinstance(answer, AsyncIterator):
            return cast("ModelResponse", _as_response(answer))
        last: ModelDelta | Answer | None = None
        async with aclosing(cast("Any", answer)) as pieces:
            async for piece in pieces:
                last = self._next(last, piece)
        return self._last(last)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield the answer word by word, or the deltas that the function yields; then the complete response."""
        answer = await self._call(request)
        if not isinstance(answer, AsyncIterator):
            response = _response(self.name, answer)
            for delta in _deltas(response):
                yield delta
                await anyio.lowlevel.checkpoint()
            yield response
            return
        last: ModelDelta | Answer | None = None
        async with aclosing(cast("Any", answer)) as pieces:
            async for piece in pieces:
                last = self._next(last, piece)
                if isinstance(piece, ModelDelta):
                    yield piece
        yield self._last(last)

    async def _call(self, request: ModelRequest) -> Answer | Pieces:
        self.requests.append(request)
        answer = self._function(request)
        return await answer if inspect.isawaitable(answer) else answer

    def _next(self, previous: ModelDelta | Answer | None, piece: ModelDelta | Answer) -> ModelDelta | Answer:
        if previous is None or isinstance(previous, ModelDelta):
            return piece
        raise AssertionError(
            f"the function of model {self.name!r} yielded {piece!r} after the answer {previous!r}; "
            f"yield pieces as ModelDelta('text', ...), and the answer last"
        )

    def _last(self, piece: ModelDelta | Answer | None) -> ModelResponse:
        if piece is None or isinstance(piece, ModelDelta):
            raise AssertionError(f"the function of model {self.name!r} yielded {piece!r} last; yield the answer last")
        return _response(self.name, piece)


class ScriptedModel(FunctionModel):
    """A model that follows a script, and refuses the requests that vendors refuse.

    A step is a text (a final answer), a `ToolCall`, a list of them, a `Message` or `ModelResponse`, an exception to
    raise, or a function of the request that returns one of these, or yields `ModelDelta`s and then one of these. A call
    after the last step raises a `ConfigError` that ends the run, because the test is wrong and not the model.

    A request that OpenAI, Anthropic or Gemini would refuse is a `ModelError` of the kind `invalid_request` that names
    the broken rule: a call without its result, or a result without its call, two calls of one id, a conversation that
    is empty, or that begins or ends with an answer, parts in the wrong role, tools of one name.

    Args:
        steps: The script.
        name: Value of `gen_ai.request.model`.
        strict: False accepts such requests, for tests of histories that are broken on purpose.
    """

    def __init__(self, *steps: Step, name: str = "scripted", strict: bool = True) -> None:
        super().__init__(self._follow, name=name)
        self._strict = strict
        self._steps = list(steps)
        self._calls = 0

    async def _follow(self, request: ModelRequest) -> Answer | Pieces:
        if self._strict:
            check_request(self.name, request)
        self._calls += 1
        if self._calls > len(self._steps):
            raise ConfigError(
                f"the script of model {self.name!r} has {len(self._steps)} steps, but this is call {self._calls}; "
                f"add a step to ScriptedModel(...), or find out why the model was called again; "
                f"the last message was {request.messages[-1].to_dict() if request.messages else None}"
            )
        step: Any = self._steps[self._calls - 1]
        if callable(step):
            step = step(request)
            if inspect.isawaitable(step):
                step = await step
        if isinstance(step, BaseException):
            raise step
        answer: Answer | Pieces = step
        return answer


def _deltas(response: ModelResponse) -> Iterator[ModelDelta]:
    """Yield the deltas of a streamed response, texts word by word."""
    for part in response.message.parts:
        if isinstance(part, ToolCall):
            yield ModelDelta("tool_call", part.name)
        elif isinstance(part, (TextPart, ReasoningPart)):
            for word in re.findall(r"\s*\S+|\s+\Z", part.content):
                yield ModelDelta("text" if isinstance(part, TextPart) else "reasoning", word)


def _response(name: str, answer: object) -> ModelResponse:
    """Return an answer as a response.

    Raises:
        ModelError: it is no answer, or has wrong types, of which nothing is streamed.
    """
    return check_response(name, _as_response(answer))


def _as_response(answer: object) -> object:
    """Return a text, a message or parts of one as a response, and anything else as it is."""
    if isinstance(answer, str):
        answer = Message("assistant", answer)
    elif isinstance(answer, ToolCall):
        answer = Message("assistant", (answer,))
    elif isinstance(answer, Sequence):
        answer = Message("assistant", answer)
    if isinstance(answer, Message):
        return ModelResponse(message=answer, finish_reason="tool_call" if answer.tool_calls else "stop")
    return answer
