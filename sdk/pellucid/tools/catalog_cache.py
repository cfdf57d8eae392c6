"""Cache for the results of work on catalogues."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeVar

from pellucid.concurrency.bounded_map import BoundedMap

MOST: Final = 256
MOST_TOOLS: Final = 50_000
"""Maximum number of tools in all catalogues of one cache; a catalogue of 10,000, with its index, takes some 20 MB."""

_T = TypeVar("_T")


class Remembered(BoundedMap[Hashable, _T]):
    """Results of work on catalogues, by key; the weight of a result is its number of tools."""

    def __init__(self, most_tools: int = MOST_TOOLS) -> None:
        super().__init__(MOST, most_weight=most_tools)
