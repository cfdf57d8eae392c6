"""Several models as one: the next answers when one fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing
from difflib import get_close_matches
from typing import Final, get_args

from pellucid.errors import ConfigError, ErrorKind, ModelError
from pellucid.failures import describe, error_kind_of
from pellucid.models.base import Model, ModelRequest, ModelResponse, StreamItem, closable, require_model
from pellucid.models.names import resolve

FALL_BACK_ON: Final[frozenset[ErrorKind]] = frozenset(
    {"auth", "circuit_open", "invalid_response", "rate_limited", "timeout", "unavailable", "unknown"}
)
"""Failures that another model may not have. A request that is refused as invalid would be refused again."""


class FallbackModel:
    """Models that are asked in turn until one answers.

    ```python
    Agent("support", model=FallbackModel("anthropic:claude-sonnet-5-5", "openai:gpt-6-sol"))
    ```

    In a run, each attempt is a `chat` span of its own, with the name of the model that was asked and
    `pellucid.attempt`. A stream goes to the next model only as long as no piece of an answer has arrived.

    Args:
        models: In the order in which they are asked; names such as `openai:gpt-6-sol` are resolved.
        on: Kinds of failures after which the next one is asked.

    Attributes:
        models: What is asked; a `FallbackModel` among them stands for its own models.

    Raises:
        ConfigError: there is no model, or one is given twice.
    """

    def __init__(self, *models: Model | str, on: Collection[ErrorKind] = FALL_BACK_ON) -> None:
        given = [resolve(model) if isinstance(model, str) else _required(model) for model in models]
        self.models: tuple[Model, ...] = tuple(each for model in given for each in candidates(model))
        if not self.models:
            raise ConfigError("FallbackModel: no model is given; name at least two, the first choice first")
        if len({id(model) for model in self.models}) < len(self.models):
            raise ConfigError(f"FallbackModel: one model is given twice in {[model.name for model in self.models]}")
        self._on = frozenset(on)
        for kind in (each for each in on if each not in get_args(ErrorKind)):
            close = get_close_matches(str(kind), get_args(ErrorKind), 1)
            raise ConfigError(
                f"FallbackModel: there is no kind of failure {kind!r}; "
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
        """Whether all of them have a parameter for the output's schema."""
        return all(getattr(model, "native_output", False) for model in self.models)

    def falls_back(self, error: ModelError) -> bool:
        """Return whether the next model is to be asked after this failure."""
        return error.error_kind in self._on

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the first answer that there is."""
        failures: list[ModelError] = []
        for model in self.models:
            try:
                return await model.generate(request)
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001  (raised when no model is left)
                failures.append(as_model_error(model, error))
                if not self.falls_back(failures[-1]):
                    break
        raise told(failures)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield the pieces of the first answer that begins to arrive."""
        failures: list[ModelError] = []
        for model in self.models:
            begun = False
            try:
                async with aclosing(closable(model.stream(request))) as items:
                    async for item in items:
                        begun = True
                        yield item
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001  (raised when no model is left)
                failures.append(as_model_error(model, error))
                if begun or not self.falls_back(failures[-1]):
                    break
            else:
                return
        raise told(failures)

    async def aclose(self) -> None:
        """Close all models that can be closed."""
        for model in self.models:
            if hasattr(model, "aclose"):
                await model.aclose()


def candidates(model: Model) -> tuple[Model, ...]:
    """Return the models that are asked in turn until one answers: the model itself, but for a `FallbackModel`."""
    return model.models if isinstance(model, FallbackModel) else (model,)


def falls_back(model: Model, error: ModelError) -> bool:
    """Return whether the next candidate of `model` is to be asked after `error`."""
    return isinstance(model, FallbackModel) and model.falls_back(error)


def told(failures: Sequence[ModelError]) -> ModelError:
    """Return the last of several failures, with notes that tell of the others."""
    last = failures[-1]
    for earlier in failures[:-1]:
        last.add_note(f"before that: {earlier}")
    return last


def _required(given: object) -> Model:
    if isinstance(given, Sequence):
        raise ConfigError(f"FallbackModel: {given!r} is not a model; write FallbackModel(first, second), not a list")
    return require_model(given, "FallbackModel")


def as_model_error(model: Model, error: Exception) -> ModelError:
    """Return an error of a model as a `ModelError`, whose cause it is."""
    if isinstance(error, ModelError):
        return error
    named = ModelError(model.name, describe(error), error_kind=error_kind_of(error))
    named.__cause__ = error
    return named
