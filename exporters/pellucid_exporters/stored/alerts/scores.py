"""The conditions of the alerts on scores: those that drop, and those that are errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pellucid_exporters.alerting.definition import HOUR, Context, Words, share
from pellucid_exporters.alerting.scores import WEEK, dropped, failing
from pellucid_exporters.alerting.thresholds import objectives_of
from pellucid_exporters.stored.alerts.alert import Alert, fire
from pellucid_exporters.stored.alerts.counts import SECOND, named
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import EventRow, RunRow

SCORE: Final = "score.recorded"

Scored: TypeAlias = tuple[EventRow, RunRow | None]


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
    """Yield the alerts on scores that are too low, or lower than in the seven days before, and on scorers that fail."""
    found = list(_measured(reader, now))
    yield from _dropped(reader, now, context, _recent(found, now))
    yield from _failing(found, context)


def _failing(found: Sequence[Scored], context: Context) -> Iterator[Alert]:
    thresholds = context.thresholds
    groups: dict[tuple[str, str], list[Scored]] = {}
    for event, run in found:
        scorer = (str(event.payload.get("score")), run.service if run is not None else "")
        groups.setdefault(scorer, []).append((event, run))
    for (name, service), scores in sorted(groups.items()):
        failed = [event for event, _ in scores if event.payload.get("error_type")]
        part = len(failed) / len(scores)
        if len(failed) < thresholds.scorer_failing_min or part <= thresholds.scorer_failing:
            continue
        [(error, _)] = Counter(str(event.payload["error_type"]) for event in failed).most_common(1)
        words = Words(subject=named("Scorer", name, service), value=share(part))
        definition = failing(context, words, number=str(len(failed)), error=error)
        latest = (_run_id(failed[0]), failed[0].span_id or "")
        yield fire(definition, thresholds, value=part, since=failed[-1].time, exemplar=latest)


def _dropped(
    reader: Reader, now: int, context: Context, recent: dict[tuple[str, str, str], _Scores]
) -> Iterator[Alert]:
    thresholds = context.thresholds
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


def _measured(reader: Reader, now: int) -> Iterator[Scored]:
    """Yield the scores of the last hour, the newest first, each with its run, if the store has it."""
    events = reader.events_named(SCORE, now - round(HOUR * SECOND), now)
    runs = {run.run_id: run for run in reader.rows(list(set(map(_run_id, events)) - {""}))}
    for event in events:
        run = runs.get(_run_id(event))
        if run is None or run.is_measured:
            yield event, run


def _recent(scored: Sequence[Scored], now: int) -> dict[tuple[str, str, str], _Scores]:
    """Return the scores with a value, by name, agent and version."""
    found: dict[tuple[str, str, str], _Scores] = {}
    for event, run in scored:
        facts = event.payload
        value = facts.get("value")
        if not isinstance(value, int | float):
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
