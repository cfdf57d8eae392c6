"""The alerts on scores: those that drop, and those that are errors."""

from __future__ import annotations

from pellucid_exporters.alerting.definition import DAY, HOUR, Context, Definition, Words, share

WEEK = 7 * DAY


def dropped(context: Context, words: Words, *, score: str, number: str, before: str) -> Definition:
    """Define the alert on a score that is too low, or lower than it was.

    Args:
        context: Parameters of the alerts.
        words: The agent, with its version, and the mean.
        score: Name of the score.
        number: Number of scores.
        before: Mean of the days before.
    """
    return Definition(
        name="ScoreDropped",
        severity="ticket",
        after=300.0,
        summary=f"{words.subject}: the mean of its score {score} in {context.window(HOUR)} is {words.value}, of "
        f"{number} scores; in the {context.window(WEEK)} before it was {before}.",
        description="The mean is below the objective of the score, if it has one, or has fallen by more than "
        f"{share(context.thresholds.score_drop)} against the time before, of all versions. Fewer than "
        f"{context.thresholds.score_min:g} scores tell nobody.",
    )


def failing(context: Context, words: Words, *, number: str, error: str) -> Definition:
    """Define the alert on a scorer that fails.

    Args:
        context: Parameters of the alerts.
        words: The scorer, and the share.
        number: Number of scores without a judgement.
        error: Their most frequent `error.type`.
    """
    return Definition(
        name="ScorerFailing",
        severity="ticket",
        after=300.0,
        summary=f"{words.subject} fails: {words.value} of its scores in {context.window(HOUR)}, {number}, have no "
        f"judgement, mostly {error}; the limit is {share(context.thresholds.scorer_failing)}.",
        description="Such runs are not judged: means of the score are those of the others. No run has failed of it.",
    )
