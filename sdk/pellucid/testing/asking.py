"""Calls and assertions of the model contract."""

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
    """Return the response of `generate`, or the last item of a stream."""
    response: object = await model.generate(request) if way == "whole" else (await read(model, request))[-1]
    assert isinstance(response, ModelResponse), f"the {way} answer is {response!r}, not a ModelResponse"
    return response


async def answer(model: Model, request: ModelRequest, way: Way, context: str = "") -> ModelResponse:
    """Return the response of a vendor that answers; fail if the model raises."""
    try:
        return await ask(model, request, way)
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(
            f"the vendor answers{context and f' {context}'}, but the model raised {error!r}"
        ) from error


def identity(model: Model) -> tuple[Any, ...]:
    """Return the identity of a model in telemetry."""
    server = (getattr(model, "server_address", None), getattr(model, "server_port", None))
    return model.name, model.provider_name, *server


def assert_same(response: ModelResponse, expected: ModelResponse) -> None:
    """Fail unless a response equals the vendor's, apart from data that only the vendor understands."""
    parts, expected_parts = ([_plain(part) for part in item.message.parts] for item in (response, expected))
    assert parts == expected_parts, "the parts of the answer are not those that the vendor gave"
    reason = response.message.finish_reason
    assert response.message.role == "assistant", f"the role of an answer is {response.message.role!r}"
    assert reason in (None, response.finish_reason), "the message has another finish reason than the response"
    for name in ("finish_reason", "id", "model", "usage"):
        value, expected_value = getattr(response, name), getattr(expected, name)
        assert value == expected_value, f"{name} of the response is not what the vendor gave"


def _plain(part: Part) -> Part:
    if isinstance(part, ToolCall):
        return ToolCall(part.name, part.arguments or {}, part.id)
    return type(part)(part.content) if isinstance(part, (TextPart, ReasoningPart)) else part


def assert_contains(sent: str, *words: str) -> None:
    """Fail unless the request contains all words."""
    missing = [word for word in words if word.lower() not in sent.lower()]
    assert missing == [], f"the vendor was not sent {missing}, which the request has; it was sent {sent[:2000]}"


def changed_text(shorter: str, longer: str) -> str:
    """Return the text of `shorter` that `longer` changes; empty if `longer` only inserts text in one place."""
    prefix = _common_prefix(shorter, longer)
    suffix = _common_prefix(shorter[prefix:][::-1], longer[prefix:][::-1])
    return shorter[prefix : len(shorter) - suffix]


def _common_prefix(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def content_of(items: Collection[StreamItem], kind: str) -> str:
    """Return the joined content of the deltas of one type."""
    return "".join(item.content for item in items if isinstance(item, ModelDelta) and item.type == kind)


def open_stream(model: Model, request: ModelRequest) -> AsyncIterator[StreamItem]:
    """Return a stream of the model; fail unless it can be iterated and closed."""
    items: Any = model.stream(request)
    if inspect.iscoroutine(items):
        items.close()
    assert hasattr(items, "__anext__"), f"stream() returned {items!r}; write it as an async generator, with `yield`"
    assert hasattr(items, "aclose"), "stream() returned an iterator without aclose(); it cannot be closed early"
    stream: AsyncIterator[StreamItem] = items
    return stream


async def read(model: Model, request: ModelRequest) -> list[StreamItem]:
    """Return all items of a stream; fail if there are none."""
    items = [item async for item in open_stream(model, request)]
    assert items, "the stream yielded nothing"
    return items


def sent(vendor: ScriptedVendor, times: int = 1) -> list[str]:
    """Return the texts of the vendor's requests; fail unless there are `times`."""
    count = len(vendor.received)
    assert count == times, (
        f"vendor.receive() was called {count} times for {times} request{'s' if times > 1 else ''}; "
        f"the double of your vendor must call it with each request that the model sends"
    )
    return vendor.received


async def close(resource: object) -> None:
    """Close a model or a stream if it has `aclose()`."""
    if hasattr(resource, "aclose"):
        await resource.aclose()


async def failure(call: Callable[[], Awaitable[object]], context: str = "the vendor failed") -> ModelError:
    """Return the `ModelError` of a call; fail if there is none."""
    try:
        result = await call()
    except ModelError as error:
        return error
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{context}, and the model raised {error!r} instead of a ModelError") from error
    raise AssertionError(f"{context}, and the model returned {result!r} instead of raising a ModelError")


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other threads or event loops change."""
    while not condition():  # noqa: ASYNC110  (anyio events do not work across threads and event loops)
        await anyio.sleep(0.002)


class Bench:
    """Setup and teardown of a model with its vendor, for the tests of the contract.

    `ModelContract` documents the attributes.
    """

    lacks: ClassVar[Collection[str]] = ()
    blind_to: ClassVar[Collection[str]] = ()
    patience: ClassVar[float] = 10.0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if unknown := {*cls.lacks} - samples.FEATURES:
            raise ConfigError(
                f"{cls.__name__}.lacks: unknown {sorted(unknown)}; the features are {sorted(samples.FEATURES)}"
            )
        if unknown := {*cls.blind_to} - {"connections", "requests"}:
            raise ConfigError(f"{cls.__name__}.blind_to: {sorted(unknown)} is neither 'connections' nor 'requests'")

    def model_that(self, vendor: ScriptedVendor) -> Model | Awaitable[Model]:
        """Return a model whose vendor performs the action that `vendor.receive` returns; may be async."""
        raise NotImplementedError(f"{type(self).__name__} must define model_that(vendor)")

    def _long_request(self) -> ModelRequest:
        return samples.question(instructions="INSTRUCTIONS", messages=samples.HISTORY)

    def _answers(self, sample: str, **changes: Any) -> Answers:
        return Answers(samples.answer(samples.ANSWERS[sample], self.lacks, **changes))

    @asynccontextmanager
    async def _model(self, does: Deed | Callable[[str], Deed]) -> AsyncIterator[tuple[Model, ScriptedVendor]]:
        """Create a model and its vendor, and close the model; fail after `patience` seconds."""
        vendor = ScriptedVendor(does)
        created = self.model_that(vendor)
        model = await created if inspect.isawaitable(created) else created
        with anyio.move_on_after(self.patience) as limit:
            try:
                yield model, vendor
            finally:
                await close(model)
        assert not limit.cancelled_caught, f"the test did not finish within {self.patience:g} s"

    async def _sent_or_refused(self, feature: str, request: ModelRequest, mark: str, way: Way) -> None:
        async with self._model(self._answers("text")) as (model, vendor):
            if feature not in self.lacks:
                await answer(model, request, way, f"to a request with {feature}")
                if "requests" not in self.blind_to:
                    assert_contains(sent(vendor)[0], mark)
                return
            context = f"the request has {feature}, which the vendor lacks"
            kind = (await failure(partial(ask, model, request, way), context)).error_kind
            assert kind == "invalid_request", f"{feature} was refused as {kind!r} instead of 'invalid_request'"

    async def _assert_disconnected(self, vendor: ScriptedVendor, context: str) -> None:
        if "connections" in self.blind_to:
            return
        with anyio.move_on_after(self.patience / 2):
            await wait_until(lambda: vendor.left > 0)
        assert vendor.left, f"{context}, and the vendor's connection is still open"
