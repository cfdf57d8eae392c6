"""Transactions on versions: a run that only workers of one version of its agent may continue."""

from __future__ import annotations

from collections.abc import Mapping

from pellucid.durable.store.database import Transaction
from pellucid.durable.store.records import PinnedRuns
from pellucid.durable.store.values import Row


def pin(tx: Transaction, row: Row, versions: Mapping[str, str] | None) -> None:
    """Pin a run that has just been claimed to the version of its worker, unless it is pinned already."""
    if versions is not None:
        tx.all("pin_run", run_id=row["id"], version=versions[row["agent"]])


def pinned(tx: Transaction) -> tuple[PinnedRuns, ...]:
    """Return the open runs that are pinned, by agent and version."""
    return tuple(PinnedRuns(**row) for row in tx.all("count_pinned"))
