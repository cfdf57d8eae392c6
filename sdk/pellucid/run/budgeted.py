"""The link that the model calls of a run pass through if what it spends is limited. Imported when such a run starts."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from pellucid.errors import ConfigError, ModelError, ModelTimeout
from pellucid.messages import Usage
from pellucid.models import ModelResponse
from pellucid.models.facts import ModelFacts
from pellucid.run.budget import Admitted, Amounts, Plan, RunBudget
from pellucid.run.inference import Inference
from pellucid.run.outcomes import BudgetReached
from pellucid.run.state import Run, Setup
from pellucid.tools.tool import AgentTool


def check_prices(run: Run, budget: RunBudget) -> None:
    """Check that the prices of all models are known, if a limit depends on them.

    Raises:
        ConfigError: one is not.
    """
    if (limit := _limit_of_cost(budget)) is not None:
        for setup in _agents(run.setup):
            for model in setup.models:
                _check_price(setup, model, limit)


def _limit_of_cost(budget: RunBudget) -> str | None:
    """Return the lowest limit of cost, as a user writes it, or None."""
    limits = [account.limits["max_cost"] for account, _ in budget.accounts() if "max_cost" in account.limits]
    if limits:
        return f"Limits(max_cost={min(limits):g})"
    return next((str(shared) for shared, _ in budget.shared_accounts() if shared.has_cost), None)


def _agents(setup: Setup) -> Iterator[Setup]:
    """Yield an agent and those that it has as tools, directly or not."""
    agents, names = [setup], {setup.name}
    for agent in agents:  # which grows
        yield agent
        inner = [tool.configured() for tool in agent.tools if isinstance(tool, AgentTool)]
        agents += [found for found in inner if found.name not in names]
        names |= {found.name for found in inner}


def _check_price(setup: Setup, model: ModelFacts, limit: str) -> None:
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
            f"Agent {setup.name!r}: {limit} needs the price of model {model.name!r} of "
            f"{model.provider_name}, which is unknown; give the agent prices=PriceTable("
            f"{{'{model.provider_name}:{model.name}': Price(input=..., output=...)}})"
        ) from problem


class BudgetedInference(Inference):
    """Attempts to get an answer, each of which must fit into the budget."""

    @property
    def budget(self) -> RunBudget:
        """Allowance of the run."""
        budget = self.run.nesting.budget
        assert budget is not None
        return budget

    @override
    async def attempt(self) -> ModelResponse:
        request = self.request
        call = await self.admitted(self.budget.plan(self.models[0], request, is_closing=self.is_closing))
        self.request = call.request
        try:
            response = await super().attempt()
        except GeneratorExit:  # nothing can be awaited any more
            raise
        except BaseException as error:
            # Vendors charge for what was interrupted, and not for what they refused.
            is_charged = self.partial or isinstance(error, ModelTimeout) or not isinstance(error, ModelError)
            await self.settled(
                self.budget.fail(call, "".join(delta.content for delta in self.partial) if is_charged else None)
            )
            raise
        finally:
            self.request = request
        await self.settled(self.budget.settle(call, response))
        return response

    async def admitted(self, plan: Plan) -> Admitted:
        """Return a call that fits.

        Raises:
            BudgetReached: it does not.
        """
        call = self.budget.admit(plan)
        if isinstance(call, str):
            raise BudgetReached(call, self.catalog)
        return call

    async def settled(self, used: Amounts) -> None:
        """Settle what a call has used with whom the run shares a budget."""
