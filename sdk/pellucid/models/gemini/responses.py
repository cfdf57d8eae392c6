"""What `GeminiModel` gets: an answer, whole or in pieces, in our own shape."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from google.genai import types

from pellucid.errors import ErrorKind, ModelError
from pellucid.messages import (
    BlobPart,
    FinishReason,
    Message,
    Modality,
    Part,
    ReasoningPart,
    ServerToolCall,
    ServerToolResult,
    TextPart,
    ToolCall,
    UriPart,
    Usage,
)
from pellucid.models.base import ModelDelta, ModelResponse

_FINISHED: Final[Mapping[str, FinishReason]] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "LANGUAGE": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
    "ESCALATION": "content_filter",
    "MODEL_ARMOR": "content_filter",
}
"""All other reasons are `error`."""

_FAILED: Final = frozenset(
    {"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"}
)
"""Reasons after which there is no answer, whatever came before: the model tried something that did not work."""


class Answer:
    """An answer as it arrives: in one piece or in many, it comes to the same.

    Args:
        model: The model's name.
        provider: Under which name parts keep what the API wants back.
    """

    def __init__(self, model: str, provider: str) -> None:
        self._model = model
        self._provider = provider
        self._parts: list[Part] = []
        self._text: list[str] = []
        self._kind: type[TextPart | ReasoningPart] = TextPart
        self._id: str | None = None
        self._version: str | None = None
        self._has_candidate: bool | None = None
        self._finish: str | None = None
        self._finish_message: str | None = None
        self._earlier = Usage()
        self._usage = Usage()
        self._token: bytes | None = None
        self._grounding: dict[str, Any] = {}
        self._urls: dict[str, Any] = {}

    def add(self, piece: types.GenerateContentResponse) -> Iterator[ModelDelta]:
        """Take what arrived, and yield what is new in it."""
        self._id = self._id or piece.response_id
        self._version = self._version or piece.model_version
        if piece.usage_metadata is not None:
            self._usage = _usage(piece.usage_metadata)  # of a stream, the last is the sum
        candidates = [found for found in piece.candidates or () if not found.index]
        self._has_candidate = self._has_candidate or bool(candidates)
        for candidate in candidates:
            yield from self._add(candidate)
        feedback = piece.prompt_feedback
        if not candidates and feedback is not None and feedback.block_reason is not None:
            self._finish = "SAFETY"
            yield from self._blocked("prompt", feedback.block_reason.value, feedback.block_reason_message)

    def _add(self, candidate: types.Candidate) -> Iterator[ModelDelta]:
        for part in (candidate.content and candidate.content.parts) or ():
            yield from self._part(part)
        if candidate.grounding_metadata is not None:
            self._grounding.update(_plain(candidate.grounding_metadata))
        if candidate.url_context_metadata is not None:
            self._urls.update(_plain(candidate.url_context_metadata))
        self._token = candidate.continuation_token or self._token
        if candidate.finish_reason is not None:
            self._finish = candidate.finish_reason.value
            self._finish_message = candidate.finish_message
            if self._reason() == "content_filter" and not self._parts and not self._text:
                yield from self._blocked("answer", self._finish, candidate.finish_message)

    def _part(self, part: types.Part) -> Iterator[ModelDelta]:
        own: dict[str, Any] = {}
        if part.thought_signature:
            own["thought_signature"] = base64.b64encode(part.thought_signature).decode()
        if part.text is not None:
            yield from self._say(part.text, ReasoningPart if part.thought else TextPart, own)
        elif part.function_call is not None:
            yield self._call(part.function_call, own)
        elif part.inline_data is not None and not part.thought:  # a picture in a thought is a draft
            self._end_text()
            self._parts.append(_blob(part.inline_data, self._vendor(own)))
        elif part.file_data is not None:
            self._end_text()
            kind = part.file_data.mime_type
            self._parts.append(UriPart(uri=part.file_data.file_uri or "", modality=_modality(kind), mime_type=kind))
        else:
            self._server_tool(part)

    def _say(self, text: str, kind: type[TextPart | ReasoningPart], own: Mapping[str, Any]) -> Iterator[ModelDelta]:
        """Take text; a signature ends the part that it is on, and may come after it in a piece that is empty."""
        if kind is not self._kind:
            self._end_text()
        self._kind = kind
        if text:
            self._text.append(text)
            yield ModelDelta("text" if kind is TextPart else "reasoning", text)
        if own:
            self._end_text(own)

    def _end_text(self, own: Mapping[str, Any] | None = None) -> None:
        if self._text or own:
            self._parts.append(self._kind("".join(self._text), vendor=self._vendor(own or {})))
        self._text = []

    def _call(self, call: types.FunctionCall, own: dict[str, Any]) -> ModelDelta:
        if call.partial_args or call.will_continue:
            raise self._failed(
                "it streams the arguments of tool calls in pieces; set streamFunctionCallArguments to false",
                "invalid_request",
            )
        self._end_text()
        if call.id:
            own["id"] = call.id
        name = call.name or ""
        self._parts.append(ToolCall(name, call.args or {}, call.id or None, vendor=self._vendor(own)))
        return ModelDelta("tool_call", name)

    def _server_tool(self, part: types.Part) -> None:
        """Keep a tool call that the API ran itself, or its result, with the part as it has to go back."""
        asked, told = part.executable_code or part.tool_call, part.code_execution_result or part.tool_response
        self._end_text()
        vendor = {self._provider: {"part": _plain(part)}}
        if asked is not None:
            name = _tool_name(asked)
            call = {"type": name, **_plain(asked)}
            self._parts.append(ServerToolCall(name=name, server_tool_call=call, id=asked.id, vendor=vendor))
        elif told is not None:
            result = {"type": _tool_name(told), **_plain(told)}
            self._parts.append(ServerToolResult(server_tool_call_response=result, id=told.id, vendor=vendor))

    def _blocked(self, what: str, reason: str, message: str | None) -> Iterator[ModelDelta]:
        return self._say(f"The {what} was blocked: {reason}{f' ({message})' if message else ''}.", TextPart, {})

    def next_token(self) -> bytes | None:
        """Return what the next request must bring if the API stopped in the middle of the answer, to go on there."""
        token, self._token = self._token, None
        if self._finish != "CONTINUATION" or token is None:
            return None
        self._earlier += self._usage
        self._usage = Usage()
        self._finish = None
        return token

    def response(self) -> ModelResponse:
        """Return the whole answer.

        Raises:
            ModelError: there is none, or it has no end.
        """
        self._end_text()
        if self._finish is None:
            if self._has_candidate is False:
                raise self._failed("its answer has no candidates", "invalid_response")
            raise self._failed("its answer broke off: there is no finish reason", "unavailable")
        reason = self._reason()
        why = f"{self._finish}{f' ({self._finish_message})' if self._finish_message else ''}"
        if self._finish in _FAILED or (reason in {"stop", "error"} and not self._parts):
            raise self._failed(f"there is no usable answer; its finish reason is {why}", "invalid_response")
        message = Message("assistant", [*self._searches(), *self._parts], reason)
        usage = self._earlier + self._usage
        return ModelResponse(message=message, usage=usage, finish_reason=reason, model=self._version, id=self._id)

    def _reason(self) -> FinishReason:
        reason = _FINISHED.get(self._finish or "", "error")
        called = any(isinstance(part, ToolCall) for part in self._parts)
        return "tool_call" if called and reason == "stop" else reason

    def _searches(self) -> Iterator[Part]:
        """Yield the searches that the answer rests on, which the API tells beside the answer."""
        queries = self._grounding.get("webSearchQueries") or self._grounding.get("retrievalQueries")
        told = any(isinstance(part, ServerToolCall) and part.name != "code_execution" for part in self._parts)
        if queries and not told:
            call = {"type": "google_search", "queries": queries}
            yield ServerToolCall(name="google_search", server_tool_call=call)
        if self._grounding:
            yield ServerToolResult(server_tool_call_response={"type": "google_search", **self._grounding})
        if self._urls:
            yield ServerToolResult(server_tool_call_response={"type": "url_context", **self._urls})

    def _vendor(self, own: Mapping[str, Any]) -> dict[str, Mapping[str, Any]] | None:
        return {self._provider: own} if own else None

    def _failed(self, problem: str, kind: ErrorKind) -> ModelError:
        return ModelError(self._model, problem, error_type=kind, error_kind=kind)


def _usage(told: types.GenerateContentResponseUsageMetadata) -> Usage:
    """Return the tokens in our way of counting: with what server tools brought in, and with thoughts."""
    own = Usage(
        input_tokens=told.prompt_token_count,
        output_tokens=told.candidates_token_count,
        cache_read_input_tokens=told.cached_content_token_count,
        reasoning_output_tokens=told.thoughts_token_count,
        by_modality={
            **_by_modality("input_tokens", told.prompt_tokens_details),
            **_by_modality("output_tokens", told.candidates_tokens_details),
            **_by_modality("cache_read.input_tokens", told.cache_tokens_details),
        },
    )
    return own + Usage(input_tokens=told.tool_use_prompt_token_count, output_tokens=told.thoughts_token_count)


def _by_modality(kind: str, counts: Sequence[types.ModalityTokenCount] | None) -> dict[str, int]:
    """Return the tokens of each modality that the conventions have a name for."""
    known = {types.MediaModality.TEXT: "text", types.MediaModality.IMAGE: "image", types.MediaModality.AUDIO: "audio"}
    found: Counter[str] = Counter()
    for each in counts or ():
        if each.modality in known:
            found[f"{known[each.modality]}.{kind}"] += each.token_count or 0
    return dict(+found)


def _blob(blob: types.Blob, vendor: dict[str, Mapping[str, Any]] | None) -> BlobPart:
    content = base64.b64encode(blob.data or b"").decode()
    return BlobPart(content=content, modality=_modality(blob.mime_type), mime_type=blob.mime_type, vendor=vendor)


def _modality(mime_type: str | None) -> Modality:
    match (mime_type or "").partition("/")[0]:
        case "image":
            return "image"
        case "video":
            return "video"
        case "audio":
            return "audio"
        case _:
            return "document"


def _tool_name(
    told: types.ExecutableCode | types.CodeExecutionResult | types.ToolCall | types.ToolResponse,
) -> str:
    if isinstance(told, types.ToolCall | types.ToolResponse):
        return told.tool_type.value.lower() if told.tool_type is not None else "server_tool"
    return "code_execution"


def _plain(told: Any) -> dict[str, Any]:
    """Return the JSON that the API sent."""
    plain: dict[str, Any] = told.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain
