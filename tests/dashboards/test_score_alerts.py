"""The alert on scores that drop, tried minute by minute: at a tenth of its windows, a week is 16.8 hours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
import yaml

from pellucid_dashboards.rules import Thresholds, render
from support.promtool import HERE, Trial, add, grow, late, level

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

pytestmark = pytest.mark.prometheus

SCALE: Final = 0.1
HOUR: Final = 6
"""Minutes of the window."""

ALERT: Final = "ScoreDropped"
Scores = dict[str, "Sequence[float | None]"]


@pytest.fixture
def scored(tmp_path: Path) -> Callable[..., Trial]:
    """Return what makes a trial of scores; objectives are thresholds."""

    def make(series: Scores, *objectives: str) -> Trial:
        rules = tmp_path / "rules.yml"
        rules.write_text(render(Thresholds(score_objectives=objectives), scale=SCALE), encoding="utf-8")
        longest = max(len(values) for values in series.values())
        return Trial(tmp_path=tmp_path, series={f"up{{{HERE}}}": level((1, longest)), **series}, rules=rules)

    return make


def labels(version: str, name: str = "correct") -> dict[str, str]:
    """Return the labels of the scores of a version."""
    return {"gen_ai_evaluation_name": name, "gen_ai_agent_name": "support", "gen_ai_agent_version": version}


def scores(version: str, number: Sequence[float | None], mean: Sequence[float | None], name: str = "correct") -> Scores:
    """Return a histogram of scores: how many there are, and their sum."""
    inside = ",".join(f'{key}="{value}"' for key, value in labels(version, name).items())
    return {
        f"pellucid_evaluation_score_count{{{HERE},{inside}}}": number,
        f"pellucid_evaluation_score_sum{{{HERE},{inside}}}": mean,
    }


def fires(version: str, name: str = "correct") -> Mapping[str, str]:
    """Return the labels of the alert."""
    return {"job": "shop", "severity": "ticket", **labels(version, name)}


def test_a_score_below_its_objective_fires_and_resolves(scored: Callable[..., Trial]) -> None:
    """A score below its objective fires without a week of earlier scores; a score without an objective does not."""
    bad = scores("2", grow((10, 60)), grow((9.5, 20), (6, 20), (9.5, 20)))
    other = scores("2", grow((10, 60)), grow((1, 60)), name="brief")
    found = scored({**bad, **other}, "correct=0.9")
    found.firing(18, ALERT)
    found.firing(35, ALERT, fires("2"))
    found.firing(55, ALERT)
    found.value(
        35, "round(pellucid:scores:increase1h, 0.1)", *((named("2", name), 60) for name in ("correct", "brief"))
    )
    found.value(35, "round(pellucid:scores_sum:increase1h, 0.1)", (named("2"), 36), (named("2", "brief"), 6))
    found.run()


def named(version: str, name: str = "correct") -> dict[str, str]:
    """Return the labels of a recorded series."""
    return {"job": "shop", **labels(version, name)}


@pytest.mark.parametrize(("mean", "is_told"), [(0.75, False), (0.70, True)])
def test_a_score_is_compared_with_the_days_before(scored: Callable[..., Trial], mean: float, is_told: bool) -> None:
    """A new version's score fires if it is a tenth below the mean of all versions before it."""
    old = scores("1", grow((10, 120), (0, 40)), grow((8, 120), (0, 40)))
    new = scores("2", late(120, grow((10, 40))), late(120, grow((10 * mean, 40))))
    found = scored({**old, **new})
    found.firing(115, ALERT)
    found.firing(135, ALERT, *([fires("2")] if is_told else []))
    found.run()


@pytest.mark.parametrize(("each", "is_told"), [(3, False), (4, True)])
def test_few_scores_tell_nobody(scored: Callable[..., Trial], each: float, is_told: bool) -> None:
    """Too few scores fire no alert: 18 in the window are too few, 24 are enough."""
    found = scored(scores("1", grow((each, 40)), grow((0, 40))), "correct=0.9")
    found.firing(35, ALERT, *([fires("1")] if is_told else []))
    found.run()


def test_few_scores_before_tell_nothing(scored: Callable[..., Trial]) -> None:
    """Ten scores before are too few to compare with, and fire no alert."""
    number = add(grow((1, 10), (0, 50)), grow((0, 30), (10, 30)))
    found = scored(scores("1", number, grow((1, 10), (0, 50))))
    found.firing(34, ALERT)
    found.run()


def test_restarts_and_silence_are_no_drop(scored: Callable[..., Trial]) -> None:
    """Processes that restart, or that have no scores, are no drop."""
    number = [*grow((10, 60)), *grow((10, 60)), *level((600, 60))]
    found = scored(scores("1", number, [0.9 * value for value in number]), "correct=0.8")
    for minute in (50, 63, 70, 100, 150):
        found.firing(minute, ALERT)
    found.run()


def test_what_it_says() -> None:
    """The alert says which score of whom is how low, of how many, and what it was before, in the rules' windows."""
    groups = yaml.safe_load(render(scale=SCALE))["groups"]
    [rule] = [rule for group in groups for rule in group["rules"] if rule.get("alert") == ALERT]
    summary = rule["annotations"]["summary"]
    for words in (
        "Agent {{ $labels.gen_ai_agent_name }}{{ if $labels.gen_ai_agent_version }} version",
        "its score {{ $labels.gen_ai_evaluation_name }} in 6m is {{ $value",
        "of {{ with printf `max(pellucid:scores:increase1h{",
        'value | printf "about %.0f" }}',
        "in the 1008m before it was {{ with printf `max(pellucid:score:mean7d{",
    ):
        assert words in summary


def test_native_histograms(scored: Callable[..., Trial]) -> None:
    """The rules read sums and numbers of native histograms, and quote the names of scores."""
    text = render(Thresholds(score_objectives=("correct=0.9", "helpful.now=3.5")))
    assert 'pellucid:scores_sum:increase1h{gen_ai_evaluation_name="helpful.now"}' in text
    assert "histogram_sum(increase(pellucid_evaluation_score[1h]))" in text
