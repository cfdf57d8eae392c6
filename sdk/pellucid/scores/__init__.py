"""Scores: how good runs and answers are."""

from typing import TYPE_CHECKING

from pellucid.module_names import load_within, module_dir, module_getattr

if TYPE_CHECKING:
    from pellucid.scores.record import score
    from pellucid.scores.scored import Score, Scored

__all__ = ["Score", "Scored", "score"]

__getattr__ = module_getattr(__name__, lazy=load_within(__name__, {"record": ["score"], "scored": ["Score", "Scored"]}))
__dir__ = module_dir(__name__)
