"""Names of scores; a program that scores nothing does not load them."""

from __future__ import annotations

from typing import Final

from pellucid.semconv.metrics import Metric
from pellucid.semconv.names import AGENT_NAME, AGENT_VERSION, ERROR_TYPE, REQUEST_MODEL

EVALUATION_RESULT: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE_VALUE: Final = "gen_ai.evaluation.score.value"
EVALUATION_SCORE_LABEL: Final = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
EVALUATION_BY: Final = "pellucid.evaluation.by"
EVALUATION_REASON: Final = "pellucid.evaluation.reason"

JUDGES: Final = "judge/"
"""Beginning of `gen_ai.conversation.id` of the runs of judges, before the name of their scores."""

EVALUATION_SCORE: Final = Metric(
    "histogram",
    "1",
    "pellucid.evaluation.score",
    "Values of scores, from 0 on.",
    (EVALUATION_NAME, AGENT_NAME, AGENT_VERSION, REQUEST_MODEL),
    (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 100.0),
)

EVALUATION_RESULTS: Final = Metric(
    "counter",
    "{score}",
    "pellucid.evaluation.results",
    "Scores, also those without a value; `error.type` says why there is no judgement.",
    (EVALUATION_NAME, AGENT_NAME, ERROR_TYPE),
)

EVALUATION_DROPPED: Final = Metric(
    "counter",
    "{run}",
    "pellucid.evaluation.dropped",
    "Runs that the scorers of their agent did not score, or not all of them.",
    (AGENT_NAME, EVALUATION_REASON),
)

SCORE_METRICS: Final = (EVALUATION_SCORE, EVALUATION_RESULTS, EVALUATION_DROPPED)
"""Instruments of scores."""
