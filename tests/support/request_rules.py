"""Conversations that vendors refuse: the rules of three of them, applied to the requests that their adapters send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pellucid.models.anthropic.requests import body_of
from pellucid.models.gemini.requests import Dialect
from pellucid.models.openai.chat import ChatCompletions
from pellucid.models.openai.responses import Responses
from pellucid.testing.request_rules import broken_by_turns
from support.anthropic_rules import broken_rules as broken_for_anthropic
from support.wire_turns import chat_turns, gemini_turns, responses_turns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pellucid import ModelRequest

_OPENAI: Final = {"model": "gpt-6-sol", "provider_name": "openai", "native_output": True, "server_tools": ()}
_RESPONSES: Final = Responses(**_OPENAI)  # type: ignore[arg-type]
_CHAT: Final = ChatCompletions(**_OPENAI, is_openai=True)  # type: ignore[arg-type]
_GEMINI: Final = Dialect(model="gemini-3.5-flash", provider="gcp.gemini", is_signed=True)


@dataclass(frozen=True)
class _Asked:
    json: Any
    headers: Mapping[str, str]


def broken_rules(request: ModelRequest) -> list[str]:
    """Return what vendors would refuse in a request."""
    responses = responses_turns(_RESPONSES.body(request, stream=False))
    chat = chat_turns(_CHAT.body(request, stream=False))
    openai = [f"openai: {problem}" for turns in (responses, chat) for problem in broken_by_turns(turns)]
    return [*openai, *_anthropic(request), *_gemini(request)]


def _anthropic(request: ModelRequest) -> Iterator[str]:
    body = body_of(request, "claude-sonnet-5-5", max_tokens=100, cache=None, cache_moves=False, server_tools=())
    asked: Any = _Asked(body, {"anthropic-version": "2023-06-01"})
    yield from (f"anthropic: {problem}" for problem in broken_for_anthropic(asked))
    if body["messages"][0]["role"] != "user":
        yield "anthropic: the first message is not of the user"


def _gemini(request: ModelRequest) -> Iterator[str]:
    """Yield what the Gemini API refuses: also a call that follows neither a user turn nor a function response."""
    contents = [
        content.model_dump(mode="json", by_alias=True, exclude_none=True)
        for content in _GEMINI.contents(request.messages)
    ]
    turns = gemini_turns({"contents": contents})
    yield from (f"gemini: {problem}" for problem in broken_by_turns(turns))
    for number, turn in enumerate(turns):
        if turn.calls and (not number or turns[number - 1].role != "user"):
            yield f"gemini: contents.{number}: a function call must follow a user turn or a function response"
