"""Requests and answers in the shape of Anthropic's Messages API, and back."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pellucid.errors import ModelError
from pellucid.messages import (
    BlobPart,
    FilePart,
    FinishReason,
    Message,
    Part,
    ReasoningPart,
    ServerToolCall,
    ServerToolResult,
    TextPart,
    ToolCall,
    ToolResult,
    UriPart,
    Usage,
)
from pellucid.models.base import ModelRequest, ModelResponse, Settings
from pellucid.types import JSONObject, JSONValue

VENDOR: Final = "anthropic"
SETTINGS: Final = frozenset({"max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "reasoning_level"})

_FINISH: Final[Mapping[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",
    "tool_use": "tool_call",
    "refusal": "content_filter",
}
_ID: Final = re.compile(r"[^a-zA-Z0-9_-]")


def body_of(
    request: ModelRequest, model: str, *, cache: JSONObject | None, server_tools: Sequence[JSONObject]
) -> dict[str, Any]:
    """Return the arguments of `messages.create`.

    What comes first in the prompt (tools, then instructions) is marked for the cache at its end, and the whole by the
    API's own moving mark, so that what was sent once is sent in the same bytes again.

    Raises:
        ModelError: a part is of a kind that the API does not take.
    """
    leading = 0
    while leading < len(request.messages) and request.messages[leading].role == "system":
        leading += 1
    system: list[JSONObject] = [{"type": "text", "text": text} for text in _instructions(request, leading)]
    tools: list[JSONObject] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in request.tools
    ]
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(model, message) for message in request.messages[leading:]],
        **_settings(request.settings),
    }
    if not tools and (names := _called(request.messages)):
        # A history with calls is refused without the tools; a closing answer may not call them.
        tools = [{"name": name, "description": "", "input_schema": {"type": "object"}} for name in names]
        body["tool_choice"] = {"type": "none"}
    tools += server_tools
    if cache is not None:
        body["cache_control"] = cache
        for blocks in (system, tools):
            if blocks:
                blocks[-1] = {**blocks[-1], "cache_control": cache}
                break
    if system:
        body["system"] = system
    if tools:
        body["tools"] = tools
    if request.output is not None:
        wanted = {"type": "json_schema", "schema": request.output.schema}
        body["output_config"] = {**body.get("output_config", {}), "format": wanted}
    # The vendor's SDK has no arguments for these any more; models before the fifth generation take them.
    further = {name: request.settings[name] for name in ("temperature", "top_p", "top_k") if name in request.settings}
    if further or request.settings.get("extra"):
        body["extra_body"] = {**further, **request.settings.get("extra", {})}
    return body


def response_of(message: JSONObject) -> ModelResponse:
    """Return the answer that a message of the API is.

    Raises:
        ValueError: it is none.
    """
    content, reason = message.get("content"), message.get("stop_reason")
    if not isinstance(content, list) or reason is None:
        raise ValueError("the answer has no content or no stop reason")
    return ModelResponse(
        message=Message("assistant", [_part(block) for block in content]),
        usage=_usage(message.get("usage") or {}),
        finish_reason=_FINISH.get(reason, "stop"),
        model=message.get("model"),
        id=message.get("id"),
    )


def join(turns: Sequence[JSONObject]) -> JSONObject:
    """Return one message for a turn that was paused and gone on with: all content, and the sum of what was used."""
    last = turns[-1]
    if len(turns) == 1:
        return last
    usage: JSONObject = {}
    for turn in turns:
        for name, count in (turn.get("usage") or {}).items():
            if isinstance(count, int):
                usage[name] = usage.get(name, 0) + count
    return {**last, "content": [block for turn in turns for block in turn["content"]], "usage": usage}


def _instructions(request: ModelRequest, leading: int) -> Iterator[str]:
    if request.instructions:
        yield request.instructions
    for message in request.messages[:leading]:
        if message.text:
            yield message.text


def _settings(settings: Settings) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if "max_tokens" in settings:
        body["max_tokens"] = settings["max_tokens"]
    if "stop_sequences" in settings:
        body["stop_sequences"] = list(settings["stop_sequences"])
    if (level := settings.get("reasoning_level")) == "none":
        body["thinking"] = {"type": "disabled"}
    elif level is not None:
        body["thinking"] = {"type": "adaptive"}
        body["output_config"] = {"effort": level}
    return body


def _called(messages: Sequence[Message]) -> list[str]:
    """Return the names of the tools that were called in a conversation, each once, in order."""
    return list(dict.fromkeys(call.name for message in messages for call in message.tool_calls))


def _message(model: str, message: Message) -> JSONObject:
    if message.role == "system":
        return {"role": "system", "content": message.text}
    role = "assistant" if message.role == "assistant" else "user"
    return {"role": role, "content": [block for part in message.parts if (block := _block(model, part)) is not None]}


def _block(model: str, part: Part) -> JSONObject | None:
    """Return the block for a part; `None` for what only another vendor understands, and for empty text."""
    match part:
        case TextPart():
            return {"type": "text", "text": part.content, **_vendor(part)} if part.content else None
        case ReasoningPart():
            return _thinking(part)
        case ToolCall():
            arguments = part.arguments or {}
            given = arguments if isinstance(arguments, dict) else {"unparsed_arguments": arguments}
            return {"type": "tool_use", "id": _id(part.id or ""), "name": part.name, "input": given}
        case ToolResult():
            told = {"type": "tool_result", "tool_use_id": _id(part.id), "content": _result(model, part.response)}
            return {**told, "is_error": True} if part.is_error else told
        case ServerToolCall() | ServerToolResult():
            return _own(part)
    return _media(model, part)


def _vendor(part: TextPart | ReasoningPart) -> Mapping[str, Any]:
    return (part.vendor or {}).get(VENDOR, {})


def _thinking(part: ReasoningPart) -> JSONObject | None:
    """Return the block of a thought with its signature; one without was another vendor's, and would be refused."""
    own = _vendor(part)
    if "data" in own:
        return {"type": "redacted_thinking", **own}
    return {"type": "thinking", "thinking": part.content, **own} if own else None


