"""Deletion of runs that ended some time ago, by workers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import anyio

from pellucid.durable.states.metrics import StoreMetrics
from pellucid.durable.store import RunStatus, RunStore
from pellucid.errors import StoreUnavailable

_log = logging.getLogger("pellucid.durable_runs")

_INTERVAL: Final = 600.0
"""Seconds between two looks for runs to delete, when the one before has found none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Part of `DurableRuns` that deletes runs.

    Attributes:
        store: The store.
        ages: Seconds for which runs stay after they have ended, by status.
        metrics: Telemetry.
        poll: Seconds between two batches.
    """

    store: RunStore
    ages: Mapping[RunStatus, float]
    metrics: StoreMetrics
    poll: float

    async def work(self) -> None:
        """Delete runs in batches, with a pause after each, until cancelled."""
        while True:
            batch: Mapping[RunStatus, int] = {}
            try:
                batch = await self.store.purge_batch(self.ages)
            except StoreUnavailable as error:
                _log.warning("durable_runs.store_unavailable %s", error)
            self.metrics.purged(batch)
            await anyio.sleep(self.poll if batch else _INTERVAL)
