"""Models to call in order for one request: one, or those of a `FallbackModel`."""

from __future__ import annotations

from collections.abc import Sequence

from pellucid.errors import ModelError
from pellucid.failures import describe, error_kind_of
from pellucid.models.base import Model


class Alternatives:
    """Base of `FallbackModel`, by which a run recognises it without loading it.

    Attributes:
        models: The models in order.
    """

    models: tuple[Model, ...]

    def falls_back(self, error: ModelError) -> bool:
        """Return whether the next model is called after this failure."""
        raise NotImplementedError


def candidates(model: Model) -> tuple[Model, ...]:
    """Return the models to call in order: those of a `FallbackModel`, or the model itself."""
    return model.models if isinstance(model, Alternatives) else (model,)


def falls_back(model: Model, error: ModelError) -> bool:
    """Return whether the next candidate of `model` is called after `error`."""
    return isinstance(model, Alternatives) and model.falls_back(error)


def last_of(failures: Sequence[ModelError]) -> ModelError:
    """Return the last of several failures, with notes about the earlier ones."""
    last = failures[-1]
    for earlier in failures[:-1]:
        last.add_note(f"earlier failure: {earlier}")
    return last


def as_model_error(model: Model, error: Exception) -> ModelError:
    """Convert an error of a model to a `ModelError` with the error as its cause."""
    if isinstance(error, ModelError):
        return error
    failure = ModelError(model.name, describe(error), error_kind=error_kind_of(error))
    failure.__cause__ = error
    return failure
