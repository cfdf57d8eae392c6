"""Partial output: values of the output type while the answer arrives."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, field_validator
from typing_extensions import TypedDict

from pellucid import Agent, Message, ModelDelta, OutputError, ToolCall, tool
from pellucid.messages import TextPart
from pellucid.testing import FunctionModel, ScriptedModel
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


class City(BaseModel):
    """A model whose fields are required."""

    name: str
    people: int


class Note(BaseModel):
    """A model whose fields have defaults."""

    title: str = ""
    tags: list[str] = []


@dataclass
class Point:
    """A dataclass."""

    x: int
    y: int = 0


class Row(TypedDict):
    """A typed dictionary."""

    name: str
    people: int


class Color(enum.Enum):
    """An enumeration."""

    RED = "red"


def streaming(*answers: str) -> FunctionModel:
    """Return a model that streams each answer in the pieces between the bars."""
    remaining = list(answers)

    async def answer(_request: object) -> AsyncIterator[ModelDelta | str]:
        pieces = remaining.pop(0).split("|")
        for piece in pieces:
            yield ModelDelta("text", piece)
        yield "".join(pieces)

    return FunctionModel(answer)


async def partials(model: Any, output: Any, **options: Any) -> list[Any]:
    """Return the values that a stream yields."""
    given = {} if output is None else {"output": output}
    async with Agent("a", model=model, **given, **options).stream("x") as events:
        values = [value async for value in events.partial()]
        assert values[-1] == events.result.output
    return values


@pytest.mark.parametrize(
    ("output", "answer", "values"),
    [
        (None, "Take| an| umbrella.", ["Take", "Take an", "Take an umbrella."]),
        (list[int], "[1|, 2", None),
        (list[str], '{"resu|lt": ["Ta|ke"]}', [["Ta"], ["Take"]]),
        (list[int], '{"result": [1|2, 3|, 4]}', [[1], [12, 3], [12, 3, 4]]),
        (list[City], '{"result": [{"name": "Oslo"|, "people": 7}|, {"na|me": "Bergen", "people": 3}]}', "cities"),
        (list[int], "[1, 2|, 3]", [[1, 2], [1, 2, 3]]),
        (City, '{"name": "Os|lo", |"people": 7|2}', [City(name="Oslo", people=7), City(name="Oslo", people=72)]),
        (
            Note,
            '{|"title": "Hel|lo", "tags": ["a", "b|c"]}',
            [Note(), Note(title="Hel"), Note(title="Hello", tags=["a", "b"]), Note(title="Hello", tags=["a", "bc"])],
        ),
        (Point, '{"x": 1|, "y": 2}', [Point(1), Point(1, 2)]),
        (Row, '{"name": "Oslo"|, "people": 7}', [{"name": "Oslo", "people": 7}]),
        (dict[str, int], '{"result": {"a": 1|, "b": 2}}', [{"a": 1}, {"a": 1, "b": 2}]),
        (Color, '{"result": "r|ed"}', [Color.RED]),
        (Note, '```|json\n{"title": "a|b"}\n``|`', [Note(title="a"), Note(title="ab")]),
    ],
)
async def test_the_output_grows(output: Any, answer: str, values: Any) -> None:
    """Each value is one of the output type, differs from the one before it, and the last is the output."""
    if values is None:  # an answer that never becomes JSON is an error, after what there was of it
        with pytest.raises(OutputError):
            await within(partials(streaming(answer, answer), output))
        return
    if values == "cities":
        first, second = City(name="Oslo", people=7), City(name="Bergen", people=3)
        values = [[], [first], [first, second]]
    assert await within(partials(streaming(answer), output)) == values


async def test_a_new_answer_starts_from_nothing() -> None:
    """A text before a call is not part of the next one, and a rejected answer is followed by its repair."""

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    calls = Message("assistant", [TextPart("I look."), ToolCall("look", {}, "c")])
    assert await within(partials(ScriptedModel(calls, "Rain."), None, tools=[look])) == ["I", "I look.", "Rain."]
    answers = ('{"name": "Oslo", "people": -1}', '{"name": "Oslo", "people": 7}')
    assert await within(partials(streaming(*answers), Counted)) == [Counted(name="Oslo", people=7)]


class Counted(City):
    """A model with validators of its own."""

    @field_validator("people")
    @classmethod
    def is_a_number_of_people(cls, people: int) -> int:
        """Refuse a negative number."""
        if people < 0:
            raise ValueError("not a number of people")
        return people


class Fragile(BaseModel):
    """A model with a validator that is not made for partial values."""

    name: str = ""

    @field_validator("name")
    @classmethod
    def starts_with_a_capital(cls, name: str) -> str:
        """Fail for a short name."""
        return name[3].upper() + name[1:]


async def test_a_validator_that_fails_delays_the_value() -> None:
    """Whatever it raises: the whole answer is validated in any case."""
    [value, last] = await within(partials(streaming('{"name": "a|b|cd|e"}'), Fragile))
    assert (value.name, last.name) == ("Dbcd", "Dbcde")


async def test_a_model_that_does_not_stream_pieces_yields_the_output() -> None:
    """An answer without deltas is a single value."""

    async def answer(_request: object) -> AsyncIterator[str]:
        yield '{"name": "Oslo", "people": 7}'

    assert await within(partials(FunctionModel(answer), City)) == [City(name="Oslo", people=7)]
