"""Attributes of a model, read once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pellucid.models.alternatives import candidates
from pellucid.models.base import Model


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """A model, and its attributes; those that are optional have their defaults.

    Attributes:
        model: The model.
    """

    model: Model
    name: str
    provider_name: str
    server_address: str | None = None
    server_port: int | None = None
    native_output: bool = False
    provider_tools: Collection[tuple[str, str]] = ()

    @classmethod
    def of(cls, model: Model) -> ModelFacts:
        """Read a model's attributes."""
        optional = ("server_address", "server_port", "native_output", "provider_tools")
        facts = {name: getattr(model, name) for name in optional if hasattr(model, name)}
        return cls(model, model.name, model.provider_name, **facts)

    @classmethod
    def of_all(cls, model: Model) -> tuple[ModelFacts, ...]:
        """Read the attributes of the models to call in order, as `candidates` returns them."""
        return tuple(cls.of(candidate) for candidate in candidates(model))

    @cached_property
    def notes(self) -> Mapping[str, Any]:
        """Facts of the model's calls, as notes of their boundaries."""
        notes = {"model": self.name, "model_provider": self.provider_name}
        return {**notes, "server_address": self.server_address, "server_port": self.server_port}
