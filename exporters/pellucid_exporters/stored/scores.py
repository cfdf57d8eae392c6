"""Scores of runs, as a reader of the store returns them, and what runs are searched by."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pellucid.errors import ConfigError

OPERATORS: Final = ("<", "<=", ">", ">=", "=", "!=")

FEW: Final = 10
"""Number of scores below which pages show no mean."""

MOST_NAMES: Final = 100
"""Names of scores that are counted, the first in alphabetical order."""

_CONDITION: Final = re.compile(r"(?P<name>[^<>=!]+?)\s*(?:(?P<operator><=|>=|!=|<|>|=)\s*(?P<value>.+))?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """One score.

    Attributes:
        run_id: Id of the run that it is about; empty if it is of no run that is known.
        trace_id, span_id, response_id: Its subject, as far as it was given.
        name: Quality that was judged.
        value: A number of at least 0.
        label: Word for the value.
        by: The judge.
        explanation: Why, if it was recorded; `StoreReader.scores` has it.
        error_type: Why there is no judgement.
        time: Nanoseconds since the epoch.
        agent, version, model: Those of the score, else those of the run.
    """

    run_id: str
    trace_id: str | None = None
    span_id: str | None = None
    response_id: str | None = None
    name: str
    value: float | None = None
    label: str | None = None
    by: str | None = None
    explanation: str | None = None
    error_type: str | None = None
    time: int
    agent: str | None = None
    version: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCondition:
    """Condition on the newest score of a name, such as `correct<0.5`, `thumb=down`, or `correct`: that there is one.

    Attributes:
        operator: One of `OPERATORS`; empty for any score.
        value: A number, or a label for `=` and `!=`.
    """

    name: str
    operator: str = ""
    value: float | str | None = None

    @property
    def column(self) -> str:
        """Compared member: `value` or `label`."""
        return "label" if isinstance(self.value, str) else "value"

    @classmethod
    def of(cls, text: str) -> ScoreCondition:
        """Return the condition that a text says.

        Raises:
            ConfigError: it says none.
        """
        found = _CONDITION.fullmatch(text.strip())
        if found is None:
            raise ConfigError(f"score={text!r:.200} is no condition; write correct<0.5, thumb=down, or correct")
        name, operator, given = found["name"], found["operator"] or "", found["value"]
        if not operator:
            return cls(name=name)
        value = _number(given)
        if value is None and operator not in {"=", "!="}:
            raise ConfigError(
                f"score={text!r:.200}: a value is compared with a number of at least 0; a label, by = or !="
            )
        return cls(name=name, operator=operator, value=given if value is None else value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreGroup:
    """Values of the scores of one name in one step of time.

    Attributes:
        score: Name of the scores.
        name: Name that they were counted by, such as a version behind that of its agent; empty if by none.
        step: Number of the step of time.
        number: Number of values.
        total: Their sum.
        errors: Number of scores without a judgement.
    """

    score: str
    name: str
    step: int = 0
    number: int
    total: float
    errors: int = 0

    @property
    def mean(self) -> float | None:
        """Mean of the values; None if there are fewer than `FEW`."""
        return self.total / self.number if self.number >= FEW else None


def newest(scores: Iterable[ScoreRow]) -> tuple[ScoreRow, ...]:
    """Return the newest score of each name, by name."""
    found: dict[str, ScoreRow] = {}
    for score in scores:
        known = found.get(score.name)
        if known is None or known.time <= score.time:
            found[score.name] = score
    return tuple(found[name] for name in sorted(found))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
