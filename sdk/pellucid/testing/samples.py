"""Requests and answers of the model contract, which looks for the words in capitals in the vendor's requests."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from pellucid.errors import ErrorKind
from pellucid.messages import (
    BlobPart,
    FilePart,
    FinishReason,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolDefinition,
    ToolResult,
    UriPart,
    Usage,
)
from pellucid.models import ModelRequest, ModelResponse, OutputSchema, Settings

TEXT: Final = "ANSWERTEXT går går  dypt\ninn i 🏔️ og ut € ja"
"""A text with repeated words, repeated spaces, a line ending, and characters of two, three and four bytes."""

KINDS: Final[tuple[ErrorKind, ...]] = (
    "auth",
    "invalid_request",
    "invalid_response",
    "rate_limited",
    "timeout",
    "unavailable",
)

COUNTED: Final = Usage(
    input_tokens=100,
    output_tokens=40,
    cache_read_input_tokens=64,
    cache_write_input_tokens=16,
    reasoning_output_tokens=8,
)

USAGE: Final[Mapping[str, Usage]] = {
    "unknown": Usage(),
    "plain": Usage(input_tokens=21, output_tokens=9),
    "all": COUNTED,
    "nothing_cached": replace(COUNTED, cache_read_input_tokens=0, cache_write_input_tokens=0),
}

SETTINGS: Final[Mapping[str, tuple[Settings, str]]] = {
    "max_tokens": ({"max_tokens": 1234}, "1234"),
    "temperature": ({"temperature": 0.375}, "0.375"),
    "top_p": ({"top_p": 0.625}, "0.625"),
    "top_k": ({"top_k": 37}, "37"),
    "seed": ({"seed": 4321}, "4321"),
    "frequency_penalty": ({"frequency_penalty": 0.125}, "0.125"),
    "presence_penalty": ({"presence_penalty": 0.875}, "0.875"),
    "stop_sequences": ({"stop_sequences": ["STOPHERE"]}, "STOPHERE"),
    "reasoning_level": ({"reasoning_level": "low"}, "low"),
    "extra": ({"extra": {"contract_extra": {"of": "EXTRAVALUE"}}}, "EXTRAVALUE"),
}
"""Settings, each with a text that its request contains."""

_IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYPQFAABTAE9Fyq9rAAAAAElFTkSuQmCC"  # one pixel
_PDF = "JVBERi0xLjQKJWNvbnRyYWN0IG9mIG1vZGVscwoxIDAgb2JqPDwvVHlwZS9DYXRhbG9nPj5lbmRvYmoK"
_WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
_MP4 = "AAAAGGZ0eXBtcDQyAAAAAG1wNDJpc29t"
_RESULT = BlobPart(content=_IMAGE, modality="image", mime_type="image/png")

CONTENTS: Final[Mapping[str, tuple[Part, str]]] = {
    "image": (BlobPart(content=_IMAGE, modality="image", mime_type="image/png"), _IMAGE),
    "image_uri": (
        UriPart(uri="https://example.com/IMAGEADDRESS.png", modality="image", mime_type="image/png"),
        "IMAGEADDRESS",
    ),
    "image_result": (ToolResult("call_7", (TextPart("RESULTTEXT"), _RESULT), name="lookup"), _IMAGE),
    "document": (BlobPart(content=_PDF, modality="document", mime_type="application/pdf"), _PDF),
    "document_uri": (
        UriPart(uri="https://example.com/DOCUMENTADDRESS.pdf", modality="document", mime_type="application/pdf"),
        "DOCUMENTADDRESS",
    ),
    "audio": (BlobPart(content=_WAV, modality="audio", mime_type="audio/wav"), _WAV.rstrip("=")),
    "video": (BlobPart(content=_MP4, modality="video", mime_type="video/mp4"), _MP4),
    "file": (FilePart(file_id="file-UPLOADED", modality="document", mime_type="application/pdf"), "file-UPLOADED"),
}
"""Parts other than text, each with a text that its request contains."""

_CALLS: Final = (
    ToolCall("lookup", {"city": "Tromsø", "days": [1, 2.5, None, {"deep": True}]}, id="call_A"),
    ToolCall("lookup_other", {}, id="call_B"),
)

ANSWERS: Final[Mapping[str, tuple[Part, ...]]] = {
    "text": (TextPart(TEXT),),
    "reasoning": (ReasoningPart("THOUGHT først, så\nsvar"), TextPart(TEXT)),
    "tool_call": (ToolCall("lookup", {"city": "Bergen"}, id="call_A"),),
    "parallel_tool_calls": _CALLS,
    "reasoning_text_tool_calls": (ReasoningPart("THOUGHT"), TextPart("ANSWERTEXT og så:"), *_CALLS),
    "raw_arguments": (ToolCall("lookup", '{"city": "Ber', id="call_A"),),
}

FINISH_REASONS: Final[tuple[FinishReason, ...]] = ("stop", "length", "content_filter", "tool_call")

FEATURES: Final[frozenset[str]] = frozenset(
    {
        *SETTINGS,
        *CONTENTS,
        *(field.name for field in fields(Usage)),
        *FINISH_REASONS,
        "call_id",
        "model",
        "parallel_tool_calls",
        "raw_arguments",
        "reasoning",
        "response_id",
    }
)
"""Valid members of `ModelContract.lacks`."""

LOOKUP: Final = ToolDefinition(
    name="lookup",
    description="TOOLDESCRIPTION of a lookup.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "description": "PARAMETERDESCRIPTION"}},
        "required": ["city"],
    },
)
OTHER: Final = ToolDefinition(
    name="lookup_other", description="OTHERDESCRIPTION.", parameters={"type": "object", "properties": {}}
)

OUTPUT: Final = OutputSchema(
    name="contract_answer",
    schema={
        "type": "object",
        "properties": {"OUTPUTPROPERTY": {"type": "string"}},
        "required": ["OUTPUTPROPERTY"],
        "additionalProperties": False,
    },
)

_ELSEWHERE: Final = {"elsewhere": {"signature": "FOREIGNSIGNATURE"}}

HISTORY: Final[tuple[Message, ...]] = (
    Message("user", "FIRSTQUESTION"),
    Message(
        "assistant",
        (
            ReasoningPart("another vendor's thought", vendor=_ELSEWHERE),
            TextPart("FIRSTREMARK"),
            ToolCall("lookup", {"city": "FIRSTARGUMENT"}, id="call_1", vendor=_ELSEWHERE),
            ToolCall("lookup", '{"city": "BROKENARGUMENT', id="call_2"),
        ),
        "tool_call",
    ),
    Message(
        "tool",
        (
            ToolResult("call_1", "FIRSTRESULT", name="lookup"),
            ToolResult("call_2", "SECONDRESULT: no such city", is_error=True, name="lookup"),
        ),
    ),
    Message("assistant", (ToolCall("lookup", {"city": "THIRDARGUMENT"}, id="call_3"),)),
    Message("tool", (ToolResult("call_3", {"rain": ["THIRDRESULT", 0.5, None, True]}, name="lookup"),)),
    Message("assistant", "SECONDREMARK"),
    Message("system", "STANDINGORDER"),
    Message("user", "LASTQUESTION"),
)

IN_ORDER: Final[tuple[tuple[str, ...], ...]] = (
    ("FIRSTQUESTION",),
    ("FIRSTREMARK", "FIRSTARGUMENT", "BROKENARGUMENT"),
    ("FIRSTRESULT",),
    ("SECONDRESULT",),
    ("THIRDARGUMENT",),
    ("THIRDRESULT",),
    ("SECONDREMARK",),
    ("LASTQUESTION",),
)
"""Words of `HISTORY` in order. Vendors may reorder words of a group, and place the system text anywhere."""


def question(**changes: Any) -> ModelRequest:
    """Return a small request with the given fields; a copy that a model may change without effect on other tests."""
    values: dict[str, Any] = {"messages": (Message("user", "Will it rain?"),), "tools": (LOOKUP, OTHER), **changes}
    return copy.deepcopy(ModelRequest(**values))


def with_content(part: Part) -> tuple[Message, ...]:
    """Return a history with a part other than text in a valid place."""
    if isinstance(part, ToolResult):
        call = ToolCall("lookup", {"city": "Oslo"}, id=part.id)
        return (Message("user", "Look."), Message("assistant", (call,)), Message("tool", (part,)))
    return (Message("user", (TextPart("What is this?"), part)),)


def history_after(message: Message) -> tuple[Message, ...]:
    """Return a history with a model's answer, with ids and results for its tool calls."""
    ids = (f"call_{number}" for number in itertools.count(1))
    parts = [replace(part, id=part.id or next(ids)) if isinstance(part, ToolCall) else part for part in message.parts]
    results = [ToolResult(str(part.id), "It is done.", name=part.name) for part in parts if isinstance(part, ToolCall)]
    follow = Message("tool", results) if results else Message("user", "Go on.")
    return (Message("user", "Begin."), Message("assistant", parts, message.finish_reason), follow)


