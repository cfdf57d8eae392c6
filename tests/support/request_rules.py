"""What vendors refuse in the conversation of a request: the rules of three of them, on what their adapters send."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pellucid.models.anthropic.requests import body_of
from pellucid.models.gemini.requests import Dialect
from pellucid.models.openai.chat import ChatCompletions
from pellucid.models.openai.responses import Responses
from support.anthropic_rules import broken_rules as broken_for_anthropic

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
    return [*_anthropic(request), *_responses(request), *_chat(request), *_gemini(request)]


def _anthropic(request: ModelRequest) -> Iterator[str]:
    body = body_of(request, "claude-sonnet-5-5", max_tokens=100, cache=None, cache_moves=False, server_tools=())
    asked: Any = _Asked(body, {"anthropic-version": "2023-06-01"})
    yield from (f"anthropic: {problem}" for problem in broken_for_anthropic(asked))
    if body["messages"][0]["role"] != "user":
        yield "anthropic: the first message is not of the user"


def _responses(request: ModelRequest) -> Iterator[str]:
    """Yield what the Responses API refuses: a call without its output, an output without its call."""
    open_calls: list[str] = []
    for item in _RESPONSES.body(request, stream=False)["input"]:
        kind = item.get("type")
        if kind == "function_call":
            open_calls.append(item["call_id"])
        elif kind == "function_call_output":
            if item["call_id"] not in open_calls:
                yield f"openai: no tool call found for output {item['call_id']}"
            else:
                open_calls.remove(item["call_id"])
        elif open_calls:
            yield f"openai: no tool output found for calls {open_calls}"
            open_calls.clear()
    if open_calls:
        yield f"openai: no tool output found for calls {open_calls}"


def _chat(request: ModelRequest) -> Iterator[str]:
    """Yield what Chat Completions refuses: calls that the next messages do not answer one by one."""
    open_calls: Counter[str] = Counter()
    for number, message in enumerate(_CHAT.body(request, stream=False)["messages"]):
        if message["role"] == "tool":
            if not open_calls[message["tool_call_id"]]:
                yield f"chat: messages.{number} answers no preceding call"
            open_calls[message["tool_call_id"]] -= 1
            continue
        if +open_calls:
            yield f"chat: messages.{number}: calls {[*+open_calls]} have no answers"
        open_calls = Counter(call["id"] for call in message.get("tool_calls") or ())
        if not (message.get("content") or message.get("tool_calls")):
            yield f"chat: messages.{number} is empty"
    if +open_calls:
        yield "chat: the last calls have no answers"


def _gemini(request: ModelRequest) -> Iterator[str]:
    """Yield what the Gemini API refuses: calls that the next content does not answer, or that follow no user."""
    contents = _GEMINI.contents(request.messages)
    if not contents or contents[0].role != "user":
        yield "gemini: the first content is not of the user"
    for number, content in enumerate(contents):
        parts = content.parts or []
        calls = sum(part.function_call is not None for part in parts)
        before = contents[number - 1] if number else None
        after = contents[number + 1].parts or [] if number + 1 < len(contents) else []
        answers = sum(part.function_response is not None for part in after)
        if calls and (before is None or before.role != "user"):
            yield f"gemini: contents.{number}: a function call must follow a user turn or a function response"
        if calls != answers:
            yield f"gemini: contents.{number}: {calls} function calls and {answers} function responses"
        if not parts:
            yield f"gemini: contents.{number} has no parts"
