"""Checks before an experiment asks anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pellucid.errors import ConfigError
from pellucid.messages import Usage
from pellucid.models.alternatives import candidates as alternatives
from pellucid.run.state import Setup
from pellucid.scores import Case, Scorer
from pellucid.scores.scoring import check_scorer, name_of
from pellucid_experiments.candidates import Candidate
from pellucid_replay import Recording


def check_scorers(scorers: Sequence[Scorer], where: str) -> None:
    """Check that there are scorers, that they can score, and that each has a name of its own.

    Raises:
        ConfigError: there is none, one cannot, or two have the same name: their scores would be one.
    """
    if not scorers:
        raise ConfigError(f"{where}: scorers=[]: give at least one, such as a function of `output`")
    named: dict[str, Scorer] = {}
    for scorer in scorers:
        check_scorer(scorer)
        name = name_of(scorer)
        if name in named:
            both = f"{named[name]!r:.200} and {scorer!r:.200}"
            raise ConfigError(f"{where}: two scorers are named {name!r}: {both}; give each a name of its own, once")
        named[name] = scorer


def check_numbers(numbers: Mapping[str, tuple[int, int]]) -> None:
    """Check options that are whole numbers, given with the least that each may be.

    Raises:
        ConfigError: one is none, or is less.
    """
    for option, (value, least) in numbers.items():
        if type(value) is not int or value < least:
            raise ConfigError(f"experiment({option}={value!r}): must be a whole number of at least {least}")


def check_sources(cases: Sequence[Case], candidates: Mapping[str, Candidate], recording: Recording) -> None:
    """Check that each case was made from a run of the agent that the recording has.

    Raises:
        ConfigError: one was not.
    """
    lacking = [case.id for case in cases if not case.source]
    if lacking:
        raise ConfigError(
            f"{len(lacking)} of {len(cases)} cases were made from no run, so that nothing can be replayed for them, "
            f"such as {lacking[0]!r}; ask live (--live), or choose others by their tags"
        )
    names = {candidate.setup.name for candidate in candidates.values()}
    for case in cases:
        row = recording.run(case.source)
        if row is None:
            raise ConfigError(f"case {case.id!r}: the recording has no run {case.source!r}; name another, or ask live")
        if names != {row.agent}:
            other = ", ".join(sorted(names))
            raise ConfigError(f"case {case.id!r}: its run is of agent {row.agent!r}, and not of {other}")


def judges_of(scorers: Sequence[Scorer]) -> dict[str, Setup]:
    """Return the agents of the scorers that ask a model, as far as they say so, by the names of the scorers."""
    setups = {name_of(scorer): getattr(scorer, "setup", None) for scorer in scorers}
    return {name: setup for name, setup in setups.items() if isinstance(setup, Setup)}


def check_prices(setups: Iterable[Setup]) -> None:
    """Check that the prices of all models are known.

    Raises:
        ConfigError: one is not.
    """
    for setup in setups:
        for model in alternatives(setup.model):
            nothing = Usage(input_tokens=0, output_tokens=0)
            if setup.prices(model.provider_name, model.name, nothing, model.name) is None:
                raise ConfigError(
                    f"experiment(max_cost=): the price of model {model.name!r} is not known; give the agent prices="
                )
