"""Runs as an operator lists them, in pages, newest first."""

from __future__ import annotations

import json
import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from pellucid.context import Identity
from pellucid.durable.store import queries
from pellucid.durable.store.database import Transaction
from pellucid.durable.store.records import FINAL, RunStatus
from pellucid.durable.store.values import Row, dump, load, status_of
from pellucid.errors import ConfigError
from pellucid.text import excerpt
from pellucid.types import JSONObject, JSONValue

RunFilter: TypeAlias = RunStatus | Literal["open"]
"""Statuses by which `list` filters; `open` is all that has not ended."""

STATUSES: Final[tuple[RunFilter, ...]] = (
    "open", "queued", "due", "retrying", "running", "waiting", "completed", "failed", "cancelled",
)  # fmt: skip
MAX_LISTED: Final = 500
"""Runs of a page."""
MAX_LOOKED_AT: Final = 1000
"""Runs that one page looks at."""

_BATCH: Final = 250
_LABELS: Final = frozenset({"role", "type"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """A run as lists show it.

    Attributes:
        run_id: Id of the run.
        agent: Name of its agent.
        status: Where it is; `retrying` if its last pass failed and it is due again later.
        identity: On whose behalf it acts.
        created_at: Time of `submit`.
        updated_at: Time of the latest change.
        due_at: Time from which it can be claimed; None unless it is due or retrying.
        passes: Number of passes, including the next one of a run that has not ended.
        pending: Calls that it waits for.
        worker: Worker that holds it; None unless it is running.
        lease_until: End of the lease; it has expired if that is past.
        expired_leases: Leases that expired in a row without a step.
        idempotency_key: Key given to `submit`.
        attempts: Passes that failed in a row without a new step.
        failed_at: Time at which the latest of them failed.
        last_error: Redacted text of its error, or of the one with which the run failed, or why it was cancelled.
        last_error_type: Value of `error.type`.
        next_attempt_at: Time of the next attempt; None unless it is retrying.
    """

    run_id: str
    agent: str
    status: RunStatus
    identity: Identity | None
    created_at: float
    updated_at: float
    due_at: float | None
    passes: int
    pending: int
    worker: str | None
    lease_until: float | None
    expired_leases: int
    idempotency_key: str | None
    attempts: int
    failed_at: float | None
    last_error: str | None
    last_error_type: str | None
    next_attempt_at: float | None


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs, newest first. Attributes: cursor: What the next page is asked for with; None if there is none."""

    runs: tuple[RunOverview, ...]
    cursor: str | None


class Position(NamedTuple):
    """Place in the order of a list."""

    created_at: float
    id: str


_START: Final = Position(1e300, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """Filters of a list; each part that is not None leaves runs out."""

    status: RunFilter | None = None
    agent: str | None = None
    older_than: float | None = None
    worker: str | None = None
    key: str | None = None
    text: str | None = None

    def source(self) -> tuple[str, dict[str, Any]]:
        """Return the statement whose index has the fewest runs that are not wanted, and its parameters."""
        if self.key is not None:
            return "newest_of_key", {"key": self.key}
        if self.worker is not None:
            return "newest_of_worker", {"worker": self.worker}
        if self.status == "open":
            return "newest_open", {}
        if self.agent is not None and self.status in (None, "completed"):  # most runs are completed
            return "newest_of_agent", {"agent": self.agent}
        if self.status is not None:
            stored = "due" if self.status in ("queued", "retrying") else self.status
            return "newest_of_status", {"status": stored}
        return "newest", {}

    @property
    def is_narrow(self) -> bool:
        """True if the filter may leave out runs that the statement returns."""
        few = {"queued", "due", "retrying"}
        both = self.agent is not None and self.status is not None
        return self.text is not None or self.status in few or both

    def matches(self, row: Row) -> bool:
        """Return whether a run is asked for."""
        is_wanted = (
            (self.status in (None, status_of(row)) or (self.status == "open" and row["status"] not in FINAL))
            and self.agent in (None, row["agent"])
            and self.worker in (None, _holder(row))
        )
        return is_wanted and (self.text is None or _mentions(row, self.text.casefold()))


def list_runs(tx: Transaction, query: RunQuery, position: Position, limit: int) -> RunPage:
    """Return a page of runs after a position."""
    if query.older_than is not None:
        position = min(position, Position(queries.now(tx) - query.older_than, ""))
    statement, parameters = query.source()
    size = _BATCH if query.is_narrow else limit + 1
    found: list[RunOverview] = []
    for _ in range(max(MAX_LOOKED_AT // size, 1)):
        keys = tx.all(statement, **parameters, **position._asdict(), limit=size)
        for row in tx.all("list_overviews", ids=dump([key["id"] for key in keys])):
            if query.matches(row):
                if len(found) == limit:
                    return RunPage(tuple(found), encoded(Position(found[-1].created_at, found[-1].run_id)))
                found.append(overview(row))
        if len(keys) < size:
            return RunPage(tuple(found), None)
        position = Position(keys[-1]["created_at"], keys[-1]["id"])
    return RunPage(tuple(found), encoded(position))


def overview(row: Row) -> RunOverview:
    """Return a run from its row, with that of its retries."""
    status = status_of(row)
    failure = load(row["failure"])
    failed = failure if isinstance(failure, dict) else {}
    is_claimable = status in ("due", "retrying")
    return RunOverview(
        run_id=row["id"],
        agent=row["agent"],
        status=status,
        identity=_identity(row),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        due_at=row["due_at"] if is_claimable else None,
        passes=row["pass_no"],
        pending=row["pending"],
        worker=_holder(row),
        lease_until=row["lease_until"],
        expired_leases=row["expired_leases"],
        idempotency_key=row["idempotency_key"],
        attempts=row["attempts"] or 0,
        failed_at=row["failed_at"],
        last_error=_error(row, failed),
        last_error_type=failed.get("error_type") or row["last_error_type"],
        next_attempt_at=row["next_at"] if status == "retrying" else None,
    )


def start_of(cursor: str | None) -> Position:
    """Return the position of a cursor.

    Raises:
        ConfigError: it is none.
    """
    if cursor is None:
        return _START
    with suppress(ValueError, TypeError):
        created_at, run_id = json.loads(urlsafe_b64decode(cursor.encode("ascii")))
        if isinstance(created_at, float) and math.isfinite(created_at) and isinstance(run_id, str):
            return Position(created_at, run_id)
    raise ConfigError(
        f"list(cursor={excerpt(repr(cursor))}): not the cursor of a page; give `RunPage.cursor` as it was"
    )


def encoded(position: Position) -> str:
    """Return the cursor of a position."""
    return urlsafe_b64encode(json.dumps([float(position.created_at), position.id]).encode()).decode()


def _holder(row: Row) -> str | None:
    """Return the worker that holds a run; the row keeps the name after a lease has expired."""
    worker: str | None = row["lease_owner"] if row["lease_until"] is not None else None
    return worker


def _error(row: Row, failed: JSONObject) -> str | None:
    reason = row["cancel_reason"] if row["status"] == "cancelled" else None
    error: str | None = failed.get("error") or reason or row["last_error"]
    return error


def _identity(row: Row) -> Identity | None:
    request = load(row["request"])
    given = request.get("identity") if isinstance(request, dict) else None
    with suppress(TypeError, ConfigError):  # damaged: a pass fails
        return Identity(**given) if isinstance(given, dict) else None
    return None


def _mentions(row: Row, text: str) -> bool:
    """Return whether a run has a text in its id, key, input or error, without regard to case."""
    short = (row["id"], row["idempotency_key"], row["failure"], row["cancel_reason"], row["last_error"])
    if any(text in value.casefold() for value in short if value is not None):
        return True
    request: str = row["request"]
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    return escaped in request.casefold() and any(text in value.casefold() for value in _texts(load(request)))


def _texts(value: JSONValue) -> Iterator[str]:
    """Yield the texts in a value, without those of members that say what it is."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, member in value.items():
            if name not in _LABELS:
                yield from _texts(member)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
