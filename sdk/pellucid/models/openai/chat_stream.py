"""Assembly of a streamed chat completion into the response that a request without streaming returns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pellucid.models.base import ModelDelta
from pellucid.models.http import cut_stream
from pellucid.models.openai.content import ReportedError, json_text, members, text
from pellucid.types import JSONObject, JSONValue

_TEXTS = ("content", "refusal", "reasoning_content", "reasoning")
"""Members of a message that are streamed in pieces."""


def text_of(content: JSONValue) -> str:
    """Return the text of a message's content: a string, or parts, of which reasoning is left out."""
    if isinstance(content, list):
        return "".join(text(part.get("text")) for part in map(members, content) if part.get("type") == "text")
    return text(content)


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Return the reasoning in a message or in a piece of one."""
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        return text(reasoning)
    content = message.get("content")
    parts = [members(part) for part in content] if isinstance(content, list) else []
    return "".join(text_of(part.get("thinking")) for part in parts if part.get("type") == "thinking")


class ChatPieces:
    """A chat completion that is assembled from the events of a stream.

    Attributes:
        is_over: Whether the stream has ended.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._answer: JSONObject = {}
        self._message: JSONObject = {}
        self._calls: list[JSONObject] = []
        self._indexes: dict[int, JSONObject] = {}
        self._finish_reason: str | None = None

    def add(self, data: str) -> Iterator[ModelDelta]:
        """Add an event, and yield its new content.

        Raises:
            ReportedError: the server reports an error.
            ValueError: it is not an event of a chat completion.
        """
        if data.startswith("[DONE]"):
            self.is_over = True
            return
        chunk = json.loads(data)
        if chunk.get("error"):
            raise ReportedError(chunk["error"])
        for name in ("id", "model", "service_tier", "system_fingerprint", "usage"):
            if chunk.get(name):
                self._answer[name] = chunk[name]
        for choice in chunk.get("choices") or ():
            if choice.get("index"):  # only the first choice is used
                continue
            yield from self._add_delta(choice.get("delta") or choice.get("message") or {})
            if choice.get("error"):
                raise ReportedError(choice["error"])
            self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def whole(self) -> JSONObject:
        """Return the complete response.

        Raises:
            EOFError: the stream ended before it was complete.
        """
        if not self.is_over and self._finish_reason is None:
            raise cut_stream()
        if self._calls:
            self._message["tool_calls"] = self._calls
        choice = {"message": self._message, "finish_reason": self._finish_reason}
        return {**self._answer, "choices": [choice] if self._message or self._finish_reason else []}

    def _add_delta(self, delta: Mapping[str, Any]) -> Iterator[ModelDelta]:
        if reasoning := reasoning_of(delta):
            yield ModelDelta("reasoning", reasoning)
        for name in ("content", "refusal"):
            if content := text_of(delta.get(name)):
                yield ModelDelta("text", content)
        for name in _TEXTS:
            if (piece := delta.get(name)) is not None:
                previous = self._message.get(name)
                self._message[name] = piece if previous is None else _joined(previous, piece)
        for name in ("images", "reasoning_details"):
            if pieces := delta.get(name):
                self._message[name] = joined_details([*self._message.get(name, ()), *pieces])
        for piece in delta.get("tool_calls") or ():
            yield from self._call(piece)

    def _call(self, piece: Mapping[str, Any]) -> Iterator[ModelDelta]:
        function = members(piece.get("function"))
        call = self._call_of(piece, function)
        if piece.get("id") and not call["id"]:
            call["id"] = piece["id"]
        if (name := text(function.get("name"))) and not call["function"]["name"]:
            call["function"]["name"] = name
            yield ModelDelta("tool_call", name)
        if arguments := function.get("arguments"):
            call["function"]["arguments"] += arguments if isinstance(arguments, str) else json_text(arguments)

    def _call_of(self, piece: Mapping[str, Any], function: Mapping[str, Any]) -> JSONObject:
        """Return the call that a piece belongs to. Servers may omit index or id, or give all calls the same index."""
        index = piece.get("index")
        last = self._calls[-1] if self._calls else None
        call = last if index is None else self._indexes.get(index)
        if call is not None and function.get("name") and call["function"]["name"]:
            other = piece.get("id") and piece["id"] != call["id"]
            call = None if other or (index is None and not piece.get("id")) else call
        if call is None:
            call = {"id": None, "function": {"name": None, "arguments": ""}}
            self._calls.append(call)
        if index is not None:
            self._indexes[index] = call
        return call


def _joined(previous: JSONValue, piece: JSONValue) -> JSONValue:
    if isinstance(previous, str) and isinstance(piece, str):
        return previous + piece
    return [*_as_parts(previous), *_as_parts(piece)]


def _as_parts(content: JSONValue) -> Sequence[JSONValue]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def joined_details(details: Sequence[JSONObject]) -> list[JSONObject]:
    """Join consecutive pieces with the same index and type."""
    joined: list[JSONObject] = []
    for piece in details:
        last = joined[-1] if joined else {}
        if piece.get("index") is None or (last.get("index"), last.get("type")) != (piece["index"], piece.get("type")):
            joined.append(piece)
            continue
        texts = {name: (last.get(name) or "") + piece[name] for name in ("text", "summary", "data") if piece.get(name)}
        joined[-1] = {**last, **{name: value for name, value in piece.items() if value is not None}, **texts}
    return joined
