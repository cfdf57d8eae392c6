"""Recording rules and the alerts of scores: how good runs are, and whether that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid.semconv.scores import EVALUATION_NAME, EVALUATION_RESULTS, EVALUATION_SCORE
from pellucid_dashboards.names import label
from pellucid_dashboards.promql import FAILED, JOB, by, number, selector, where
from pellucid_dashboards.rules import words
from pellucid_dashboards.rules.model import Alert, Record, alert
from pellucid_dashboards.rules.queries import added, mostly, observed_increase, total
from pellucid_exporters.alerting import scores
from pellucid_exporters.alerting.definition import HOUR, Context, Words
from pellucid_exporters.alerting.scores import WEEK
from pellucid_exporters.alerting.thresholds import objectives_of

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT: Final = "pellucid:scores:increase1h"
SUM: Final = "pellucid:scores_sum:increase1h"
WEEK_COUNT: Final = "pellucid:scores:increase7d"
WEEK_MEAN: Final = "pellucid:score:mean7d"
RESULTS: Final = "pellucid:score_results:increase1h"

_SCORE: Final = by(EVALUATION_NAME, semconv.AGENT_NAME, semconv.AGENT_VERSION)
_ANY_VERSION: Final = by(EVALUATION_NAME, semconv.AGENT_NAME)
_NAME, _AGENT, _VERSION = (label(each) for each in (EVALUATION_NAME, semconv.AGENT_NAME, semconv.AGENT_VERSION))
_ERROR: Final = label(semconv.ERROR_TYPE)
_VALUE: Final = '{{ $value | printf "%.3g" }}'
MEAN: Final = f"{SUM} / ({COUNT} > 0)"
"""Mean of the last hour: as exact as the sum and the number, which Prometheus extrapolates alike."""


def score_records(context: Context) -> Iterator[Record]:
    """Yield the series that the alert reads: of an hour by version, and of the seven days before by agent."""
    hour = context.window(HOUR)
    counted = f"sum by ({_SCORE}) (\n  {observed_increase(EVALUATION_SCORE, window=hour)}\n)"
    yield Record(name=COUNT, expression=counted)
    yield Record(name=SUM, expression=added(EVALUATION_SCORE, window=hour, labels=_SCORE))
    week, numbers = (f"sum by ({_ANY_VERSION}) (sum_over_time({name}{_week(context)}))" for name in (SUM, COUNT))
    yield Record(name=WEEK_COUNT, expression=numbers)
    yield Record(name=WEEK_MEAN, expression=f"{week}\n/ ({WEEK_COUNT} > 0)")
    of_scorers = by(EVALUATION_NAME, semconv.ERROR_TYPE)
    yield Record(name=RESULTS, expression=total(EVALUATION_RESULTS, window=hour, labels=of_scorers))


def _week(context: Context) -> str:
    """Return the hours of the seven days before the last one, which follow each other without gaps."""
    hour = context.window(HOUR)
    return f"[{context.window(WEEK)}:{hour}] offset {hour}"


def score_alerts(context: Context) -> Iterator[Alert]:
    """Yield the alerts."""
    yield _dropped(context)
    yield _failing(context)


def _dropped(context: Context) -> Alert:
    thresholds = context.thresholds
    objectives = [
        f"{_mean(where(EVALUATION_NAME, '=', name))} < {number(objective)}"
        for name, objective in objectives_of(thresholds.score_objectives).items()
    ]
    enough = f"{COUNT} >= {number(thresholds.score_min)}"
    fallen = (
        f"{MEAN} < on ({_ANY_VERSION}) group_left ()\n"
        f"    ({number(1 - thresholds.score_drop)} * {WEEK_MEAN} and {WEEK_COUNT} >= {number(thresholds.score_min)})"
    )
    before = words.queried(f"max({WEEK_MEAN}{{%s}})", (JOB, _NAME, _AGENT), 'printf "%.3g"', "unknown")
    count = words.queried(f"max({COUNT}{{%s}})", (JOB, _NAME, _AGENT, _VERSION), 'printf "about %.0f"', "unknown")
    version = f"{{{{ if $labels.{_VERSION} }}}} version {words.value_of(_VERSION)}{{{{ end }}}}"
    agent = f"{{{{ if $labels.{_AGENT} }}}}Agent {words.value_of(_AGENT)}{version} {{{{ end }}}}({words.value_of(JOB)})"
    alternatives = "\n  or ".join([*objectives, fallen])
    definition = scores.dropped(
        context,
        Words(subject=agent, value=_VALUE),
        score=words.value_of(_NAME),
        number=count,
        before=before,
    )
    return alert(
        definition,
        expression=f"(\n  {alternatives}\n)\nand on ({_SCORE}) {enough}",
        dashboard=words.dashboard("pellucid-runs-and-models", agent=_AGENT),
    )


def _failing(context: Context) -> Alert:
    limit, least = context.thresholds.scorer_failing, context.thresholds.scorer_failing_min
    failed = f'{_ERROR}!=""'
    errors = f"topk(1, sum by ({_ERROR}) ({RESULTS}{{{failed},%s}}))"
    count = words.queried(f"sum({RESULTS}{{{failed},%s}})", (JOB, _NAME), 'printf "about %.0f"', "unknown")
    error = words.queried(errors, (JOB, _NAME), "", "unknown").replace("value | ", f'label "{_ERROR}" ')
    return alert(
        scores.failing(context, Words(subject=words.SCORER, value=words.SHARE), number=count, error=error),
        expression=mostly(RESULTS, by(EVALUATION_NAME), [FAILED], [], above=limit, least=least),
        dashboard=words.dashboard("pellucid-runs-and-models"),
    )


def _mean(matcher: str) -> str:
    return f"{selector(SUM, matcher)} / ({selector(COUNT, matcher)} > 0)"
