"""Scores on the page of trends: means in a window of time and in the period before, and over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.scores import FEW, ScoreGroup
from pellucid_exporters.viewer.trends.lines import largest, lines
from pellucid_exporters.viewer.windows import Range

STEPS: Final = 24
"""Steps of time of a chart; those with fewer than `FEW` scores are gaps."""

MOST: Final = 100
"""Rows of the table."""

MOST_CHARTS: Final = 8

DIMENSIONS: Final = frozenset({"agent", "version", "model"})
"""Names by which scores are counted; by others, all are together."""


@dataclass(frozen=True, slots=True)
class ScoreMover:
    """Scores of one name, of one version, model or agent, in a window and in the period before it."""

    score: str
    name: str
    now: ScoreGroup | None
    before: ScoreGroup | None

    @property
    def change(self) -> float | None:
        """By how much the mean has changed; None if one of them has too few values."""
        now, before = (group.mean if group is not None else None for group in (self.now, self.before))
        return now - before if now is not None and before is not None else None


def score_values(reader: Reader, window: Range, by: str, name: str | None) -> dict[str, Any]:
    """Return the scores of a window, by a dimension."""
    dimension = by if by in DIMENSIONS else None
    within = (by, name) if name is not None and by in DIMENSIONS else None
    before, now = (
        reader.score_groups(dimension, since, until, within=within)
        for since, until in ((window.before, window.since), (window.since, window.until))
    )
    movers = _movers(before, now)
    step = (window.until - window.since) // STEPS + 1
    over_time = [
        reader.score_groups(None, since, since + STEPS * step, step=step, within=within)
        for since in (window.before, window.since)
    ]
    names = sorted({mover.score for mover in movers})
    return {
        "scores": movers[:MOST],
        "number_of_scores": len(movers),
        "few": FEW,
        "is_by": dimension is not None,
        "score_charts": {score: _chart(over_time, score) for score in names[:MOST_CHARTS]},
    }


def _movers(before: Iterable[ScoreGroup], now: Iterable[ScoreGroup]) -> list[ScoreMover]:
    """Return what changed, what fell most first; then what has too few values to say."""
    earlier, later = ({(group.score, group.name): group for group in groups} for groups in (before, now))
    movers = [ScoreMover(*key, later.get(key), earlier.get(key)) for key in {**earlier, **later}]
    return sorted(movers, key=lambda mover: (mover.change is None, mover.change or 0.0, mover.score, mover.name))


def _chart(over_time: Sequence[Sequence[ScoreGroup]], score: str) -> tuple[Markup, float]:
    """Return a line of the means of the window and one of the period before, and the largest mean of both."""
    series: list[list[float | None]] = []
    for groups in over_time:
        means = {group.step: group.mean for group in groups if group.score == score}
        series.append([means.get(step) for step in range(STEPS)])
    return lines(series[1], series[0], score), largest(*series)
