"""Amounts of what model calls use: US dollars, tokens and calls."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

NAMES: Final = ("cost", "tokens", "model_calls")

Limits: TypeAlias = "tuple[float | None, float | None, float | None]"
"""Limits of cost, tokens and calls; None is no limit."""

_ROUNDING: Final = 1 + 1e-9
"""Factor by which a sum of dollars may exceed its limit, because numbers such as 0.1 are not exact."""


class Amounts(NamedTuple):
    """Amounts that model calls use.

    Attributes:
        cost: US dollars.
        tokens: Tokens, input and output.
        model_calls: Calls, each attempt counted.
    """

    cost: float = 0.0
    tokens: float = 0.0
    model_calls: float = 0.0

    def plus(self, other: Amounts, sign: int = 1) -> Amounts:
        """Return the sum, or the difference if the sign is -1."""
        return Amounts(*(mine + sign * its for mine, its in zip(self, other, strict=True)))

    def within(self, most: Amounts) -> Amounts:
        """Return the lower ones of two amounts."""
        return Amounts(*map(min, self, most))


NO_AMOUNTS: Final = Amounts()


class Need(NamedTuple):
    """Amounts that a call needs, and those after it.

    Attributes:
        least: Amounts that must remain.
        most: Amounts that are asked for.
        spare: Part of both that has to remain, but is not reserved.
    """

    least: Amounts
    most: Amounts
    spare: Amounts = NO_AMOUNTS


def limits_of(limits: Limits) -> Iterator[tuple[int, str, float]]:
    """Yield position, name and value of each limit."""
    for index, (name, limit) in enumerate(zip(NAMES, limits, strict=True)):
        if limit is not None:
            yield index, name, limit


def exceeded(limits: Limits, taken: Amounts, need: Amounts) -> str | None:
    """Return the name of a limit that this need would exceed, or None."""
    for index, name, limit in limits_of(limits):
        if not taken[index] + need[index] <= limit * _ROUNDING:  # not `>`, which lets NaN pass
            return name
    return None


def granted(limits: Limits, taken: Amounts, most: Amounts) -> Amounts:
    """Return as much of `most` as remains."""
    remains = [math.inf] * len(NAMES)
    for index, _, limit in limits_of(limits):
        remains[index] = max(limit - taken[index], 0.0)
    return most.within(Amounts(*remains))
