"""Model calls of a run whose requests are fitted into the window. Imported when such a run starts."""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from pellucid.compaction import Summarize
from pellucid.errors import ModelError
from pellucid.models import ModelResponse
from pellucid.models.facts import ModelFacts
from pellucid.models.too_long import TOO_LONG
from pellucid.run.budget import RunBudget
from pellucid.run.fitting import Fitting
from pellucid.run.inference import Inference
from pellucid.run.state import Run
from pellucid.run.token_count import TokenCount
from pellucid.tools.catalog import Catalog


def start_fitting(run: Run) -> None:
    """Fit the requests of a run into the window, from its first one.

    Raises:
        ConfigError: the window of a model is unknown.
    """
    budget = run.nesting.budget

    async def summarize(strategy: Summarize, earlier: str | None, text: str) -> str | None:
        return await _summary(run, strategy, earlier, text)

    run.conversation.fitting = Fitting(run, budget.count if budget is not None else TokenCount(), summarize)
    run.nesting.inference = _before(_FittedInference, budget)


class _FittedInference(Inference):
    """Attempts to get an answer; a request that is too long for the vendor is cut once more and repeated once."""

    is_repeated = False

    @override
    async def attempt(self) -> ModelResponse:
        fitting = self.run.conversation.fitting
        assert fitting is not None
        try:
            response = await super().attempt()
        except ModelError as error:
            if error.error_type != TOO_LONG or self.is_seen:
                raise
            shorter = await fitting.again(self.request, self.catalog) if not self.is_repeated else None
            self.is_repeated = True
            if shorter is None:
                raise _too_long(error, fitting) from error
            self.request = shorter
            return await self.attempt()
        fitting.settle(self.request, response)
        return response


class _Summarizing(Inference):
    """The call that makes a summary: no reader of the stream gets its pieces."""

    @override
    async def _observed(self, model: ModelFacts) -> ModelResponse:
        self.is_streamed = False
        return await super()._observed(model)


def _before(link: type[Inference], budget: RunBudget | None) -> type[Inference]:
    """Return a link of model calls before that of the run's budget, if it has one."""
    return link if budget is None else type(link.__name__, (link, budget.inference), {})


_NO_TOOLS: Final = Catalog(bindings={})


async def _summary(run: Run, strategy: Summarize, earlier: str | None, text: str) -> str | None:
    """Return the summary of a text, which extends an earlier one; None if the model failed or has cut it off.

    Raises:
        BudgetReached: the call does not fit into what the run may spend.
    """
    answered_by, reset = run.conversation.answered_by, run.scope.capturer.mark()
    kind = _before(_Summarizing, run.nesting.budget)
    inference = kind(run, strategy.request(earlier, text), _NO_TOOLS, list(ModelFacts.of_all(strategy.model)), True)
    while True:
        try:
            response = await inference.attempt()
        except ModelError:  # its `chat` span says why
            if len(inference.models) == 1:
                return None
            inference.models.pop(0)
            continue
        finally:
            run.conversation.answered_by = answered_by
            reset()  # so that the request records its new messages only
        return response.message.text.strip() or None if response.finish_reason == "stop" else None


def _too_long(error: ModelError, fitting: Fitting) -> ModelError:
    return ModelError(
        error.model,
        fitting.too_long(),
        error_type=TOO_LONG,
        error_kind="invalid_request",
        status=error.status,
        request_id=error.request_id,
    )
