"""Conversion of requests of `GeminiModel`: messages, tools and settings as types of the SDK."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.genai import types
from pydantic import ValidationError

from pellucid.errors import ConfigError, ModelError
from pellucid.messages import (
    BlobPart,
    FilePart,
    Message,
    Part,
    ProviderToolDefinition,
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
from pellucid.types import JSONObject

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

_RESULT: Final = "result"
"""Member of a response that has the result of a tool."""

_DEFINITIONS: Final = "#/$defs/"

_UNSIGNED: Final = b"skip_thought_signature_validator"
"""Signature for calls of another model, as Google documents it."""

_BUDGET: Final = re.compile(r"-1|\d+")


def refused(model: str, problem: str) -> ModelError:
    """Return the error for content that the API does not support."""
    return ModelError(model, problem, error_type="invalid_request", error_kind="invalid_request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Conversion of messages for one model.

    Attributes:
        model: The model's name.
        provider: Key in `vendor` of a part for data that the API expects back.
        is_signed: Whether the model refuses tool calls without a signature.
    """

    model: str
    provider: str
    is_signed: bool

    def contents(self, messages: Sequence[Message]) -> list[types.Content]:
        """Convert the history without system messages.

        Results of one answer's calls are one content, and so are an answer and the calls after it, as the API requires.
        """
        contents: list[types.Content] = []
        calls: dict[str | None, ToolCall] = {}
        previous = None
        for message in messages:
            parts = self._parts(message, calls) if message.role != "system" else []
            calls.update((call.id, call) for call in message.tool_calls)
            if not parts:
                continue
            last = (contents[-1].parts or ()) if contents else ()
            is_text = previous == "assistant" and not any(part.function_call for part in last)
            if message.role == previous and (previous == "tool" or is_text):
                contents[-1].parts = [*last, *parts]
            else:
                role = "model" if message.role == "assistant" else "user"
                contents.append(types.Content(role=role, parts=parts))
            previous = message.role
        return contents

    def instructions(self, request: ModelRequest) -> types.Content | None:
        """Return the instructions, followed by system messages, which the API accepts only here."""
        texts = [request.instructions] if request.instructions else []
        for message in request.messages:
            if message.role == "system":
                texts.extend(self._text_of(part) for part in message.parts)
        return types.Content(parts=[types.Part(text=text) for text in texts]) if texts else None

    def _text_of(self, part: Part) -> str:
        if isinstance(part, TextPart):
            return part.content
        raise self._refused(part, "in a system message; only text is allowed there")

    def _parts(self, message: Message, calls: Mapping[str | None, ToolCall]) -> list[types.Part]:
        parts = [converted for part in message.parts if (converted := self._part(part, calls)) is not None]
        calling = [part for part in parts if part.function_call]
        if self.is_signed and calling and not any(part.thought_signature for part in calling):
            calling[0].thought_signature = _UNSIGNED
        return parts

    def _part(self, part: Part, calls: Mapping[str | None, ToolCall]) -> types.Part | None:  # noqa: PLR0911  (kinds)
        """Convert a part; None for reasoning and server tool calls of other vendors."""
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
            raise self._refused(result, f"for call {result.id!r}, which is not in the history; set its name")
        value = result.response
        media: list[types.FunctionResponsePart] = []
        if isinstance(value, tuple):
            media = [self._medium(part) for part in value if not isinstance(part, TextPart)]
            value = "\n".join(part.content for part in value if isinstance(part, TextPart))
        return types.FunctionResponse(
            id=self._own(call).get("id") if call is not None else None,
            name=name,
            response={"error" if result.is_error else _RESULT: value},
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
            raise self._refused(part, f"of modality {part.modality!r} without a mime_type; set it")
        try:
            return {"data": base64.b64decode(part.content, validate=True), "mime_type": part.mime_type}
        except binascii.Error as error:
            raise self._refused(part, f"whose content is not base64 ({error}); encode it") from error

    def _refused(self, part: Part, problem: str) -> ModelError:
        return refused(self.model, f"the API does not support a {type(part).__name__} {problem}")


def _address(part: UriPart | FilePart) -> dict[str, Any]:
    uri = part.uri if isinstance(part, UriPart) else part.file_id
    return {"file_uri": uri, "mime_type": part.mime_type}


def _arguments(call: ToolCall) -> dict[str, Any]:
    """Return arguments as an object, which the API requires; another model's text becomes a member of it."""
    if isinstance(call.arguments, dict):
        return call.arguments
    return {"arguments": call.arguments} if call.arguments else {}


def functions(tools: Sequence[ToolDefinition]) -> list[types.Tool]:
    """Return the declarations of the tools that the model may call."""
    declarations = [
        types.FunctionDeclaration(
            name=tool.name,
            description=tool.description or None,
            parameters_json_schema=tool.parameters,
            response_json_schema=_response_schema(tool.output_schema) if tool.output_schema is not None else None,
        )
        for tool in tools
        if not isinstance(tool, ProviderToolDefinition)
    ]
    return [types.Tool(function_declarations=declarations)] if declarations else []


def _response_schema(schema: JSONObject) -> JSONObject | None:
    """Return the schema of a response, which has the result as a member; None if references lead to its root."""
    text = json.dumps(schema)
    if text.count('"$ref": "') != text.count(f'"$ref": "{_DEFINITIONS}'):
        return None
    member = {key: value for key, value in schema.items() if key != "$defs"}
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {"type": "object", "properties": {_RESULT: member}, **definitions}


def provider_tools(model: str, tools: Sequence[ToolDefinition]) -> list[types.Tool]:
    """Return the definitions of the tools that the vendor runs.

    Raises:
        ConfigError: the API has no such option.
    """
    own = [tool for tool in tools if isinstance(tool, ProviderToolDefinition)]
    return [server_tool(model, {tool.type: {**tool.options}}) for tool in own]


def server_tool(model: str, tool: Mapping[str, Any]) -> types.Tool:
    """Return a tool that the API runs.

    Raises:
        ConfigError: it is not a tool of the API.
    """
    try:
        return types.Tool.model_validate(dict(tool))
    except ValidationError as error:
        raise ConfigError(
            f"GeminiModel({model!r}): {dict(tool)} is not a tool of the API: {problems_of(error)}"
        ) from error


def problems_of(error: ValidationError) -> str:
    """Return the problems that the SDK's types found, without quoted content."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems[:5])


def parameters(model: str, settings: Settings) -> dict[str, Any]:
    """Return the settings under the SDK's names.

    Raises:
        ModelError: the API does not support a parameter or the reasoning level.
    """
    refuse_unknown(model, settings, {*_SETTINGS, "reasoning_level"})
    values: dict[str, Any] = {_SETTINGS[name]: value for name, value in settings.items() if name in _SETTINGS}
    if "stop_sequences" in settings:
        values["stop_sequences"] = list(settings["stop_sequences"])
    if "reasoning_level" in settings:
        values["thinking_config"] = _thinking(model, settings["reasoning_level"])
    return values


def _thinking(model: str, level: str) -> types.ThinkingConfig:
    if level.lower() in _LEVELS:
        return types.ThinkingConfig(thinking_level=types.ThinkingLevel(level.upper()), include_thoughts=True)
    if _BUDGET.fullmatch(level):
        return types.ThinkingConfig(thinking_budget=int(level), include_thoughts=int(level) != 0)
    raise refused(
        model,
        f"settings['reasoning_level'] is {json.dumps(level)}; the API supports {', '.join(_LEVELS)}, and for models "
        f"before Gemini 3 a number of tokens, such as '1024' (0 disables reasoning, -1 lets the model decide)",
    )