def answer(parts: tuple[Part, ...], lacks: Collection[str], **changes: Any) -> ModelResponse:
    """Return the answer of a vendor that lacks some features."""
    parts = tuple(
        _reduced(part, lacks) for part in parts if not (isinstance(part, ReasoningPart) and "reasoning" in lacks)
    )
    calls = [part for part in parts if isinstance(part, ToolCall)]
    if "parallel_tool_calls" in lacks and len(calls) > 1:
        parts = tuple(part for part in parts if part not in calls[1:])
    values: dict[str, Any] = {
        "message": Message("assistant", parts),
        "usage": USAGE["plain"],
        "finish_reason": "tool_call" if calls else "stop",
        "id": "answer-1",
        "model": "model-that-answered",
        **changes,
    }
    unknown = {field.name: None for field in fields(Usage) if field.name in lacks}
    values["usage"] = replace(values["usage"], **unknown)
    if "response_id" in lacks:
        values["id"] = None
    if "model" in lacks:
        values["model"] = None
    return copy.deepcopy(ModelResponse(**values))


def _reduced(part: Part, lacks: Collection[str]) -> Part:
    if not isinstance(part, ToolCall):
        return part
    raw = isinstance(part.arguments, str) and "raw_arguments" in lacks
    arguments = {"city": "Bergen"} if raw else part.arguments
    return replace(part, arguments=arguments, id=None if "call_id" in lacks else part.id)
