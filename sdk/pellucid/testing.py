"""Doubles that ship with the SDK: models that follow a script, and a hub that misbehaves on request."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import anyio

from pellucid.context import DiscoveryContext
from pellucid.messages import Message, TextPart, ToolCall, Usage
from pellucid.models import ModelDelta, ModelRequest, ModelResponse, StreamItem
from pellucid.tools import Tool

Answer: TypeAlias = str | ToolCall | Sequence[ToolCall] | Message | ModelResponse
Step: TypeAlias = Answer | BaseException | Callable[[ModelRequest], Any]


class FunctionModel:
    """A model that is a function of the request.

    Args:
        function: Sync or async; returns a text, a `ToolCall`, a list of them, a `Message` or a `ModelResponse`.
        name: Value of `gen_ai.request.model`.

    Attributes:
        requests: What it was asked, in order.
    """

    provider_name = "pellucid.testing"

    def __init__(
        self, function: Callable[[ModelRequest], Answer | Awaitable[Answer]], *, name: str = "function"
    ) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._function = function

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return what the function makes of the request."""
        self.requests.append(request)
        answer = self._function(request)
        return _response(await answer if inspect.isawaitable(answer) else answer)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield the text of the answer word by word, then the answer."""
        response = await self.generate(request)
        for part in response.message.parts:
            if isinstance(part, TextPart):
                for word in part.content.split(" "):
                    yield ModelDelta("text", word if part.content.startswith(word) else f" {word}")
                    await anyio.lowlevel.checkpoint()
            elif isinstance(part, ToolCall):
                yield ModelDelta("tool_call", part.name)
        yield response


class ScriptedModel(FunctionModel):
    """A model that follows a script.

    A step is a text (a final answer), a `ToolCall`, a list of them, a `Message` or `ModelResponse`, an exception to
    raise, or a function of the request that returns one of these. Being asked more often than there are steps is an
    error.
    """

    def __init__(self, *steps: Step, name: str = "scripted") -> None:
        super().__init__(self._next, name=name)
        self._steps = list(steps)
        self._asked = 0

    async def _next(self, request: ModelRequest) -> Answer:
        self._asked += 1
        if self._asked > len(self._steps):
            raise AssertionError(
                f"the script of model {self.name!r} has {len(self._steps)} steps and was asked for step {self._asked}; "
                f"the last message was {request.messages[-1].to_dict() if request.messages else None}"
            )
        step: Any = self._steps[self._asked - 1]
        if callable(step):
            step = step(request)
            if inspect.isawaitable(step):
                step = await step
        if isinstance(step, BaseException):
            raise step
        answer: Answer = step
        return answer


class FakeHub:
    """A hub for `DiscoveryProvider` that is slow, changes or fails as told.

    Args:
        tools: Its catalogue: a sequence, or a function of the 1-based number of the call, for catalogues that change
            and answers that are no catalogue at all.
        latency: Seconds that each fetch takes.
        faults: What the first calls raise, one exception each; `None` lets a call pass.

    Attributes:
        calls: Contexts of the fetches so far.
        cancelled: Fetches that were cancelled.
        tools: May be replaced at any time.
        latency: May be changed at any time; `math.inf` hangs.
    """

    def __init__(
        self,
        tools: Sequence[Tool] | Callable[[int], Any] = (),
        *,
        latency: float = 0.0,
        faults: Sequence[Exception | None] = (),
    ) -> None:
        self.tools = tools
        self.latency = latency
        self.faults = list(faults)
        self.calls: list[DiscoveryContext] = []
        self.cancelled = 0

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Return the catalogue, after the latency and unless a fault is due."""
        self.calls.append(ctx)
        number = len(self.calls)
        try:
            await anyio.sleep(self.latency)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        fault = self.faults[number - 1] if number <= len(self.faults) else None
        if fault is not None:
            raise fault
        tools: Sequence[Tool] = self.tools(number) if callable(self.tools) else self.tools
        return tools


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
