"""Scores: how good runs and answers are."""

from typing import TYPE_CHECKING

from pellucid.module_names import load_within, module_dir, module_getattr

if TYPE_CHECKING:
    from pellucid.scores.case import Case
    from pellucid.scores.checks import (
        answer_matches,
        hub_objectives_met,
        no_secret,
        no_tool_errors,
        tool_called,
        tools_in_order,
        valid_json,
        within,
    )
    from pellucid.scores.evidence import Evidence, SpanFacts, ToolUse
    from pellucid.scores.judge import judge
    from pellucid.scores.online import wait_for_scores
    from pellucid.scores.record import score
    from pellucid.scores.sampled import Sampled
    from pellucid.scores.scored import Score, Scored
    from pellucid.scores.scoring import Scorer, scores_of

__all__ = [
    "Case",
    "Evidence",
    "Sampled",
    "Score",
    "Scored",
    "Scorer",
    "SpanFacts",
    "ToolUse",
    "answer_matches",
    "hub_objectives_met",
    "judge",
    "no_secret",
    "no_tool_errors",
    "score",
    "scores_of",
    "tool_called",
    "tools_in_order",
    "valid_json",
    "wait_for_scores",
    "within",
]

__getattr__ = module_getattr(
    __name__,
    lazy=load_within(
        __name__,
        {
            "case": ["Case"],
            "checks": [
                "answer_matches",
                "hub_objectives_met",
                "no_secret",
                "no_tool_errors",
                "tool_called",
                "tools_in_order",
                "valid_json",
                "within",
            ],
            "evidence": ["Evidence", "SpanFacts", "ToolUse"],
            "judge": ["judge"],
            "online": ["wait_for_scores"],
            "record": ["score"],
            "sampled": ["Sampled"],
            "scored": ["Score", "Scored"],
            "scoring": ["Scorer", "scores_of"],
        },
    ),
)
__dir__ = module_dir(__name__)
