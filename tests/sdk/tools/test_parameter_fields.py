"""Parameters that pydantic's `Field` describes, in the annotation or as the default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from pellucid import Agent, ConfigError, ToolCall, ToolContext, tool
from pellucid.testing import ScriptedModel
from support.runs import within
from support.typed_values import KINDS, Address, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


TEXTS: Final = st.text("abc ", min_size=1, max_size=8).map(str.strip).filter(bool)
FACTS: Final = st.fixed_dictionaries(
    {},
    optional={
        "description": TEXTS,
        "title": TEXTS,
        "examples": st.just(["an example"]),
        "alias": st.sampled_from(["from", "x-y", "other"]),
        "deprecated": st.just(True),
    },
)


def function_with(hint: Any, default: Any, description: str | None) -> Callable[..., Any]:
    """Return a function that returns its only parameter."""

    def work(value: Any) -> Any:
        return value

    work.__annotations__ = {"value": hint}
    work.__defaults__ = (default,) if default is not ... else None
    work.__doc__ = f"Work.\n\nArgs:\n    value: {description}\n" if description else None
    return work


@settings(max_examples=200, deadline=None)
@given(kind=KINDS, facts=FACTS, docstring=st.none() | TEXTS, place=st.sampled_from(["annotation", "default"]))
def test_what_a_field_says_is_in_the_schema_and_the_call(
    kind: Kind, facts: Mapping[str, Any], docstring: str | None, place: str
) -> None:
    """The facts of a `Field` are in the parameter's schema, beside those of the type, and the call gets the value."""
    field = Field(**facts)
    if place == "annotation":
        made = tool(function_with(Annotated[kind.hint, field], ..., docstring))
    else:
        made = tool(function_with(kind.hint, field, docstring))
    bare = tool(function_with(kind.hint, ..., docstring)).input_schema["properties"]["value"]

    name = facts.get("alias", "value")
    shown = {key: value for key, value in facts.items() if key != "alias"}
    assert made.input_schema["required"] == [name]
    assert made.input_schema["properties"] == {name: {**bare, **shown}}
    assert made.run({name: kind.json}, ToolContext()) == kind.value


@settings(max_examples=100, deadline=None)
@given(kind=KINDS, place=st.sampled_from(["annotation", "parameter", "field", "factory"]))
def test_a_default_of_a_field_is_that_of_the_parameter(kind: Kind, place: str) -> None:
    """A parameter with a default, wherever it stands, is optional, and a call without it gets the default."""
    hint = kind.hint
    functions = {
        "annotation": lambda: function_with(Annotated[hint, Field(default=kind.value)], ..., None),
        "parameter": lambda: function_with(Annotated[hint, Field(description="d")], kind.value, None),
        "field": lambda: function_with(hint, Field(kind.value), None),
        "factory": lambda: function_with(hint, Field(default_factory=lambda: kind.value), None),
    }
    made = tool(functions[place]())
    assert "required" not in made.input_schema
    assert made.run({}, ToolContext()) == kind.value


def test_constraints_of_a_field_are_checked() -> None:
    """Constraints of a `Field` are in the schema, and a call that violates them is refused."""

    @tool
    def find(
        query: Annotated[str, Field(description="Search keyword", min_length=1)],
        limit: int = Field(10, ge=1, le=50, description="How many"),
    ) -> str:
        return query * limit

    assert find.input_schema["properties"] == {
        "query": {"type": "string", "minLength": 1, "description": "Search keyword"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10, "description": "How many"},
    }
    assert find.input_schema["required"] == ["query"]
    with pytest.raises(ValueError, match=r"^limit: "):
        find.run({"query": "a", "limit": 51}, ToolContext())


def test_the_annotation_wins_over_the_docstring() -> None:
    """The description in an annotation wins over the docstring, which describes the other parameters."""

    @tool
    def find(
        a: Annotated[str, Field(description="by the annotation")],
        b: Annotated[str, Field(min_length=1)],
        c: str = Field(description="by the default"),
    ) -> str:
        """Find.

        Args:
            a: by the docstring
            b: by the docstring
            c: by the docstring
        """
        return a + b + c

    described = {name: schema["description"] for name, schema in find.input_schema["properties"].items()}
    assert described == {"a": "by the annotation", "b": "by the docstring", "c": "by the default"}


def test_a_field_may_be_in_an_annotation_and_a_default() -> None:
    """A `Field` as the default adds to the one in the annotation, and wins over it."""

    def find(a: Annotated[str, Field(description="d", title="T", min_length=2)] = Field("ab", title="U")) -> str:
        return a

    made = tool(find)
    expected = {"type": "string", "minLength": 2, "default": "ab", "description": "d", "title": "U"}
    assert made.input_schema["properties"]["a"] == expected
    assert made.run({}, ToolContext()) == "ab"


def test_two_parameters_of_one_alias_are_refused() -> None:
    """Two parameters with one alias are refused."""

    def find(a: Annotated[str, Field(alias="x")], x: str) -> str:
        return a + x

    with pytest.raises(ConfigError, match=r"tool 'find': two of its parameters \(a, x\) have one alias"):
        tool(find)


@pytest.mark.anyio
async def test_a_model_calls_a_tool_by_its_aliases() -> None:
    """A model gives the alias of a parameter, and the function gets its own parameter and the default of a `Field`."""

    @tool
    async def send(
        ctx: ToolContext,
        sender: Annotated[str, Field(alias="from", description="Who sends it")],
        urgent: bool = Field(False, description="Whether it is"),
        copies: list[Address] = Field(default_factory=list, max_length=2),  # noqa: B008  (as applications do)
    ) -> str:
        return f"{sender} {urgent} {copies}"

    calls = [
        ToolCall("send", {"from": "Ada"}),
        ToolCall("send", {"from": "Ada", "copies": [{"city": "Oslo"}] * 3}),
        ToolCall("send", {"sender": "Ada"}),
    ]
    agent = Agent("a", model=ScriptedModel(calls, "sent"), tools=[send])
    result = await within(agent.run("go"))
    good, many, wrong = (part for message in result.messages for part in message.tool_results)
    assert good.response == "Ada False []"
    assert "copies: " in str(many.response)
    assert '"from" is a required property' in str(wrong.response)
    assert (good.is_error, many.is_error, wrong.is_error) == (False, True, True)
