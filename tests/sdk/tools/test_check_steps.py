"""Checks against schemas whose alternatives meet again, which could take exponentially many steps."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from pellucid import Agent, Mcp, Tool, ToolCall, ToolResult, static_tools
from pellucid.testing import ScriptedModel
from pellucid.tools.schema import Validator
from pellucid.tools.steps import Steps
from support.runs import results, within

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

MANY: Final = "checking takes too many steps; simplify the schema"


def ref(name: str) -> dict[str, Any]:
    """Return a reference to a definition."""
    return {"$ref": f"#/$defs/{name}"}


LEVELS: Final = 24
"""Enough for more steps than the limit, and few enough for a check without a limit to end."""

NESTED: Final[dict[str, Any]] = {
    **{f"l{level}": {"anyOf": [ref(f"l{level + 1}")] * 2} for level in range(LEVELS)},
    f"l{LEVELS}": {"type": "string"},
}
BRANCHING: Final[dict[str, Any]] = {
    "X": {"anyOf": [{"properties": {"a": ref("X")}}, {"properties": {"a": ref("X"), "b": {"type": "null"}}}]}
}
UNEVALUATED: Final[dict[str, Any]] = {"U0": {"properties": {"a": {"type": "integer"}}}} | {
    f"U{level}": {"anyOf": [ref(f"U{level - 1}")], "unevaluatedProperties": False} for level in range(1, 16)
}
ANCHORS: Final[dict[str, Any]] = {
    "X": {
        "$anchor": "x",
        "anyOf": [{"properties": {"a": {"$ref": "#x"}}}, {"additionalProperties": {"$dynamicRef": "#x"}}],
    }
}


def deep(levels: int) -> Any:
    """Return nested objects."""
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


HOSTILE: Final = {
    "nested": ({"v": ref("l0")}, NESTED, 1),
    "branching": ({"v": ref("X")}, BRANCHING, deep(LEVELS)),
    "unevaluated": ({"v": ref("U15")}, UNEVALUATED, {"a": 1}),
    "anchors": ({"v": ref("X")}, ANCHORS, deep(LEVELS)),
}


class Num(BaseModel):
    kind: Literal["num"] = "num"
    value: int


class Binary(BaseModel):
    left: Expr
    right: Expr


class Add(Binary):
    kind: Literal["add"] = "add"


class Mul(Binary):
    kind: Literal["mul"] = "mul"


class Sub(Binary):
    kind: Literal["sub"] = "sub"


Expr = Annotated[Num | Add | Mul | Sub, Field(discriminator="kind")]
for model in (Binary, Add, Mul, Sub):
    model.model_rebuild()


def tree(depth: int) -> dict[str, Any]:
    """Return an expression whose discriminator is last."""
    if not depth:
        return {"value": 1, "kind": "num"}
    kind = ("add", "mul", "sub")[depth % 3]
    return {"left": tree(depth - 1), "right": tree(depth - 1), "kind": kind}


def wrapped(properties: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object."""
    return {"type": "object", "properties": properties, "$defs": definitions}


async def called(work: Tool, arguments: dict[str, Any]) -> ToolResult:
    """Return the result of a call of a tool of a provider, as one of an MCP server is."""
    model = ScriptedModel(ToolCall("work", arguments), "done")
    agent = Agent("a", model=model, providers=[static_tools([work.of(Mcp("hostile"))])])
    [result] = results(await within(agent.run("go")))
    return result


def work(value: Any = "ok", **options: Any) -> Tool:
    """Return a tool that returns a value."""

    async def run(arguments: dict[str, Any], ctx: Any) -> Any:
        return value

    return Tool(name="work", run=run, **options)


@pytest.mark.parametrize("name", HOSTILE)
async def test_arguments_that_take_too_many_steps_to_check_are_refused(name: str) -> None:
    """The model reads why; the tool is not run."""
    properties, definitions, value = HOSTILE[name]
    result = await called(work(input_schema=wrapped(properties, definitions)), {"v": value})
    assert result.is_error
    assert MANY in str(result.response)


@pytest.mark.parametrize("name", HOSTILE)
async def test_results_that_take_too_many_steps_to_check_are_withheld(name: str) -> None:
    """It is the error of other misfits."""
    properties, definitions, value = HOSTILE[name]
    result = await called(work({"v": value}, output_schema=wrapped(properties, definitions)), {})
    assert result.is_error
    assert MANY in str(result.response)
    assert "does not fit its output schema" in str(result.response)


async def test_expressions_are_checked() -> None:
    """A recursive union of discriminated models takes few steps, wherever the discriminator is."""
    schema = TypeAdapter(list[Expr]).json_schema()
    for value in ([tree(10)], [tree(3)] * 1_000):
        result = await called(work(value, output_schema=schema), {})
        assert not result.is_error, result.response


