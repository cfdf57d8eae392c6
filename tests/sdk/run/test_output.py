from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import pytest
from pydantic import BaseModel, Field, field_validator

from pellucid import (
    Agent,
    ConfigError,
    FallbackModel,
    Limits,
    Message,
    ModelError,
    ModelResponse,
    OutputError,
    RunStream,
    TextPart,
    ToolCall,
    tool,
)
from pellucid.messages import ServerToolCall, ServerToolResult
from pellucid.models import OutputSchema
from pellucid.testing import FunctionModel, ScriptedModel
from support.runs import attributes, everything, within

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


class City(BaseModel):
    """A city and what it is like."""

    name: str
    people: int = Field(ge=0)


@dataclass
class Point:
    x: float
    y: float


GOOD = '{"name": "Bergen", "people": 291940}'
BERGEN = City(name="Bergen", people=291940)


@tool
async def look_up(name: str) -> str:
    """Look a city up."""
    return "291940 people"


class NativeModel(ScriptedModel):
    """A model whose vendor takes the schema."""

    native_output = True


async def test_the_answer_is_a_value_of_the_type(telemetry: Captured) -> None:
    """The output is a value of the type after tool calls, and the conversation keeps its text."""
    model = ScriptedModel(ToolCall("look_up", {"name": "Bergen"}), GOOD)
    agent = Agent("a", model=model, tools=[look_up], output=City)
    result = await within(agent.run("How big is Bergen?"))
    assert result.output == BERGEN
    assert result.messages[-1].text == GOOD
    assert (result.status, result.iterations) == ("completed", 2)
    assert [attributes(span)["gen_ai.output.type"] for span in telemetry.spans if span.name == "chat scripted"] == [
        "json",
        "json",
    ]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (list[int], '{"result": [1, 2]}', [1, 2]),
        (list[int], "[1, 2]", [1, 2]),
        (int, "3", 3),
        (Literal["yes", "no"], '{"result": "yes"}', "yes"),
        (int | str, '{"result": "x"}', "x"),
        (dict[str, int], '{"result": {"a": 1}}', {"a": 1}),
        (Point, '{"x": 1, "y": 2.5}', Point(1.0, 2.5)),
        (City | Point, '{"result": {"x": 1, "y": 2}}', Point(1.0, 2.0)),
        (City, f"```json\n{GOOD}\n```", BERGEN),
        (City, f"\n```\n{GOOD}\n```  ", BERGEN),
    ],
)
async def test_any_type_that_pydantic_knows(kind: Any, text: str, value: object) -> None:
    """Any type that pydantic knows can be the output, from JSON in a fence too, bare or as the member `result`."""
    result = await within(Agent[Any, Any]("a", model=ScriptedModel(text), output=kind).run("go"))
    assert result.output == value


async def test_a_model_that_never_stops_ending_lines_holds_nobody() -> None:
    """An answer of 200,000 line ends is refused without holding up the run."""
    endless = "```json\n" + "\n" * 200_000
    result = await within(Agent("a", model=ScriptedModel(endless, GOOD), output=City).run("go"))
    assert result.output == BERGEN


@pytest.mark.parametrize(
    ("kind", "bad", "said"),
    [
        (list[int], '{"result": [1, "x"]}', "result.1: Input should be a valid integer"),
        (list[int], '[1, "x"]', "1: Input should be a valid integer"),
        (list[int], '{"results": [1]}', "result: Field required"),
        (list[int], '"x"', "the answer: Input should be an object"),
        (City | Point, '{"result": {"x": 1}}', "result.Point.y: Field required"),
    ],
)
async def test_what_is_wrong_is_said_of_what_was_meant(kind: Any, bad: str, said: str) -> None:
    """The error about a wrong answer names the place in the wrapped value, or in a bare value."""
    with pytest.raises(OutputError, match=re.escape(said)):
        await within(Agent[Any, Any]("a", model=ScriptedModel(bad, bad), output=kind).run("go"))


async def test_without_a_type_the_answer_is_text() -> None:
    """The output of an agent without an output type, or with `output=str`, is the text."""
    assert (await within(Agent("a", model=ScriptedModel("hi")).run("go"))).output == "hi"
    model = ScriptedModel("hi")
    assert (await within(Agent("a", model=model, output=str).run("go"))).output == "hi"
    assert model.requests[0].output is None


