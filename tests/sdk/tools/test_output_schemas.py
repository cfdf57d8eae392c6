"""JSON Schemas of results of tools: their sources, their readers, and results that do not fit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from pellucid import (
    Agent,
    BlobPart,
    CapturePolicy,
    ConfigError,
    DiscoveryProvider,
    Limits,
    Message,
    TextPart,
    Tool,
    ToolCall,
    ToolRegistry,
    ToolResult,
    observe,
    semconv,
    static_tools,
    tool,
)
from pellucid.errors import InvalidCatalog
from pellucid.messages import Part, Parts
from pellucid.reliability import Reliability, Rule, retry
from pellucid.testing import FakeHub, ScriptedModel
from pellucid.tools.catalog_records import CatalogListing, catalog_json
from pellucid_exporters.testing import Captured
from support.runs import ending, results, within
from support.typed_values import KINDS, Kind

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

DAYS: Final = {
    "type": "object",
    "properties": {"days": {"type": "array", "items": {"type": "object", "properties": {"high": {"type": "number"}}}}},
    "required": ["days"],
}


@dataclass
class Day:
    """A day."""

    high: float
    low: float = 0.0


class Forecast(BaseModel):
    days: list[Day]


class Place(TypedDict):
    city: Annotated[str, Field(description="In English.")]


class Node(BaseModel):
    children: list[Node] = []


class Pair(NamedTuple):
    a: int
    b: str


def returning(hint: Any, value: Any = None, **options: Any) -> Tool[Any]:
    """Return a tool `work` whose function is annotated to return `hint`."""

    async def work() -> Any:
        return value

    work.__annotations__["return"] = hint
    return tool(**options)(work)


def given_tool(value: Any, **options: Any) -> Tool[Any]:
    """Return a tool `work` with a given schema."""

    async def run(arguments: Any, ctx: object) -> Any:
        return value

    return Tool(name="work", run=run, **{"output_schema": DAYS, **options})


async def result_of(made: Tool[Any], **options: Any) -> ToolResult:
    """Return the result of a call in a run."""
    agent = Agent("a", model=ScriptedModel(ToolCall("work", {}), "done"), tools=[made], **options)
    [result] = results(await within(agent.run("go")))
    return result


# --- where schemas come from ------------------------------------------------------------------------------------------

DAY: Final = {
    "description": "A day.",
    "properties": {"high": {"type": "number"}, "low": {"type": "number", "default": 0.0}},
    "required": ["high"],
    "title": "Day",
    "type": "object",
}
PLACE: Final = {
    "properties": {"city": {"type": "string", "description": "In English."}},
    "required": ["city"],
    "type": "object",
}


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (Place, PLACE),
        (
            Forecast,
            {
                "$defs": {"Day": DAY},
                "properties": {"days": {"items": {"$ref": "#/$defs/Day"}, "type": "array"}},
                "required": ["days"],
                "type": "object",
            },
        ),
        (dict[str, int], {"additionalProperties": {"type": "integer"}, "type": "object"}),
        (list[str], {"items": {"type": "string"}, "type": "array"}),
        (
            Pair,
            {"maxItems": 2, "minItems": 2, "prefixItems": [{"type": "integer"}, {"type": "string"}], "type": "array"},
        ),
        (
            Place | None,
            {"$defs": {"Place": {**PLACE, "title": "Place"}}, "anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        ),
    ],
    ids=str,
)
def test_a_structured_return_type_gives_a_schema(hint: Any, schema: Any) -> None:
    """Models, dataclasses, typed dictionaries, and lists and dictionaries of types give an output schema."""
    found = returning(hint).output_schema
    assert found is not None
    assert found == schema


def test_a_recursive_type_gives_a_schema_of_an_object() -> None:
    """The output schema of a recursive type has the object at its root."""
    schema = returning(Node).output_schema
    assert schema is not None
    assert schema["type"] == "object"
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}


class Odd:
    """A type without a JSON Schema."""


@pytest.mark.parametrize(
    "hint",
    [
        *(None, type(None), Any, object, str, int, float, bool, bytes, dict, list, tuple, Odd),
        *(dict[str, Any], dict[str, object], list[Any], list[object], Mapping[str, Any], str | None, int | str),
        *(BlobPart, TextPart | None, Part, tuple[Part, ...], list[TextPart | BlobPart], Parts, ToolResult, Message),
        *(Place | BlobPart, Odd | Place, AsyncIterator[Place]),
    ],
    ids=str,
)
async def test_other_return_types_give_none(hint: Any) -> None:
    """Texts, untyped data, content and types without a JSON Schema give no output schema."""
    made = returning(hint, "fine")
    assert made.output_schema is None
    assert (await result_of(made)).response == "fine"


def test_a_function_without_annotation_has_none() -> None:
    """A function without a return annotation has no output schema."""

    def work(a: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return a

    assert tool(work).output_schema is None


def test_a_given_schema_wins_and_none_takes_it_away() -> None:
    """`tool(output_schema=)` replaces or removes the schema of the annotation."""
    assert returning(Place, output_schema=DAYS).output_schema == DAYS
    assert returning(Place, output_schema=None).output_schema is None
    assert given_tool(None).output_schema == DAYS


@pytest.mark.parametrize("execution", ["same-invocation", "external-dispatch"])
def test_asynchronous_tools_have_no_schema(execution: Any) -> None:
    """An asynchronous tool has no output schema, and a given one is refused."""
    assert returning(Place, execution=execution).output_schema is None
    with pytest.raises(ConfigError, match=r"Tool\('work'.*output_schema has no meaning with execution"):
        returning(Place, execution=execution, output_schema=DAYS)


def test_an_unknown_option_is_refused() -> None:
    """The error about an unknown `on_invalid_output` names the known values."""
    with pytest.raises(ConfigError, match=r"unknown on_invalid_output 'warn'; use 'error', 'report' or None"):
        given_tool(None, on_invalid_output="warn")


# --- who sees them ----------------------------------------------------------------------------------------------------


def test_digests_of_tools_without_a_schema_stay() -> None:
    """The digest of a tool without an output schema is that of earlier versions."""

    @tool
    async def weather(city: str, days: int = 1) -> str:
        """Return the forecast."""
        return city

    plain = Tool(name="a", run=lambda arguments, ctx: None, description="d", input_schema={"type": "object"})
    assert plain.digest.hex() == "e79ef7c87cf170b28426c9d3a5ce3686"
    assert weather.digest.hex() == "2853e9a2762f2bab0a520828b2f19acd"


async def test_a_model_gets_the_schema() -> None:
    """The output schema is in the definition, the request and the digest."""
    made, bare = given_tool({"days": []}), given_tool({"days": []}, output_schema=None)
    assert made.digest != bare.digest
    model = ScriptedModel(ToolCall("work", {}), "done")
    await within(Agent("a", model=model, tools=[made]).run("go"))
    [definition] = model.requests[0].tools
    assert definition.output_schema == DAYS
    assert definition.to_dict() == {**bare.definition.to_dict(), "output_schema": DAYS}
    assert "output_schema" not in bare.definition.to_dict()


def test_the_records_of_a_catalogue_have_it() -> None:
    """The record of a catalogue has the output schema and an option that is not the default."""
    tools = (given_tool(None, on_invalid_output="report"), given_tool(None, output_schema=None))
    policy = CapturePolicy("redacted")
    text = catalog_json(CatalogListing(provider_id="p", digest="", tools=tools, policy=policy))
    assert text is not None
    with_schema, without = json.loads(text)["tools"]
    assert (with_schema["output_schema"], with_schema["on_invalid_output"]) == (DAYS, "report")
    assert not {"output_schema", "on_invalid_output"} & without.keys()


def test_a_registry_lists_it() -> None:
    """A registry lists a copy of the output schema, and no key for tools without one."""
    registry = ToolRegistry([given_tool(None), returning(str).named("other")])
    other, work = registry.list_schemas()
    assert work["outputSchema"] == DAYS
    assert "outputSchema" not in other
    work["outputSchema"]["type"] = "string"
    assert registry.list_schemas()[1]["outputSchema"] == DAYS


async def test_a_discovered_tool_with_a_schema_is_not_redefined(telemetry: Captured) -> None:
    """A discovered tool with an output schema is not reported as redefined, also in a later run."""
    made = given_tool({"days": []}, lazy=True)
    calls: list[Any] = [ToolCall("__lazy__tool__discovery__", {"toolNames": ["work"]}), ToolCall("work", {}), "done"]
    agent = Agent("a", model=ScriptedModel(*calls, ToolCall("work", {}), "again"), tools=[made], telemetry=telemetry)
    first = await within(agent.run("go"))
    second = await within(agent.run("go", history=first.messages))
    assert not [event for event in telemetry.events if event.name == "tools.redefined"]
    [*_, last] = (part for message in second.messages for part in message.tool_results)
    assert last.response == {"days": []}


# --- results ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(kind=KINDS)
def test_a_value_of_the_return_type_fits(kind: Kind) -> None:
    """A result of the annotated type fits the output schema."""
    made = returning(kind.hint, kind.value)
    agent = Agent("a", model=ScriptedModel(ToolCall("work", {}), "done"), tools=[made])
    [result] = (part for message in agent.run_sync("go").messages for part in message.tool_results)
    assert not result.is_error, result.response


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"days": [{"high": 1}, {"high": "hunter2"}]}, 'days.1.high: the value is not of type "number"'),
        ({}, 'result: "days" is a required property'),
        ("hunter2", 'result: the value is not of type "object"'),
        (None, 'result: the value is not of type "object"'),
        (BlobPart(content="", modality="image"), "result: it is content, not data"),
        ((TextPart("hunter2"),), "result: it is content, not data"),
        (Parts((TextPart("a"),), {"days": 1}), 'days: the value is not of type "array"'),
    ],
    ids=str,
)
async def test_a_result_that_does_not_fit_is_an_error(telemetry: Captured, value: Any, problem: str) -> None:
    """A result that does not fit is an error with the path and without the value."""
    result = await result_of(given_tool(value), telemetry=telemetry)
    assert result.is_error
    assert result.response == f"The result of 'work' does not fit its output schema, and is withheld: {problem}."
    assert ending(telemetry.span("execute_tool work")) == ("failed", "ERROR", "invalid_output")
    [event] = [event for event in telemetry.events if event.name == "tool.failed"]
    assert (event.error_type, event.error) == ("invalid_output", result.response)  # type: ignore[attr-defined]
    assert "hunter2" not in str(telemetry.spans) + str(result)


@pytest.mark.parametrize("value", [Parts((TextPart("fine"),), {"days": []}), {"days": [{"high": 1.5}]}], ids=str)
async def test_a_result_that_fits_is_passed_on(telemetry: Captured, value: Any) -> None:
    """A result that fits is passed on unchanged, structured content included."""
    result = await result_of(given_tool(value), telemetry=telemetry)
    assert (result.is_error, result.response) == (False, tuple(value) if isinstance(value, tuple) else value)
    assert not [event for event in telemetry.events if event.name == "tool.output_invalid"]


async def test_a_sync_tool_is_checked_too() -> None:
    """The result of a sync tool is checked."""

    @tool
    def work() -> list[int]:
        return ["a"]  # type: ignore[list-item]  # (that is what is tested)

    result = await result_of(work)
    assert '0: the value is not of type "integer"' in str(result.response)


async def test_a_reported_misfit_is_let_through(telemetry: Captured) -> None:
    """With `on_invalid_output="report"` a result that does not fit is passed on, with an event about the fault."""
    result = await result_of(given_tool({"days": ["hunter2"]}, on_invalid_output="report"), telemetry=telemetry)
    assert (result.is_error, result.response) == (False, {"days": ["hunter2"]})
    problem = 'days.0: the value is not of type "object"'
    [event] = [event for event in telemetry.events if event.name == "tool.output_invalid"]
    assert (event.tool_name, event.tool_call_id, event.problem) == ("work", result.id, problem)  # type: ignore[attr-defined]
    span = telemetry.span("execute_tool work")
    assert event.span_id == f"{span.context.span_id:016x}"
    assert ending(span)[0] == "completed"
    [shown] = span.events
    assert (shown.name, shown.attributes) == ("tool.output_invalid", {semconv.TOOL_OUTPUT_PROBLEM: problem})


async def test_the_problem_is_content() -> None:
    """The event about a misfit has no problem text if no content is recorded."""
    with Captured(capture=CapturePolicy("off"), fixed=False, recorder=None) as telemetry:
        await result_of(given_tool({"days": 1}, on_invalid_output="report"), telemetry=telemetry)
    [event] = [event for event in telemetry.events if event.name == "tool.output_invalid"]
    assert event.problem is None  # type: ignore[attr-defined]
    assert telemetry.span("execute_tool work").events[0].attributes == {}


async def test_a_tool_may_be_left_unchecked() -> None:
    """With `on_invalid_output=None` results are not checked."""
    result = await result_of(given_tool({"days": 1}, on_invalid_output=None))
    assert (result.is_error, result.response) == (False, {"days": 1})


async def test_a_large_result_is_checked_whole() -> None:
    """A large result is checked before it is cut for the model."""
    days = {"days": [{"high": 1.0}] * 20_000}
    fits = await result_of(given_tool(days), limits=Limits(max_result_bytes=1000))
    assert "[cut: over 1,000 bytes in all" in str(fits.response)
    misfit = await result_of(given_tool({"days": [*days["days"], 1]}), limits=Limits(max_result_bytes=1000))
    assert "days.20000: the value is not" in str(misfit.response)


async def test_a_result_that_is_no_json_says_so() -> None:
    """The error about a result that is no JSON is the same as without a schema."""
    result = await result_of(given_tool(object()))
    assert result.response == "The tool returned an object of type object that cannot be turned into JSON."


async def test_a_call_outside_of_a_run_is_checked(telemetry: Captured) -> None:
    """`observe` checks the results of calls."""
    tools = [given_tool({}), given_tool({}, on_invalid_output="report").named("other")]
    observed = observe(static_tools(tools), telemetry=telemetry)
    refused, reported = await within(observed.call_tool("work")), await within(observed.call_tool("other"))
    assert 'result: "days" is a required property' in str(refused.response)
    assert (reported.is_error, reported.response) == (False, {})
    assert [event.name for event in telemetry.span("execute_tool other").events] == ["tool.output_invalid"]


async def test_a_reliability_rule_may_retry_a_misfit() -> None:
    """A reliability rule may repeat a call whose result does not fit."""
    answers: Iterator[Any] = iter([{}, {"days": []}])

    async def run(arguments: Any, ctx: object) -> Any:
        return next(answers)

    flaky = Tool(name="work", run=run, output_schema=DAYS, idempotent=True)
    rules = Reliability([Rule(when=lambda state: state.operation == "tool", then=retry(), kind="misfit")])
    result = await result_of(flaky, reliability=rules)
    assert result.response == {"days": []}


async def test_a_broken_schema_is_a_broken_tool(telemetry: Captured) -> None:
    """A tool with a broken output schema fails its provider, or is quarantined."""
    broken = given_tool(None, output_schema={"type": "objekt"})
    failing = DiscoveryProvider(FakeHub([broken]), id="hub")
    with pytest.raises(InvalidCatalog, match="the output schema of tool 'work' is broken"):
        await within(Agent("a", model=ScriptedModel("hi"), providers=[failing]).run("go"))
    leaving = DiscoveryProvider(FakeHub([broken, returning(str).named("good")]), id="hub", on_invalid="quarantine")
    model = ScriptedModel("hi")
    await within(Agent("a", model=model, providers=[leaving], telemetry=telemetry).run("go"))
    assert [definition.name for definition in model.requests[0].tools] == ["good"]


async def test_a_schema_may_be_of_anything() -> None:
    """An output schema need not be of an object."""
    schema = {"type": "array", "items": {"type": "integer"}}
    assert (await result_of(given_tool([1], output_schema=schema))).response == [1]
    assert (await result_of(given_tool("a", output_schema={"enum": ["a"]}))).response == "a"
    assert (await result_of(given_tool("b", output_schema={"enum": ["a"]}))).is_error


async def test_a_copy_of_a_tool_keeps_the_check() -> None:
    """A renamed copy of a tool with another function still checks its results."""

    async def other(arguments: Any, ctx: object) -> Any:
        return {}

    changed = replace(given_tool({"days": []}).named("x"), name="work", run=other)
    assert (await result_of(changed)).is_error
