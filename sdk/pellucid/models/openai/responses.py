"""Responses: OpenAI's own API, with reasoning that is sent back and tools that OpenAI runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pellucid.messages import (
    PROVIDER_TOOLS,
    BlobPart,
    FilePart,
    FinishReason,
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
    Usage,
)
from pellucid.models.base import ModelDelta, ModelRequest, ModelResponse, Settings
from pellucid.models.http import cut_stream, refuse_unknown
from pellucid.models.openai.content import (
    ReportedError,
    arguments_of,
    arguments_text,
    by_modality,
    data_url,
    file_name,
    members,
    merged,
    refused,
    result_parts,
    text,
    tokens,
)
from pellucid.models.openai.schema import is_strict
from pellucid.types import JSONObject

_SETTINGS: Final[Mapping[str, str]] = {
    "max_tokens": "max_output_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
}
_WITHOUT_REASONING: Final = ("gpt-3", "gpt-4", "chatgpt-4o")
"""Model families that refuse requests for encrypted reasoning."""

_ITEMS: Final = frozenset({"compaction", "mcp_list_tools", "program", "program_output", "tool_search_output"})
"""Types of items that are related to tool calls but end neither in `_call` nor in `_call_output`."""

_OUTCOME: Final = ("error", "output", "outputs", "result", "results", "tools")
"""Members of an item with the result of a tool that OpenAI ran."""

_FINISH: Final[Mapping[str | None, FinishReason]] = {"max_output_tokens": "length", "content_filter": "content_filter"}
_REMEDY: Final = (
    "the Responses API accepts text, images and documents from users; remove the part, or for audio use "
    'api="chat" with a model that accepts audio'
)
_DELTAS: Final[Mapping[str | None, Literal["text", "reasoning"]]] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
}
_DEFAULTS: Final[Mapping[str, JSONObject]] = {"code_interpreter": {"container": {"type": "auto"}}}
"""Required members of the definitions of provider tools, by type."""

_LAST: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """Conversion of requests and responses.

    Attributes:
        model: The model's name.
        provider_name: Key of this server's data in `vendor` of a part.
        native_output: Whether the server accepts a JSON Schema for the answer.
        server_tools: Tool definitions that are sent unchanged.
    """

    model: str
    provider_name: str
    native_output: bool
    server_tools: Sequence[Mapping[str, Any]]

    provider_tools = frozenset(("openai", name) for name in PROVIDER_TOOLS["openai"])
    path = "/responses"
    type = "responses"

    def body(self, request: ModelRequest, *, stream: bool) -> JSONObject:
        """Return the request's body. The history comes last, so that everything before it stays the same.

        Raises:
            ModelError: the API does not support a part or setting of the request.
        """
        body: JSONObject = {"model": self.model, "store": False}
        if request.instructions:
            body["instructions"] = request.instructions
        if tools := [*map(_tool, request.tools), *map(dict, self.server_tools)]:
            body["tools"] = tools
        body |= self._settings(request.settings)
        if not self.model.rpartition("ft:")[2].startswith(_WITHOUT_REASONING) and "-chat" not in self.model:
            body["include"] = ["reasoning.encrypted_content"]
        if request.output is not None and self.native_output:
            output = request.output
            described = {"description": output.description} if output.description else {}
            schema = {"name": output.name, **described, "schema": output.schema, "strict": is_strict(output.schema)}
            body["text"] = {"format": {"type": "json_schema", **schema}}
        if stream:
            body["stream"] = True
        body = merged(body, request.settings.get("extra", {}))
        return {**body, "input": [item for message in request.messages for item in self._convert(message)]}

    def _settings(self, settings: Settings) -> JSONObject:
        refuse_unknown(self.model, settings, {*_SETTINGS, "reasoning_level"})
        values: Mapping[str, Any] = settings
        body: JSONObject = {name: values[setting] for setting, name in _SETTINGS.items() if setting in values}
        if "reasoning_level" in settings:
            body["reasoning"] = {"effort": settings["reasoning_level"]}
        return body

    # --- messages -----------------------------------------------------------------------------------------------------

    def _convert(self, message: Message) -> Iterable[JSONObject]:
        if message.role == "assistant":
            return self._answer(message)
        results = [self._result(part) for part in message.parts if isinstance(part, ToolResult)]
        others = [self._part(part) for part in message.parts if not isinstance(part, ToolResult)]
        role = "system" if message.role == "system" else "user"
        return [*results, {"role": role, "content": others}] if others else results

    def _result(self, result: ToolResult) -> JSONObject:
        parts = [self._part(part) for part in result_parts(result)]
        plain = parts[0].get("text") if len(parts) == 1 else None
        return {"type": "function_call_output", "call_id": result.id, "output": parts if plain is None else plain}

    def _part(self, part: Part) -> JSONObject:
        match part:
            case TextPart():
                content: JSONObject = {"type": "input_text", "text": part.content}
            case BlobPart(modality="image"):
                content = {"type": "input_image", "image_url": data_url(self.model, part), "detail": "auto"}
            case UriPart(modality="image"):
                content = {"type": "input_image", "image_url": part.uri, "detail": "auto"}
            case FilePart(modality="image"):
                content = {"type": "input_image", "file_id": part.file_id, "detail": "auto"}
            case BlobPart(modality="document"):
                content = {"type": "input_file", "filename": file_name(part), "file_data": data_url(self.model, part)}
            case UriPart(modality="document"):
                content = {"type": "input_file", "file_url": part.uri}
            case FilePart(modality="document"):
                content = {"type": "input_file", "file_id": part.file_id}
            case _:
                raise refused(self.model, part, _REMEDY)
        return content

    def _answer(self, message: Message) -> list[JSONObject]:
        """Return the items of an earlier answer, unchanged where they came from this API."""
        items: list[JSONObject] = []
        for part in message.parts:
            own = members(((getattr(part, "vendor", None) or {}).get(self.provider_name) or {}).get("item"))
            match part:
                case TextPart():
                    items.append({"role": "assistant", "content": part.content, **own})
                case ReasoningPart():
                    items += [{"type": "reasoning", **own}] if own else []
                case ToolCall():
                    named = {"call_id": part.id or "", "name": part.name}
                    items.append({"type": "function_call", **named, "arguments": arguments_text(part), **own})
                case ServerToolCall():
                    items += [dict(part.server_tool_call)] if _is_item(part.server_tool_call) else []
                case ServerToolResult():
                    for item in items:
                        if part.id is not None and item.get("id") == part.id:
                            item.update(part.server_tool_call_response)
                case BlobPart() if items and items[-1].get("type") == "image_generation_call":
                    items[-1]["result"] = part.content
                case _:
                    raise refused(self.model, part, "an assistant message cannot have it; move it to a user message")
        return items

    # --- answers ------------------------------------------------------------------------------------------------------

    def pieces(self) -> ResponsePieces:
        """Return an assembler for a streamed response."""
        return ResponsePieces()

    def response(self, answer: JSONObject) -> ModelResponse:
        """Convert a complete response.

        Raises:
            ReportedError: the server reports an error.
            ValueError: it is not a valid response.
        """
        status = answer.get("status")
        if answer.get("error") or status in {"failed", "cancelled"}:
            raise ReportedError(answer.get("error") or {"message": f"the response was {status}"})
        if status not in {"completed", "incomplete"}:
            raise ValueError(f"the status of the response is {status!r} instead of 'completed'")
        parts = [part for item in answer["output"] for part in self._read(item)]
        if not parts and status == "completed":
            raise ValueError("the answer has no content")
        return ModelResponse(
            message=Message("assistant", parts),
            usage=_usage(members(answer.get("usage"))),
            finish_reason=_finish(answer),
            model=text(answer.get("model")) or None,
            id=text(answer.get("id")) or None,
        )

    def _read(self, item: JSONObject) -> Iterator[Part]:
        match item["type"]:
            case "message":
                yield from self._texts(item)
            case "reasoning":
                yield self._reasoning(item)
            case "function_call":
                own = {"namespace": item["namespace"]} if item.get("namespace") else None
                if not (name := text(item["name"])):
                    raise ValueError("a tool call in the answer has no name")
                arguments = arguments_of(item.get("arguments"))
                yield ToolCall(name, arguments, text(item["call_id"]), vendor=self._own(own))
            case kind:
                # An item without a result, such as a web search, becomes only a call.
                call = {name: value for name, value in item.items() if name not in _OUTCOME}
                outcome = {name: item[name] for name in _OUTCOME if item.get(name) is not None}
                name = text(item["name"]) if kind == "mcp_call" else text(kind).removesuffix("_call")
                item_id = text(item.get("id")) or None
                yield ServerToolCall(name=name, server_tool_call=call, id=item_id)
                if kind == "image_generation_call" and (image := text(outcome.pop("result", None))):
                    mime_type = f"image/{item.get('output_format') or 'png'}"
                    yield BlobPart(content=image, modality="image", mime_type=mime_type)
                if outcome:
                    result = {"type": kind, **outcome}
                    yield ServerToolResult(id=item_id, server_tool_call_response=result)

    def _texts(self, item: JSONObject) -> Iterator[Part]:
        own = {"phase": item["phase"]} if item.get("phase") else None
        for content in item.get("content") or ():
            if value := text(content.get("text") or content.get("refusal")):
                annotations = content.get("annotations")
                yield TextPart(value, vendor=self._own(own, **({"annotations": annotations} if annotations else {})))

    def _reasoning(self, item: JSONObject) -> ReasoningPart:
        """Convert reasoning. Only complete items are sent back: nothing is stored that an id could refer to."""
        texts = [text(block.get("text")) for block in (item.get("summary") or item.get("content") or ())]
        own = {name: item[name] for name in ("id", "summary", "content", "encrypted_content") if item.get(name)}
        is_complete = "encrypted_content" in own or "content" in own
        return ReasoningPart("\n\n".join(texts), vendor=self._own({"summary": [], **own} if is_complete else None))

    def _own(self, item: JSONObject | None, **others: Any) -> Mapping[str, Mapping[str, Any]] | None:
        own = {**({"item": item} if item else {}), **others}
        return {self.provider_name: own} if own else None


class ResponsePieces:
    """A response that is assembled from the events of a stream.

    Attributes:
        is_over: Whether the stream has ended.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._answer: JSONObject = {}
        self._items: list[JSONObject] = []

    def add(self, data: str) -> Iterator[ModelDelta]:
        """Add an event, and yield its new content.

        Raises:
            ReportedError: the server reports an error.
            ValueError: it is not an event of a response.
        """
        event = json.loads(data) if not data.startswith("[DONE]") else {}
        kind = event.get("type")
        if kind == "error" or event.get("error"):
            raise ReportedError(event.get("error") or event)
        if kind in _DELTAS and (piece := text(event.get("delta"))):
            yield ModelDelta(_DELTAS[kind], piece)
        elif kind == "response.reasoning_summary_part.added" and event.get("summary_index"):
            yield ModelDelta("reasoning", "\n\n")
        elif kind == "response.output_item.added" and (name := _tool_name(event["item"])):
            yield ModelDelta("tool_call", name)
        elif kind == "response.output_item.done":
            self._items.append(event["item"])
        elif kind in _LAST:
            self._answer = event["response"]
            self.is_over = True

    def whole(self) -> JSONObject:
        """Return the complete response.

        Raises:
            EOFError: the stream ended before it was complete.
        """
        if not self.is_over:
            raise cut_stream()
        return {**self._answer, "output": self._answer.get("output") or self._items}


