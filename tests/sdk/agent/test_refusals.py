"""Wrong values are refused where they are written: the error names the operation, the thing and the remedy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, ConfigError, Decision, FallbackModel, Limits, Message, Reliability, Verdict
from pellucid.reliability import Rule, fallback, retry, retry_other
from pellucid.testing import ScriptedModel
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

BAD: Any = {"role": "user", "content": "hi"}


async def start(way: str, agent: Agent, history: Any = ()) -> None:
    """Run an agent, or stream it to its end."""
    if way == "run":
        await agent.run("go", history=history)
        return
    async with agent.stream("go", history=history) as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("way", ["run", "stream"])
@pytest.mark.parametrize(
    ("history", "said"),
    [([BAD], "history[0]"), ([Message("user", "a"), None], "history[1]"), ("hi", "history"), (5, "history")],
)
async def test_a_history_of_something_else_is_refused(way: str, history: Any, said: str) -> None:
    """Before the model is asked; the error says how to read messages that were kept as JSON."""
    model = ScriptedModel("hi")
    with pytest.raises(ConfigError, match="load_messages") as refused:
        await within(start(way, Agent("a", model=model), history))
    assert said in str(refused.value)
    assert model.requests == []


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Limits(timeout=math.nan), ("Limits", "timeout")),
        (lambda: Limits(tool_timeout="5"), ("Limits", "tool_timeout")),  # type: ignore[arg-type]  # what is refused
        (lambda: Limits(max_iterations=2.5), ("Limits", "max_iterations")),  # type: ignore[arg-type]  # what is refused
        (lambda: Limits(max_tool_calls=True), ("Limits", "max_tool_calls")),
        (lambda: Limits(max_cost=math.nan), ("Limits", "max_cost")),
        (lambda: Limits(max_cost="1"), ("Limits", "max_cost", "US dollars")),  # type: ignore[arg-type]  # what is refused
        (lambda: Limits(max_tokens=1.5), ("Limits", "max_tokens")),  # type: ignore[arg-type]  # what is refused
        (lambda: Limits(max_model_calls=-1), ("Limits", "max_model_calls")),
        (lambda: Limits(max_result_bytes=None), ("Limits", "max_result_bytes")),  # type: ignore[arg-type]  # what is refused
        (lambda: Decision("x", "yes"), ("Decision", "approved")),  # type: ignore[arg-type]  # what is refused
        (lambda: Decision("x", 1), ("Decision", "approved")),  # type: ignore[arg-type]  # what is refused
        (lambda: Decision("x", None), ("Decision", "approved")),  # type: ignore[arg-type]  # what is refused
        (lambda: Decision("x", True, reason=5), ("Decision", "reason")),  # type: ignore[arg-type]  # what is refused
        (lambda: Decision("x", True, arguments=[1]), ("Decision", "arguments")),  # type: ignore[arg-type]  # what is refused
        (lambda: Decision(None, True), ("Decision", "approval_id")),  # type: ignore[arg-type]  # what is refused
        (lambda: Verdict("deny", 5), ("Verdict", "reason")),  # type: ignore[arg-type]  # what is refused
        (lambda: Agent("a", model=ScriptedModel(), tools=[5]), ("Agent 'a'", "tools[0]")),  # type: ignore[list-item]  # what is refused
        (lambda: Agent("a", model=ScriptedModel(), tools=5), ("Agent 'a'", "tools")),  # type: ignore[call-overload]  # what is refused
    ],
)
def test_a_value_of_the_wrong_type_is_refused(make: Callable[[], object], names: tuple[str, ...]) -> None:
    """By `ConfigError`, where it is written, with the name of the option."""
    with pytest.raises(ConfigError) as refused:
        make()
    assert all(name in str(refused.value) for name in names)


async def test_values_at_the_edge_are_taken() -> None:
    """No bound, an infinite one, whole seconds, and a history that is a tuple or an iterator."""
    Limits(timeout=math.inf, tool_timeout=None, model_timeout=5, max_tool_calls=0, max_discoveries=0, max_cost=0)
    Decision("x", approved=False, arguments={}, decided_by="ann")
    agent = Agent("a", model=ScriptedModel("hi", "hi"))
    for history in ((Message("user", "a"),), iter([Message("user", "a")])):
        result = await within(agent.run("go", history=history))  # type: ignore[arg-type]  # an iterator works, too
        assert len(result.messages) == 3


@pytest.mark.parametrize("way", ["run", "stream"])
async def test_a_script_that_runs_out_ends_the_run(way: str) -> None:
    """The mistake is the test's: no rule tries again or falls back, no other model is asked, and no model is blamed."""
    other = ScriptedModel("from the other")
    rules = Reliability(
        [
            Rule(when=lambda s: s.error is not None and s.attempt == 1, then=retry(backoff=0), kind="again"),
            Rule(when=lambda s: s.error is not None and s.attempt == 2, then=retry_other(), kind="other"),
            Rule(when=lambda s: s.error is not None, then=fallback(lambda s: "canned"), kind="canned"),
        ]
    )
    for reliability in (None, rules):
        agent = Agent("a", model=FallbackModel(ScriptedModel(), other), reliability=reliability)
        with pytest.raises(ConfigError, match="script of model 'scripted' has 0 steps"):
            await within(start(way, agent))
    assert other.requests == []
