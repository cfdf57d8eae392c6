"""Versions: a run that only workers of one version of its agent may continue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pellucid.durable.store.database import Transaction
from pellucid.durable.store.records import PinnedRuns
from pellucid.durable.store.values import Row, dump


def find(tx: Transaction, statement: str, versions: Mapping[str, str] | None, /, **parameters: Any) -> Row | None:
    """Return the first row of a statement about runs that a worker may claim, which has these versions of its agents.

    A worker without versions may claim all runs.
    """
    if versions is None:
        return tx.one(statement, **parameters)
    return tx.one(f"{statement}_of_version", versions=dump({**versions}), **parameters)


def pinned(tx: Transaction) -> tuple[PinnedRuns, ...]:
    """Return the numbers of open runs that are pinned, by agent and version."""
    return tuple(PinnedRuns(**row) for row in tx.all("count_pinned"))
