"""Chat Completions: the API of OpenAI-compatible servers, with their differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Final

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
from pellucid.models.base import ModelRequest, ModelResponse, Settings
from pellucid.models.http import refuse_unknown
from pellucid.models.openai.chat_stream import ChatPieces, reasoning_of, text_of
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
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "stop_sequences": "stop",
    "reasoning_level": "reasoning_effort",
}
_FINISH: Final[Mapping[str | None, FinishReason]] = {
    None: "stop",
    "content_filter": "content_filter",
    "end_turn": "stop",
    "eos": "stop",
    "function_call": "tool_call",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "stop": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_call",
}
_ABORTED: Final = frozenset({"abort", "error", "insufficient_system_resource"})
"""Finish reasons of responses that the server could not complete."""

_REASONING: Final = ("reasoning_content", "reasoning")
"""Members of a message with reasoning, of servers other than OpenAI's."""

_AUDIO: Final[Mapping[str | None, str]] = {
    "audio/mp3": "mp3",
    "audio/mpeg": "mp3",
    "audio/wav": "wav",
    "audio/x-wav": "wav",
}
_REMEDY: Final = (
    "Chat Completions accepts text, images (data or URL), audio (WAV and MP3 data) and documents (data or file id) "
    'from users; remove the part, or use api="responses" where the server supports it'
)


