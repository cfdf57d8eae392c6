"""Estimated cost of an experiment: the recorded tokens of its cases at the prices of its candidates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pellucid.messages import Usage
from pellucid.models.alternatives import candidates as alternatives
from pellucid_experiments.candidates import Candidate
from pellucid_experiments.trials import Planned
from pellucid_replay import Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimated cost of trials. It supposes that they take the tokens of the recorded runs, nested runs included.

    Attributes:
        cost: US dollars of those that can be estimated; judges are not among them.
        known: Number of trials that can be estimated: their case has a recorded run, and their model a price.
        trials: Number of trials.
        judges: Names of the judges.
    """

    cost: float
    known: int
    trials: int
    judges: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.trials:
            return "none: no run is left"
        judges = f"; without what judges spend, which is not estimated: {', '.join(self.judges)}" if self.judges else ""
        if not self.known:
            return f"unknown: no recorded tokens, or no prices, for any of {self.trials:,} runs{judges}"
        rest = self.trials - self.known
        unknown = f", and {rest:,} of unknown cost" if rest else ""
        return f"about ${self.cost:.4f} for {self.known:,} runs, from recorded tokens{unknown}{judges}"


def estimate_of(
    trials: Iterable[Planned], candidates: Mapping[str, Candidate], recording: Recording | None
) -> Estimate:
    """Return what trials will cost at about."""
    usages: dict[str, Usage | None] = {}
    costs: list[float | None] = []
    for planned in trials:
        source = planned.case.source
        if source not in usages:
            usages[source] = _usage(recording, source) if recording is not None and source else None
        usage = usages[source]
        costs.append(_price(candidates[planned.candidate], usage) if usage is not None else None)
    known = [cost for cost in costs if cost is not None]
    return Estimate(cost=sum(known), known=len(known), trials=len(costs))


def _usage(recording: Recording, run_id: str) -> Usage | None:
    row = recording.run(run_id)
    if row is None:
        return None
    used = row.total or row
    return Usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)


def _price(candidate: Candidate, usage: Usage) -> float | None:
    first = alternatives(candidate.setup.model)[0]
    return candidate.setup.prices(first.provider_name, first.name, usage, first.name)
