"""Catalogues that were written, so that each is written once per period."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.tools.catalog_cache import Remembered
from pellucid.tools.catalog_records import version_of

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pellucid.tools.catalog_records import CatalogListing

_MOST_VERSIONS: Final = 4_096


class Listings:
    """Catalogues that were written, by the period in which that was last done. Safe to use from any thread."""

    def __init__(self) -> None:
        self._latest: Remembered[tuple[CatalogListing, int]] = Remembered()
        self._written: BoundedMap[Hashable, int] = BoundedMap(_MOST_VERSIONS)

    def may_be_new(self, listing: CatalogListing, period: int) -> bool:
        """Return false if the very same tools were already listed in this period, at once."""
        key = id(listing.tools)  # a provider that has nothing new lists the same tuple
        if (latest := self._latest.get(key)) is not None:
            known, known_period = latest
            if known.tools is listing.tools and known_period == period and known.policy == listing.policy:
                return False
        self._latest.put(key, (listing, period), len(listing.tools))  # keeps the tuple, so that its id is not reused
        return True

    def is_new(self, listing: CatalogListing, period: int) -> bool:
        """Return false if an equal catalogue was already written in this period; takes microseconds per tool."""
        return self._written.put((version_of(listing), listing.policy), period) != period