_CALLS_ALONE: Final = {"role", "content", "tool_calls"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletions:
    """Conversion of requests and responses.

    Attributes:
        model: The model's name.
        provider_name: Key of this server's data in `vendor` of a part.
        is_openai: Whether the server is OpenAI's or Azure's; parameter names then follow their latest documentation.
        native_output: Whether the server accepts a JSON Schema for the answer.
        server_tools: Tool definitions that are sent unchanged.
    """

    model: str
    provider_name: str
    is_openai: bool
    native_output: bool
    server_tools: Sequence[Mapping[str, Any]]

    provider_tools: ClassVar[frozenset[tuple[str, str]]] = frozenset()
    path = "/chat/completions"
    type = "chat_completions"

    def body(self, request: ModelRequest, *, stream: bool) -> JSONObject:
        """Return the request's body. The messages come last, so that everything before them stays the same.

        Raises:
            ModelError: the API does not support a part or setting of the request.
        """
        body: JSONObject = {"model": self.model}
        if tools := [*map(self._tool, request.tools), *map(dict, self.server_tools)]:
            body["tools"] = tools
        body |= self._settings(request.settings)
        if request.output is not None and self.native_output:
            output = request.output
            described = {"description": output.description} if output.description else {}
            schema = {"name": output.name, **described, "schema": output.schema, "strict": is_strict(output.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        body = merged(body, request.settings.get("extra", {}))
        messages = [{"role": "system", "content": request.instructions}] if request.instructions else []
        for message in _joined(request.messages):
            for converted in self._convert(message):
                if messages and _continues(messages[-1], converted):
                    messages[-1] |= {"tool_calls": converted["tool_calls"]}
                else:
                    messages.append(converted)
        return {**body, "messages": messages}

    def _settings(self, settings: Settings) -> JSONObject:
        refuse_unknown(self.model, settings, {*_SETTINGS, "max_tokens"})
        values: Mapping[str, Any] = settings
        body = {name: values[setting] for setting, name in _SETTINGS.items() if setting in values}
        if "max_tokens" in settings:
            body["max_completion_tokens" if self.is_openai else "max_tokens"] = settings["max_tokens"]
        if "stop" in body:
            body["stop"] = list(body["stop"])
        return body

    def _tool(self, tool: ToolDefinition) -> JSONObject:
        function: JSONObject = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        if self.is_openai:  # other servers may refuse the member, or require it for all tools or none
            function["strict"] = is_strict(tool.parameters)
        return {"type": "function", "function": function}

    # --- messages -----------------------------------------------------------------------------------------------------

    def _convert(self, message: Message) -> Iterator[JSONObject]:
        if message.role == "assistant":
            yield self._answer(message)
        elif message.role == "system":
            yield {"role": "system", "content": self._content([self._text(part) for part in message.parts])}
        else:
            results = [part for part in message.parts if isinstance(part, ToolResult)]
            others = [self._part(part) for part in message.parts if not isinstance(part, ToolResult)]
            attachments = {result.id: self._attachments(result) for result in results}
            for result in results:
                texts = [part.content for part in result_parts(result) if isinstance(part, TextPart)]
                content = "\n".join(texts) or ("It follows." if attachments[result.id] else "")
                yield {"role": "tool", "tool_call_id": result.id, "content": content}
            if parts := [*(part for parts in attachments.values() for part in parts), *others]:
                yield {"role": "user", "content": self._content(parts)}

    def _attachments(self, result: ToolResult) -> list[JSONObject]:
        """Return the parts of a result other than text, which the API accepts only from users."""
        parts = [self._part(part) for part in result_parts(result) if not isinstance(part, TextPart)]
        title = {"type": "text", "text": f"From the result of tool call {result.id}:"}
        return [title, *parts] if parts else []

    @staticmethod
    def _content(parts: list[JSONObject]) -> str | list[JSONObject]:
        """Return content as plain text if it is a single text; some servers accept nothing else."""
        plain: str | None = parts[0].get("text") if len(parts) == 1 else None
        return parts if plain is None else plain

    def _text(self, part: Part) -> JSONObject:
        if not isinstance(part, TextPart):
            raise refused(self.model, part, "move it to a user message; a system message can only have text")
        return {"type": "text", "text": part.content}

    def _part(self, part: Part) -> JSONObject:
        match part:
            case TextPart():
                content: JSONObject = {"type": "text", "text": part.content}
            case BlobPart(modality="image"):
                content = {"type": "image_url", "image_url": {"url": data_url(self.model, part)}}
            case UriPart(modality="image"):
                content = {"type": "image_url", "image_url": {"url": part.uri}}
            case BlobPart(modality="audio") if part.mime_type in _AUDIO:
                content = {
                    "type": "input_audio",
                    "input_audio": {"data": part.content, "format": _AUDIO[part.mime_type]},
                }
            case BlobPart(modality="document"):
                content = {
                    "type": "file",
                    "file": {"filename": file_name(part), "file_data": data_url(self.model, part)},
                }
            case FilePart(modality="document"):
                content = {"type": "file", "file": {"file_id": part.file_id}}
            case _:
                raise refused(self.model, part, _REMEDY)
        return content

    def _answer(self, message: Message) -> JSONObject:
        """Convert an earlier answer. Reasoning is sent only in the members in which this server returned it."""
        answer: JSONObject = {"role": "assistant", "content": message.text or None}
        calls: list[JSONObject] = []
        images: list[JSONObject] = []
        for part in message.parts:
            match part:
                case ToolCall():
                    function = {"name": part.name, "arguments": arguments_text(part)}
                    calls.append({"id": part.id or "", "type": "function", "function": function})
                case ReasoningPart():
                    answer |= ((part.vendor or {}).get(self.provider_name) or {}).get("message", {})
                case BlobPart(modality="image") if not self.is_openai:
                    images.append(self._part(part))  # as servers that generate images return them
                case TextPart() | ServerToolCall() | ServerToolResult():
                    pass
                case _:
                    raise refused(self.model, part, "an assistant message cannot have it; move it to a user message")
        if images:
            answer["images"] = images
        if calls:
            answer["tool_calls"] = calls
        elif answer["content"] is None:
            answer["content"] = ""
        return answer

    # --- answers ------------------------------------------------------------------------------------------------------

    def pieces(self) -> ChatPieces:
        """Return an assembler for a streamed response."""
        return ChatPieces()

    def response(self, answer: JSONObject) -> ModelResponse:
        """Convert a complete response.

        Raises:
            ReportedError: the server reports an error.
            ValueError: it is not a valid response.
        """
        if answer.get("error"):
            raise ReportedError(answer["error"])
        if not answer.get("choices"):
            raise ValueError("the answer has no choices")
        choice = answer["choices"][0]
        finish_reason = choice.get("finish_reason")
        if choice.get("error") or finish_reason in _ABORTED:
            raise ReportedError(
                choice.get("error") or {"message": f"the server aborted: {finish_reason}", "code": finish_reason}
            )
        parts = self._parts(choice["message"])
        if not parts and finish_reason in {None, "stop"} and choice["message"].get("content") is None:
            raise ValueError("the answer has no content")
        return ModelResponse(
            message=Message("assistant", parts),
            usage=self._usage(members(answer.get("usage"))),
            finish_reason=_finish(finish_reason, choice["message"]),
            model=text(answer.get("model")) or None,
            id=text(answer.get("id")) or None,
        )

    def _parts(self, message: Mapping[str, Any]) -> list[Part]:
        parts: list[Part] = []
        if (reasoning := self._reasoning(message)) is not None:
            parts.append(reasoning)
        parts += [
            TextPart(content) for content in (text_of(message.get("content")), text(message.get("refusal"))) if content
        ]
        for image in message.get("images") or ():
            parts.append(_image(text(image["image_url"]["url"])))
        for call in message.get("tool_calls") or ():
            function = members(call.get("function"))
            if not (name := text(function.get("name"))):
                raise ValueError("a tool call in the answer has no name")
            parts.append(ToolCall(name, arguments_of(function.get("arguments")), text(call.get("id")) or None))
        return parts

    def _reasoning(self, message: Mapping[str, Any]) -> ReasoningPart | None:
        """Return the reasoning of a message, with the members that the server expects returned."""
        returned = {name: message[name] for name in (*_REASONING, "reasoning_details") if message.get(name)}
        reasoning = reasoning_of(message)
        if not returned:
            return ReasoningPart(reasoning) if reasoning else None
        if details := returned.get("reasoning_details"):
            returned = {"reasoning_details": details}
        return ReasoningPart(reasoning, vendor={self.provider_name: {"message": returned}})

    def _usage(self, usage: Mapping[str, Any]) -> Usage:
        input_details = members(usage.get("prompt_tokens_details"))
        output_details = members(usage.get("completion_tokens_details"))
        prompt, completion, total = (tokens(usage.get(f"{name}_tokens")) for name in ("prompt", "completion", "total"))
        reasoning = tokens(output_details.get("reasoning_tokens"))
        if prompt is not None and completion is not None and reasoning and total == prompt + completion + reasoning:
            completion += reasoning  # xAI and Gemini count reasoning separately
        cost = usage.get("cost") if self.provider_name == "openrouter" else None
        return Usage(
            input_tokens=prompt,
            output_tokens=completion,
            cache_read_input_tokens=tokens(input_details.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))),
            cache_write_input_tokens=tokens(input_details.get("cache_write_tokens")),
            reasoning_output_tokens=reasoning,
            cost=float(cost) if isinstance(cost, int | float) else None,
            by_modality={
                **by_modality("input_tokens", input_details),
                **by_modality("output_tokens", output_details),
                **by_modality("cache_read.input_tokens", members(input_details.get("cached_tokens_details"))),
            },
        )


def _joined(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield messages, consecutive ones with results as one: all results come before the attachments of any."""
    for has_results, group in groupby(messages, key=lambda message: bool(message.tool_results)):
        if has_results:
            yield Message("tool", [part for message in group for part in message.parts])
        else:
            yield from group


def _continues(last: JSONObject, message: JSONObject) -> bool:
    """Return whether a message is calls alone after an answer: some servers refuse two answers in a row."""
    are_answers = last["role"] == message["role"] == "assistant"
    return are_answers and "tool_calls" not in last and message.keys() == _CALLS_ALONE and message["content"] is None


def _finish(finish_reason: str | None, message: Mapping[str, Any]) -> FinishReason:
    if message.get("refusal"):
        return "content_filter"
    reason = _FINISH.get(finish_reason, "error")
    return "tool_call" if reason == "stop" and message.get("tool_calls") else reason


def _image(url: str) -> Part:
    head, comma, content = url.partition(",")
    if head.startswith("data:") and head.endswith(";base64") and comma:
        return BlobPart(content=content, modality="image", mime_type=head[5:-7] or None)
    return UriPart(uri=url, modality="image")
