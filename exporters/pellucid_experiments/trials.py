"""Trials: one case, asked of one candidate once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from pellucid.errors import ConfigError
from pellucid.scores import Case, Score
from pellucid.types import JSONObject

TrialStatus: TypeAlias = Literal["judged", "failed", "not_replayable", "budget", "not_run"]


class Planned(NamedTuple):
    """Question to ask: a case of a candidate, and the number of the repetition, from 1."""

    case: Case
    candidate: str
    repeat: int

    @property
    def key(self) -> tuple[str, str, int]:
        """Ids of the case and the candidate, and the number of the repetition."""
        return self.case.id, self.candidate, self.repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One case, asked of one candidate once.

    Attributes:
        case: Id of the case.
        candidate: Name of the candidate.
        repeat: Which time it was asked, from 1 on.
        status: `judged`; `failed` if the run raised, also after retries; `not_replayable` if the recording has no
            answer for what the run asked; `budget` if the run was ended by the budget; `not_run`. Only `judged` has
            scores.
        problem: Why it was not judged.
        scores: Scores of the run; one with an `error_type` is no judgement.
        answer: Beginning of the answer, redacted; None if no content is recorded.
        run_id, trace_id: Ids of the last attempt; empty if there is none.
        attempts: Number of runs that it took.
        seconds, tokens, cost: Duration of the last attempt, and usage of all; None if it is not known.
        scoring_cost: US dollars that judges spent on it; None if there was none, or it is not known.
    """

    case: str
    candidate: str
    repeat: int
    status: TrialStatus
    problem: str = ""
    scores: tuple[Score, ...] = ()
    answer: str | None = None
    run_id: str = ""
    trace_id: str = ""
    attempts: int = 1
    seconds: float | None = None
    tokens: int | None = None
    cost: float | None = None
    scoring_cost: float | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Ids of the case and the candidate, and the number of the repetition."""
        return self.case, self.candidate, self.repeat

    @property
    def spent(self) -> float:
        """US dollars that are known to be spent on it."""
        return (self.cost or 0.0) + (self.scoring_cost or 0.0)

    @property
    def is_done(self) -> bool:
        """True if the trial is not repeated when the experiment is resumed."""
        return self.status not in {"budget", "not_run"}

    @property
    def outcome(self) -> str:
        """Its status; `scorer_failed` if it is judged and lacks a score."""
        is_whole = self.status != "judged" or all(score.error_type is None for score in self.scores)
        return self.status if is_whole else "scorer_failed"

    @property
    def problems(self) -> Sequence[str]:
        """Reasons for missing judgements: the error, and the scorers that failed."""
        scorers = [f"{score.name}: {failure_of(score)}" for score in self.scores if score.error_type is not None]
        return [self.problem, *scorers] if self.problem else scorers

    def to_dict(self) -> JSONObject:
        """Return it as JSON-able data, without what is empty."""
        shape = {name: value for name, value in asdict(self).items() if value not in (None, (), "")}
        if self.scores:
            shape["scores"] = [
                {name: value for name, value in asdict(score).items() if value is not None} for score in self.scores
            ]
        return shape


def failure_of(score: Score) -> str:
    """Return why there is no judgement; the explanation has the type of the error already, as a rule."""
    explanation = score.explanation or ""
    is_said = explanation.partition(":")[0] == str(score.error_type).rpartition(".")[2]
    return explanation if is_said else f"{score.error_type}: {explanation}".rstrip(": ")


def once_each(scores: Sequence[Score]) -> Sequence[Score]:
    """Return scores in which those of one name are one that is not judged: their mean would mean nothing."""
    named: dict[str, list[Score]] = {}
    for score in scores:
        named.setdefault(score.name, []).append(score)
    return [own[0] if len(own) == 1 else _duplicate(own) for own in named.values()]


def _duplicate(scores: Sequence[Score]) -> Score:
    why = f"given {len(scores)} times for one run; give each score a name of its own"
    return Score(name=scores[0].name, by=scores[0].by, error_type="duplicate_score", explanation=why)


def not_run(planned: Planned) -> Trial:
    """Return the trial of what there was no money for."""
    case, candidate, repeat = planned.key
    why = "not run: the budget of the experiment is spent"
    return Trial(case=case, candidate=candidate, repeat=repeat, status="not_run", problem=why, attempts=0)


def known_sum(values: Iterable[Any]) -> Any:
    """Return the sum of those values that are not None; None if there is none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


_FIELDS: Final = frozenset(item.name for item in fields(Trial))
_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    **dict.fromkeys(("case", "candidate", "problem", "answer", "run_id", "trace_id"), str),
    **dict.fromkeys(("repeat", "attempts", "tokens"), int),
    **dict.fromkeys(("seconds", "cost", "scoring_cost"), (int, float)),
}


def trial_of(data: object) -> Trial:
    """Return the trial of data that `to_dict` returned; what a later version added is left out.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(data, dict):
        raise ConfigError("a trial is no JSON object")
    shape: dict[str, Any] = {name: value for name, value in data.items() if name in _FIELDS}
    for name, kind in _TYPES.items():
        if name in shape and not isinstance(shape[name], kind):
            raise ConfigError(f"{name!r} of a trial has another type")
    if shape.get("status") not in get_args(TrialStatus):
        raise ConfigError(f"the status of a trial is none of {', '.join(get_args(TrialStatus))}")
    try:
        shape["scores"] = tuple(Score(**score) for score in shape.get("scores", ()))
        return Trial(**shape)
    except TypeError as error:
        raise ConfigError("a trial lacks something") from error
