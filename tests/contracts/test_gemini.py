"""The contract of models, on `GeminiModel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pellucid import ReasoningPart, TextPart, ToolCall
from pellucid.models import GeminiModel
from support import gemini_wire as wire
from support.vendor_contract import VendorContract, pieces
from support.wire_turns import gemini_turns

if TYPE_CHECKING:
    from collections.abc import Collection

    from pellucid import Model, ModelResponse, Usage
    from pellucid.errors import ErrorKind
    from pellucid.messages import Part
    from support.vendor_server import Received

STOPS = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY", "tool_call": "STOP"}
FAULTS: dict[ErrorKind, str] = {
    "auth": "UNAUTHENTICATED",
    "invalid_request": "INVALID_ARGUMENT",
    "rate_limited": "RESOURCE_EXHAUSTED",
    "timeout": "DEADLINE_EXCEEDED",
    "unavailable": "UNAVAILABLE",
}


class TestGeminiModel(VendorContract):
    """Gemini's `generateContent`."""

    turns = staticmethod(gemini_turns)
    ending: ClassVar[int] = 1  # the finish reason and the usage
    lacks: ClassVar[Collection[str]] = ("cache_write_input_tokens", "raw_arguments")

    def model_at(self, url: str) -> Model:
        """Return a model with a key that opens nothing."""
        return GeminiModel(wire.NAME, api_key=wire.KEY, base_url=url)

    def is_streamed(self, received: Received) -> bool:
        """Return whether a stream is asked for: the path says so."""
        return ":streamGenerateContent" in received.path

    def whole(self, response: ModelResponse) -> dict[str, Any]:
        """Return an answer in one piece."""
        parts = map(_part, response.message.parts)
        answer = wire.piece(*parts, finish=STOPS[response.finish_reason], usage=_usage(response.usage))
        return _named(answer, response)

    def events(self, response: ModelResponse) -> list[bytes]:
        """Return an answer in pieces of three characters."""
        last = self.whole(response)
        last["candidates"][0].pop("content", None)
        sent = [wire.piece(part) for each in response.message.parts for part in _parts(each)]
        return [wire.event(_named(piece, response)) for piece in [*sent, last]]

    def fault(self, kind: ErrorKind, status: int) -> dict[str, Any]:
        """Return an error."""
        return wire.fault(status, FAULTS[kind], "no")


def _named(piece: dict[str, Any], response: ModelResponse) -> dict[str, Any]:
    return {**piece, "responseId": response.id, "modelVersion": response.model}


def _part(part: Part) -> dict[str, Any]:
    match part:
        case TextPart():
            return wire.text(part.content)
        case ReasoningPart():
            return wire.thought(part.content)
        case ToolCall(arguments=dict(given)):
            return wire.call(part.name, given, id=part.id)
    raise AssertionError(part)


def _parts(part: Part) -> list[dict[str, Any]]:
    if isinstance(part, TextPart | ReasoningPart):
        return [_part(type(part)(piece)) for piece in pieces(part.content)]
    return [_part(part)]


def _usage(usage: Usage) -> dict[str, Any] | None:
    """Return what was used, in which thoughts are counted apart from the answer."""
    thought = usage.reasoning_output_tokens
    counted = {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": None if usage.output_tokens is None else usage.output_tokens - (thought or 0),
        "cachedContentTokenCount": usage.cache_read_input_tokens,
        "thoughtsTokenCount": thought,
    }
    return {name: count for name, count in counted.items() if count is not None} or None
