"""Whole catalogues of tool providers, by digest."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pellucid_exporters.local.bodies import DIGEST, pack, unpack, utf8

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping

    from pellucid.tools.catalog_records import CatalogListing

FRESH: Final = 300
"""Seconds for which the use of a catalogue is not noted again."""

# Tools with equal definitions may differ in their options, which are not part of the digest: the latest are kept.
_CATALOG: Final = """
INSERT INTO catalogs VALUES (?, ?, ?)
ON CONFLICT (digest) DO UPDATE SET used = max(used, excluded.used), content = excluded.content
"""


@dataclass(slots=True, eq=False)
class CatalogRecord:
    """A catalogue, compressed."""

    digest: bytes
    content: bytes

    def __len__(self) -> int:
        """Return how many bytes it takes to write it."""
        return len(self.content)


def catalog_record(listing: CatalogListing) -> CatalogRecord | None:
    """Return the record of a catalogue, or None if it is too large."""
    from pellucid.tools.catalog_records import catalog_json  # readers need none of it

    text = catalog_json(listing)
    return CatalogRecord(bytes.fromhex(listing.digest), pack(utf8(text))) if text is not None else None


def write_catalogs(connection: sqlite3.Connection, records: Iterable[CatalogRecord]) -> None:
    """Write catalogues."""
    used = int(time.time()) + FRESH
    rows = [(record.digest, used, record.content) for record in records]
    if rows:
        connection.executemany(_CATALOG, rows)


def read_catalogs(connection: sqlite3.Connection, digests: Iterable[bytes]) -> dict[str, Mapping[str, Any]]:
    """Return catalogues by digest, without those that the store does not have."""
    found: dict[str, Mapping[str, Any]] = {}
    for digest in digests:
        if len(digest) == DIGEST:
            row = connection.execute("SELECT content FROM catalogs WHERE digest = ?", (digest,)).fetchone()
            if row is not None:
                found[digest.hex()] = json.loads(unpack(row["content"]))
    return found
