"""Candidates: the agents that an experiment asks, each with a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.agent import Agent, configuration_of
from pellucid.errors import ConfigError
from pellucid.models import Model
from pellucid.models.alternatives import candidates as alternatives
from pellucid.models.prices import load_prices
from pellucid.run.state import Setup
from pellucid.telemetry.pipeline import Pipeline
from pellucid_replay.replaying import with_model


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """An agent with a model.

    Attributes:
        name: Name in reports: of the agent, of the model, or of both.
        setup: Configuration of its runs.
        pipeline: Where their telemetry goes.
    """

    name: str
    setup: Setup
    pipeline: Pipeline | None


def candidates_of(
    agents: Agent[Any, Any] | Mapping[str, Agent[Any, Any]],
    models: Sequence[Model | str],
    telemetry: Pipeline | None,
) -> dict[str, Candidate]:
    """Return the candidates: each agent with each model, or with its own one.

    Raises:
        ConfigError: there is no agent, no such model, or two have the same name.
    """
    named = dict(agents) if isinstance(agents, Mapping) else {agents.name: agents}
    if not named or not all(isinstance(agent, Agent) for agent in named.values()):
        raise ConfigError("experiment(): give an agent, or a mapping of names to agents")
    chosen: list[Model | str | None] = [*models] or [None]
    found: dict[str, Candidate] = {}
    for label, agent in named.items():
        configured = configuration_of(agent)
        pipeline = telemetry or configured.pipeline
        for model in chosen:
            setup = configured.setup if model is None else with_model(configured.setup, model)
            model_name = model if isinstance(model, str) else setup.model.name
            parts = [label] if model is None else [model_name] if len(named) == 1 else [label, model_name]
            name = " ".join(parts)
            if name in found:
                raise ConfigError(f"experiment(): two candidates are named {name!r}; name each agent and model once")
            load_prices(setup.prices, [(each.provider_name, each.name) for each in alternatives(setup.model)])
            found[name] = Candidate(name, setup, pipeline)
    return found
