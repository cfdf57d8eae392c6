"""The most frequent values of a label, found while they are used."""

from __future__ import annotations

from typing import Final

PROMOTION: Final = 2
"""Factor by which a value must be more frequent than the rarest kept one to take its place."""


class TopValues:
    """The most frequent values of a label.

    The first values are kept. When there are as many as may be, others are counted by the algorithm "space saving"
    (Metwally, Agrawal, El Abbadi 2005), with a table of the same size; its counts are never too low. One that is twice
    as frequent as the rarest kept value takes its place. The series of both remain, and go on from where they are: so
    no counter decreases, and there are at most twice as many series as `most`, because no more values are replaced
    than that.

    Args:
        most: Number of values at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = self._replacements = most
        # Counts are in lists, so that a thread that counts a value just replaced does not bring it back.
        self._kept: dict[str, list[int]] = {}
        self._others: dict[str, int] = {}

    def get(self, value: str, /) -> str | None:
        """Count a use of a kept value and return it."""
        uses = self._kept.get(value)
        if uses is None:
            return None
        uses[0] += 1
        return value

    def add(self, value: str) -> str | None:
        """Count a use of another value; return it if it is kept from now on."""
        if self.get(value) is not None:
            return value
        if len(self._kept) < self._most:
            self._kept[value] = [1]
            return value
        uses = self._count(value)
        if uses & uses - 1 or not self._replacements:  # looks only at powers of two, because it looks at all
            return None
        rarest = min(self._kept, key=lambda kept: self._kept[kept][0])
        if uses < PROMOTION * self._kept[rarest][0]:
            return None
        self._replacements -= 1
        self._others[rarest] = self._kept.pop(rarest)[0]
        self._kept[value] = [self._others.pop(value)]
        return value

    def _count(self, value: str) -> int:
        others = self._others
        if value in others or len(others) < self._most:
            others[value] = others.get(value, 0) + 1
        else:
            rarest = min(others, key=others.__getitem__)
            others[value] = others.pop(rarest) + 1
        return others[value]
