"""Catalogues of one server, apart for each identity that its credentials depend on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from pellucid.context import Identity
from pellucid.mcp.server_catalog import ServerCatalog


class Partitions:
    """Catalogues and connections by the holder of their credentials, in one event loop.

    The least recently used ones are released first: their connections close once their requests are done.

    Args:
        make: Returns the catalogue of a holder.
        most: Maximum number of holders.
    """

    def __init__(self, make: Callable[[Identity | None], ServerCatalog], most: int) -> None:
        self._make = make
        self._most = most
        self._catalogs: OrderedDict[Identity | None, ServerCatalog] = OrderedDict()

    def get(self, holder: Identity | None) -> ServerCatalog:
        """Return the catalogue of a holder."""
        catalog = self._catalogs.get(holder)
        if catalog is None:
            catalog = self._catalogs[holder] = self._make(holder)
            if len(self._catalogs) > self._most:
                self._catalogs.popitem(last=False)[1].release()
        self._catalogs.move_to_end(holder)
        return catalog

    async def aclose(self) -> None:
        """Close all catalogues."""
        for catalog in list(self._catalogs.values()):
            await catalog.aclose()
