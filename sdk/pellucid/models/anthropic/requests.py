"""Conversion of requests to Anthropic's Messages API."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import anthropic

from pellucid.errors import ModelError
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
    ToolResult,
    UriPart,
)
from pellucid.models.base import ModelRequest, OutputSchema, Settings
from pellucid.types import JSONObject, JSONValue

VENDOR: Final = "anthropic"
CONTAINER: Final = "container"
SAMPLING: Final = frozenset({"temperature", "top_p", "top_k"})
SETTINGS: Final = SAMPLING | {"max_tokens", "stop_sequences", "reasoning_level"}

CALLS: Final = frozenset({"server_tool_use", "mcp_tool_use"})
"""Types of blocks in which the vendor calls its own tools."""

_SENT_BACK: Final = CALLS | {"compaction", "container_upload", "fallback", "mcp_tool_listing"}
"""Types of blocks that are sent back unchanged, besides those that end in `_tool_result`."""

_VERSIONS: Final = {
    "web_search": "web_search_20260318",
    "web_fetch": "web_fetch_20260318",
    "code_execution": "code_execution_20260521",
}
"""Versioned names of the types of provider tools."""

_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_FOREIGN: Final = re.compile(r"[^a-zA-Z0-9_-]")


def body_of(
    request: ModelRequest,
    model: str,
    *,
    max_tokens: int,
    cache: JSONObject | None,
    cache_moves: bool,
    server_tools: Sequence[JSONObject],
) -> JSONObject:
    """Return the body of a request.

    The end of the prompt's prefix (tools, then instructions) is marked for the cache, and the history by the API's own
    mark. The messages come last, so that the bodies of two iterations have the same bytes up to the new messages.

    Args:
        request: The request.
        model: The model's name.
        max_tokens: Sent if the request has none.
        cache: The cache mark; None for requests without one.
        cache_moves: Whether the API moves the mark along with the history; otherwise the last block is marked.
        server_tools: Tool definitions that are sent unchanged.

    Raises:
        ModelError: the API does not support a part or the output schema of the request.
    """
    leading = next((index for index, message in enumerate(request.messages) if message.role != "system"), None)
    system = _instructions(request, request.messages[:leading])
    messages = _messages(model, request.messages[len(request.messages) if leading is None else leading :])
    server_tools = [*server_tools, *(_own(tool) for tool in request.tools if isinstance(tool, ProviderToolDefinition))]
    tools = [
        _tool(tool.name, tool.description, tool.parameters)
        for tool in request.tools
        if not isinstance(tool, ProviderToolDefinition)
    ]
    body: JSONObject = {"model": model, "max_tokens": max_tokens, **_settings(request.settings)}
    if not tools and not server_tools and (names := _called_tools(request.messages)):
        # The API refuses a history with calls and without tools. The final answer may not call them.
        tools = [_tool(name, "", {"type": "object"}) for name in names]
        body["tool_choice"] = {"type": "none"}
    if request.output is not None:
        body["output_config"] = {**body.get("output_config", {}), "format": _format(model, request.output)}
    if cache is not None:
        _mark(system or tools, cache)
        if cache_moves:
            body["cache_control"] = cache
        elif messages and messages[-1]["role"] == "user":
            _mark(messages[-1]["content"], cache)
    if tools or server_tools:
        body["tools"] = [*server_tools, *tools]
    if system:
        body["system"] = system
    if (container := _container(request.messages)) is not None:
        body[CONTAINER] = container
    return {**body, "messages": messages, **request.settings.get("extra", {})}


def _mark(blocks: list[JSONObject], cache: JSONObject) -> None:
    if blocks:
        blocks[-1] = {**blocks[-1], "cache_control": cache}


def _instructions(request: ModelRequest, leading: Sequence[Message]) -> list[JSONObject]:
    texts = [request.instructions or "", *(message.text for message in leading)]
    return [{"type": "text", "text": text} for text in texts if text.strip()]


def _settings(settings: Settings) -> JSONObject:
    body: JSONObject = {
        name: settings[name] for name in ("max_tokens", "temperature", "top_p", "top_k") if name in settings
    }
    if "stop_sequences" in settings:
        body["stop_sequences"] = list(settings["stop_sequences"])
    if (level := settings.get("reasoning_level")) in ("none", "disabled"):
        body["thinking"] = {"type": "disabled"}
    elif level is not None:
        # Without `display`, newer models do not return their reasoning.
        body["thinking"] = {"type": "adaptive", "display": "summarized"}
        body["output_config"] = {"effort": level}
    return body


def _own(tool: ProviderToolDefinition) -> JSONObject:
    """Return the vendor's definition of a tool that it runs, in its newest version unless the options have a `type`."""
    return {"type": _VERSIONS[tool.type], "name": tool.type, **tool.options}


