"""Requests in the shape of Anthropic's Messages API."""

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
"""Blocks in which the vendor calls a tool of its own."""

_KEPT: Final = CALLS | {"compaction", "container_upload", "fallback", "mcp_tool_listing"}
"""Blocks that go back as they came, beside results, whose names end alike."""

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

    What comes first in the prompt (tools, then instructions) is marked for the cache at its end, and the history by
    the API's own mark, so that what was sent once is sent in the same bytes again. The messages come last, so that the
    bodies of two iterations are alike up to what is new.

    Args:
        request: What is asked.
        model: The model's name.
        max_tokens: Sent if the request has none.
        cache: The mark, if there is to be one.
        cache_moves: The API moves a mark along with the history itself; otherwise the last block is marked.
        server_tools: Sent as they are.

    Raises:
        ModelError: a part is of a kind that the API does not take.
    """
    leading = next((at for at, message in enumerate(request.messages) if message.role != "system"), None)
    system = _instructions(request, request.messages[:leading])
    messages = _messages(model, request.messages[len(request.messages) if leading is None else leading :])
    tools = [_tool(tool.name, tool.description, tool.parameters) for tool in request.tools]
    body: JSONObject = {"model": model, "max_tokens": max_tokens, **_settings(request.settings)}
    if not tools and not server_tools and (names := _called(request.messages)):
        # A history with calls is refused without tools; a closing answer may not call them.
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
        # Without `display`, the newer models keep what they think to themselves.
        body["thinking"] = {"type": "adaptive", "display": "summarized"}
        body["output_config"] = {"effort": level}
    return body


def _tool(name: str, description: str, parameters: JSONObject) -> JSONObject:
    return {"name": name, **({"description": description} if description else {}), "input_schema": parameters}


def _called(messages: Sequence[Message]) -> list[str]:
    """Return the names of the tools that were called in a conversation, each once, in order."""
    return list(dict.fromkeys(_name(call.name) for message in messages for call in message.tool_calls))


def _container(messages: Sequence[Message]) -> str | None:
    """Return the container whose code called the tools that have just been answered, and waits for the results."""
    last = next((message for message in reversed(messages) if message.role == "assistant"), None)
    calls = last.tool_calls if last is not None else ()
    return next((own[CONTAINER] for call in calls if CONTAINER in (own := _vendor(call))), None)


def _format(model: str, output: OutputSchema) -> JSONObject:
    """Return the vendor's JSON mode, with what it does not hold a model to moved into descriptions."""
    if (place := next(_open_objects(output.schema), None)) is not None:
        raise _refused(
            model,
            f"object with members of any name as an answer, such as {place} of the output {output.name!r}",
            "ask for a list of objects with a name and a value instead",
        )
    try:
        schema = anthropic.transform_schema(dict(output.schema))
    except (AssertionError, ValueError) as error:
        raise _refused(
            model, f"schema such as that of the output {output.name!r}", f"give it types: {error}"
        ) from error
    if output.description:
        schema.setdefault("description", output.description)
    return {"type": "json_schema", "schema": schema}


def _open_objects(schema: JSONValue, place: str = "$") -> Iterator[str]:
    """Yield the places of objects that say nothing of their members; the vendor would have them empty."""
    if isinstance(schema, Mapping):
        if schema.get("type") == "object" and schema.get("additionalProperties", "properties" not in schema):
            yield place
        for key, value in schema.items():
            yield from _open_objects(value, f"{place}.{key}")
    elif isinstance(schema, list):
        for index, value in enumerate(schema):
            yield from _open_objects(value, f"{place}[{index}]")


def _messages(model: str, messages: Sequence[Message]) -> list[JSONObject]:
    """Return the history: results of tools first in a message, all that one side says in a row in one message."""
    turns: list[JSONObject] = []
    for message in messages:
        role = message.role if message.role in ("assistant", "system") else "user"
        blocks = [block for part in message.parts if (block := _block(model, role, part)) is not None]
        while role == "assistant" and blocks and blocks[-1]["type"].endswith("thinking"):
            blocks.pop()  # an answer that was cut off while it was thought about; the API refuses such an end
        if blocks:
            _add(turns, role, blocks)
    for turn in turns:
        turn["content"].sort(key=lambda block: block["type"] != "tool_result")
    return turns


def _add(turns: list[JSONObject], role: str, blocks: list[JSONObject]) -> None:
    """Append to a history in which a system message comes after what the user says, where the API takes it."""
    place = len(turns)
    if role == "user" and turns and turns[-1]["role"] == "system":
        place -= 1
    if place and turns[place - 1]["role"] == role:
        turns[place - 1]["content"] += blocks
    else:
        turns.insert(place, {"role": role, "content": blocks})


def _block(model: str, role: str, part: Part) -> JSONObject | None:
    """Return the block for a part; `None` for what only another vendor understands, and for blank text."""
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
            told: JSONObject = {"type": "tool_result", "tool_use_id": _name(part.id)}
            if content := _result(model, part.response):
                told["content"] = content
            return {**told, "is_error": True} if part.is_error else told
        case ServerToolCall(server_tool_call=block) | ServerToolResult(server_tool_call_response=block):
            kind = str(block.get("type", ""))
            return dict(block) if kind in _KEPT or kind.endswith("_tool_result") else None
        case BlobPart() | FilePart() | UriPart() if role == "user":
            return _media(model, part)
    kind = f"{type(part).__name__} in a message of role {role!r}"
    raise _refused(
        model, kind, "put results of tools, images and documents into messages of the user, calls into others"
    )


def _vendor(part: TextPart | ReasoningPart | ToolCall) -> Mapping[str, Any]:
    return (part.vendor or {}).get(VENDOR, {})


def _thinking(part: ReasoningPart) -> JSONObject | None:
    """Return the block of a thought with its signature; one without was another vendor's, and would be refused."""
    own = _vendor(part)
    if "data" in own:
        return {"type": "redacted_thinking", **own}
    return {"type": "thinking", "thinking": part.content, **own} if own else None


def _name(given: str) -> str:
    """Return an id or name that the API accepts; another vendor's may have other characters."""
    return _FOREIGN.sub("_", given)


def _input(call: ToolCall) -> JSONObject:
    """Return arguments as the object that they must be: what is none is given in the way that the vendor's docs ask."""
    arguments = call.arguments or {}
    return arguments if isinstance(arguments, dict) else {"INVALID_JSON": arguments}


def _result(model: str, response: JSONValue) -> str | list[JSONObject]:
    if isinstance(response, tuple):
        return [block for part in response if (block := _block(model, "user", part)) is not None]
    return response if isinstance(response, str) else json.dumps(response, ensure_ascii=False)


def _media(model: str, part: BlobPart | FilePart | UriPart) -> JSONObject:
    if part.modality not in ("image", "document"):
        raise _refused(model, part.modality, f"leave the {type(part).__name__} out, or ask another model")
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
            raise _refused(model, f"{kind} that is not base64 of UTF-8", "encode the BlobPart so") from error
        return {"type": "text", "media_type": "text/plain", "data": text}
    if kind not in (_IMAGES if part.modality == "image" else {"application/pdf"}):
        good = ", ".join(sorted(_IMAGES)) if part.modality == "image" else "application/pdf or text"
        raise _refused(model, f"{part.modality} of type {kind}", f"convert the BlobPart to {good}")
    return {"type": "base64", "media_type": kind, "data": part.content}


def _refused(model: str, what: str, remedy: str) -> ModelError:
    return ModelError(
        model,
        f"its API takes no {what}; {remedy}",
        error_type="invalid_request",
        error_kind="invalid_request",
    )
