"""The condition of the alert on scores that drop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pellucid_exporters.alerting.definition import HOUR, Context, Words
from pellucid_exporters.alerting.scores import WEEK, dropped
from pellucid_exporters.alerting.thresholds import objectives_of
from pellucid_exporters.stored.alerts.alert import Alert, fire
from pellucid_exporters.stored.alerts.counts import SECOND, named
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import EventRow

SCORE: Final = "score.recorded"


@dataclass(slots=True)
class _Scores:
    """Scores of one name, agent and version in the last hour; the newest of the worst ones shows the problem."""

    service: str
    worst: EventRow
    least: float
    first: int
    number: int = 0
    total: float = 0.0


def score_alerts(reader: Reader, now: int, context: Context) -> Iterator[Alert]:
    """Yield the alerts on scores that are too low, or lower than in the seven days before."""
    thresholds = context.thresholds
    recent = _recent(reader, now)
    if not any(scores.number >= thresholds.score_min for scores in recent.values()):
        return
    hour_ago = now - round(HOUR * SECOND)
    groups = reader.score_groups("agent", hour_ago - round(WEEK * SECOND), hour_ago)
    before = {(group.score, group.name): group for group in groups if group.number >= thresholds.score_min}
    objectives = objectives_of(thresholds.score_objectives)
    for (name, agent, version), scores in sorted(recent.items()):
        mean, past = scores.total / scores.number, before.get((name, agent))
        earlier = past.total / past.number if past is not None else None
        is_low = mean < objectives.get(name, 0.0)
        has_fallen = earlier is not None and mean < (1 - thresholds.score_drop) * earlier
        if scores.number < thresholds.score_min or not (is_low or has_fallen):
            continue
        subject = named("Agent", f"{agent} version {version}" if version else agent, scores.service)
        definition = dropped(
            context,
            Words(subject=subject, value=f"{mean:.3g}"),
            score=name,
            number=str(scores.number),
            before=f"{earlier:.3g}" if earlier is not None else "unknown",
        )
        where = (_run_id(scores.worst), scores.worst.span_id or "")
        yield fire(definition, thresholds, value=mean, since=scores.first, exemplar=where)


def _recent(reader: Reader, now: int) -> dict[tuple[str, str, str], _Scores]:
    """Return the scores of the last hour with a value, by name, agent and version."""
    events = reader.events_named(SCORE, now - round(HOUR * SECOND), now)  # the newest first
    runs = {run.run_id: run for run in reader.rows(list(set(map(_run_id, events)) - {""}))}
    found: dict[tuple[str, str, str], _Scores] = {}
    for event in events:
        facts, run = event.payload, runs.get(_run_id(event))
        value = facts.get("value")
        if not isinstance(value, int | float) or (run is not None and not run.is_measured):
            continue
        agent = str(facts.get("agent") or (run.agent if run is not None else ""))
        version = str(facts.get("version") or (run.version if run is not None else None) or "")
        service = run.service if run is not None else ""
        scores = found.setdefault((str(facts.get("score")), agent, version), _Scores(service, event, value, now))
        if value < scores.least:
            scores.worst, scores.least = event, value
        scores.first = min(scores.first, run.start if run is not None else event.time)
        scores.number += 1
        scores.total += value
    return found


def _run_id(event: EventRow) -> str:
    """Return the id of the run that a score is of, which another store may have."""
    return event.run_id or str(event.payload.get("run_id") or "")
