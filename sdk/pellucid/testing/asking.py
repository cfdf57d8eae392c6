"""How the contract of models asks a model, and looks at what comes back."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import anyio

from pellucid.errors import ConfigError, ModelError
from pellucid.messages import Part, ReasoningPart, TextPart, ToolCall
from pellucid.models import Model, ModelDelta, ModelRequest, ModelResponse, StreamItem
from pellucid.testing import samples
from pellucid.testing.vendor import Answers, Deed, ScriptedVendor

Way: TypeAlias = Literal["whole", "streamed"]


async def ask(model: Model, request: ModelRequest, way: Way) -> ModelResponse:
    """Return the answer, whole or as the last item of a stream."""
    response: object = await model.generate(request) if way == "whole" else (await read(model, request))[-1]
    assert isinstance(response, ModelResponse), f"the {way} answer is {response!r}, not a ModelResponse"
    return response


async def answer(model: Model, request: ModelRequest, way: Way, why: str = "") -> ModelResponse:
    """Return the answer of a vendor that gives one."""
    try:
        return await ask(model, request, way)
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"the vendor answers{why and f' {why}'}, but the model raised {error!r}") from error


def identity(model: Model) -> tuple[Any, ...]:
    """Return what telemetry calls a model."""
    server = (getattr(model, "server_address", None), getattr(model, "server_port", None))
    return model.name, model.provider_name, *server


def same(response: ModelResponse, expected: ModelResponse) -> None:
    """Compare an answer with what the vendor gave, but for what only the vendor understands."""
    parts, due = ([_plain(part) for part in each.message.parts] for each in (response, expected))
    assert parts == due, "the parts of the answer are not those that the vendor gave"
    reason = response.message.finish_reason
    assert response.message.role == "assistant", f"the role of an answer is {response.message.role!r}"
    assert reason in (None, response.finish_reason), "the message has another finish reason than the response"
    for name in ("finish_reason", "id", "model", "usage"):
        told, given = getattr(response, name), getattr(expected, name)
        assert told == given, f"{name} of the response is not what the vendor gave"


def _plain(part: Part) -> Part:
    if isinstance(part, ToolCall):
        return ToolCall(part.name, part.arguments or {}, part.id)
    return type(part)(part.content) if isinstance(part, (TextPart, ReasoningPart)) else part


def found(sent: str, *words: str) -> None:
    """Fail unless all words are in what was sent."""
    missing = [word for word in words if word.lower() not in sent.lower()]
    assert missing == [], f"the vendor was not sent {missing}, which the request has; it was sent {sent[:2000]}"


def changed_by_addition(shorter: str, longer: str) -> str:
    """Return what of `shorter` is not in `longer`, if that is the same with something put in between."""
    begin = _alike(shorter, longer)
    end = _alike(shorter[begin:][::-1], longer[begin:][::-1])
    return shorter[begin : len(shorter) - end]


def _alike(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def joined(items: Collection[StreamItem], kind: str) -> str:
    """Return what the deltas of one kind say."""
    return "".join(item.content for item in items if isinstance(item, ModelDelta) and item.type == kind)


def opened(model: Model, request: ModelRequest) -> AsyncIterator[StreamItem]:
    """Return a stream, if it is one."""
    items: Any = model.stream(request)
    if inspect.iscoroutine(items):
        items.close()
    assert hasattr(items, "__anext__"), f"stream() returned {items!r}; write it as an async generator, with `yield`"
    assert hasattr(items, "aclose"), "stream() returned an iterator without aclose(); it cannot be left early"
    made: AsyncIterator[StreamItem] = items
    return made


async def read(model: Model, request: ModelRequest) -> list[StreamItem]:
    """Return all items of a stream."""
    items = [item async for item in opened(model, request)]
    assert items, "the stream yielded nothing"
    return items


def sent(vendor: ScriptedVendor, times: int = 1) -> list[str]:
    """Return the texts of so many requests."""
    asked = len(vendor.received)
    assert asked == times, (
        f"vendor.receive() was called {asked} times for {times} request{'s' if times > 1 else ''}; "
        f"the double of your vendor must call it with each request that the model sends"
    )
    return vendor.received


async def close(what: object) -> None:
    """Close a model or a stream, if it can be closed."""
    if hasattr(what, "aclose"):
        await what.aclose()


async def failure(call: Callable[[], Awaitable[object]], why: str = "the vendor failed") -> ModelError:
    """Return the error that a model raises."""
    try:
        given = await call()
    except ModelError as error:
        return error
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{why}, and the model raised {error!r} instead of a ModelError") from error
    raise AssertionError(f"{why}, and the model gave {given!r} instead of raising a ModelError")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens elsewhere."""
    while not condition():  # noqa: ASYNC110  (other threads and loops know nothing of our events)
        await anyio.sleep(0.002)


class Bench:
    """A model with its vendor: how they are made and taken down, and what a test may see of them.

    `ModelContract` documents the attributes.
    """

    lacks: ClassVar[Collection[str]] = ()
    blind_to: ClassVar[Collection[str]] = ()
    patience: ClassVar[float] = 10.0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if unknown := {*cls.lacks} - samples.FEATURES:
            raise ConfigError(f"{cls.__name__}.lacks: there is no {sorted(unknown)} in {sorted(samples.FEATURES)}")
        if unknown := {*cls.blind_to} - {"connections", "requests"}:
            raise ConfigError(f"{cls.__name__}.blind_to: {sorted(unknown)} is neither 'connections' nor 'requests'")

    def model_that(self, vendor: ScriptedVendor) -> Model | Awaitable[Model]:
        """Return a model whose vendor does what `vendor.receive` says about each request; may be async."""
        raise NotImplementedError(f"{type(self).__name__} must define model_that(vendor)")

    def _long_request(self) -> ModelRequest:
        return samples.question(instructions="INSTRUCTIONS", messages=samples.HISTORY)

    def _answers(self, sample: str, **changes: Any) -> Answers:
        return Answers(samples.answer(samples.ANSWERS[sample], self.lacks, **changes))

    @asynccontextmanager
    async def _model(self, does: Deed | Callable[[str], Deed]) -> AsyncIterator[tuple[Model, ScriptedVendor]]:
        """Make a model and its vendor, and close it; nothing takes longer than the patience of the test."""
        vendor = ScriptedVendor(does)
        made = self.model_that(vendor)
        model = await made if inspect.isawaitable(made) else made
        with anyio.move_on_after(self.patience) as limit:
            try:
                yield model, vendor
            finally:
                await close(model)
        assert not limit.cancelled_caught, f"nothing more happened within {self.patience:g} s"

    async def _sent_or_refused(self, feature: str, request: ModelRequest, mark: str, way: Way) -> None:
        async with self._model(self._answers("text")) as (model, vendor):
            if feature not in self.lacks:
                await answer(model, request, way, f"to a request with {feature}")
                if "requests" not in self.blind_to:
                    found(sent(vendor)[0], mark)
                return
            why = f"the request has {feature}, which the vendor lacks"
            kind = (await failure(partial(ask, model, request, way), why)).error_kind
            assert kind == "invalid_request", f"{feature} was refused as {kind!r} instead of 'invalid_request'"

    async def _left(self, vendor: ScriptedVendor, why: str) -> None:
        if "connections" in self.blind_to:
            return
        with anyio.move_on_after(self.patience / 2):
            await until(lambda: vendor.left > 0)
        assert vendor.left, f"{why}, and the vendor's connection is still open"
