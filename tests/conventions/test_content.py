"""Recorded content has the JSON shapes of the conventions, whatever it is and however it was cut."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from pellucid import (
    Agent,
    BlobPart,
    CapturePolicy,
    Message,
    ModelResponse,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResult,
    semconv,
)
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import capture
from support import scene
from support.conventions import SCHEMAS
from support.runs import attributes, within

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

VALIDATORS = {name: jsonschema_rs.validator_for(schema) for name, schema in SCHEMAS.items()}
KINDS = {
    "text", "reasoning", "tool_call", "tool_call_response", "server_tool_call", "server_tool_call_response", "blob",
    "file", "uri",
}  # fmt: skip


def recorded(telemetry: Captured, name: str) -> list[Any]:
    """Return every value of one attribute, each checked against the schema of the conventions."""
    values = [json.loads(attributes(span)[name]) for span in telemetry.spans if name in attributes(span)]
    for value in values:
        issues = [f"{issue.instance_path}: {issue.message}" for issue in VALIDATORS[name].iter_errors(value)]
        assert not issues, f"{name}: {issues} in {json.dumps(value)[:500]}"
    return values


def kinds(messages: list[Any]) -> set[str]:
    """Return the types of all parts."""
    return {part["type"] for message in messages for part in message["parts"]}


@pytest.mark.parametrize("mode", ["full", "redacted"])
async def test_every_kind_of_content_has_its_shape(mode: Any) -> None:
    """Messages with every kind of part, instructions and tool definitions match the schemas, masked or not."""
    with capture(capture=CapturePolicy(mode)) as telemetry:
        await within(scene.agent().run(scene.HISTORY, identity=scene.WHO))
    inputs = recorded(telemetry, semconv.INPUT_MESSAGES)
    assert len(inputs) == 3
    assert set().union(*map(kinds, inputs)) == KINDS
    outputs = recorded(telemetry, semconv.OUTPUT_MESSAGES)
    assert [message["finish_reason"] for [message] in outputs] == ["tool_call", "stop", "stop"]
    assert recorded(telemetry, semconv.SYSTEM_INSTRUCTIONS) == [[{"type": "text", "content": "Be brief."}]]
    [[definition]] = recorded(telemetry, semconv.TOOL_DEFINITIONS)
    assert (definition["type"], definition["name"], definition["description"]) == (
        "function",
        "add",
        "Add two numbers.",
    )
    assert definition["parameters"]["required"] == ["a", "b"]


async def test_a_message_says_what_was_said(telemetry: Captured) -> None:
    """The recorded history has the parts of the history, and a recorded tool result has its response."""
    await within(scene.agent().run(scene.HISTORY))
    given = next(json.loads(attributes(span)[semconv.INPUT_MESSAGES]) for span in telemetry.find("invoke_agent"))
    assert given == [message.to_dict() for message in scene.HISTORY]
    second = telemetry.find("chat")[1]
    assert json.loads(attributes(second)[semconv.INPUT_MESSAGES])[-1] == {
        "role": "tool",
        "parts": [{"type": "tool_call_response", "id": "call_1", "response": 3}],
    }
    call = attributes(telemetry.span("execute_tool"))
    assert json.loads(call[semconv.TOOL_CALL_ARGUMENTS]) == {"a": 1, "b": 2}
    assert json.loads(call[semconv.TOOL_CALL_RESULT]) == 3


def nested(depth: int, width: int) -> Any:
    """Return data that is big because of its many small parts."""
    return {f"key{number}": nested(depth - 1, width) if depth else "value" for number in range(width)}


BIG: dict[str, list[Any]] = {
    "text": [TextPart("x" * 100_000)],
    "many texts": [TextPart(f"{number}: " + "x" * 100) for number in range(2_000)],
    "reasoning": [ReasoningPart("ä" * 100_000)],
    "image": [BlobPart(content="A" * 400_000, modality="image", mime_type="image/png")],
    "arguments": [ToolCall("add", {"text": "x" * 100_000}, "call_9")],
    "nested arguments": [ToolCall("add", nested(3, 20), "call_9")],
    "arguments like a message": [ToolCall("add", {"role": "x" * 100_000, "parts": nested(3, 20)}, "call_9")],
    "result": [ToolResult("call_9", "x" * 100_000)],
    "nested result": [ToolResult("call_9", nested(3, 20))],
    "several results": [ToolResult(f"call_{number}", nested(2, 20)) for number in range(20)],
}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_answer_that_was_cut_says_why_it_ended() -> None:
    """An answer that was cut to fit the limit still has its finish reason."""
    answer = Message("assistant", [TextPart("x" * 100_000), *(ToolCall("add", nested(3, 20), "c"),)], "length")
    with capture(capture=CapturePolicy("full", max_bytes=256, max_span_bytes=600)) as telemetry:
        model = ScriptedModel(lambda request: ModelResponse(message=answer, finish_reason="length"), "done")
        await within(Agent("a", model=model, instructions="y" * 500).run("hi"))
    [[message], *_] = recorded(telemetry, semconv.OUTPUT_MESSAGES)
    assert (message["role"], message["finish_reason"]) == ("assistant", "length")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("limit", [1024, 4096, 32 * 1024])
@pytest.mark.parametrize("what", sorted(BIG))
async def test_what_was_cut_still_has_its_shape(what: str, limit: int) -> None:
    """A message that exceeds the limit is shortened inside, and stays a message with known parts."""
    big = BIG[what]
    role: Any = "tool" if isinstance(big[0], ToolResult) else "user" if isinstance(big[0], BlobPart) else "assistant"
    with capture(capture=CapturePolicy("full", max_bytes=limit)) as telemetry:
        await within(scene.agent().run([Message("user", "hi"), Message(role, big), Message("user", "go on")]))
    inputs = recorded(telemetry, semconv.INPUT_MESSAGES)
    assert inputs[0][-1] == {"role": "user", "parts": [{"type": "text", "content": "go on"}]}
    for span in telemetry.spans:
        for name in SCHEMAS:
            assert len(str(attributes(span).get(name, "")).encode()) <= limit