async def test_a_misfit_deep_in_an_expression_is_refused() -> None:
    """Its place is named if that takes few steps."""
    schema = TypeAdapter(Expr).json_schema()
    shallow, deeper = tree(1), tree(10)
    shallow["left"]["value"] = "hunter2"
    deeper["left"]["left"]["left"]["value"] = deeper["left"]["left"]["left"]["kind"] = "hunter2"
    for value, part in ((shallow, "is not valid under any"), (deeper, "finding where takes too many steps")):
        result = await called(work(value, output_schema=schema), {})
        assert result.is_error
        assert "hunter2" not in str(result.response)
        assert part in str(result.response) or value is shallow


class Leaf(BaseModel):
    name: str
    children: list[Leaf] = []
    other: Leaf | None = None


class Shop(BaseModel):
    first: Leaf | None = None
    second: Leaf
    more: dict[str, list[Leaf]]
    kind: Num | Leaf


Json = dict[str, Any] | list[Any] | str


@pytest.mark.parametrize("hint", [Leaf, Shop, list[Leaf | Num], dict[str, Shop | None], Json], ids=str)
def test_ordinary_schemas_are_not_counted(hint: Any) -> None:
    """Models, lists of them, and trees take few steps for each value."""
    assert (Steps(TypeAdapter(hint).json_schema()).most or 1_000) < 20


def test_a_schema_that_refers_to_itself_for_the_same_value_is_not_checked() -> None:
    """Ways through such references have no bound."""
    both = {"anyOf": [ref("X"), ref("Y")]}
    schema = wrapped({"v": ref("X")}, {"X": both, "Y": both | {"type": "object"}})
    assert MANY in str(Validator(schema).issues({"v": 1}))


NAMES: Final = st.sampled_from(["X", "Y", "Z"])
PARTS: Final = st.recursive(
    st.one_of(NAMES.map(ref), st.sampled_from([{"type": "integer"}, {"const": "a"}, {"type": "object"}])),
    lambda parts: st.one_of(
        st.lists(parts, min_size=1, max_size=3).map(lambda choices: {"anyOf": choices}),
        st.lists(parts, min_size=1, max_size=2).map(lambda choices: {"allOf": choices}),
        st.dictionaries(st.sampled_from("ab"), parts).map(lambda members: {"properties": members}),
        parts.map(lambda part: {"items": part}),
    ),
    max_leaves=5,
)
VALUES: Final = st.recursive(
    st.sampled_from([1, "a", None]),
    lambda values: st.one_of(st.lists(values, max_size=3), st.dictionaries(st.sampled_from("ab"), values)),
    max_leaves=8,
)


def evaluations(schema: dict[str, Any], part: Any, value: Any) -> int:
    """Return how many parts a check that stops nowhere evaluates."""
    if "$ref" in part:
        return 1 + evaluations(schema, schema["$defs"][part["$ref"].rpartition("/")[2]], value)
    total = 1 + sum(evaluations(schema, each, value) for word in ("anyOf", "allOf") for each in part.get(word, ()))
    if isinstance(value, dict):
        named = part.get("properties", {})
        total += sum(evaluations(schema, named[key], value[key]) for key in named.keys() & value.keys())
    if isinstance(value, list) and "items" in part:
        total += sum(evaluations(schema, part["items"], item) for item in value)
    return total


@given(st.fixed_dictionaries({"X": PARTS, "Y": PARTS, "Z": PARTS}), VALUES)
def test_no_evaluation_is_missed(definitions: dict[str, Any], value: Any) -> None:
    """A check takes no more evaluations than are counted; nor more for each value than is said."""
    schema = {"$defs": definitions, **ref("X")}
    steps = Steps(schema)
    if steps.exceed(10**9, value, is_quick=False):  # without an end
        return
    actual = evaluations(schema, schema, value)
    assert steps.exceed(actual - 1, value, is_quick=False)
    assert steps.most is None or actual <= steps.most * values(value)


def values(value: Any) -> int:
    """Return the number of values in a value."""
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(values(member) for member in members)


LARGE: Final = [
    ({"type": "string"}, '0: the value is not of type "string"'),
    (
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "result: the schema does not allow it; finding where",
    ),
]


@pytest.mark.parametrize(("items", "issue"), LARGE, ids=["plain", "alternatives"])
async def test_a_large_result_with_a_misfit_in_each_item_is_refused(items: dict[str, Any], issue: str) -> None:
    """The library would make an error of each item and alternative, in gigabytes: one is listed, or none."""
    result = await called(work([1] * 20_000, output_schema={"type": "array", "items": items}), {})
    assert result.is_error
    assert f"withheld: {issue}" in str(result.response)
    assert str(result.response).count("value is not") <= 1


@pytest.mark.parametrize("name", ["schema", "unions"])
async def test_large_results_are_checked(name: str) -> None:
    """Steps that grow with a value only have a limit far above what its size admits."""
    unions = {"type": "array", "items": {"anyOf": [{"const": n} for n in range(300)]}}
    plain = {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    schema, value = (plain, [{"a": 1}] * 100_000) if name == "schema" else (unions, [299] * 10_000)
    result = await called(work(value, output_schema=schema), {})
    assert not result.is_error, result.response
