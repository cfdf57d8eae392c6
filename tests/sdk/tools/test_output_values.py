"""Results of tools with an output schema: values that are read once, types that hide their content, own serializers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final, NewType

import pytest
from pydantic import BaseModel, RootModel, SerializerFunctionWrapHandler, field_serializer, model_serializer
from typing_extensions import TypeAliasType

from pellucid import Agent, TextPart, Tool, ToolCall, ToolResult, tool
from pellucid.testing import ScriptedModel
from support.runs import results, within

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

Texts = NewType("Texts", list[TextPart])
Aliased = TypeAliasType("Aliased", list[TextPart] | None)
Tree = TypeAliasType("Tree", "dict[str, Tree] | int")

BACKTRACKING: Final = r"^(?:(a+)\1?)+$"


class Stamped(BaseModel):
    at: dt.datetime
    price: Decimal = Decimal("1.5")

    @field_serializer("at")
    def stamp(self, value: dt.datetime):  # type: ignore[no-untyped-def]  # noqa: ANN201
        """Return seconds."""
        return value.timestamp()


class Texted(BaseModel):
    a: int

    @model_serializer
    def text(self):  # type: ignore[no-untyped-def]  # noqa: ANN201
        """Return a text."""
        return f"a is {self.a}"


class Wrapped(BaseModel):
    a: int

    @model_serializer(mode="wrap")
    def listed(self, handler: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]  # noqa: ANN201
        """Return a list."""
        return [handler(self)]


class Typed(BaseModel):
    at: dt.datetime

    @field_serializer("at")
    def stamp(self, value: dt.datetime) -> float:
        """Return seconds."""
        return value.timestamp()


class Rows(RootModel[Sequence[Typed]]):
    """Rows."""


def returning(hint: Any, value: Any, **options: Any) -> Tool[Any]:
    """Return a tool `work` whose function is annotated to return `hint`, and returns what `value` returns."""

    async def work() -> Any:
        return value()

    work.__annotations__["return"] = hint
    return tool(**options)(work)


async def result_of(made: Tool[Any]) -> ToolResult:
    """Return the result of a call in a run."""
    agent = Agent("a", model=ScriptedModel(ToolCall("work", {}), "done"), tools=[made])
    [result] = results(await within(agent.run("go")))
    return result


def numbers() -> Iterator[int]:
    """Yield numbers."""
    yield from (1, 2)


def failing() -> Iterator[int]:
    """Yield a number, and fail."""
    yield 1
    raise ValueError("no more")


@pytest.mark.parametrize("value", [numbers, lambda: map(int, "12"), lambda: iter([1, 2])], ids=["own", "map", "iter"])
@pytest.mark.parametrize("on_invalid", ["error", "report", None])
async def test_what_can_be_read_once_reaches_the_model(value: Any, on_invalid: Any) -> None:
    """The check does not use it up."""
    made = returning(Iterable[int], value, on_invalid_output=on_invalid)
    assert made.output_schema == {"items": {"type": "integer"}, "type": "array"}
    assert (await result_of(made)).response == [1, 2]


async def test_what_can_be_read_once_within_data() -> None:
    """Also within data, and where it does not fit."""
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "integer"}}}}
    for on_invalid in ("error", "report"):
        made = returning(Any, lambda: {"rows": numbers()}, output_schema=schema, on_invalid_output=on_invalid)
        assert (await result_of(made)).response == {"rows": [1, 2]}
    strict = {"type": "object", "properties": {"rows": {"maxItems": 1}}}
    made = returning(Any, lambda: {"rows": numbers()}, output_schema=strict, on_invalid_output="report")
    assert (await result_of(made)).response == {"rows": [1, 2]}


async def test_what_fails_while_it_is_read_is_an_error() -> None:
    """As without a schema; the rest of it is no result."""
    made = returning(Iterable[int], failing)
    result, other = await result_of(made), await result_of(replace(made, output_schema=None))
    assert result.is_error
    assert (result.response, result.is_error) == (other.response, other.is_error)


@pytest.mark.parametrize("hint", [Texts, Texts | None, Aliased, list[Aliased], dict[str, Texts]], ids=str)
async def test_content_behind_another_name_has_no_schema(hint: Any) -> None:
    """It is passed on as it is without the name."""
    made = returning(hint, lambda: [TextPart("Hi")])
    assert made.output_schema is None
    assert (await result_of(made)).response == (TextPart("Hi"),)


async def test_a_recursive_alias() -> None:
    """It is data."""
    made = returning(Tree, lambda: {"a": {"b": 1}})
    assert made.output_schema is not None
    assert (await result_of(made)).response == {"a": {"b": 1}}
    assert (await result_of(returning(Tree, lambda: {"a": "b"}))).is_error


async def test_a_serializer_without_a_type_may_return_anything() -> None:
    """Pydantic gives such fields the schema of what they are in Python, which their JSON contradicts."""
    made = returning(Stamped, lambda: Stamped(at=dt.datetime.fromtimestamp(1, dt.UTC)))
    assert made.output_schema is not None
    assert made.output_schema["properties"]["at"] == {}
    assert made.output_schema["properties"]["price"]["type"] == "string"
    assert (await result_of(made)).response == {"at": 1.0, "price": "1.5"}


@pytest.mark.parametrize(("kind", "response"), [(Texted, "a is 1"), (Wrapped, [{"a": 1}])])
async def test_a_model_with_a_serializer_without_a_type_has_no_schema(kind: Any, response: Any) -> None:
    """It says nothing of its JSON."""
    made = returning(kind, lambda: kind(a=1))
    assert made.output_schema is None
    assert (await result_of(made)).response == response


async def test_serializers_with_a_type_and_those_of_pydantic_keep_theirs() -> None:
    """Their JSON is known."""
    made = returning(Rows, lambda: Rows([Typed(at=dt.datetime.fromtimestamp(1, dt.UTC))]))
    assert made.output_schema is not None
    assert made.output_schema["$defs"]["Typed"]["properties"]["at"] == {"type": "number"}
    assert (await result_of(made)).response == [{"at": 1.0}]


@pytest.mark.parametrize(("length", "is_checked"), [(8, True), (14, False), (340, False)])
async def test_a_pattern_that_backtracks_ends_after_few_steps(length: int, is_checked: bool) -> None:
    """A hub writes both the pattern and the texts, and the event loop waits: a text that takes too many is refused.

    The validator's own limit is a hundred times as high, and lets the text of 14 characters pass.
    """
    schema = {"type": "array", "items": {"not": {"pattern": BACKTRACKING}}}
    made = returning(Any, lambda: ["a" * length + "!"], output_schema=schema)
    result = await result_of(made)
    assert result.is_error is not is_checked
    assert ("backtracking" in str(result.response)) is not is_checked
