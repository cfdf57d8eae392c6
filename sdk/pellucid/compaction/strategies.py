"""Strategies: what requests leave out of old messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pellucid.messages import Message, Part, ReasoningPart, ToolResult

READ_RESULT: Final = "read_result"
"""Name of the tool that reads what is left out of results."""

LEAST: Final = 512
"""Bytes up to which the result of a tool stays, because a stub is not much shorter."""


class Strategy(Protocol):
    """Way to leave something out of a request: an object with one method.

    It gets old messages, the oldest first, until the request fits: a message of the user, or an answer of the model
    with the results of its calls. A strategy whose attribute `of_turns` is true gets whole turns instead, and of the
    turn that is going on each answer with its results.
    """

    def narrow(self, messages: Sequence[Message], /) -> Sequence[Message]:
        """Return what the request has of these messages: fewer, or shorter ones. Each call keeps its result.

        It must return the same for the same messages.
        """
        ...


@dataclass(frozen=True, slots=True)
class DropResults:
    """Replaces the results of tools by a stub that names the tool and the size of the result."""

    def narrow(self, messages: Sequence[Message], /) -> Sequence[Message]:
        """Return the messages with stubs."""
        return [_with_parts(message, [_stub(part) for part in message.parts]) for message in messages]


@dataclass(frozen=True, slots=True)
class DropReasoning:
    """Leaves out the reasoning of models."""

    def narrow(self, messages: Sequence[Message], /) -> Sequence[Message]:
        """Return the messages without reasoning."""
        without = [
            _with_parts(message, [part for part in message.parts if not isinstance(part, ReasoningPart)])
            for message in messages
        ]
        return [message for message in without if message.parts]


@dataclass(frozen=True, slots=True)
class DropTurns:
    """Leaves out whole turns: a message of the user, and all answers and results until the next one.

    Of the turn that is going on, the message of the user stays, and old answers with their results are left out.
    """

    of_turns = True

    def narrow(self, messages: Sequence[Message], /) -> Sequence[Message]:
        """Return nothing."""
        return ()


def _stub(part: Part) -> Part:
    if not isinstance(part, ToolResult):
        return part
    size = len(text_of(part))
    if size <= LEAST:
        return part
    kind, name = "error" if part.is_error else "result", part.name or "this call"
    text = f"[left out: the {kind} of {name}, {size:,} bytes; {READ_RESULT} has it, with id {json.dumps(part.id)}]"
    return replace(part, response=text, structured=None, whole=None)


def text_of(result: ToolResult) -> bytes:
    """Return a result as the text that a model reads, whole."""
    response = result.whole or result.to_dict()["response"]
    text = response if isinstance(response, str) else json.dumps(response, ensure_ascii=False, default=str)
    return text.encode("utf-8", "replace")


def _with_parts(message: Message, parts: Sequence[Part]) -> Message:
    """Return the message with other parts; the same one if they are the same."""
    if len(parts) == len(message.parts) and all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return message
    return Message(message.role, parts, message.finish_reason)
