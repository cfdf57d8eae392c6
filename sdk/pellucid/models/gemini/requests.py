"""What `GeminiModel` sends: messages, tools and settings in the shapes of the SDK."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.genai import types

from pellucid.errors import ModelError
from pellucid.messages import (
    BlobPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    ServerToolCall,
    ServerToolResult,
    TextPart,
    ToolCall,
    ToolDefinition,
    ToolResult,
    UriPart,
)
from pellucid.models.base import ModelRequest, Settings
from pellucid.models.http import refuse_unknown

_SETTINGS: Final[Mapping[str, str]] = {
    "max_tokens": "max_output_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "stop_sequences": "stop_sequences",
}

_LEVELS: Final = tuple(level.value.lower() for level in types.ThinkingLevel if "UNSPECIFIED" not in level.value)

_UNSIGNED: Final = b"skip_thought_signature_validator"
"""What Google's documentation gives as the signature of calls that another model made."""

_BUDGET: Final = re.compile(r"-1|\d+")


def refused(model: str, problem: str) -> ModelError:
    """Return the error for something that the API cannot take."""
    return ModelError(model, problem, error_type="invalid_request", error_kind="invalid_request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What the translation of a request depends on.

    Attributes:
        model: The model's name.
        provider: Under which name parts keep what the API wants back.
        is_signed: The model refuses tool calls without a signature.
    """

    model: str
    provider: str
    is_signed: bool

    def contents(self, messages: Sequence[Message]) -> list[types.Content]:
        """Return the history, but for system messages; results of one answer's calls are one content, as is asked."""
        contents: list[types.Content] = []
        calls: dict[str | None, ToolCall] = {}
        previous = None
        for message in messages:
            parts = self._parts(message, calls) if message.role != "system" else []
            calls.update((call.id, call) for call in message.tool_calls)
            if not parts:
                continue
            if message.role == previous == "tool":
                contents[-1].parts = [*(contents[-1].parts or ()), *parts]
            else:
                role = "model" if message.role == "assistant" else "user"
                contents.append(types.Content(role=role, parts=parts))
            previous = message.role
        return contents

    def instructions(self, request: ModelRequest) -> types.Content | None:
        """Return the instructions, followed by system messages: the API knows them in no other place."""
        texts = [request.instructions] if request.instructions else []
        for message in request.messages:
            if message.role == "system":
                texts.extend(self._text_of(part) for part in message.parts)
        return types.Content(parts=[types.Part(text=text) for text in texts]) if texts else None

    def _text_of(self, part: Part) -> str:
        if isinstance(part, TextPart):
            return part.content
        raise self._refused(part, "in a system message; the API takes text only there")

    def _parts(self, message: Message, calls: Mapping[str | None, ToolCall]) -> list[types.Part]:
        parts = [sent for part in message.parts if (sent := self._part(part, calls)) is not None]
        asked = [part for part in parts if part.function_call]
        if self.is_signed and asked and not any(part.thought_signature for part in asked):
            asked[0].thought_signature = _UNSIGNED
        return parts

    def _part(self, part: Part, calls: Mapping[str | None, ToolCall]) -> types.Part | None:  # noqa: PLR0911  (kinds)
        """Return what to send for a part; nothing for what other vendors thought and did by themselves."""
        own = self._own(part)
        signature = base64.b64decode(own["thought_signature"]) if "thought_signature" in own else None
        match part:
            case TextPart() if part.content or signature:
                return types.Part(text=part.content, thought_signature=signature)
            case ReasoningPart() if signature:
                return types.Part(text=part.content, thought=True, thought_signature=signature)
            case ToolCall():
                call = types.FunctionCall(id=own.get("id"), name=part.name, args=_arguments(part))
                return types.Part(function_call=call, thought_signature=signature)
            case ToolResult():
                return types.Part(function_response=self._result(part, calls.get(part.id)))
            case ServerToolCall() | ServerToolResult() if "part" in own:
                return types.Part.model_validate(own["part"])
            case BlobPart():
                return types.Part(inline_data=types.Blob(**self._bytes(part)), thought_signature=signature)
            case UriPart() | FilePart():
                return types.Part(file_data=types.FileData(**_address(part)))
            case _:
                return None

    def _own(self, part: Part) -> Mapping[str, Any]:
        vendor = getattr(part, "vendor", None) or {}
        own: Mapping[str, Any] = vendor.get(self.provider, {})
        return own

    def _result(self, result: ToolResult, call: ToolCall | None) -> types.FunctionResponse:
        name = result.name or (call.name if call is not None else "")
        if not name:
            raise self._refused(result, f"for call {result.id!r}, which is not in the history; give it a name")
        value = result.response
        media: list[types.FunctionResponsePart] = []
        if isinstance(value, tuple):
            media = [self._medium(part) for part in value if not isinstance(part, TextPart)]
            value = "\n".join(part.content for part in value if isinstance(part, TextPart))
        return types.FunctionResponse(
            id=self._own(call).get("id") if call is not None else None,
            name=name,
            response={"error" if result.is_error else "result": value},
            parts=media or None,
        )

    def _medium(self, part: Part) -> types.FunctionResponsePart:
        if isinstance(part, BlobPart):
            return types.FunctionResponsePart(inline_data=types.FunctionResponseBlob(**self._bytes(part)))
        if isinstance(part, UriPart | FilePart):
            return types.FunctionResponsePart(file_data=types.FunctionResponseFileData(**_address(part)))
        raise self._refused(part, "in the result of a tool; return text, data, images or files")

    def _bytes(self, part: BlobPart) -> dict[str, Any]:
        if part.mime_type is None:
            raise self._refused(part, f"of modality {part.modality!r} without a mime_type; give it one")
        try:
            return {"data": base64.b64decode(part.content, validate=True), "mime_type": part.mime_type}
        except binascii.Error as error:
            raise self._refused(part, f"whose content is not base64 ({error}); encode it") from error

    def _refused(self, part: Part, problem: str) -> ModelError:
        return refused(self.model, f"the API cannot take a {type(part).__name__} {problem}")


def _address(part: UriPart | FilePart) -> dict[str, Any]:
    uri = part.uri if isinstance(part, UriPart) else part.file_id
    return {"file_uri": uri, "mime_type": part.mime_type}


def _arguments(call: ToolCall) -> dict[str, Any]:
    """Return an object, which is all that the API takes; text that another model wrote becomes a member of one."""
    if isinstance(call.arguments, dict):
        return call.arguments
    return {"arguments": call.arguments} if call.arguments else {}


def functions(tools: Sequence[ToolDefinition]) -> list[types.Tool]:
    """Return the tools that the model may ask for."""
    declarations = [
        types.FunctionDeclaration(
            name=tool.name, description=tool.description or None, parameters_json_schema=tool.parameters
        )
        for tool in tools
    ]
    return [types.Tool(function_declarations=declarations)] if declarations else []


def parameters(model: str, settings: Settings) -> dict[str, Any]:
    """Return the settings under the SDK's names.

    Raises:
        ModelError: the API has no such parameter, or no such level of reasoning.
    """
    refuse_unknown(model, settings, {*_SETTINGS, "reasoning_level"})
    found: dict[str, Any] = {_SETTINGS[name]: value for name, value in settings.items() if name in _SETTINGS}
    if "stop_sequences" in settings:
        found["stop_sequences"] = list(settings["stop_sequences"])
    if "reasoning_level" in settings:
        found["thinking_config"] = _thinking(model, settings["reasoning_level"])
    return found


def _thinking(model: str, level: str) -> types.ThinkingConfig:
    if level.lower() in _LEVELS:
        return types.ThinkingConfig(thinking_level=types.ThinkingLevel(level.upper()), include_thoughts=True)
    if _BUDGET.fullmatch(level):
        return types.ThinkingConfig(thinking_budget=int(level), include_thoughts=int(level) != 0)
    raise refused(
        model,
        f"settings['reasoning_level'] is {json.dumps(level)}; the API knows {', '.join(_LEVELS)}, and for models "
        f"before Gemini 3 a number of tokens, such as '1024' (0 is none, -1 is up to the model)",
    )
