"""Responses: OpenAI's own API, with reasoning that goes back and tools that OpenAI runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

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
"""Families of models that refuse to be asked for encrypted reasoning."""

_ITEMS: Final = frozenset({"compaction", "mcp_list_tools", "program", "program_output", "tool_search_output"})
"""Items that are neither called a call nor the output of one."""

_OUTCOME: Final = ("error", "output", "outputs", "result", "results", "tools")
"""Members of an item that tell what came of a tool that OpenAI ran."""

_FINISH: Final[Mapping[str | None, FinishReason]] = {"max_output_tokens": "length", "content_filter": "content_filter"}
_REMEDY: Final = (
    "the Responses API takes text, images and documents of users; remove the part, or for sound use "
    'api="chat" with a model that listens'
)
_DELTAS: Final[Mapping[str | None, Literal["text", "reasoning"]]] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
}
_LAST: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """The translation.

    Attributes:
        model: The model's name.
        provider_name: Under which name this server's own data travels with a part.
        native_output: The server takes a JSON Schema for the answer.
        server_tools: Tool definitions that are sent as they are.
    """

    model: str
    provider_name: str
    native_output: bool
    server_tools: Sequence[Mapping[str, Any]]

    path = "/responses"
    type = "responses"

    def body(self, request: ModelRequest, *, stream: bool) -> JSONObject:
        """Return the request's body; the history comes last, so that all before it stays what it is.

        Raises:
            ModelError: the API has no place for something in it.
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
        return {**body, "input": [item for message in request.messages for item in self._written(message)]}

    def _settings(self, settings: Settings) -> JSONObject:
        refuse_unknown(self.model, settings, {*_SETTINGS, "reasoning_level"})
        given: Mapping[str, Any] = settings
        body: JSONObject = {name: given[ours] for ours, name in _SETTINGS.items() if ours in given}
        if "reasoning_level" in settings:
            body["reasoning"] = {"effort": settings["reasoning_level"]}
        return body

    # --- messages -----------------------------------------------------------------------------------------------------

    def _written(self, message: Message) -> Iterable[JSONObject]:
        if message.role == "assistant":
            return self._answer(message)
        results = [self._result(part) for part in message.parts if isinstance(part, ToolResult)]
        others = [self._part(part) for part in message.parts if not isinstance(part, ToolResult)]
        role = "system" if message.role == "system" else "user"
        return [*results, {"role": role, "content": others}] if others else results

    def _result(self, result: ToolResult) -> JSONObject:
        parts = [self._part(part) for part in result_parts(result)]
        only = parts[0].get("text") if len(parts) == 1 else None
        return {"type": "function_call_output", "call_id": result.id, "output": parts if only is None else only}

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
        """Return the items of an earlier answer: the very ones, as far as they came from this API."""
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
                    raise refused(
                        self.model, part, "it is in an answer of the assistant; put it into a user message instead"
                    )
        return items

    # --- answers ------------------------------------------------------------------------------------------------------

    def pieces(self) -> ResponsePieces:
        """Return what puts a streamed answer together."""
        return ResponsePieces()

    def response(self, answer: JSONObject) -> ModelResponse:
        """Return what a whole answer says.

        Raises:
            ReportedError: the server reports an error.
            ValueError: it is no answer.
        """
        status = answer.get("status")
        if answer.get("error") or status in {"failed", "cancelled"}:
            raise ReportedError(answer.get("error") or {"message": f"the answer was {status}"})
        if status not in {"completed", "incomplete"}:
            raise ValueError(f"the answer is {status or 'of no known status'}, not completed")
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
                yield from self._said(item)
            case "reasoning":
                yield self._reasoning(item)
            case "function_call":
                own = {"namespace": item["namespace"]} if item.get("namespace") else None
                if not (name := text(item["name"])):
                    raise ValueError("a tool call in the answer has no name")
                arguments = arguments_of(item.get("arguments"))
                yield ToolCall(name, arguments, text(item["call_id"]), vendor=self._own(own))
            case kind:
                # What has no outcome, such as a web search, is a call alone.
                call = {name: value for name, value in item.items() if name not in _OUTCOME}
                outcome = {name: item[name] for name in _OUTCOME if item.get(name) is not None}
                name = text(item["name"]) if kind == "mcp_call" else text(kind).removesuffix("_call")
                item_id = text(item.get("id")) or None
                yield ServerToolCall(name=name, server_tool_call=call, id=item_id)
                if kind == "image_generation_call" and (image := text(outcome.pop("result", None))):
                    mime_type = f"image/{item.get('output_format') or 'png'}"
                    yield BlobPart(content=image, modality="image", mime_type=mime_type)
                if outcome:
                    told = {"type": kind, **outcome}
                    yield ServerToolResult(id=item_id, server_tool_call_response=told)

    def _said(self, item: JSONObject) -> Iterator[Part]:
        own = {"phase": item["phase"]} if item.get("phase") else None
        for content in item.get("content") or ():
            if said := text(content.get("text") or content.get("refusal")):
                cited = content.get("annotations")
                yield TextPart(said, vendor=self._own(own, **({"annotations": cited} if cited else {})))

    def _reasoning(self, item: JSONObject) -> ReasoningPart:
        """Return a thought. It goes back if it tells all: nothing is stored that an id could stand for."""
        texts = [text(each.get("text")) for each in (item.get("summary") or item.get("content") or ())]
        own = {name: item[name] for name in ("id", "summary", "content", "encrypted_content") if item.get(name)}
        is_whole = "encrypted_content" in own or "content" in own
        return ReasoningPart("\n\n".join(texts), vendor=self._own({"summary": [], **own} if is_whole else None))

    def _own(self, item: JSONObject | None, **others: Any) -> Mapping[str, Mapping[str, Any]] | None:
        own = {**({"item": item} if item else {}), **others}
        return {self.provider_name: own} if own else None


