"""The row of a worker in the store, by which operators see it and ask it to end."""

from __future__ import annotations

import math
import uuid
from typing import Final

import anyio

from pellucid.durable.runs.sources import Claims

_INTERVAL: Final = 10.0
"""Seconds between two writes."""


class Presence:
    """Row of one worker. Args: claims: Its claims. slots: Its runs at the same time."""

    def __init__(self, claims: Claims, slots: int) -> None:
        self._claims = claims
        self._slots = slots
        self._id = uuid.uuid4().hex
        self._next_write = -math.inf

    async def renew(self) -> bool:
        """Note that the worker is there; return whether it was asked to end.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        store, claims = self._claims.store, self._claims
        if (now := anyio.current_time()) < self._next_write:
            return await store.is_worker_to_end(self._id)
        is_to_end = await store.register_worker(
            self._id, claims.worker, claims.agents, self._slots, _version_of(claims)
        )
        self._next_write = now + _INTERVAL
        return is_to_end

    async def end(self) -> None:
        """Remove the row.

        Raises:
            StoreUnavailable: the store did not answer; the row is dropped later.
        """
        await self._claims.store.remove_worker(self._id)


def _version_of(claims: Claims) -> str | None:
    """Return the version of a worker's agents; with one for each agent, the list of them."""
    versions = claims.versions or {}
    if len({*versions.values()}) < 2:  # noqa: PLR2004
        return next(iter(versions.values()), None)
    return ", ".join(f"{agent}={version}" for agent, version in sorted(versions.items()))