def _tool(tool: ToolDefinition) -> JSONObject:
    if isinstance(tool, ProviderToolDefinition):
        return {"type": tool.type, **_DEFAULTS.get(tool.type, {}), **tool.options}
    function: JSONObject = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    described = {"output_schema": tool.output_schema} if tool.output_schema is not None else {}
    return {"type": "function", **function, "strict": is_strict(tool.parameters), **described}


def _tool_name(item: Mapping[str, Any]) -> str:
    """Return the name of the tool that an item calls, or an empty text if it is not a call."""
    return text(item["name"]) if item["type"] == "function_call" else ""


def _is_item(value: Mapping[str, Any]) -> bool:
    """Return whether this is an item of this API, and not another vendor's tool call."""
    kind = str(value.get("type"))
    return kind in _ITEMS or kind.endswith(("_call", "_call_output"))


def _finish(answer: JSONObject) -> FinishReason:
    if answer["status"] == "incomplete":
        return _FINISH.get(members(answer.get("incomplete_details")).get("reason"), "error")
    items: list[JSONObject] = answer["output"]
    messages = [item for item in items if item["type"] == "message"]
    if any(content.get("refusal") for item in messages for content in item.get("content") or ()):
        return "content_filter"
    return "tool_call" if any(item["type"] == "function_call" for item in items) else "stop"


def _usage(usage: Mapping[str, Any]) -> Usage:
    input_details = members(usage.get("input_tokens_details"))
    output_details = members(usage.get("output_tokens_details"))
    return Usage(
        input_tokens=tokens(usage.get("input_tokens")),
        output_tokens=tokens(usage.get("output_tokens")),
        cache_read_input_tokens=tokens(input_details.get("cached_tokens")),
        cache_write_input_tokens=tokens(input_details.get("cache_write_tokens")),
        reasoning_output_tokens=tokens(output_details.get("reasoning_tokens")),
        by_modality={
            **by_modality("input_tokens", input_details),
            **by_modality("output_tokens", output_details),
            **by_modality("cache_read.input_tokens", members(input_details.get("cached_tokens_details"))),
        },
    )
