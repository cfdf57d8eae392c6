"""The contract of models, on `AnthropicModel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pellucid import ReasoningPart, TextPart, ToolCall
from pellucid.models import AnthropicModel
from support import anthropic_wire as wire
from support.vendor_contract import VendorContract
from support.wire_turns import anthropic_turns

if TYPE_CHECKING:
    from collections.abc import Collection

    from pellucid import Model, ModelResponse, Usage
    from pellucid.errors import ErrorKind
    from pellucid.messages import Part

STOPS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal", "tool_call": "tool_use"}
FAULTS: dict[ErrorKind, str] = {
    "auth": "authentication_error",
    "invalid_request": "invalid_request_error",
    "rate_limited": "rate_limit_error",
    "timeout": "timeout_error",
    "unavailable": "overloaded_error",
}


class TestAnthropicModel(VendorContract):
    """Anthropic's Messages API."""

    turns = staticmethod(anthropic_turns)
    ending: ClassVar[int] = 3  # of the block, of the message's parts, of the message
    lacks: ClassVar[Collection[str]] = (
        "audio",
        "frequency_penalty",
        "presence_penalty",
        "raw_arguments",
        "seed",
        "video",
    )

    def model_at(self, url: str) -> Model:
        """Return a model with a key that opens nothing."""
        return AnthropicModel("claude-sonnet-5-5", api_key="sk-ant-test", base_url=url)

    def whole(self, response: ModelResponse) -> dict[str, Any]:
        """Return a message."""
        return wire.message(
            *map(_block, response.message.parts),
            stop=STOPS[response.finish_reason],
            id=response.id,
            model=response.model,
            usage=_usage(response.usage),
        )

    def events(self, response: ModelResponse) -> list[bytes]:
        """Return a message in pieces of three characters."""
        return wire.events(self.whole(response))

    def fault(self, kind: ErrorKind, status: int) -> dict[str, Any]:
        """Return an error."""
        return {"type": "error", "error": {"type": FAULTS[kind], "message": "no"}, "request_id": "req_1"}


def _block(part: Part) -> dict[str, Any]:
    match part:
        case TextPart():
            return wire.text(part.content)
        case ReasoningPart():
            return wire.thinking(part.content)
        case ToolCall(arguments=dict(given)):
            return wire.tool_use(part.name, given, part.id or "")
    raise AssertionError(part)


def _usage(usage: Usage) -> dict[str, Any]:
    """Return what was used, in which cached tokens are counted apart."""
    read, written = usage.cache_read_input_tokens, usage.cache_write_input_tokens
    thought = usage.reasoning_output_tokens
    given = {
        "input_tokens": None if usage.input_tokens is None else usage.input_tokens - (read or 0) - (written or 0),
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens_details": None if thought is None else {"thinking_tokens": thought},
    }
    return {name: count for name, count in given.items() if count is not None}
