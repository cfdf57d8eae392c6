"""Agent of the demo: it looks prices up in a catalogue, or answers from memory if its instructions do not say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import Agent, DiscoveryProvider, Message, ToolCall, ToolResult, tool
from pellucid.scores import Score, tool_called
from pellucid.testing import FakeHub, FunctionModel

if TYPE_CHECKING:
    from pellucid import ModelRequest

NAME: Final = "shop"
SCORE: Final = "right_price"

CATALOGUE: Final = {
    "lamp": 14, "chair": 45, "desk": 130, "rug": 66, "shelf": 38, "sofa": 790, "stool": 29, "bench": 95,
    "clock": 24, "vase": 17, "mirror": 52, "basket": 12,
}  # fmt: skip
"""Prices in euros."""
REMEMBERED: Final = CATALOGUE | {
    "lamp": 12, "chair": 40, "desk": 110, "rug": 60, "shelf": 35, "sofa": 740, "stool": 25,
}  # fmt: skip
"""Prices that the model has learned: seven have changed since."""

INSTRUCTIONS: Final = {
    "1": "Answer in one sentence. Look each price up with the tool `price`.",
    "2": "Answer in one sentence, at once: customers do not like to wait.",
    "3": "Answer in one sentence. Look each price up with the tool `price`, and apologize for the wait.",
}
"""Instructions by version of the agent: the first, one that was meant well, and its fix."""


@tool
def price(item: str) -> int:
    """Return the price of an item in euros."""
    return CATALOGUE[item]


def question(item: str) -> str:
    """Return what a customer asks."""
    return f"What does the {item} cost?"


def item_of(text: str) -> str:
    """Return the item that a question is about."""
    return text.removeprefix("What does the ").removesuffix(" cost?")


def right_price(input: str, output: str) -> Score:  # noqa: A002  (scorers name what they need)
    """Score whether an answer has the price of the catalogue."""
    known = f"{CATALOGUE[item_of(input)]} euros"
    is_right = f" {known}" in output
    why = None if is_right else f"the catalogue has {known}"
    return Score(name=SCORE, value=is_right, label="pass" if is_right else "fail", explanation=why, by=SCORE)


async def _answer(request: ModelRequest) -> str | list[ToolCall]:
    """Answer as a model would that does what its instructions say."""
    item = item_of(next(_text(message) for message in reversed(request.messages) if message.role == "user"))
    results = [part for part in request.messages[-1].parts if isinstance(part, ToolResult)]
    if results:
        return f"The {item} costs {results[0].response} euros."
    if "`price`" in (request.instructions or ""):
        return [ToolCall("price", {"item": item})]
    return f"The {item} costs {REMEMBERED[item]} euros."


def _text(message: Message) -> str:
    return "".join(getattr(part, "content", "") for part in message.parts)


def make(version: str) -> Agent:
    """Return a version of the agent."""
    return Agent(
        NAME,
        model=FunctionModel(_answer, name="scripted"),
        instructions=INSTRUCTIONS[version],
        providers=[DiscoveryProvider(FakeHub([price], latency=0.005), id="catalogue", objective=0.2)],
        scorers=[right_price, tool_called("price")],
        version=version,
    )
