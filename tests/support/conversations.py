"""Conversations by chance that vendors accept: turns, parallel calls, skills, reasoning, images, large results."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from pellucid import BlobPart, Message, ReasoningPart, TextPart, ToolCall, ToolResult
from pellucid.tools.names import LOAD_SKILL, TOOL_SEARCH

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = BlobPart(content="aGk=", modality="image", mime_type="image/png")
NAMES = ("look", "find", "fail", LOAD_SKILL, TOOL_SEARCH)


def conversation(seed: int) -> list[Message]:
    """Return the conversation of a seed; it ends with what the model is to answer."""
    chance = random.Random(seed)
    messages: list[Message] = []
    if chance.random() < 0.2:
        messages.append(Message("system", "Be brief."))
    for turn in range(chance.randint(1, 12)):
        messages += _turn(chance, turn)
    if chance.random() < 0.5:
        messages.append(Message("user", _text(chance)))
    else:
        while messages[-1].role == "assistant":
            messages.pop()
    return messages


def _turn(chance: random.Random, turn: int) -> Iterator[Message]:
    yield Message("user", [TextPart(f"{turn}: {_text(chance)}") for _ in range(chance.randint(1, 2))])
    if chance.random() < 0.1:
        yield Message("user", "And another thing.")
    for step in range(chance.choice((0, 1, 2, 3, 8))):
        calls = [
            ToolCall(chance.choice(NAMES), {"number": chance.randint(0, 3)}, f"call_{turn}_{step}_{number}")
            for number in range(chance.choice((1, 1, 1, 2, 5)))
        ]
        yield Message("assistant", [*_before(chance), *calls])
        results = [_result(chance, call) for call in calls]
        if len(results) > 1 and chance.random() < 0.2:
            yield from (Message("tool", [result]) for result in results)
        else:
            yield Message("tool", results)
    yield Message("assistant", [*_before(chance), TextPart(_text(chance))])


def _before(chance: random.Random) -> list[ReasoningPart | TextPart]:
    thought = ReasoningPart(_text(chance), vendor={"anthropic": {"signature": "s"}})
    return [part for part in (thought, TextPart(_text(chance))) if chance.random() < 0.4]


def _result(chance: random.Random, call: ToolCall) -> ToolResult:
    response: object = "x" * chance.choice((1, 100, 1_000, 20_000))
    if chance.random() < 0.3:
        response = {"rows": [response]}
    elif chance.random() < 0.1:
        response = (TextPart(str(response)), *[IMAGE] * chance.randint(0, 1))
    return ToolResult(call.id or "", response, is_error=call.name == "fail", name=call.name)


def _text(chance: random.Random) -> str:
    return "word " * chance.choice((1, 10, 100, 1_000))
