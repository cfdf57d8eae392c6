"""Scores: how good runs and answers are."""

from typing import TYPE_CHECKING

from pellucid.module_names import load_within, module_dir, module_getattr

if TYPE_CHECKING:
    from pellucid.scores.case import Case
    from pellucid.scores.evidence import Evidence, SpanFacts, ToolUse
    from pellucid.scores.record import score
    from pellucid.scores.scored import Score, Scored
    from pellucid.scores.scoring import Scorer, scores_of

__all__ = ["Case", "Evidence", "Score", "Scored", "Scorer", "SpanFacts", "ToolUse", "score", "scores_of"]

__getattr__ = module_getattr(
    __name__,
    lazy=load_within(
        __name__,
        {
            "case": ["Case"],
            "evidence": ["Evidence", "SpanFacts", "ToolUse"],
            "record": ["score"],
            "scored": ["Score", "Scored"],
            "scoring": ["Scorer", "scores_of"],
        },
    ),
)
__dir__ = module_dir(__name__)