async def test_a_model_that_takes_schemas_gets_it_closed() -> None:
    """A model that takes schemas gets one without additional properties, and unchanged instructions."""
    model = NativeModel(GOOD)
    await within(Agent("a", model=model, instructions="Be brief.", output=City).run("go"))
    [request] = model.requests
    assert isinstance(request.output, OutputSchema)
    assert (request.output.name, request.output.description) == ("City", "A city and what it is like.")
    assert request.output.schema["additionalProperties"] is False
    assert request.output.schema["required"] == ["name", "people"]
    assert request.instructions == "Be brief."


async def test_other_models_are_told_in_the_instructions(telemetry: Captured) -> None:
    """Other models get the schema at the end of the instructions, which are the same in each iteration."""
    model = ScriptedModel(ToolCall("look_up", {"name": "Bergen"}), GOOD)
    await within(Agent("a", model=model, instructions="Be brief.", tools=[look_up], output=City).run("go"))
    first, second = (request.instructions for request in model.requests)
    assert first == second
    assert first is not None
    assert first.startswith("Be brief.\n\n")
    schema = json.loads(first.splitlines()[-1])
    assert set(schema["properties"]) == {"name", "people"}
    recorded = json.loads(attributes(telemetry.find("chat scripted")[0])["gen_ai.system_instructions"])
    assert recorded == [{"type": "text", "content": first}]


@pytest.mark.parametrize("bad", ['{"name": "Bergen", "people": -1}', '{"name": "Bergen"}', "Bergen is big.", ""])
async def test_a_wrong_answer_is_sent_back_once(telemetry: Captured, bad: str) -> None:
    """A wrong answer is sent back once with the problem but without its text, and emits `output.rejected`."""
    model = ScriptedModel(bad, GOOD)
    result = await within(Agent("a", model=model, output=City).run("go"))
    assert result.output == BERGEN
    told = model.requests[1].messages[-1]
    assert told.role == "user"
    assert "does not match the JSON Schema" in told.text
    assert "Bergen" not in told.text
    [event] = [event for event in telemetry.events if event.name == "output.rejected"]
    assert (getattr(event, "is_final", None), event.iteration) == (False, 1)
    assert getattr(event, "problem", "") in told.text


async def test_a_second_wrong_answer_fails_the_run(telemetry: Captured) -> None:
    """A second wrong answer fails the run with the problem and the text, and the spans of the model calls complete."""
    model = ScriptedModel('{"name": 1}', '{"name": "Bergen", "people": "many"}')
    with pytest.raises(
        OutputError, match="its answer is not a valid City: people: Input should be a valid integer"
    ) as caught:
        await within(Agent("a", model=model, output=City).run("go"))
    assert caught.value.text == '{"name": "Bergen", "people": "many"}'
    assert (caught.value.error_kind, caught.value.error_type) == ("invalid_response", "invalid_output")
    assert attributes(telemetry.span("invoke_agent"))["error.type"] == "invalid_output"
    outcomes = [attributes(span)["pellucid.outcome"] for span in telemetry.spans if span.name == "chat scripted"]
    assert outcomes == ["completed", "completed"]


@pytest.mark.parametrize(
    ("reason", "said"), [("length", "raise `max_tokens`"), ("content_filter", "refused to answer")]
)
async def test_an_answer_that_cannot_be_mended_is_not_asked_for_again(reason: Any, said: str) -> None:
    """An answer that was cut off or refused fails the run without another request."""
    response = ModelResponse(message=Message("assistant", '{"name": "Ber'), finish_reason=reason)
    model = ScriptedModel(response)
    with pytest.raises(OutputError, match=said):
        await within(Agent("a", model=model, output=City).run("go"))
    assert len(model.requests) == 1


async def test_the_closing_answer_is_of_the_type_too() -> None:
    """The closing answer is a value of the type, and is asked for once."""
    call = ToolCall("look_up", {"name": "Bergen"})
    limits = Limits(max_iterations=1)
    result = await within(
        Agent("a", model=ScriptedModel(call, GOOD), tools=[look_up], output=City, limits=limits).run("x")
    )
    assert (result.status, result.output) == ("limit_reached", BERGEN)
    with pytest.raises(OutputError):
        await within(Agent("a", model=ScriptedModel(call, "no"), tools=[look_up], output=City, limits=limits).run("x"))
    result = await within(Agent("a", model=ScriptedModel("no", GOOD), output=City, limits=limits).run("x"))
    assert result.output == BERGEN


async def test_a_stream_has_the_value_in_its_result() -> None:
    """The result of a stream has the value, and a rejected answer is among its events."""
    agent = Agent("a", model=ScriptedModel("no", GOOD), output=City)
    with anyio.fail_after(60):
        async with agent.stream("go") as events:
            names = [event.name async for event in events]
    assert names.count("output.rejected") == 1
    assert events.result.output == BERGEN