def _tool(name: str, description: str, parameters: JSONObject) -> JSONObject:
    return {"name": name, **({"description": description} if description else {}), "input_schema": parameters}


def _called_tools(messages: Sequence[Message]) -> list[str]:
    """Return the names of the tools that were called in a conversation, without duplicates, in order."""
    return list(dict.fromkeys(_name(call.name) for message in messages for call in message.tool_calls))


def _container(messages: Sequence[Message]) -> str | None:
    """Return the container whose code made the last tool calls and waits for their results."""
    last = next((message for message in reversed(messages) if message.role == "assistant"), None)
    calls = last.tool_calls if last is not None else ()
    return next((own[CONTAINER] for call in calls if CONTAINER in (own := _vendor(call))), None)


def _format(model: str, output: OutputSchema) -> JSONObject:
    """Return the vendor's JSON mode, with constraints that it does not enforce moved to descriptions."""
    if (place := next(_open_objects(output.schema), None)) is not None:
        raise _refused(
            model,
            f"objects with arbitrary members in an answer, such as {place} of the output {output.name!r}",
            "use a list of objects with a name and a value instead",
        )
    try:
        schema = anthropic.transform_schema(dict(output.schema))
    except (AssertionError, ValueError) as error:
        raise _refused(
            model, f"schemas such as that of the output {output.name!r}", f"add types to it: {error}"
        ) from error
    if output.description:
        schema.setdefault("description", output.description)
    return {"type": "json_schema", "schema": schema}


def _open_objects(schema: JSONValue, place: str = "$") -> Iterator[str]:
    """Yield the paths of objects without declared members, which the vendor would leave empty."""
    if isinstance(schema, Mapping):
        if schema.get("type") == "object" and schema.get("additionalProperties", "properties" not in schema):
            yield place
        for key, value in schema.items():
            yield from _open_objects(value, f"{place}.{key}")
    elif isinstance(schema, list):
        for index, value in enumerate(schema):
            yield from _open_objects(value, f"{place}[{index}]")


def _messages(model: str, messages: Sequence[Message]) -> list[JSONObject]:
    """Convert the history: tool results first in a message, consecutive messages of one role merged."""
    turns: list[JSONObject] = []
    for message in messages:
        role = message.role if message.role in ("assistant", "system") else "user"
        blocks = [block for part in message.parts if (block := _block(model, role, part)) is not None]
        while role == "assistant" and blocks and blocks[-1]["type"].endswith("thinking"):
            blocks.pop()  # an answer that was cut off during reasoning; the API refuses such an end
        if blocks:
            _add(turns, role, blocks)
    for turn in turns:
        turn["content"].sort(key=lambda block: block["type"] != "tool_result")
    return turns


def _add(turns: list[JSONObject], role: str, blocks: list[JSONObject]) -> None:
    """Append to the history, with user messages before a system message: the API accepts it only there."""
    place = len(turns)
    if role == "user" and turns and turns[-1]["role"] == "system":
        place -= 1
    if place and turns[place - 1]["role"] == role:
        turns[place - 1]["content"] += blocks
    else:
        turns.insert(place, {"role": role, "content": blocks})


