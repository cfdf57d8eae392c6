"""Options of experiments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Required, TypedDict

from pellucid.models import Model
from pellucid.scores import Scorer
from pellucid.telemetry import Pipeline
from pellucid_replay import Recording


class ExperimentOptions(TypedDict, total=False):
    """Options of `experiment`."""

    scorers: Required[Sequence[Scorer]]
    """Functions of attributes of `Evidence`, as for `scores_of`."""

    models: Sequence[Model | str]
    """Models with which each agent is asked, also by name; by default its own."""

    replay: Recording | None
    """Recording that answers for hubs and tools, such as a `StoreReader`; without one, they are called."""

    live: Collection[str]
    """Parts that are called in spite of `replay`: `tool:<name>`, `hub:<provider id>`."""

    repeat: int
    """Times that each case is asked of each candidate; 1 by default."""

    jobs: int
    """Runs at the same time; 8 by default."""

    max_cost: float | None
    """US dollars for the model calls of all runs and of judges, also of those before the experiment was resumed."""

    retries: int
    """Further attempts after failures of the kinds `rate_limited`, `unavailable` and `timeout`; 2 by default."""

    name: str
    """Name of the experiment, `experiment` by default: letters, digits, `.`, `_` and `-`."""

    deps: Any
    """Value that tools receive as `ctx.deps`."""

    telemetry: Pipeline | None
    """Telemetry of the trials; that of the agent without it."""

    scorer_timeout: float
    """Seconds for each scorer; 60 by default."""
