from __future__ import annotations

import datetime as dt
import enum
import http.server
import json
import threading
import uuid
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.json_schema import GenerateJsonSchema

from pellucid import ConfigError, ToolContext
from pellucid.tools.schema import MAX_ISSUES, Validator
from pellucid.tools.signature import Signature, signature_of


class Address(BaseModel):
    city: str
    zip: str = ""


def read(function: Any) -> Signature:
    """Read a function's signature as the decorator does."""
    return signature_of(function, context_type=ToolContext)


def test_types_defaults_and_descriptions_become_a_schema() -> None:
    """A schema has the types, defaults and descriptions of a function, without titles."""

    def search(query: str, limit: Annotated[int, Field(ge=1)] = 10, *, kind: Literal["a", "b"] | None = None) -> str:
        """Search the index.

        Slow at night.

        Args:
            query: What to look for.
            limit: How many to return.
            kind: Which.
        """
        return query

    signature = read(search)
    assert signature.description == "Search the index.\n\nSlow at night."
    assert signature.input_schema == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "limit": {"type": "integer", "minimum": 1, "default": 10, "description": "How many to return."},
            "kind": {
                "anyOf": [{"enum": ["a", "b"], "type": "string"}, {"type": "null"}],
                "default": None,
                "description": "Which.",
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert signature.context_parameter is None


@pytest.mark.parametrize(
    "style", ["Args:\n    x: The number.", ":param x: The number.", "Parameters\n----------\nx\n    The number."]
)
def test_docstrings_of_all_styles_describe_parameters(style: str) -> None:
    """Google, Sphinx and NumPy docstrings describe the parameters."""

    def halve(x: int) -> int:
        return x // 2

    halve.__doc__ = f"Halve it.\n\n{style}\n"
    signature = read(halve)
    assert signature.description == "Halve it."
    assert signature.input_schema["properties"]["x"]["description"] == "The number."


def test_the_context_is_no_argument() -> None:
    """The parameter of the context type is not in the schema."""

    def look(x: int, run: ToolContext) -> int:
        return x

    signature = read(look)
    assert signature.context_parameter == "run"
    assert list(signature.input_schema["properties"]) == ["x"]


def test_arguments_are_bound_to_the_annotated_types() -> None:
    """Arguments are bound to the annotated classes, and missing ones get their defaults."""

    def send(to: Address, lines: list[int], urgent: bool = False) -> None:
        pass

    assert read(send).bind({"to": {"city": "Oslo"}, "lines": [1, 2]}) == {
        "to": Address(city="Oslo"),
        "lines": [1, 2],
        "urgent": False,
    }


def test_a_default_is_not_shared_between_calls() -> None:
    """A mutable default is copied for each call."""

    def collect(into: list[int] = []) -> None:  # noqa: B006  (that is what is tested)
        pass

    signature = read(collect)
    signature.bind({})["into"].append(1)
    assert signature.bind({}) == {"into": []}


@pytest.mark.parametrize("arguments", [{"pin": "hunter2"}, {"pin": {"deep": "hunter2"}}, {}, {"pin": 1, "hunter": 2}])
def test_arguments_that_do_not_fit_are_refused_without_their_values(arguments: dict[str, Any]) -> None:
    """The error about an argument that does not fit names it and the expected type, and repeats no value."""

    def unlock(pin: int) -> None:
        pass

    with pytest.raises(ValueError, match=r"pin|hunter") as caught:
        read(unlock).bind(arguments)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_parameters_may_have_any_name() -> None:
    """A parameter may have a name that pydantic uses itself."""

    def odd(json: str, schema: str, copy: int, model_dump: int, _x: int, model_config: int = 3) -> None:
        pass

    arguments = {"json": "a", "schema": "b", "copy": 1, "model_dump": 2, "_x": 4}
    signature = read(odd)
    assert list(signature.input_schema["properties"]) == [*arguments, "model_config"]
    assert signature.bind(arguments) == {**arguments, "model_config": 3}
    with pytest.raises(ValueError, match=r"^_x: "):
        signature.bind({**arguments, "_x": "text"})


def test_functions_behind_partial_and_callable_objects_are_read() -> None:
    """A partial and a callable object are read like functions."""

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    class Adder:
        def __call__(self, a: int) -> int:
            """Add to a number."""
            return a

    behind, called = read(partial(add, 1)), read(Adder())
    assert (behind.description, list(behind.input_schema["properties"])) == ("Add two numbers.", ["b"])
    assert (called.description, list(called.input_schema["properties"])) == ("Add to a number.", ["a"])


class Colour(enum.Enum):
    RED = "red"


class Untitled(GenerateJsonSchema):
    """Generator of schemas without titles."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: D102  (as in the base)
        return False


@pytest.mark.parametrize(
    ("hint", "default"),
    [
        (str, ...),
        (int | str, "a"),
        (str | int, 1),
        (list[dict[str, float]], ...),
        (float, 0.5),
        (float, float("inf")),
        (bool, False),
        (Literal[1, "a"] | None, None),
        (Literal[True], True),
        (Literal[1], 1),
        (tuple[int, ...], (1, 2)),
        (uuid.UUID, ...),
        (dt.datetime | None, None),
        (Colour, Colour.RED),
        (Address | None, None),
        (Annotated[int, Field(ge=1)], 3),
        (list[Annotated[str, Field(max_length=3)]], ...),
        (Annotated[str, Field(title="T")] | None, None),
        (Any, ...),
    ],
    ids=str,
)
@pytest.mark.parametrize("description", [None, "What it is."])
def test_a_schema_is_that_of_pydantic(hint: Any, default: Any, description: str | None) -> None:
    """The schema of a function is that of a pydantic model with the same fields, in the same order."""

    def work(x: Any, y: Any = None) -> None:
        pass

    work.__annotations__.update(x=hint, y=hint)
    work.__defaults__ = (default,) if default is not ... else None
    work.__doc__ = f"Work.\n\nArgs:\n    y: {description}\n" if description else None
    field = Field(default, alias="y", description=description)
    model = create_model(
        "work", __config__=ConfigDict(extra="forbid"), x=(hint, Field(..., alias="x")), y=(hint, field)
    )
    schema = model.model_json_schema(schema_generator=Untitled)
    del schema["title"]
    assert json.dumps(read(work).input_schema) == json.dumps(schema)


def positional(x: int, /) -> None:
    """Take a parameter that cannot be named."""


def variadic(*args: int) -> None:
    """Take any number of arguments."""


def keywords(**kwargs: int) -> None:
    """Take arguments of any name."""


def unresolved(x: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821  (that is what is tested)
    """Take a type that does not exist."""


def lock(x: threading.Thread) -> None:
    """Take an argument that is no JSON."""


@pytest.mark.parametrize("function", [positional, variadic, keywords, unresolved, lock])
def test_what_cannot_be_described_is_refused(function: Any) -> None:
    """The error about a function that cannot be described names the tool."""
    with pytest.raises(ConfigError, match=f"tool '{function.__name__}'"):
        read(function)


# --- Validator --------------------------------------------------------------------------------------------------------

NESTED: dict[str, Any] = {"type": "object"}
for _ in range(5000):
    NESTED = {"type": "object", "properties": {"a": NESTED}}
CYCLIC: dict[str, Any] = {"type": "object"}
CYCLIC["properties"] = {"a": CYCLIC}


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        "object",
        {},
        {"type": "string"},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"a": {"type": "str"}}},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
        {"type": "object", "required": "a"},
        {"type": "object", "properties": {1: {}}},
        {"type": "object", "default": object()},
        {"type": "object", "description": "\ud800"},
        {"type": "object", "$ref": "#/$defs/missing"},
        NESTED,
        CYCLIC,
    ],
)
def test_broken_schemas_are_refused(schema: Any) -> None:
    """A broken schema raises a `ValueError` of one line."""
    with pytest.raises(ValueError, match=r".") as caught:
        Validator(schema)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keyword", ["$schema", "$ref"])
def test_nothing_is_fetched_for_a_schema(keyword: str) -> None:
    """A schema with a URL causes no request."""
    requested: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Note the request."""
            requested.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(ValueError, match=r"127\.0\.0\.1"):
                Validator({"type": "object", keyword: f"http://127.0.0.1:{server.server_port}/schema"})
        finally:
            server.shutdown()
            thread.join()
    assert requested == []


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_known_drafts_are_understood(draft: str) -> None:
    """`$schema` may name any published draft."""
    assert Validator({"$schema": draft, "type": "object"}).issues({}) == ()


def test_issues_name_the_place_and_repeat_no_value() -> None:
    """Each issue names the place and the problem, and repeats no value."""
    schema = {
        "type": "object",
        "properties": {"pin": {"type": "integer"}, "list": {"items": {"enum": ["a"]}}},
        "required": ["name"],
        "additionalProperties": False,
    }
    issues = Validator(schema).issues({"pin": "hunter2", "list": ["a", "hunter2"]})
    assert {issue.split(":")[0] for issue in issues} == {"arguments", "pin", "list.1"}
    assert "hunter2" not in str(issues)


def test_issues_are_bounded() -> None:
    """The number of issues is bounded."""
    schema = {"type": "object", "properties": {"list": {"items": {"type": "string"}}}}
    assert len(Validator(schema).issues({"list": [1] * 1000})) == MAX_ISSUES


@pytest.mark.parametrize("value", ["\ud800", 10**5000, float("nan"), "\0"], ids=["surrogate", "big", "nan", "nul"])
def test_odd_arguments_are_checked_like_others(value: Any) -> None:
    """Values that some formats cannot hold are checked like others."""
    validator = Validator({"type": "object", "properties": {"a": {"type": "boolean"}}})
    assert len(validator.issues({"a": value})) == 1
