"""The vendors' formats as turns, so that doubles of vendors refuse by the same rules as `ScriptedModel`."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pellucid.testing.request_rules import Turn

if TYPE_CHECKING:
    from collections.abc import Iterable

JSON = dict[str, Any]
OUTPUT = "function_call_output"


def chat_turns(body: JSON) -> list[Turn]:
    """Return the turns of a request for a chat completion."""
    return [
        Turn(
            role=message["role"],
            calls=[call["id"] for call in message.get("tool_calls", ())],
            results=[message["tool_call_id"]] if message["role"] == "tool" else (),
            content=message["role"] != "tool" and bool(message["content"]),
        )
        for message in body["messages"]
    ]


def responses_turns(body: JSON) -> list[Turn]:
    """Return the turns of a request to the Responses API, in which calls and results are items of their own."""
    return [
        Turn(
            role=role,
            calls=[item["call_id"] for item in items if item.get("type") == "function_call"],
            results=[item["call_id"] for item in items if item.get("type") == OUTPUT],
            content=any(item.get("type") not in ("function_call", OUTPUT) for item in items),
        )
        for role, group in groupby(body["input"], key=_role)
        if (items := list(group))
    ]


def _role(item: JSON) -> str:
    if item.get("type") == OUTPUT:
        return "tool"
    role: str = item.get("role", "assistant")
    return "system" if role == "developer" else role


def anthropic_turns(body: JSON) -> list[Turn]:
    """Return the turns of a request to the Messages API, without a turn that the vendor paused and continues."""
    messages = body["messages"]
    if messages and messages[-1]["role"] == "assistant" and messages[-1]["content"][-1]["type"] == "server_tool_use":
        messages = messages[:-1]
    return [
        Turn(
            role=message["role"],
            calls=_ids(message["content"], "tool_use", "id"),
            results=_ids(message["content"], "tool_result", "tool_use_id"),
            content=any(block["type"] not in ("tool_use", "tool_result") for block in message["content"]),
        )
        for message in messages
    ]


def _ids(blocks: Iterable[JSON], kind: str, member: str) -> list[str]:
    return [block[member] for block in blocks if block["type"] == kind]


def gemini_turns(body: JSON) -> list[Turn]:
    """Return the turns of a request to Gemini, where results without an id are those of the calls of their name."""
    numbers: Counter[tuple[str, str]] = Counter()

    def ids(content: JSON, kind: str) -> list[str]:
        found = []
        for called in (part[kind] for part in content["parts"] if kind in part):
            numbers[kind, called["name"]] += 1
            found.append(called.get("id") or f"{called['name']} {numbers[kind, called['name']]}")
        return found

    return [
        Turn(
            role="assistant" if content.get("role") == "model" else "user",
            calls=ids(content, "functionCall"),
            results=ids(content, "functionResponse"),
            content=any(not part.keys() & {"functionCall", "functionResponse"} for part in content["parts"]),
        )
        for content in body["contents"]
    ]
