"""Conversion of responses of Anthropic's Messages API, complete or streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pellucid.messages import (
    FinishReason,
    Message,
    Part,
    ReasoningPart,
    ServerToolCall,
    ServerToolResult,
    TextPart,
    ToolCall,
    Usage,
    Vendor,
)
from pellucid.models.anthropic.requests import CALLS, CONTAINER, VENDOR
from pellucid.models.base import ModelDelta, ModelResponse
from pellucid.models.http import json_object
from pellucid.types import JSONObject

MAX_PAUSES: Final = 5
"""Times that a turn is continued that the vendor paused because of its own tools."""

_FINISH: Final[Mapping[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",
    "tool_use": "tool_call",
    "refusal": "content_filter",
}


class ReportedError(Exception):
    """An error that the vendor reports within a stream.

    Attributes:
        kind: The vendor's type of the error.
    """

    def __init__(self, event: JSONObject) -> None:
        inner = event.get("error")
        details: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
        super().__init__(str(details.get("message") or "the vendor reports an error without a message"))
        self.kind = str(details.get("type"))


class Turn:
    """One answer, of one message or several: a paused turn continues when it is sent back.

    Attributes:
        body: The body of the next request.
    """

    def __init__(self, body: JSONObject) -> None:
        self.body = body
        self._messages: Sequence[JSONObject] = body["messages"]
        self._content: list[JSONObject] = []
        self._usage = Usage()
        self._pauses = 0

    def add(self, message: object) -> ModelResponse | None:
        """Add a message of the vendor; return the answer once it is complete.

        Raises:
            ValueError: it is not a valid message.
        """
        with _validated():
            last = _checked(message)
            self._content += [block for block in last["content"] if block["type"] != "text" or block["text"]]
            self._usage += _usage(last.get("usage") or {})
            if last["stop_reason"] == "pause_turn" and self._pauses < MAX_PAUSES:
                self._continue(last)
                return None
            return self._response(last)

    def _continue(self, last: JSONObject) -> None:
        self._pauses += 1
        self.body = {**self.body, "messages": [*self._messages, {"role": "assistant", "content": [*self._content]}]}
        if (container := _container(last)) is not None:
            self.body.setdefault(CONTAINER, container)

    def _response(self, last: JSONObject) -> ModelResponse:
        reason, container = last["stop_reason"], _container(last)
        parts = [_part(block, container) for block in self._content]
        if reason == "refusal" and not any(isinstance(part, TextPart) for part in parts):
            parts += _explanation(last.get("stop_details") or {})
        if reason == "tool_use" and not any(isinstance(part, ToolCall) for part in parts):
            raise ValueError("the response ends with a tool call but has none")
        return ModelResponse(
            message=Message("assistant", parts),
            usage=self._usage,
            # An unknown reason does not count as a complete answer.
            finish_reason=_FINISH.get(reason, "error"),
            model=last.get("model"),
            id=last.get("id"),
        )


class Pieces:
    """Assembles the events of a stream into the message that a request without streaming returns."""

    def __init__(self) -> None:
        self._message: JSONObject = {}
        self._blocks: dict[int, JSONObject] = {}
        self._inputs: dict[int, str] = {}
        self._is_over = False

    def is_over(self) -> bool:
        """Return whether the message is complete."""
        return self._is_over

    def add(self, event: object) -> list[ModelDelta]:
        """Add an event, and return its new content.

        Raises:
            ReportedError: the event reports an error.
            ValueError: the event is invalid after the earlier ones.
        """
        event = json_object(event, "an event of the stream")
        with _validated():
            match event.get("type"):
                case "error":
                    raise ReportedError(event)
                case "message_start":
                    # Output tokens are counted at the end; this count is only the one so far.
                    usage = {**(event["message"].get("usage") or {}), "output_tokens": None}
                    self._message = {**event["message"], "usage": usage}
                case "content_block_start":
                    return self._start_block(event["index"], event["content_block"])
                case "content_block_delta":
                    return self._extend_block(event["index"], event["delta"])
                case "message_delta":
                    usage = {**self._message["usage"], **_present(event.get("usage") or {})}
                    self._message = {**self._message, **_present(event["delta"]), "usage": usage}
                case "message_stop":
                    self._is_over = True
        return []

    def whole(self) -> JSONObject:
        """Return the complete message.

        Raises:
            ConnectionError: the stream ended before the message was complete.
        """
        if not self._is_over:
            raise ConnectionError("the stream ended before the response was complete")
        for index, text in self._inputs.items():
            if text:
                self._blocks[index]["input"] = _parsed(text)
        return {**self._message, "content": [block for _, block in sorted(self._blocks.items())]}

    def _start_block(self, index: int, block: JSONObject) -> list[ModelDelta]:
        self._blocks[index] = dict(block)
        match block["type"]:
            case "tool_use":
                return [ModelDelta("tool_call", block["name"])]
            case "text" if block["text"]:
                return [ModelDelta("text", block["text"])]
        return []

    def _extend_block(self, index: int, delta: JSONObject) -> list[ModelDelta]:
        block = self._blocks[index]
        match delta["type"]:
            case "text_delta":
                block["text"] += delta["text"]
                return [ModelDelta("text", delta["text"])] if delta["text"] else []
            case "thinking_delta":
                block["thinking"] += delta["thinking"]
                return [ModelDelta("reasoning", delta["thinking"])] if delta["thinking"] else []
            case "input_json_delta":
                self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]
            case _:  # signatures, and complete members of blocks that are newer than this adapter
                block.update({name: value for name, value in delta.items() if name != "type"})
        return []


@contextmanager
def _validated() -> Iterator[None]:
    """Raise ValueError for a response without the members that the API requires."""
    try:
        yield
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"the response does not match the API: {type(error).__name__}: {error}") from error


def _checked(answer: object) -> JSONObject:
    message = json_object(answer, "the response")
    if not isinstance(message.get("content"), list) or not message.get("stop_reason"):
        raise ValueError("the response has no content or no stop reason")
    return message


def _part(block: JSONObject, container: str | None) -> Part:
    kind = block["type"]
    match kind:
        case "text":
            return TextPart(block["text"], vendor=_rest(block, "text"))
        case "thinking":
            return ReasoningPart(block["thinking"], vendor=_rest(block, "thinking"))
        case "redacted_thinking":
            return ReasoningPart("", vendor=_rest(block))
        case "tool_use":
            value = block["input"]
            arguments = value if isinstance(value, dict | str) else json.dumps(value, ensure_ascii=False)
            members = {**block, CONTAINER: container}
            return ToolCall(block["name"], arguments, block["id"], vendor=_rest(members, "id", "name", "input"))
    if kind in CALLS:
        return ServerToolCall(name=block["name"], server_tool_call=block, id=block["id"])
    return ServerToolResult(server_tool_call_response=block, id=block.get("tool_use_id"))


def _rest(block: JSONObject, *read: str) -> Vendor | None:
    """Return the members that a part has no field for, to send back with it: signatures, citations, the caller."""
    rest = {name: value for name, value in block.items() if name not in {"type", *read} and value not in (None, "", [])}
    return {VENDOR: rest} if rest else None


def _container(message: JSONObject) -> str | None:
    """Return the container of the vendor's tools, which they need to continue."""
    container: str | None = (message.get("container") or {}).get("id")
    return container


def _explanation(details: JSONObject) -> list[Part]:
    return [TextPart(details["explanation"])] if details.get("explanation") else []


def _present(members: JSONObject) -> JSONObject:
    return {name: value for name, value in members.items() if value is not None}


def _parsed(text: str) -> Any:
    """Return the input of a tool call as an object, or as text if it is not a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def _usage(usage: JSONObject) -> Usage:
    """Convert the usage. The API's input tokens do not include those that were read from or written to the cache."""
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
