"""A queue that loses and doubles messages."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pellucid.durable import NATSQueue

if TYPE_CHECKING:
    from pellucid.durable import Changes

_FAR: Final = 1_000_000
"""Fences that no run reaches: the server would recognise a message with the same one."""


class FaultyQueue(NATSQueue):
    """A queue that drops a third of its messages about work, and sends a third of them twice."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._dice = random.Random(3)
        self._fences = count(_FAR)
        self.dropped = self.doubled = 0

    def _announce(self, link: Any, copies: Any, changes: Changes) -> None:
        due = []
        for run in changes.due:
            kind = self._dice.randrange(3)
            self.dropped += kind == 0
            self.doubled += kind == 1
            due += [replace(run, fence=next(self._fences)) for _ in range((0, 2, 1)[kind])]
        super()._announce(link, copies, replace(changes, due=tuple(due)))
