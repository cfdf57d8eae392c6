"""Transactions on workers: which there are, and which are to end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pellucid.durable.store.database import Transaction
from pellucid.durable.store.values import dump

LOST: Final = 60.0
"""Seconds after which a worker that has not been seen is no longer listed."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker.

    Attributes:
        id: Its id, another one for each call of `DurableRuns.work`.
        name: Name of its process, for people.
        version: Version of its agents, if it names one.
        agents: Names of the agents that it can run.
        started_at: When it started to work, in seconds since the epoch, by the database's clock.
        seen_at: When it was last there.
        slots: Runs at the same time.
        drain_requested_at: When it was asked to claim nothing more and to end.
    """

    id: str
    name: str
    version: str | None
    agents: tuple[str, ...]
    started_at: float
    seen_at: float
    slots: int
    drain_requested_at: float | None


def register(
    tx: Transaction, worker_id: str, name: str, agents: Sequence[str], slots: int, version: str | None
) -> bool:
    """Note that a worker is there; return whether it is to end. Drop those that are there no longer."""
    row = tx.all("write_worker", id=worker_id, name=name, agents=dump(list(agents)), slots=slots, version=version)[0]
    tx.all("delete_lost_workers", older_than=LOST)
    return row["drain_requested_at"] is not None


def is_to_end(tx: Transaction, worker_id: str) -> bool:
    """Return whether a worker is to end."""
    row = tx.one("find_worker", id=worker_id)
    return row is not None and row["drain_requested_at"] is not None


def remove(tx: Transaction, worker_id: str) -> None:
    """Remove a worker that has ended."""
    tx.all("delete_worker", id=worker_id)


def request_drain(tx: Transaction, name: str) -> int:
    """Ask the workers of a name to end, and return their number."""
    return len(tx.all("request_drain", name=name))


def listed(tx: Transaction) -> tuple[WorkerRecord, ...]:
    """Return all workers."""
    names = ("id", "name", "version", "started_at", "seen_at", "slots", "drain_requested_at")
    return tuple(
        WorkerRecord(agents=tuple(json.loads(row["agents"])), **{name: row[name] for name in names})
        for row in tx.all("list_workers")
    )