def _block(model: str, role: str, part: Part) -> JSONObject | None:
    """Convert a part to a block; `None` for parts that only another vendor understands, and for blank text."""
    match part:
        case TextPart():
            own = _vendor(part) if role == "assistant" else {}
            return {"type": "text", "text": part.content, **own} if part.content.strip() else None
        case ReasoningPart():
            return _thinking(part)
        case ToolCall() if role == "assistant":
            own = {name: value for name, value in _vendor(part).items() if name != CONTAINER}
            return {
                "type": "tool_use",
                "id": _name(part.id or ""),
                "name": _name(part.name),
                "input": _input(part),
                **own,
            }
        case ToolResult() if role == "user":
            result: JSONObject = {"type": "tool_result", "tool_use_id": _name(part.id)}
            if content := _result(model, part.response):
                result["content"] = content
            return {**result, "is_error": True} if part.is_error else result
        case ServerToolCall(server_tool_call=block) | ServerToolResult(server_tool_call_response=block):
            kind = str(block.get("type", ""))
            return dict(block) if kind in _SENT_BACK or kind.endswith("_tool_result") else None
        case BlobPart() | FilePart() | UriPart() if role == "user":
            return _media(model, part)
    kind = f"{type(part).__name__} in a message of role {role!r}"
    raise _refused(
        model, kind, "put tool results, images and documents into user messages, and calls into assistant messages"
    )


def _vendor(part: TextPart | ReasoningPart | ToolCall) -> Mapping[str, Any]:
    return (part.vendor or {}).get(VENDOR, {})


def _thinking(part: ReasoningPart) -> JSONObject | None:
    """Convert reasoning with its signature. Reasoning without one is another vendor's, and would be refused."""
    own = _vendor(part)
    if "data" in own:
        return {"type": "redacted_thinking", **own}
    return {"type": "thinking", "thinking": part.content, **own} if own else None


def _name(name: str) -> str:
    """Replace the characters of an id or name that the API does not accept; other vendors allow more."""
    return _FOREIGN.sub("_", name)


def _input(call: ToolCall) -> JSONObject:
    """Return arguments as an object, which the API requires; invalid JSON is wrapped as the vendor documents."""
    arguments = call.arguments or {}
    return arguments if isinstance(arguments, dict) else {"INVALID_JSON": arguments}


def _result(model: str, response: JSONValue) -> str | list[JSONObject]:
    if isinstance(response, tuple):
        return [block for part in response if (block := _block(model, "user", part)) is not None]
    return response if isinstance(response, str) else json.dumps(response, ensure_ascii=False)


def _media(model: str, part: BlobPart | FilePart | UriPart) -> JSONObject:
    if part.modality not in ("image", "document"):
        raise _refused(model, part.modality, f"remove the {type(part).__name__}, or use another model")
    match part:
        case BlobPart():
            source = _source(model, part)
        case FilePart():
            source = {"type": "file", "file_id": part.file_id}
        case UriPart():
            source = {"type": "url", "url": part.uri}
    return {"type": part.modality, "source": source}


def _source(model: str, part: BlobPart) -> JSONObject:
    kind = part.mime_type or ("image/png" if part.modality == "image" else "application/pdf")
    if part.modality == "document" and (kind.startswith("text/") or kind == "application/json"):
        try:
            text = base64.b64decode(part.content, validate=True).decode()
        except ValueError as error:
            raise _refused(
                model, f"{kind} that is not UTF-8 in base64", "encode the content of the BlobPart"
            ) from error
        return {"type": "text", "media_type": "text/plain", "data": text}
    if kind not in (_IMAGES if part.modality == "image" else {"application/pdf"}):
        supported = ", ".join(sorted(_IMAGES)) if part.modality == "image" else "application/pdf or text"
        raise _refused(model, f"{part.modality} of type {kind}", f"convert the BlobPart to {supported}")
    return {"type": "base64", "media_type": kind, "data": part.content}


def _refused(model: str, content: str, remedy: str) -> ModelError:
    return ModelError(
        model,
        f"its API does not accept {content}; {remedy}",
        error_type="invalid_request",
        error_kind="invalid_request",
    )
