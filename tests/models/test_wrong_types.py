"""Answers of models of the user's own whose values have wrong types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Message, ModelError, ModelResponse, ReasoningPart, TextPart, ToolCall, Usage
from pellucid.events import TelemetryError
from pellucid.models import ModelDelta
from pellucid.testing import FunctionModel
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid import ModelRequest
    from pellucid_exporters.testing import Captured

pytestmark = pytest.mark.anyio

SECRET = "sk-secret"


def answer(*parts: Any, **fields: Any) -> Any:
    """Return a response with these parts and fields, of whatever type."""
    return ModelResponse(**{"message": Message("assistant", parts or "hello"), **fields})


WRONG: dict[str, tuple[Any, str]] = {
    "number": (answer(TextPart(5)), "message.parts[0].content is an int, not a str"),  # type: ignore[arg-type]
    "list": (answer(TextPart([SECRET])), "message.parts[0].content is a list, not a str"),  # type: ignore[arg-type]
    "reasoning": (answer(ReasoningPart(5)), "message.parts[0].content is an int, not a str"),  # type: ignore[arg-type]
    "no-part": (answer(SECRET), "message.parts[0] is a str, not a part of a message"),
    "no-message": (answer(message=SECRET), "message is a str, not a Message"),
    "role": (answer(message=Message(7, "a")), "message.role is an int, not a str"),  # type: ignore[arg-type]
    "no-name": (answer(ToolCall(None)), "message.parts[0].name is None, not a str"),  # type: ignore[arg-type]
    "empty-name": (answer(ToolCall("")), "message.parts[0].name is empty"),
    "id": (answer(ToolCall("a", {}, 7)), "message.parts[0].id is an int, not a str or None"),  # type: ignore[arg-type]
    "arguments": (
        answer(ToolCall("a", [SECRET])),  # type: ignore[arg-type]
        "message.parts[0].arguments is a list, not a dict or a str",
    ),
    "key": (
        answer(TextPart("a"), ToolCall("a", {7: SECRET})),  # type: ignore[dict-item]
        "a key of message.parts[1].arguments is an int, not a str",
    ),
    "inner-key": (
        answer(ToolCall("a", {"b": [{None: SECRET}]})),
        "a key of message.parts[0].arguments is None, not a str",
    ),
    "reason": (answer(finish_reason=7), "finish_reason is an int, not a str"),
    "own-reason": (
        answer(message=Message("assistant", "a", finish_reason=7)),  # type: ignore[arg-type]
        "message.finish_reason is an int, not a str or None",
    ),
    "model": (answer(model=7), "model is an int, not a str or None"),
    "response-id": (answer(id=b"x"), "id is a bytes, not a str or None"),
    "attributes": (answer(attributes=[SECRET]), "attributes is a list, not a mapping"),
    "attribute": (answer(attributes={"x.secret": {}}), "a value of attributes is a dict, not a str"),
    "usage": (answer(usage={"input_tokens": 1}), "usage is a dict, not a Usage"),
    "count": (answer(usage=Usage(input_tokens="5")), "usage.input_tokens is a str, not an int or None"),  # type: ignore[arg-type]
    "fraction": (
        answer(usage=Usage(output_tokens=1.5)),  # type: ignore[arg-type]
        "usage.output_tokens is a float, not an int or None",
    ),
    "cost": (answer(usage=Usage(cost="free")), "usage.cost is a str, not a number or None"),  # type: ignore[arg-type]
    "negative-cost": (answer(usage=Usage(cost=-0.5)), "usage.cost is not a dollar amount"),
    "modality": (
        answer(usage=Usage(by_modality={"audio.input_tokens": "1"})),  # type: ignore[dict-item]
        "a value of usage.by_modality is a str, not an int",
    ),
}


class OwnModel:
    """A model of the user's own, which returns what it was made with."""

    name = "own"
    provider_name = "own"

    def __init__(self, *items: Any) -> None:
        self.items = items

    async def generate(self, request: ModelRequest) -> Any:
        """Return the last item."""
        return self.items[-1]

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        """Yield all items."""
        for item in self.items:
            yield item


async def streamed(agent: Agent) -> None:
    """Read a stream to its end."""
    async with agent.stream("x") as events:
        async for _ in events:
            pass


async def failure_of(agent: Agent, *, is_streamed: bool) -> str:
    """Return the message of the error that ends a run."""
    with pytest.raises(ModelError) as failed:
        await within(streamed(agent) if is_streamed else agent.run("x"))
    assert failed.value.error_type == "invalid_response"
    return str(failed.value)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("value", "problem"), WRONG.values(), ids=WRONG.keys())
async def test_an_answer_of_wrong_types_is_an_error_that_names_the_field(
    telemetry: Captured, value: Any, problem: str, *, is_streamed: bool
) -> None:
    """Never an empty answer, and nothing of it reaches telemetry; the error has no values."""
    for model in (OwnModel(value), FunctionModel(lambda request: value, name="own")):
        said = await failure_of(Agent("a", model=model), is_streamed=is_streamed)
        assert problem in said
        assert "the adapter of the model returned" in said
        assert SECRET not in said
    assert not [event for event in telemetry.events if isinstance(event, TelemetryError)]


@pytest.mark.parametrize(
    ("piece", "problem"),
    [
        (ModelDelta("text", 5), "content of a ModelDelta is an int, not a str"),  # type: ignore[arg-type]
        (ModelDelta("text", ["a"]), "content of a ModelDelta is a list, not a str"),  # type: ignore[arg-type]
        (ModelDelta("tool_call", None), "content of a ModelDelta is None, not a str"),  # type: ignore[arg-type]
        (ModelDelta(7, "a"), "type of a ModelDelta is an int, not a str"),  # type: ignore[arg-type]
        (5, "an item of the stream is an int, not a ModelDelta or a ModelResponse"),
        ("hello", "an item of the stream is a str, not a ModelDelta or a ModelResponse"),
    ],
)
async def test_a_piece_of_wrong_types_is_an_error_that_names_the_field(
    telemetry: Captured, piece: Any, problem: str
) -> None:
    """Before anybody receives it."""
    model = OwnModel(ModelDelta("text", "a"), piece, answer())
    said = await failure_of(Agent("a", model=model), is_streamed=True)
    assert problem in said
    assert "the adapter of the model returned" in said
    assert not [event for event in telemetry.events if isinstance(event, TelemetryError)]


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (5, "an object of type int instead of a ModelResponse"),
        (None, "an object of type NoneType instead of a ModelResponse"),
        ([5], "message.parts[0] is an int, not a part of a message"),
        ({"content": ["a"]}, "an object of type dict instead of a ModelResponse"),
    ],
)
async def test_what_a_function_returns_is_checked_too(value: Any, problem: str, *, is_streamed: bool) -> None:
    """A number is no text."""
    agent = Agent("a", model=FunctionModel(lambda request: value))
    assert problem in await failure_of(agent, is_streamed=is_streamed)


async def test_an_answer_with_all_fields_is_none_of_them() -> None:
    """Right types pass, also arguments as text."""
    full = answer(
        TextPart("a"),
        usage=Usage(input_tokens=0, output_tokens=2, cost=0, by_modality={"audio.input_tokens": 1}),
        model="m",
        id="r",
        attributes={"own.x": "y"},
    )
    for model in (OwnModel(full), FunctionModel(lambda request: full)):
        assert (await within(Agent("a", model=model).run("x"))).output == "a"
