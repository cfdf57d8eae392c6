"""Records a score: in the trace of what it judges, as an event for listeners, and in a histogram."""

from __future__ import annotations

from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext

from pellucid.events import Event
from pellucid.feature_events import ScoreRecorded
from pellucid.run.outcomes import RunResult
from pellucid.scores.scored import Score, Scored, context_of, scored_of
from pellucid.semconv.names import AGENT_NAME, AGENT_VERSION, ERROR_TYPE, REQUEST_MODEL, RESPONSE_ID
from pellucid.semconv.scores import (
    EVALUATION_BY,
    EVALUATION_EXPLANATION,
    EVALUATION_NAME,
    EVALUATION_RESULT,
    EVALUATION_RESULTS,
    EVALUATION_SCORE,
    EVALUATION_SCORE_LABEL,
    EVALUATION_SCORE_VALUE,
)
from pellucid.telemetry import Pipeline, Scope
from pellucid.telemetry.late_listeners import late_listeners

MAX_EXPLANATION: Final = 4 * 1024
"""Characters of an explanation that are recorded."""


def score(
    judged: RunResult[Any] | Span | SpanContext | Event | Scored,
    name: str,
    *,
    value: float | None = None,
    label: str | None = None,
    explanation: str | None = None,
    by: str | None = None,
    telemetry: Pipeline | None = None,
) -> Score:
    """Record how good a run, an answer or any span is; also long after it has ended, and in another process.

    The score is an event `gen_ai.evaluation.result` of OpenTelemetry's GenAI conventions: a log record in the trace of
    what it judges, and, as long as that span is open, a span event. Its value goes to the histogram
    `pellucid.evaluation.score`.

    Args:
        judged: A result, a span, an event of a run, or a `Scored` with the ids that are known.
        name: Quality that was judged, such as `correct`.
        value: A number, 0 or more; True is 1.
        label: One of few words for the value, such as `pass`.
        explanation: Why; the capture policy redacts it, or leaves it out.
        by: The judge: a scorer, a model, a person.
        telemetry: Destination; that of `configure()` unless given.

    Raises:
        ConfigError: the score is not one, or nothing says what it is about.
    """
    given = Score(name=name, value=value, label=label, explanation=explanation, by=by)
    record(scored_of(judged), given, telemetry, judged if isinstance(judged, Span) else None)
    return given


def record(scored: Scored, score: Score, telemetry: Pipeline | None = None, span: Span | None = None) -> None:
    """Record a score. Args: span: What is judged, if it may still be open."""
    heard = late_listeners(scored.agent)
    scope = Scope(agent=scored.agent, run_id=scored.run_id, pipeline=telemetry, listeners=heard)
    context = context_of(scored)
    explanation = scope.text(score.explanation, MAX_EXPLANATION) if score.explanation is not None else None
    facts = {
        EVALUATION_NAME: score.name,
        EVALUATION_SCORE_VALUE: score.value,
        EVALUATION_SCORE_LABEL: score.label,
        EVALUATION_EXPLANATION: explanation,
        EVALUATION_BY: score.by,
        ERROR_TYPE: score.error_type,
        RESPONSE_ID: scored.response_id or None,
    }
    known = {name: value for name, value in facts.items() if value is not None}
    within = trace.set_span_in_context(NonRecordingSpan(context), Context())
    if scope.lines.is_enabled("info"):
        scope.lines.write(
            "info", EVALUATION_RESULT, {**scope.ids(context), **known}, scope.now(), scope.guarded, within
        )
    if span is not None:
        scope.add_event(span, EVALUATION_RESULT, known)
    _measure(scope, scored, score, within)
    payload = {
        "score": score.name,
        "value": score.value,
        "label": score.label,
        "explanation": explanation,
        "by": score.by,
        "error_type": score.error_type,
        "response_id": scored.response_id or None,
        "version": scored.version or None,
        "model": scored.model or None,
    }
    scope.emit(ScoreRecorded, context, payload)


def _measure(scope: Scope, scored: Scored, score: Score, context: Context) -> None:
    counted = {EVALUATION_NAME: score.name, AGENT_NAME: scored.agent, ERROR_TYPE: score.error_type}
    scope.count(EVALUATION_RESULTS, 1, {name: value for name, value in counted.items() if value}, context)
    if score.value is None:
        return
    facts = {
        EVALUATION_NAME: score.name,
        AGENT_NAME: scored.agent,
        AGENT_VERSION: scored.version,
        REQUEST_MODEL: scored.model,
    }
    scope.count(EVALUATION_SCORE, score.value, {name: value for name, value in facts.items() if value}, context)
