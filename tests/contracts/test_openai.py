"""The contract of models, on `OpenAIModel` with each of its two protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pellucid import ReasoningPart, TextPart, ToolCall
from pellucid.models import OpenAIModel
from support import openai_wire as wire
from support.vendor_contract import VendorContract, json_text
from support.wire_turns import chat_turns, responses_turns

if TYPE_CHECKING:
    from collections.abc import Collection

    from pellucid import Model, ModelResponse, Usage
    from pellucid.errors import ErrorKind
    from pellucid.messages import Part

STOPS = {"stop": "stop", "length": "length", "content_filter": "content_filter", "tool_call": "tool_calls"}
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class OpenAIContract(VendorContract):
    """Checks that both protocols of OpenAI share."""

    def fault(self, kind: ErrorKind, status: int) -> dict[str, Any]:
        """Return an error."""
        return {"error": {"message": "no", "type": kind, "param": None, "code": None}}


class TestChatCompletions(OpenAIContract):
    """Chat Completions, as compatible servers speak it."""

    turns = staticmethod(chat_turns)
    ending: ClassVar[int] = 3  # the finish reason, the usage, [DONE]
    lacks: ClassVar[Collection[str]] = ("document_uri", "top_k", "video")

    def model_at(self, url: str) -> Model:
        """Return a model of a compatible server."""
        return OpenAIModel("qwen3", base_url=f"{url}/v1", api_key="sk-test", provider_name="vllm")

    def whole(self, response: ModelResponse) -> dict[str, Any]:
        """Return a completion."""
        parts = response.message.parts
        calls = [
            wire.call(part.name, json_text(part.arguments), part.id or "")
            for part in parts
            if isinstance(part, ToolCall)
        ]
        thought = "".join(part.content for part in parts if isinstance(part, ReasoningPart))
        message = {
            "content": response.message.text or None,
            **({"reasoning_content": thought} if thought else {}),
            **({"tool_calls": calls} if calls else {}),
        }
        completion = wire.completion(
            message, STOPS[response.finish_reason], _usage(response.usage, "prompt", "completion")
        )
        return {**completion, "id": response.id, "model": response.model}

    def events(self, response: ModelResponse) -> list[bytes]:
        """Return a completion in pieces of three characters."""
        named = {"id": response.id, "model": response.model}
        chunks = wire.chunks(self.whole(response))
        return [wire.sse({**chunk, **named} if isinstance(chunk, dict) else chunk) for chunk in chunks]


class TestResponses(OpenAIContract):
    """The Responses API."""

    turns = staticmethod(responses_turns)
    ending: ClassVar[int] = 2  # of the item, of the response
    lacks: ClassVar[Collection[str]] = (
        "audio",
        "frequency_penalty",
        "presence_penalty",
        "seed",
        "stop_sequences",
        "top_k",
        "video",
    )

    def model_at(self, url: str) -> Model:
        """Return a model with a key that opens nothing."""
        return OpenAIModel("gpt-5", api="responses", base_url=f"{url}/v1", api_key="sk-test")

    def whole(self, response: ModelResponse) -> dict[str, Any]:
        """Return a response."""
        reason = INCOMPLETE.get(response.finish_reason)
        return wire.response(
            *map(_item, response.message.parts),
            status="incomplete" if reason else "completed",
            incomplete_details={"reason": reason} if reason else None,
            usage=_usage(response.usage, "input", "output"),
            id=response.id,
            model=response.model,
        )

    def events(self, response: ModelResponse) -> list[bytes]:
        """Return a response in pieces of three characters."""
        return [wire.sse(event) for event in wire.events(self.whole(response))]


def _item(part: Part) -> dict[str, Any]:
    match part:
        case TextPart():
            return wire.said(part.content)
        case ReasoningPart():
            return wire.thought(part.content)
        case ToolCall():
            return wire.function_call(part.name, json_text(part.arguments), part.id or "")
    raise AssertionError(part)


def _usage(usage: Usage, given: str, made: str) -> dict[str, Any] | None:
    """Return what was used; OpenAI's two protocols count alike, under different names."""
    read = {
        "cached_tokens": usage.cache_read_input_tokens,
        "cache_write_tokens": usage.cache_write_input_tokens,
    }
    written = {"reasoning_tokens": usage.reasoning_output_tokens}
    counted = {
        f"{given}_tokens": usage.input_tokens,
        f"{made}_tokens": usage.output_tokens,
        f"{given}_tokens_details": _known(read),
        f"{made}_tokens_details": _known(written),
    }
    return _known(counted) or None


def _known(counts: dict[str, Any]) -> dict[str, Any]:
    return {name: count for name, count in counts.items() if count not in (None, {})}
