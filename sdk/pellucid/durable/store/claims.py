"""Transactions that claim runs, written once for all dialects. `RunStore.claim` says what they guarantee."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

from pellucid.durable.store import runs, versions
from pellucid.durable.store.database import Transaction
from pellucid.durable.store.records import QUARANTINE, Claim
from pellucid.durable.store.values import GIVEN_UP, Row, call_record, dump, journal_entry, run_record
from pellucid.types import JSONObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Claiming:
    """Worker that claims, and its conditions. `RunStore.claim` describes the attributes."""

    worker: str
    lease: float
    max_expired_leases: int | None
    with_suspects: bool
    versions: Mapping[str, str] | None

    def any(self, tx: Transaction, agents: Sequence[str]) -> Row | None:
        """Claim the oldest run that can be continued; fail it if its leases expired too often."""
        return self._claim(tx, "claim", agents=dump(list(agents)))

    def one(self, tx: Transaction, run_id: str, agent: str) -> Row | None:
        """Claim one run if it can be continued; fail it if its leases expired too often."""
        return self._claim(tx, "claim_run", id=run_id, agent=agent)

    def _claim(self, tx: Transaction, statement: str, **subject: str) -> Row | None:
        parameters = {**subject, "worker": self.worker, "lease": self.lease, "with_suspects": int(self.with_suspects)}
        row = versions.find(tx, statement, self.versions, **parameters)
        if row is not None and self.versions is not None:
            tx.all("pin_run", run_id=row["id"], version=self.versions[row["agent"]])
        if row is None or self.max_expired_leases is None:
            return row
        if row["expired_leases"] < QUARANTINE + self.max_expired_leases:
            return row
        waited = row["updated_at"] - row["due_at"]
        return {**_give_up(tx, row), "due_at": row["due_at"], "waited": waited}

    def read(self, tx: Transaction, row: Row | None) -> Claim | None:
        """Return the claim of a row, once it is committed: what is read may be what ends the process."""
        if row is None:
            return None
        is_given_up = row["status"] != "running"
        journal: Sequence[Row] = ()
        calls: Sequence[Row] = ()
        if row["last_seq"]:
            steps = "list_steps" if is_given_up else "list_journal"  # without what may have ended the processes
            journal = tx.all(steps, run_id=row["id"], after=row["checkpoint_seq"])
            calls = tx.all("list_calls", run_id=row["id"])
        return Claim(
            run_record(row),
            self.worker,
            self.lease,
            is_recovered=row["expired_leases"] > 0,
            waited=row["waited"] if is_given_up else row["updated_at"] - row["due_at"],
            journal=tuple(map(journal_entry, journal)),
            calls=tuple(map(call_record, calls)),
            expired_leases=row["expired_leases"],
            conversation=None if is_given_up else row["conversation"],
            turn=None if is_given_up else row["turn"],
        )


def _give_up(tx: Transaction, row: Row) -> Row:
    """Fail a run that has just been claimed, and return its row."""
    error = (
        f"run {row['id']!r} was given up: {row['expired_leases']} leases in a row expired without a new step, all but "
        f"the first {QUARANTINE} while its worker ran nothing else, as if it ended the process of each worker; look at "
        f"the workers' logs for the cause, mend it, and continue the run with `await runs.retry({row['id']!r})` or "
        f"`pellucid durable retry {quote(row['id'])}`"
    )
    result: JSONObject = {"error": error, "error_type": GIVEN_UP}
    runs.end(tx, row["id"], row["fence"], "failed", result, {}, [{"type": "run.failed", "error_type": GIVEN_UP}])
    return tx.all("find_run", id=row["id"])[0]
