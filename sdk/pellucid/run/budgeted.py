"""The link that the model calls of a run pass through if what it spends is limited. Imported when such a run starts."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from pellucid.errors import ConfigError, ModelError, ModelTimeout
from pellucid.messages import Usage
from pellucid.models import ModelResponse
from pellucid.models.facts import ModelFacts
from pellucid.run.budget import Account, Budget, limits_of
from pellucid.run.inference import Inference
from pellucid.run.outcomes import BudgetReached
from pellucid.run.state import Run, Setup
from pellucid.tools.tool import AgentTool


def start_budget(run: Run) -> None:
    """Give a run its budget, with what it had spent before it was resumed.

    Raises:
        ConfigError: its cost is limited, and the price of a model is unknown.
    """
    limits, outer = limits_of(run.limits), run.nesting.outer
    own = Account(limits) if limits else None
    budget = Budget(run, own, outer.nesting.budget if outer is not None else None)
    if (resumed := run.pausing.resumption) is not None:
        budget.restore(resumed.checkpoint.spent or _known(resumed.checkpoint.usage))
    if (max_cost := budget.limits_cost) is not None:
        for setup in _agents(run.setup):
            for model in setup.models:
                _check_price(setup, model, max_cost)
    run.nesting.budget, run.nesting.inference = budget, BudgetedInference


def _known(usage: Usage) -> dict[str, float]:
    """Return what a checkpoint tells of a run that had no limits when it paused."""
    tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
    return {"max_cost": usage.cost or 0.0, "max_tokens": tokens}


def _agents(setup: Setup) -> Iterator[Setup]:
    """Yield an agent and those that it has as tools, directly or not."""
    agents, names = [setup], {setup.name}
    for agent in agents:  # which grows
        yield agent
        inner = [tool.configured() for tool in agent.tools if isinstance(tool, AgentTool)]
        agents += [found for found in inner if found.name not in names]
        names |= {found.name for found in inner}


def _check_price(setup: Setup, model: ModelFacts, max_cost: float) -> None:
    """Check that the price of a model is known.

    Raises:
        ConfigError: it is not.
    """
    problem: Exception | None = None
    try:
        usage = Usage(input_tokens=1, output_tokens=1)
        cost = setup.prices(model.provider_name, model.name, usage, model.name)
    except Exception as error:  # noqa: BLE001  (price tables are the application's)
        cost, problem = None, error
    if cost is None:
        raise ConfigError(
            f"Agent {setup.name!r}: Limits(max_cost={max_cost:g}) needs the price of model {model.name!r} of "
            f"{model.provider_name}, which is unknown; give the agent prices=PriceTable("
            f"{{'{model.provider_name}:{model.name}': Price(input=..., output=...)}})"
        ) from problem


class BudgetedInference(Inference):
    """Attempts to get an answer, each of which must fit into the budget."""

    @override
    async def attempt(self) -> ModelResponse:
        budget, request = self.run.nesting.budget, self.request
        assert budget is not None
        call = budget.admit(self.models[0], request, is_closing=self.is_closing)
        if isinstance(call, str):
            raise BudgetReached(call, self.catalog)
        self.request = call.request
        try:
            response = await super().attempt()
        except BaseException as error:
            # Vendors charge for what was interrupted, and not for what they refused.
            is_charged = self.partial or isinstance(error, ModelTimeout) or not isinstance(error, ModelError)
            budget.fail(call, "".join(delta.content for delta in self.partial) if is_charged else None)
            raise
        finally:
            self.request = request
        budget.settle(call, response)
        return response
