"""Helpers for tests of experiments: a shop with recorded runs, and candidates for its agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pellucid import Agent, DiscoveryProvider, Message, ModelResponse, ToolCall, Usage, tool
from pellucid.models import ModelRequest
from pellucid.scores import Case
from pellucid.testing import FakeHub, FunctionModel
from pellucid_experiments import case_of_run
from pellucid_exporters import StoreReader
from support.local_store import storing

if TYPE_CHECKING:
    from pathlib import Path

PRICES = {7: "12 euros", 8: "20 euros", 9: "3 euros"}
CALLED: list[int] = []
"""Orders for which the real tool was called."""


@tool
def price(order: int) -> str:
    """Look up what an order cost."""
    CALLED.append(order)
    return PRICES[order]


def dollars(provider: str, model: str, usage: Usage, requested: str) -> float:
    """Return a cost: a cent for each token."""
    return ((usage.input_tokens or 0) + (usage.output_tokens or 0)) / 100


def shop(answer: Callable[[ModelRequest], Any], *, name: str = "good", **options: Any) -> Agent:
    """Return an agent whose model is a function."""
    hub = DiscoveryProvider(FakeHub([price]), id="orders")
    given = {"prices": dollars, **options}
    return Agent("shop", model=FunctionModel(answer, name=name), providers=[hub], **given)


def used(answer: str | ToolCall, tokens: int = 5) -> ModelResponse:
    """Return an answer that takes so many tokens."""
    message = Message("assistant", [answer] if isinstance(answer, ToolCall) else answer)
    return ModelResponse(message=message, usage=Usage(input_tokens=tokens, output_tokens=0))


def order_of(request: ModelRequest) -> int:
    """Return the order that a question is about."""
    return int(request.messages[0].text.split()[-1].rstrip("?"))


def looks_up(request: ModelRequest) -> ModelResponse:
    """Ask for the price, then tell it."""
    if request.messages[-1].role == "tool":
        return used(f"It cost {request.messages[-1].tool_results[0].response}.")
    return used(ToolCall("price", {"order": order_of(request)}))


def guesses(request: ModelRequest) -> ModelResponse:
    """Answer without looking."""
    return used("It cost 12 euros.")


def asks_wrongly(request: ModelRequest) -> ModelResponse:
    """Ask for the price of another order than the recorded run did, except of order 7."""
    if request.messages[-1].role == "tool":
        return used(f"It cost {request.messages[-1].tool_results[0].response}.")
    order = order_of(request)
    return used(ToolCall("price", {"order": order if order == 7 else order + 100}))


def correct(output: Any, expected: Any) -> bool:
    """Return whether the output contains what is expected."""
    return str(expected) in str(output)


def recorded(path: Path) -> tuple[Case, ...]:
    """Record a run for each order; return them as cases."""
    with storing(path) as telemetry:
        agent = shop(looks_up, telemetry=telemetry)
        runs = {order: agent.run_sync(f"What was the price of order {order}?").run_id for order in PRICES}
    CALLED.clear()
    reader = StoreReader(path)
    return tuple(case_of_run(reader, run_id, expected=PRICES[order]) for order, run_id in runs.items())