class ResponsePieces:
    """The pieces so far.

    Attributes:
        is_over: There will be no more.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._answer: JSONObject = {}
        self._items: list[JSONObject] = []

    def add(self, data: str) -> Iterator[ModelDelta]:
        """Take an event, and yield what is new in it.

        Raises:
            ReportedError: the server reports an error.
            ValueError: it is no event of a response.
        """
        event = json.loads(data) if not data.startswith("[DONE]") else {}
        kind = event.get("type")
        if kind == "error" or event.get("error"):
            raise ReportedError(event.get("error") or event)
        if kind in _DELTAS and (piece := text(event.get("delta"))):
            yield ModelDelta(_DELTAS[kind], piece)
        elif kind == "response.reasoning_summary_part.added" and event.get("summary_index"):
            yield ModelDelta("reasoning", "\n\n")
        elif kind == "response.output_item.added" and (name := _called(event["item"])):
            yield ModelDelta("tool_call", name)
        elif kind == "response.output_item.done":
            self._items.append(event["item"])
        elif kind in _LAST:
            self._answer = event["response"]
            self.is_over = True

    def whole(self) -> JSONObject:
        """Return the whole answer.

        Raises:
            EOFError: it did not come to its end.
        """
        if not self.is_over:
            raise cut_stream()
        return {**self._answer, "output": self._answer.get("output") or self._items}


def _tool(tool: ToolDefinition) -> JSONObject:
    function: JSONObject = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", **function, "strict": is_strict(tool.parameters)}


def _called(item: Mapping[str, Any]) -> str:
    """Return which tool an item calls, if it is a call."""
    return text(item["name"]) if item["type"] == "function_call" else ""


def _is_item(value: Mapping[str, Any]) -> bool:
    """Return whether this is an item of this API, and not what another vendor ran."""
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
    read = members(usage.get("input_tokens_details"))
    written = members(usage.get("output_tokens_details"))
    return Usage(
        input_tokens=tokens(usage.get("input_tokens")),
        output_tokens=tokens(usage.get("output_tokens")),
        cache_read_input_tokens=tokens(read.get("cached_tokens")),
        cache_write_input_tokens=tokens(read.get("cache_write_tokens")),
        reasoning_output_tokens=tokens(written.get("reasoning_tokens")),
        by_modality={
            **by_modality("input_tokens", read),
            **by_modality("output_tokens", written),
            **by_modality("cache_read.input_tokens", members(read.get("cached_tokens_details"))),
        },
    )
