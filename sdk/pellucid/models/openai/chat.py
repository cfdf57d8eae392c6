"""Chat Completions: what OpenAI-compatible servers speak, each with an accent of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
from pellucid.models.openai.chat_stream import ChatPieces, text_of, thought_of
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
_BROKEN_OFF: Final = frozenset({"abort", "error", "insufficient_system_resource"})
"""What servers say when they could not finish."""

_REASONING: Final = ("reasoning_content", "reasoning")
"""Members of a message in which servers think aloud; none is OpenAI's."""

_AUDIO: Final[Mapping[str | None, str]] = {
    "audio/mp3": "mp3",
    "audio/mpeg": "mp3",
    "audio/wav": "wav",
    "audio/x-wav": "wav",
}
_REMEDY: Final = (
    "Chat Completions takes text, images (data or address), sound (WAV and MP3 data) and documents (data or file id) "
    'of users; remove the part, or use api="responses" where the server has it'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletions:
    """The translation.

    Attributes:
        model: The model's name.
        provider_name: Under which name this server's own data travels with a part.
        is_openai: The server is OpenAI's or Azure's: names of parameters follow their latest documentation.
        native_output: The server takes a JSON Schema for the answer.
        server_tools: Tool definitions that are sent as they are.
    """

    model: str
    provider_name: str
    is_openai: bool
    native_output: bool
    server_tools: Sequence[Mapping[str, Any]]

    path = "/chat/completions"
    type = "chat_completions"

    def body(self, request: ModelRequest, *, stream: bool) -> JSONObject:
        """Return the request's body; the messages come last, so that all before them stays what it is.

        Raises:
            ModelError: the API has no place for something in it.
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
        for message in request.messages:
            messages += self._written(message)
        return {**body, "messages": messages}

    def _settings(self, settings: Settings) -> JSONObject:
        refuse_unknown(self.model, settings, {*_SETTINGS, "max_tokens"})
        given: Mapping[str, Any] = settings
        body = {name: given[ours] for ours, name in _SETTINGS.items() if ours in given}
        if "max_tokens" in settings:
            body["max_completion_tokens" if self.is_openai else "max_tokens"] = settings["max_tokens"]
        if "stop" in body:
            body["stop"] = list(body["stop"])
        return body

    def _tool(self, tool: ToolDefinition) -> JSONObject:
        function: JSONObject = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        if self.is_openai:  # others may refuse the member, or want the same of all tools
            function["strict"] = is_strict(tool.parameters)
        return {"type": "function", "function": function}

    # --- messages -----------------------------------------------------------------------------------------------------

    def _written(self, message: Message) -> Iterator[JSONObject]:
        if message.role == "assistant":
            yield self._answer(message)
        elif message.role == "system":
            yield {"role": "system", "content": self._content([self._text(part) for part in message.parts])}
        else:
            results = [part for part in message.parts if isinstance(part, ToolResult)]
            others = [self._part(part) for part in message.parts if not isinstance(part, ToolResult)]
            beyond = {result.id: self._beyond_text(result) for result in results}
            for result in results:
                texts = [part.content for part in result_parts(result) if isinstance(part, TextPart)]
                content = "\n".join(texts) or ("It follows." if beyond[result.id] else "")
                yield {"role": "tool", "tool_call_id": result.id, "content": content}
            if parts := [*(part for parts in beyond.values() for part in parts), *others]:
                yield {"role": "user", "content": self._content(parts)}

    def _beyond_text(self, result: ToolResult) -> list[JSONObject]:
        """Return what a result has besides text: the API takes that from users only."""
        parts = [self._part(part) for part in result_parts(result) if not isinstance(part, TextPart)]
        title = {"type": "text", "text": f"From the result of tool call {result.id}:"}
        return [title, *parts] if parts else []

    @staticmethod
    def _content(parts: list[JSONObject]) -> str | list[JSONObject]:
        """Return content as plain text where it can be: some servers take nothing else."""
        only: str | None = parts[0].get("text") if len(parts) == 1 else None
        return parts if only is None else only

    def _text(self, part: Part) -> JSONObject:
        if not isinstance(part, TextPart):
            raise refused(self.model, part, "put it into a user message: a system message has text only")
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
        """Return an earlier answer; reasoning goes back only in the members in which this server gave it."""
        written: JSONObject = {"role": "assistant", "content": message.text or None}
        calls: list[JSONObject] = []
        images: list[JSONObject] = []
        for part in message.parts:
            match part:
                case ToolCall():
                    function = {"name": part.name, "arguments": arguments_text(part)}
                    calls.append({"id": part.id or "", "type": "function", "function": function})
                case ReasoningPart():
                    written |= ((part.vendor or {}).get(self.provider_name) or {}).get("message", {})
                case BlobPart(modality="image") if not self.is_openai:
                    images.append(self._part(part))  # as the servers that draw give them
                case TextPart() | ServerToolCall() | ServerToolResult():
                    pass
                case _:
                    raise refused(
                        self.model, part, "it is in an answer of the assistant; put it into a user message instead"
                    )
        if images:
            written["images"] = images
        if calls:
            written["tool_calls"] = calls
        elif written["content"] is None:
            written["content"] = ""
        return written

    # --- answers ------------------------------------------------------------------------------------------------------

    def pieces(self) -> ChatPieces:
        """Return what puts a streamed answer together."""
        return ChatPieces()

    def response(self, answer: JSONObject) -> ModelResponse:
        """Return what a whole answer says.

        Raises:
            ReportedError: the server reports an error.
            ValueError: it is no answer.
        """
        if answer.get("error"):
            raise ReportedError(answer["error"])
        if not answer.get("choices"):
            raise ValueError("the answer has no choices")
        choice = answer["choices"][0]
        said = choice.get("finish_reason")
        if choice.get("error") or said in _BROKEN_OFF:
            raise ReportedError(choice.get("error") or {"message": f"the server gave up: {said}", "code": said})
        parts = self._parts(choice["message"])
        if not parts and said in {None, "stop"} and choice["message"].get("content") is None:
            raise ValueError("the answer has no content")
        return ModelResponse(
            message=Message("assistant", parts),
            usage=self._usage(members(answer.get("usage"))),
            finish_reason=_finish(said, choice["message"]),
            model=text(answer.get("model")) or None,
            id=text(answer.get("id")) or None,
        )

    def _parts(self, message: Mapping[str, Any]) -> list[Part]:
        parts: list[Part] = []
        if (reasoning := self._reasoning(message)) is not None:
            parts.append(reasoning)
        parts += [TextPart(said) for said in (text_of(message.get("content")), text(message.get("refusal"))) if said]
        for image in message.get("images") or ():
            parts.append(_image(text(image["image_url"]["url"])))
        for call in message.get("tool_calls") or ():
            function = members(call.get("function"))
            if not (name := text(function.get("name"))):
                raise ValueError("a tool call in the answer has no name")
            parts.append(ToolCall(name, arguments_of(function.get("arguments")), text(call.get("id")) or None))
        return parts

    def _reasoning(self, message: Mapping[str, Any]) -> ReasoningPart | None:
        """Return what the server thought aloud, and which members of the message it wants back."""
        back = {name: message[name] for name in (*_REASONING, "reasoning_details") if message.get(name)}
        thought = thought_of(message)
        if not back:
            return ReasoningPart(thought) if thought else None
        if details := back.get("reasoning_details"):
            back = {"reasoning_details": details}
        return ReasoningPart(thought, vendor={self.provider_name: {"message": back}})

    def _usage(self, usage: Mapping[str, Any]) -> Usage:
        read = members(usage.get("prompt_tokens_details"))
        written = members(usage.get("completion_tokens_details"))
        given, made, total = (tokens(usage.get(f"{name}_tokens")) for name in ("prompt", "completion", "total"))
        thought = tokens(written.get("reasoning_tokens"))
        if given is not None and made is not None and thought and total == given + made + thought:
            made += thought  # xAI and Gemini count reasoning apart
        cost = usage.get("cost") if self.provider_name == "openrouter" else None
        return Usage(
            input_tokens=given,
            output_tokens=made,
            cache_read_input_tokens=tokens(read.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))),
            cache_write_input_tokens=tokens(read.get("cache_write_tokens")),
            reasoning_output_tokens=thought,
            cost=float(cost) if isinstance(cost, int | float) else None,
            by_modality={
                **by_modality("input_tokens", read),
                **by_modality("output_tokens", written),
                **by_modality("cache_read.input_tokens", members(read.get("cached_tokens_details"))),
            },
        )


def _finish(said: str | None, message: Mapping[str, Any]) -> FinishReason:
    if message.get("refusal"):
        return "content_filter"
    reason = _FINISH.get(said, "error")
    return "tool_call" if reason == "stop" and message.get("tool_calls") else reason


def _image(url: str) -> Part:
    head, comma, content = url.partition(",")
    if head.startswith("data:") and head.endswith(";base64") and comma:
        return BlobPart(content=content, modality="image", mime_type=head[5:-7] or None)
    return UriPart(uri=url, modality="image")
