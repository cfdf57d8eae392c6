"""Options by another name, or without one: the error says which was meant, and where it belongs."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Budget, ConfigError, Context, Limits, PellucidError
from pellucid.testing import ScriptedModel
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

MAKE_LIMITS: Any = Limits
MAKE_BUDGET: Any = Budget
MAKE_CONTEXT: Any = Context


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MAKE_LIMITS(max_turns=1), r"Limits\(max_turns=1\): .*use max_iterations="),
        (lambda: MAKE_LIMITS(3), r"Limits\(3\): .*use max_iterations=3"),
        (lambda: MAKE_LIMITS(max_iteration=1), r"Limits\(max_iteration=1\): .*'max_iterations'"),
        (lambda: MAKE_LIMITS(colour="red"), r"Limits\(colour='red'\): .*options are max_iterations, "),
        (lambda: MAKE_BUDGET(usd=5), r"Budget\(usd=5\): .*use cost="),
        (lambda: MAKE_BUDGET("team", 5), r"Budget\(5\): .*use cost=5"),
        (lambda: MAKE_BUDGET("team", cost=5, period="day"), r"Budget\(period='day'\): .*use per="),
        (lambda: MAKE_BUDGET(cost=5), r"missing 1 required .*'name'"),
        (lambda: MAKE_CONTEXT(16_000), r"Context\(16000\): .*use window=16000"),
        (lambda: MAKE_CONTEXT(max_tokens=16_000), r"Context\(max_tokens=16000\): .*use window="),
    ],
)
def test_another_name(make: Callable[[], object], said: str) -> None:
    """Names that other libraries have, a misspelled one, and a value without a name."""
    with pytest.raises(TypeError, match=said):
        make()


@pytest.mark.parametrize(
    "value",
    [Limits(max_iterations=3), Budget("team", cost=5), Context(window=8_000)],
    ids=lambda value: type(value).__name__,
)
def test_values_stay_plain(value: Any) -> None:
    """They are copied and replaced as before, show their options in their signature, and errors of values stay."""
    assert replace(value) == copy.copy(value) == value
    assert "self" not in inspect.signature(type(value)).parameters
    if not isinstance(value, Context):
        assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises(ConfigError):
        replace(value, **{list(inspect.signature(type(value)).parameters)[-1]: 0.5})


async def test_options_of_a_session() -> None:
    """Its history and identity are its own, and no window is named."""
    session: Any = Agent("a", model=ScriptedModel("hi")).session("customer-7")
    for options, said in (
        ({"history": []}, "a session has its own history"),
        ({"identity": None}, "session.identity="),
    ):
        with pytest.raises(TypeError, match=said):
            await session.run("go", **options)
        with pytest.raises(TypeError, match=said):
            async with session.stream("go", **options):
                pass
    with pytest.raises(ConfigError, match=r"window=0\): must be at least 1 message, or None for all"):
        Agent("a", model=ScriptedModel("hi")).session("customer-7", window=0)


@pytest.mark.parametrize(
    "options",
    [
        {"instructions": lambda ctx: f"You serve {ctx.identity.tenant}."},
        {"budget": lambda ctx: Budget(ctx.identity.tenant, cost=1)},
    ],
    ids=["instructions", "budget"],
)
async def test_a_function_that_needs_an_identity(options: dict[str, Any]) -> None:
    """A run without one says what to give, instead of only that None has no attribute."""
    model = ScriptedModel("hi")
    with pytest.raises(PellucidError, match=r"the run has no identity: give it identity=, or .* ctx.identity is None"):
        await within(Agent("a", model=model, **options).run("go"))
    assert not model.requests


async def test_a_function_that_fails_otherwise() -> None:
    """Another attribute of None is not the identity's."""

    def instructions(ctx: Any) -> str:
        return str(ctx.deps.tenant_name)

    with pytest.raises(PellucidError, match="no attribute 'tenant_name'") as caught:
        await within(Agent("a", model=ScriptedModel("hi"), instructions=instructions).run("go"))
    assert "identity" not in str(caught.value)