async def test_what_is_wrong_is_redacted_in_telemetry(telemetry: Captured) -> None:
    """A secret in the message of the application's validator is in no telemetry."""

    class Guarded(BaseModel):
        key: str

        @field_validator("key")
        @classmethod
        def check(cls, value: str) -> str:
            raise ValueError("sk-proj-abcdefghijklmnopqrstuvwx is no good key")

    with pytest.raises(OutputError):
        await within(Agent("a", model=ScriptedModel('{"key": "x"}', '{"key": "x"}'), output=Guarded).run("go"))
    assert "sk-proj-abcdefghijklmnopqrstuvwx" not in everything(telemetry)


async def test_a_validator_that_breaks_is_no_fault_of_the_model(telemetry: Captured) -> None:
    """A validator that breaks fails the run at once, with its exception as the cause and without another request."""

    class Careless(BaseModel):
        street: str

        @field_validator("street")
        @classmethod
        def check(cls, value: str) -> str:
            return value.split(" ")[1]

    model = ScriptedModel('{"street": "Nygaten"}', '{"street": "Nygaten 1"}')
    with pytest.raises(OutputError, match=r"Careless.*IndexError: list index out of range") as caught:
        await within(Agent("a", model=model, output=Careless).run("go"))
    assert isinstance(caught.value.__cause__, IndexError)
    assert caught.value.text == '{"street": "Nygaten"}'
    assert len(model.requests) == 1
    [event] = [event for event in telemetry.events if event.name == "output.rejected"]
    assert getattr(event, "is_final", None) is True


async def test_the_value_is_what_comes_after_tools_that_the_vendor_ran() -> None:
    """The value is the text after the vendor's tool calls, or the whole text if the answer ends with them."""
    searched = ServerToolCall(name="web_search", server_tool_call={"query": "Bergen"}, id="s1")
    found = ServerToolResult(server_tool_call_response={"hits": 1}, id="s1")
    for message in (
        Message("assistant", [TextPart("I look that up."), searched, found, TextPart(GOOD)]),
        Message("assistant", [TextPart(GOOD), searched, found]),
    ):
        model = ScriptedModel(ModelResponse(message=message))
        assert (await within(Agent("a", model=model, output=City).run("go"))).output == BERGEN


async def test_the_error_names_the_model_that_was_asked() -> None:
    """The error names the model that gave the wrong answer, by the name it has in spans."""
    down = ScriptedModel(ModelError("first", "no", error_kind="unavailable"), name="first")
    answer = ModelResponse(message=Message("assistant", "no"), finish_reason="length", model="second-2026-08-07")
    model = FallbackModel(down, ScriptedModel(answer, name="second"))
    with pytest.raises(OutputError) as caught:
        await within(Agent("a", model=model, output=City).run("go"))
    assert caught.value.model == "second"


async def test_a_type_that_has_no_schema_is_refused() -> None:
    """A type without a JSON Schema is refused when the agent is made."""

    class Odd:
        pass

    with pytest.raises(ConfigError, match=r"Agent\(output=Odd\): pydantic cannot generate a JSON Schema"):
        Agent("a", model=FunctionModel(lambda request: "x"), output=Odd)


async def test_the_type_checker_knows_the_type_of_the_output() -> None:
    """Type checkers infer the type of the output from classes, unions and other forms."""
    city: City = (await within(Agent("a", model=ScriptedModel(GOOD), output=City).run("go"))).output
    text: str = (await within(Agent("a", model=ScriptedModel("hi")).run("go"))).output
    plain: str = (await within(Agent("a", model=ScriptedModel("hi"), output=None).run("go"))).output
    number: int | str = (await within(Agent("a", model=ScriptedModel("3"), output=int | str).run("go"))).output
    maybe: City | None = (await within(Agent("a", model=ScriptedModel("null"), output=City | None).run("go"))).output
    choice = Agent("a", model=ScriptedModel('"yes"'), output=Literal["yes", "no"])
    chosen: Literal["yes", "no"] = (await within(choice.run("go"))).output
    short = Agent("a", model=ScriptedModel('"x"'), output=Annotated[str, Field(max_length=3)])
    cut: str = (await within(short.run("go"))).output
    assert (city.name, text, plain, number, maybe, chosen, cut) == ("Bergen", "hi", "hi", 3, None, "yes", "x")
    async with choice.stream("go") as events:
        streamed: RunStream[Literal["yes", "no"]] = events
    assert streamed is events