def _id(given: str) -> str:
    """Return an id that the API accepts; another vendor's may have other characters."""
    return _ID.sub("_", given)


def _own(part: ServerToolCall | ServerToolResult) -> JSONObject | None:
    block = part.server_tool_call if isinstance(part, ServerToolCall) else part.server_tool_call_response
    kind = str(block.get("type", ""))
    return dict(block) if kind == "server_tool_use" or kind.endswith("_tool_result") else None


def _result(model: str, response: JSONValue) -> str | list[JSONObject]:
    if isinstance(response, tuple):
        return [block for part in response if (block := _block(model, part)) is not None]
    return response if isinstance(response, str) else json.dumps(response, ensure_ascii=False)


def _media(model: str, part: BlobPart | FilePart | UriPart) -> JSONObject:
    if part.modality not in ("image", "document"):
        raise ModelError(
            model,
            f"its API takes no {part.modality}; leave the {type(part).__name__} out, or ask another model",
            error_type="invalid_request",
            error_kind="invalid_request",
        )
    source: JSONObject
    match part:
        case BlobPart(mime_type="text/plain"):
            text = base64.b64decode(part.content).decode("utf-8", "replace")
            source = {"type": "text", "media_type": "text/plain", "data": text}
        case BlobPart():
            kind = part.mime_type or ("image/png" if part.modality == "image" else "application/pdf")
            source = {"type": "base64", "media_type": kind, "data": part.content}
        case FilePart():
            source = {"type": "file", "file_id": part.file_id}
        case UriPart():
            source = {"type": "url", "url": part.uri}
    return {"type": part.modality, "source": source}


def _part(block: JSONObject) -> Part:
    match block.get("type"):
        case "text":
            citations = block.get("citations")
            return TextPart(block["text"], vendor={VENDOR: {"citations": citations}} if citations else None)
        case "thinking":
            return ReasoningPart(block["thinking"], vendor={VENDOR: {"signature": block.get("signature", "")}})
        case "redacted_thinking":
            return ReasoningPart("", vendor={VENDOR: {"data": block["data"]}})
        case "tool_use":
            return ToolCall(block["name"], block["input"], block["id"])
        case "server_tool_use":
            return ServerToolCall(name=block["name"], server_tool_call=block, id=block["id"])
        case _:
            return ServerToolResult(server_tool_call_response=block, id=block.get("tool_use_id"))


def _usage(usage: JSONObject) -> Usage:
    """Return what was used; the API's input tokens are those that the cache has nothing to do with."""
    fresh, read, written = (
        usage.get(name) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    return Usage(
        input_tokens=fresh + (read or 0) + (written or 0) if fresh is not None else None,
        output_tokens=usage.get("output_tokens"),
        cache_read_input_tokens=read,
        cache_write_input_tokens=written,
        reasoning_output_tokens=(usage.get("output_tokens_details") or {}).get("thinking_tokens"),
    )
