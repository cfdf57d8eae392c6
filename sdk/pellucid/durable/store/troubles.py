"""Runs and calls that are stuck in a store, or about to be, as `pellucid durable doctor` reports them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from pellucid.durable.store import queries
from pellucid.durable.store.database import Transaction
from pellucid.durable.store.records import QUARANTINE
from pellucid.durable.store.statements import REVISION
from pellucid.durable.store.values import Row

TroubleKind: TypeAlias = Literal[
    "no_worker", "workers_busy", "lease_expired", "quarantined", "retrying", "not_dispatched", "overdue",
    "approval_waits", "callback_dead", "newer_schema",
]  # fmt: skip
"""See `Trouble`."""

DEAD_AFTER: Final = 30.0
"""Seconds after which a worker that has not been seen is taken for dead."""
RESTARTED_AFTER: Final = 15.0
"""Seconds for which a run may be due without a worker, as while its workers are started anew."""
BUSY_AFTER: Final = 60.0
"""Seconds for which a run may be due, a lease expired, a call registered and not sent, or past its deadline."""
RETRYING_AFTER: Final = 600.0
APPROVAL_AFTER: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that does not go on by itself, or not soon.

    Attributes:
        kind: `no_worker`: runs are due, and no live worker has their agent, or its version; `workers_busy`: they are,
            and the workers that have it do not get to them; `lease_expired`: nobody has taken a run over;
            `quarantined`: the processes of a run have ended again and again; `retrying`: passes of a run fail;
            `not_dispatched`: a call was registered and never sent; `overdue`: it is past its deadline; `approval_waits`
            for a person; `callback_dead`: a state was given up; `newer_schema`: a newer Pellucid has the store.
        age: Seconds since when; None if that is not known.
        number: Runs or calls that it concerns.
        agent: Their agent.
        version: Version of the agent that a run needs.
        run_id: The run.
        result_id: The call, or the approval.
        tool: Its tool.
        worker: Worker that had the run.
        attempts: Attempts of passes or deliveries, or leases that expired.
        detail: The error.
    """

    kind: TroubleKind
    age: float | None
    number: int = 1
    agent: str | None = None
    version: str | None = None
    run_id: str | None = None
    result_id: str | None = None
    tool: str | None = None
    worker: str | None = None
    attempts: int | None = None
    detail: str | None = None


def troubles(tx: Transaction, limit: int) -> tuple[Trouble, ...]:
    """Return what is stuck, at most a number of each kind."""
    return (*_due(tx), *_runs(tx, limit), *_calls(tx, limit), *_others(tx, limit))


def _due(tx: Transaction) -> Iterator[Trouble]:
    live = [worker for worker in tx.all("list_workers_with_age") if _is_live(worker)]
    for row in tx.all("due_groups"):
        fits = [worker for worker in live if _has(worker, row["agent"], row["version"])]
        if row["age"] > (BUSY_AFTER if fits else RESTARTED_AFTER):
            yield Trouble(
                kind="workers_busy" if fits else "no_worker",
                age=row["age"],
                number=row["number"],
                agent=row["agent"],
                version=row["version"],
                detail=f"{len(fits)} with {sum(worker['slots'] for worker in fits)} slots" if fits else None,
            )


def _is_live(worker: Row) -> bool:
    return worker["age"] < DEAD_AFTER and worker["drain_requested_at"] is None


def _has(worker: Row, agent: str, version: str | None) -> bool:
    return agent in json.loads(worker["agents"]) and version in (None, worker["version"])


def _runs(tx: Transaction, limit: int) -> Iterator[Trouble]:
    for row in tx.all("lost_runs", older_than=BUSY_AFTER, limit=limit):
        yield Trouble(kind="lease_expired", run_id=row["id"], **_of(row, "age", "agent", "version", "worker"))
    for row in tx.all("quarantined_runs", leases=QUARANTINE, limit=limit):
        yield Trouble(kind="quarantined", run_id=row["id"], **_of(row, "age", "agent", "worker", "attempts"))
    for row in tx.all("failing_runs", older_than=RETRYING_AFTER, limit=limit):
        yield Trouble(kind="retrying", run_id=row["id"], **_of(row, "age", "agent", "attempts", "detail"))


def _calls(tx: Transaction, limit: int) -> Iterator[Trouble]:
    sources: Sequence[tuple[TroubleKind, str, float]] = (
        ("not_dispatched", "unsent_calls", BUSY_AFTER),
        ("overdue", "overdue_calls", BUSY_AFTER),
        ("approval_waits", "old_approvals", APPROVAL_AFTER),
    )
    for kind, statement, older_than in sources:
        for row in tx.all(statement, older_than=older_than, limit=limit):
            yield Trouble(kind=kind, result_id=row["id"], **_of(row, "age", "run_id", "tool"))


def _others(tx: Transaction, limit: int) -> Iterator[Trouble]:
    now = queries.now(tx)
    for row in tx.all("list_dead_callbacks", limit=limit):
        names = _of(row, "run_id", "attempts")
        yield Trouble(kind="callback_dead", age=now - row["dead_at"], detail=row["last_error"], **names)
    revision = tx.all("find_revision")[0]["revision"]
    if revision > REVISION:
        yield Trouble(kind="newer_schema", age=None, detail=f"revision {revision}, and this Pellucid has {REVISION}")


def _of(row: Row, *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}
