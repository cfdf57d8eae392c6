"""Tokens that vendors count for each estimated one."""

from __future__ import annotations

import math
from typing import Final

STEP: Final = 1.05
"""Each ratio is a power of it, so that a little more or less in the next request changes nothing."""

TOLERANCE: Final = 1.02
"""Distance by which a ratio may be above the power that stands for it."""

MOST: Final = 2.0
"""Highest ratio that one conversation hands to the others."""


class Ratios:
    """Tokens that models count for each estimated one, as the requests of an agent have shown: the highest each.

    Runs decide by it where to cut. It hardly ever changes, so that a run cuts its history where the runs before it have
    cut it, in each process.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], float] = {}

    def of(self, models: tuple[str, ...]) -> float:
        """Return the ratio of models; 1 if they have not counted yet."""
        return self._known.get(models, 1.0)

    def learn(self, models: tuple[str, ...], ratio: float) -> float:
        """Take over what models have counted, and return the ratio for the run that has seen it."""
        seen = max(coarse(ratio), self._known.get(models, 0.0))
        self._known[models] = min(seen, MOST)
        return seen


def coarse(ratio: float) -> float:
    """Return the power of `STEP` that stands for a ratio."""
    return float(STEP ** math.ceil(math.log(ratio / TOLERANCE, STEP)))
