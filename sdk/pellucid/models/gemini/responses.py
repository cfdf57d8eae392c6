"""Conversion of responses of `GeminiModel`, complete or streamed."""

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
"""Finish reasons; all others are `error`."""

_FAILED: Final = frozenset(
    {"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"}
)
"""Finish reasons of failed answers, whose earlier content is not usable."""


class Answer:
    """An answer that is assembled from one complete response or from the pieces of a stream.

    Args:
        model: The model's name.
        provider: Key in `vendor` of a part for data that the API expects back.
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
        """Add a response or a piece of one, and yield its new content."""
        self._id = self._id or piece.response_id
        self._version = self._version or piece.model_version
        if piece.usage_metadata is not None:
            self._usage = _usage(piece.usage_metadata)  # in a stream, the last one is the sum
        candidates = [candidate for candidate in piece.candidates or () if not candidate.index]
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
            yield from self._add_text(part.text, ReasoningPart if part.thought else TextPart, own)
        elif part.function_call is not None:
            yield self._call(part.function_call, own)
        elif part.inline_data is not None and not part.thought:  # images in thoughts are drafts
            self._end_text()
            self._parts.append(_blob(part.inline_data, self._vendor(own)))
        elif part.file_data is not None:
            self._end_text()
            kind = part.file_data.mime_type
            self._parts.append(UriPart(uri=part.file_data.file_uri or "", modality=_modality(kind), mime_type=kind))
        else:
            self._server_tool(part)

    def _add_text(
        self, text: str, kind: type[TextPart | ReasoningPart], own: Mapping[str, Any]
    ) -> Iterator[ModelDelta]:
        """Add text. A signature ends its part, and may follow it in an empty piece."""
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
                "streamed arguments of tool calls are not supported; set streamFunctionCallArguments to false",
                "invalid_request",
            )
        self._end_text()
        if call.id:
            own["id"] = call.id
        name = call.name or ""
        self._parts.append(ToolCall(name, call.args or {}, call.id or None, vendor=self._vendor(own)))
        return ModelDelta("tool_call", name)

    def _server_tool(self, part: types.Part) -> None:
        """Add a tool call that the API ran, or its result, with the original part to send back."""
        tool_call = part.executable_code or part.tool_call
        tool_result = part.code_execution_result or part.tool_response
        self._end_text()
        vendor = {self._provider: {"part": _plain(part)}}
        if tool_call is not None:
            name = _tool_name(tool_call)
            call = {"type": name, **_plain(tool_call)}
            self._parts.append(ServerToolCall(name=name, server_tool_call=call, id=tool_call.id, vendor=vendor))
        elif tool_result is not None:
            result = {"type": _tool_name(tool_result), **_plain(tool_result)}
            self._parts.append(ServerToolResult(server_tool_call_response=result, id=tool_result.id, vendor=vendor))

    def _blocked(self, subject: str, reason: str, message: str | None) -> Iterator[ModelDelta]:
        return self._add_text(f"The {subject} was blocked: {reason}{f' ({message})' if message else ''}.", TextPart, {})

    def next_token(self) -> bytes | None:
        """Return the continuation token for the next request if the API paused within the answer, or None."""
        token, self._token = self._token, None
        if self._finish != "CONTINUATION" or token is None:
            return None
        self._earlier += self._usage
        self._usage = Usage()
        self._finish = None
        return token

    def response(self) -> ModelResponse:
        """Return the complete response.

        Raises:
            ModelError: the answer is missing, incomplete or not usable.
        """
        self._end_text()
        if self._finish is None:
            if self._has_candidate is False:
                raise self._failed("its response has no candidates", "invalid_response")
            raise self._failed("its response is incomplete: it has no finish reason", "unavailable")
        reason = self._reason()
        cause = f"{self._finish}{f' ({self._finish_message})' if self._finish_message else ''}"
        if self._finish in _FAILED or (reason in {"stop", "error"} and not self._parts):
            raise self._failed(f"there is no usable answer; its finish reason is {cause}", "invalid_response")
        message = Message("assistant", [*self._searches(), *self._parts], reason)
        usage = self._earlier + self._usage
        return ModelResponse(message=message, usage=usage, finish_reason=reason, model=self._version, id=self._id)

    def _reason(self) -> FinishReason:
        reason = _FINISHED.get(self._finish or "", "error")
        has_calls = any(isinstance(part, ToolCall) for part in self._parts)
        return "tool_call" if has_calls and reason == "stop" else reason

    def _searches(self) -> Iterator[Part]:
        """Yield the searches that ground the answer, which the API returns as metadata."""
        queries = self._grounding.get("webSearchQueries") or self._grounding.get("retrievalQueries")
        is_recorded = any(isinstance(part, ServerToolCall) and part.name != "code_execution" for part in self._parts)
        if queries and not is_recorded:
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


def _usage(metadata: types.GenerateContentResponseUsageMetadata) -> Usage:
    """Convert the usage: tokens of server tools count as input, and thoughts as output."""
    own = Usage(
        input_tokens=metadata.prompt_token_count,
        output_tokens=metadata.candidates_token_count,
        cache_read_input_tokens=metadata.cached_content_token_count,
        reasoning_output_tokens=metadata.thoughts_token_count,
        by_modality={
            **_by_modality("input_tokens", metadata.prompt_tokens_details),
            **_by_modality("output_tokens", metadata.candidates_tokens_details),
            **_by_modality("cache_read.input_tokens", metadata.cache_tokens_details),
        },
    )
    return own + Usage(input_tokens=metadata.tool_use_prompt_token_count, output_tokens=metadata.thoughts_token_count)


def _by_modality(kind: str, counts: Sequence[types.ModalityTokenCount] | None) -> dict[str, int]:
    """Return the tokens per modality, for the modalities that the conventions define."""
    names = {types.MediaModality.TEXT: "text", types.MediaModality.IMAGE: "image", types.MediaModality.AUDIO: "audio"}
    totals: Counter[str] = Counter()
    for count in counts or ():
        if count.modality in names:
            totals[f"{names[count.modality]}.{kind}"] += count.token_count or 0
    return dict(+totals)


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
    tool: types.ExecutableCode | types.CodeExecutionResult | types.ToolCall | types.ToolResponse,
) -> str:
    if isinstance(tool, types.ToolCall | types.ToolResponse):
        return tool.tool_type.value.lower() if tool.tool_type is not None else "server_tool"
    return "code_execution"


def _plain(value: Any) -> dict[str, Any]:
    """Return a value of the SDK as the JSON that the API sent."""
    plain: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain
