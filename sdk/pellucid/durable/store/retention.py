"""Deletion of runs that ended some time ago."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Final

from pellucid.durable.store import budgets, conversations
from pellucid.durable.store.database import Transaction
from pellucid.durable.store.records import FINAL, RunStatus
from pellucid.durable.store.runs import BATCH
from pellucid.durable.store.transactions import Transactions, seconds
from pellucid.errors import ConfigError

_PARTS: Final = (
    "delete_calls",
    "delete_journal",
    "delete_events",
    "delete_callback",
    "delete_retries",
    "delete_version",
    "delete_scores",
)
"""Statements that delete what belongs to a run."""


class RetentionMethods(Transactions):
    """Methods of the store that delete runs."""

    async def purge(self, older_than: float | Mapping[RunStatus, float], *, dry_run: bool = False) -> int:
        """Delete runs that ended at least `older_than` seconds ago, with their journals, events and calls.

        Their ids and idempotency keys can be used again, and results of their calls are of unknown calls. The runs of a
        conversation are deleted together, once the last of them ended so long ago. So are accounts of budgets whose
        period is over, if they were not used for so long.

        Args:
            older_than: Seconds, for all runs or by status. Runs of a status that is not there stay; conversations go by
                the longest time, and stay if any status does.
            dry_run: Only count them.

        Returns:
            The number of runs.

        Raises:
            ConfigError: a status is not final.
        """
        ages, number = ages_of(older_than, "purge", "older_than"), 0
        if dry_run:
            return await self._read(partial(_purgeable, ages=ages))
        while batch := await self.purge_batch(ages):
            number += sum(batch.values())
        return number

    async def purge_batch(self, ages: Mapping[RunStatus, float]) -> Mapping[RunStatus, int]:
        """Delete up to 100 runs of each status, and as many conversations; return numbers of runs by status."""
        if batch := await self._write(partial(purge, ages=ages)):
            return batch
        if len(ages) == len(FINAL):
            await self._write(partial(budgets.purge, older_than=max(ages.values())))
        return {}


def ages_of(older_than: float | Mapping[RunStatus, float], function: str, option: str) -> dict[RunStatus, float]:
    """Return times by status, the option of a function.

    Raises:
        ConfigError: a time is not one, or a status is not final.
    """
    ages = older_than if isinstance(older_than, Mapping) else dict.fromkeys(FINAL, older_than)
    if unknown := set(ages) - FINAL:
        raise ConfigError(f"runs that are {min(unknown)!r} cannot be deleted; use {', '.join(sorted(FINAL))}")
    return {status: seconds(age, function, option) for status, age in ages.items()}


def purge(tx: Transaction, ages: Mapping[RunStatus, float]) -> Counter[RunStatus]:
    """Delete a batch of runs of each status with all that belongs to them, and a batch of conversations."""
    ended: list[tuple[str, RunStatus]] = []
    if len(ages) == len(FINAL):
        ended += conversations.purge(tx, max(ages.values()), BATCH)
    for status, age in ages.items():
        rows = tx.all("delete_ended", status=status, older_than=age, limit=BATCH)
        ended += [(row["id"], status) for row in rows]
    for run_id, _ in ended:
        for statement in _PARTS:
            tx.all(statement, run_id=run_id)
    return Counter(status for _, status in ended)


def _purgeable(tx: Transaction, ages: Mapping[RunStatus, float]) -> int:
    """Return how many runs `purge` would delete."""
    counts = [tx.all("count_ended", status=status, older_than=age) for status, age in ages.items()]
    if len(ages) == len(FINAL):
        counts.append(tx.all("count_idle", older_than=max(ages.values())))
    return sum(row["number"] for rows in counts for row in rows)
