"""Conversations by chance as runs of agents with small windows, each request held to what three vendors accept."""

from __future__ import annotations

import json
import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pellucid import Agent, Context, Message, ModelError, ModelResponse, Skill, Tool, ToolError, Usage
from pellucid.compaction import DropReasoning, DropResults, DropTurns, Summarize
from pellucid.testing import FunctionModel
from support.conversations import IMAGE, conversation
from support.request_rules import broken_rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pellucid import ModelRequest
    from pellucid.compaction import Strategy

WINDOWS: Final = (2_000, 8_000, 30_000)
LIVE: Final = 2
"""Turns at the end of a conversation that are played; what is before them is history."""

_SKILL: Final = Skill("refunds", "Refunds.", "Look up the order first. " * 40)
_TOO_LONG: Final = "context_length_exceeded"


@dataclass
class Fitted:
    """Outcome of played conversations.

    Attributes:
        requests: Number of requests of their agents.
        cuts: Those that were cut.
        repeated: Those that a vendor refused as too long, and got again.
        problems: What vendors would refuse, with the seed of the conversation and the number of the request.
    """

    requests: int = 0
    cuts: int = 0
    repeated: int = 0
    problems: list[str] = field(default_factory=list)


async def fit(seed: int, found: Fitted) -> None:
    """Play the conversation of a seed: a history, and its last turns one run after the other."""
    chance = random.Random(f"played {seed}")
    script: deque[Message] = deque()
    is_counted = chance.random() < 0.3

    def answer(request: ModelRequest) -> ModelResponse:
        if chance.random() < 0.05:
            found.repeated += 1
            raise ModelError("a", "too long", error_type=_TOO_LONG, error_kind="invalid_request", status=400)
        message = script.popleft() if script else Message("assistant", "ok")
        tokens = len(json.dumps([each.to_dict() for each in request.messages])) // 3 if is_counted else None
        usage = Usage(input_tokens=tokens, output_tokens=50 if is_counted else None)
        return ModelResponse(message=message, usage=usage, finish_reason="tool_call" if message.tool_calls else "stop")

    model = FunctionModel(answer)
    agent = Agent("fitted", model=model, tools=list(_tools(chance)), skills=[_SKILL], context=_context(chance))
    agent.on("context.compacted", lambda _: _count(found))
    history, turns = _split(conversation(seed))
    for asked, answers in turns:
        script.extend(answers)
        try:
            history = list((await agent.run(asked, history=history)).messages)
        except ModelError as error:
            if error.error_type != _TOO_LONG:
                raise
            break
        script.clear()
    found.requests += len(model.requests)
    for number, request in enumerate(model.requests):
        found.problems += [f"seed {seed}, request {number}: {problem}" for problem in broken_rules(request)]


def _count(found: Fitted) -> None:
    found.cuts += 1


def _split(messages: Sequence[Message]) -> tuple[list[Message], list[tuple[list[Message], list[Message]]]]:
    """Return the history before the last turns, and of each of these what is asked and the answers to it."""
    begins = [
        index
        for index, message in enumerate(messages)
        if message.role == "user" and (not index or messages[index - 1].role == "assistant")
    ] or [0]
    live = begins[-LIVE:]
    turns = []
    for begin, end in zip(live, [*live[1:], len(messages)], strict=True):
        turn = messages[begin:end]
        asked = [message for message in turn if message.role == "user"]
        turns.append((asked, [message for message in turn if message.role == "assistant"]))
    return list(messages[: live[0]]), turns


def _tools(chance: random.Random) -> Iterator[Tool]:
    async def look(arguments: Any, ctx: Any) -> Any:
        text = "x" * chance.choice((1, 100, 1_000, 20_000))
        return chance.choice((text, {"rows": [text]}, [IMAGE]))

    async def fail(arguments: Any, ctx: Any) -> Any:
        raise ToolError("no " * chance.choice((1, 1_000)))

    for name, run in (("look", look), ("find", look), ("fail", fail)):
        yield Tool(name=name, description="A tool.", run=run)


def _context(chance: random.Random) -> Context:
    small = FunctionModel(lambda _: "what was said")
    strategies: list[list[Strategy]] = [
        [DropResults(), DropReasoning(), DropTurns()],
        [DropResults(), DropReasoning(), Summarize(small)],
        [Summarize(small)],
        [DropTurns()],
    ]
    keep = chance.choice((None, None, lambda message: any(part.id.endswith("1_0") for part in message.tool_results)))
    return Context(window=chance.choice(WINDOWS), strategies=chance.choice(strategies), keep=keep)
