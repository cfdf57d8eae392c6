from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pellucid import BlobPart, FilePart, Message, ReasoningPart, TextPart, ToolCall, ToolResult, UriPart, Usage
from pellucid.messages import Part, ServerToolCall, ServerToolResult


@pytest.mark.parametrize(
    ("part", "shape"),
    [
        (TextPart("hi"), {"type": "text", "content": "hi"}),
        (ReasoningPart("hm"), {"type": "reasoning", "content": "hm"}),
        (ToolCall("add", {"a": 1}, "c1"), {"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1}}),
        (ToolCall("add"), {"type": "tool_call", "id": None, "name": "add", "arguments": {}}),
        (ToolCall("add", "{"), {"type": "tool_call", "id": None, "name": "add", "arguments": "{"}),
        (ToolResult("c1", {"sum": 3}), {"type": "tool_call_response", "id": "c1", "response": {"sum": 3}}),
        (
            ToolResult("c1", (TextPart("see"),), name="look"),
            {"type": "tool_call_response", "id": "c1", "response": [{"type": "text", "content": "see"}]},
        ),
        (
            ServerToolCall(name="web", server_tool_call={"type": "web"}),
            {"type": "server_tool_call", "name": "web", "server_tool_call": {"type": "web"}},
        ),
        (
            ServerToolResult(id="s1", server_tool_call_response={"type": "web"}),
            {"type": "server_tool_call_response", "id": "s1", "server_tool_call_response": {"type": "web"}},
        ),
        (
            BlobPart(content="AA==", modality="image", mime_type="image/png"),
            {"type": "blob", "content": "AA==", "modality": "image", "mime_type": "image/png"},
        ),
        (FilePart(file_id="f1", modality="document"), {"type": "file", "file_id": "f1", "modality": "document"}),
        (UriPart(uri="http://x/y", modality="audio"), {"type": "uri", "uri": "http://x/y", "modality": "audio"}),
    ],
    ids=lambda value: value.type if hasattr(value, "type") else "",
)
def test_each_part_has_the_shape_of_the_conventions(part: Any, shape: dict[str, Any]) -> None:
    """Recording a part converts nothing; what is not known is left out."""
    assert part.to_dict() == shape


def test_a_text_is_a_message_of_one_part() -> None:
    """A plain string and one text part are the same message."""
    assert Message("user", "hi") == Message("user", [TextPart("hi")])
    assert Message("user", "hi").to_dict() == {"role": "user", "parts": [{"type": "text", "content": "hi"}]}


def test_a_message_gives_its_text_and_its_calls() -> None:
    """Texts are joined, calls stay in order, calls that the vendor runs are not among them."""
    first, second = ToolCall("a"), ToolCall("b")
    parts: list[Part] = [
        ReasoningPart("?"),
        TextPart("x"),
        first,
        ServerToolCall(name="s", server_tool_call={}),
        TextPart("y"),
        second,
    ]
    message = Message("assistant", parts, "tool_call")
    assert message.text == "xy"
    assert message.tool_calls == (first, second)
    assert message.tool_results == ()
    assert message.to_dict()["finish_reason"] == "tool_call"


def test_messages_do_not_change() -> None:
    """A message is frozen, and apart from the list that it was made of."""
    parts = [TextPart("x")]
    message = Message("user", parts)
    parts.clear()
    assert message.text == "x"
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.role = "system"  # type: ignore[misc]  # that is what is tested


def test_unknown_usage_is_not_zero() -> None:
    """A sum knows what one of its parts knows, and stays unknown where neither does."""
    total = Usage(input_tokens=3, output_tokens=0) + Usage(input_tokens=4, cache_read_input_tokens=2)
    assert total == Usage(input_tokens=7, output_tokens=0, cache_read_input_tokens=2)
    assert Usage() + Usage() == Usage()
