"""The connections of a provider, in all event loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import anyio

from pellucid.concurrency.forks import reset_in_child
from pellucid.concurrency.per_loop import PerLoop
from pellucid.context import Identity
from pellucid.errors import DiscoveryError
from pellucid.mcp.connection import CLOSE_TIMEOUT, Connection
from pellucid.mcp.listing import Plan
from pellucid.mcp.partitions import Partitions
from pellucid.mcp.server_catalog import ServerCatalog

MAX_HOLDERS: Final = 1000
"""Identities with connections of their own, for each event loop."""


class Pool:
    """Connections of a provider and what they listed: for each event loop, and each holder of credentials in it.

    Open from the start. Safe to use from any thread, and in a forked child.

    Args:
        plan: Options of the provider.

    Attributes:
        connections: Connections that have not released their resources yet.
    """

    def __init__(self, plan: Plan) -> None:
        self.connections: set[Connection] = set()
        self._plan = plan
        self._catalogs = self._new_catalogs()
        self._closed = False
        reset_in_child(self, connections=set)

    def catalog(self, identity: Identity | None) -> ServerCatalog:
        """Return the catalogue of an identity in this event loop.

        Raises:
            DiscoveryError: the pool is closed.
        """
        self._check_open()
        return self._catalogs.get().get(self._plan.target.holder_of(identity))

    async def connection(self, identity: Identity | None) -> Connection:
        """Return the connection of an identity in this event loop, or wait for a new one.

        Raises:
            DiscoveryError: the pool is closed, the server cannot be reached, or its back-off has not ended.
        """
        return await self.catalog(identity).connection()

    def open(self) -> None:
        """Allow connections again after `aclose`."""
        self._closed = False

    async def aclose(self) -> None:
        """Close all connections and wait until they are closed; closing twice does nothing."""
        self._closed = True
        catalogs, self._catalogs = self._catalogs.values(), self._new_catalogs()
        for partitions in catalogs:
            await partitions.aclose()
        connections = list(self.connections)
        for connection in connections:
            connection.close()
        # Bounded, because connections of an event loop that was stopped abruptly never close.
        with anyio.move_on_after(CLOSE_TIMEOUT):
            for connection in connections:
                await connection.wait_closed()

    def _new_catalogs(self) -> PerLoop[Partitions]:
        def of(holder: Identity | None) -> ServerCatalog:
            plan = replace(self._plan, target=replace(self._plan.target, holder=holder))
            return ServerCatalog(plan, opened=self._opened, ended=self._ended)

        return PerLoop(lambda: Partitions(of, MAX_HOLDERS))

    def _check_open(self) -> None:
        if self._closed:
            raise DiscoveryError(self._plan.id, "the provider was closed; open it again by `async with`")

    def _opened(self, connection: Connection) -> None:
        self._check_open()
        self.connections.add(connection)

    def _ended(self, connection: Connection) -> None:
        self.connections.discard(connection)
