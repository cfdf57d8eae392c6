"""Fallback between models: when one fails, the next is called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing
from difflib import get_close_matches
from typing import Final, get_args

from pellucid.errors import ConfigError, ErrorKind, ModelError
from pellucid.models.alternatives import Alternatives, as_model_error, candidates, last_of
from pellucid.models.base import Model, ModelRequest, ModelResponse, StreamItem, closable, require_model
from pellucid.models.names import resolve

FALL_BACK_ON: Final[frozenset[ErrorKind]] = frozenset(
    {"auth", "circuit_open", "invalid_response", "rate_limited", "timeout", "unavailable", "unknown"}
)
"""Kinds of failures that another model may not have. An invalid request would be refused again."""


class FallbackModel(Alternatives):
    """Models that are called in order until one answers.

    ```python
    Agent("support", model=FallbackModel("anthropic:claude-sonnet-5-5", "openai:gpt-6-sol"))
    ```

    In a run, each attempt is a `chat` span of its own, with the name of its model and `pellucid.attempt`. A stream
    falls back to the next model only before the first piece of a response has arrived.

    Args:
        models: The models, first choice first; names such as `openai:gpt-6-sol` are resolved.
        on: Kinds of failures after which the next model is called.

    Attributes:
        models: The models in order; a nested `FallbackModel` is replaced by its own models.

    Raises:
        ConfigError: no model is given, one is given twice, or `on` has an unknown kind.
    """

    def __init__(self, *models: Model | str, on: Collection[ErrorKind] = FALL_BACK_ON) -> None:
        resolved = [resolve(model) if isinstance(model, str) else _required(model) for model in models]
        self.models: tuple[Model, ...] = tuple(candidate for model in resolved for candidate in candidates(model))
        if not self.models:
            raise ConfigError("FallbackModel: no model is given; name at least two, the first choice first")
        if len({id(model) for model in self.models}) < len(self.models):
            raise ConfigError(f"FallbackModel: one model is given twice in {[model.name for model in self.models]}")
        self._on = frozenset(on)
        for kind in (kind for kind in on if kind not in get_args(ErrorKind)):
            close = get_close_matches(str(kind), get_args(ErrorKind), 1)
            raise ConfigError(
                f"FallbackModel: unknown kind of failure {kind!r}; "
                f"{f'did you mean {close[0]!r}? ' if close else ''}on= takes a set of {', '.join(get_args(ErrorKind))}"
            )

    def __repr__(self) -> str:
        return f"FallbackModel({', '.join(map(repr, self.models))})"

    @property
    def name(self) -> str:
        """The name of the first choice."""
        return self.models[0].name

    @property
    def provider_name(self) -> str:
        """The vendor of the first choice."""
        return self.models[0].provider_name

    @property
    def native_output(self) -> bool:
        """True if all models send the schema of the output to their vendor."""
        return all(getattr(model, "native_output", False) for model in self.models)

    def falls_back(self, error: ModelError) -> bool:
        """Return whether the next model is called after this failure."""
        return error.error_kind in self._on

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the response of the first model that answers.

        Raises:
            ModelError: every model failed, or one failed in a way that does not allow a fallback.
        """
        failures: list[ModelError] = []
        for model in self.models:
            try:
                return await model.generate(request)
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001  (raised when no model remains)
                failures.append(as_model_error(model, error))
                if not self.falls_back(failures[-1]):
                    break
        raise last_of(failures)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield the pieces of the first response that starts to arrive.

        Raises:
            ModelError: every model failed, or one failed in a way that does not allow a fallback.
        """
        failures: list[ModelError] = []
        for model in self.models:
            has_started = False
            try:
                async with aclosing(closable(model.stream(request))) as items:
                    async for item in items:
                        has_started = True
                        yield item
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001  (raised when no model remains)
                failures.append(as_model_error(model, error))
                if has_started or not self.falls_back(failures[-1]):
                    break
            else:
                return
        raise last_of(failures)

    async def aclose(self) -> None:
        """Close all models that can be closed."""
        for model in self.models:
            if hasattr(model, "aclose"):
                await model.aclose()


def _required(model: object) -> Model:
    if isinstance(model, Sequence):
        raise ConfigError(f"FallbackModel: {model!r} is not a model; write FallbackModel(first, second), not a list")
    return require_model(model, "FallbackModel")
