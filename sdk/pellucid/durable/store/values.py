"""JSON values and rows: how they are stored, compared and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, TypeAlias

from pydantic_core import from_json

from pellucid.durable.store.records import CallRecord, Failures, JournalEntry, RunRecord, RunStatus, StoredEvent
from pellucid.json_text import JSONText
from pellucid.types import JSONValue

Row: TypeAlias = Mapping[str, Any]
"""A row by column names."""

MAX_ID: Final = 255
"""Characters of an id or key. PostgreSQL indexes 2,704 bytes, of up to two of them."""

GIVEN_UP: Final = "given_up"
"""`error_type` of a run whose leases expired too often."""


class Encoded(str):
    """JSON text of a value, to be stored as it is."""

    __slots__ = ()


_TEXT: Final = JSONText(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ASCII: Final = JSONText(allow_nan=False, separators=(",", ":"))
_CANONICAL: Final = JSONText(sort_keys=True, allow_nan=False, separators=(",", ":"))


def dump(value: JSONValue) -> str:
    """Return JSON text that every database stores.

    Raises:
        TypeError: the value is not JSON.
        ValueError: the value contains NaN, an infinity, or itself.
    """
    if isinstance(value, Encoded):
        return str(value)
    text = _TEXT.encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can hold
        return _ASCII.encode(value)
    return text


def dump_optional(value: JSONValue) -> str | None:
    """Return JSON text, or None for None."""
    return None if value is None else dump(value)


def load(text: str | None) -> JSONValue:
    """Return the value of JSON text; None for None. Text that is not JSON, in a damaged row, is returned as it is."""
    if text is None:
        return None
    try:
        value: JSONValue = from_json(text)  # a sixth of the instructions of `json.loads`
    except ValueError:
        return _load_slowly(text)
    return value


def _load_slowly(text: str) -> JSONValue:
    """Return a value that may have half of a surrogate pair, or be nested deeply, which pydantic refuses."""
    try:
        value: JSONValue = json.loads(text)
    except ValueError:
        return text
    return value


def is_storable(text: str) -> bool:
    """Return whether every database stores and indexes a text."""
    return len(text) <= MAX_ID and text.isprintable()


def storable(text: str) -> str:
    """Return a text that a model may have chosen, or its digest if not every database stores and indexes it."""
    return text if is_storable(text) else sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest_of(*values: JSONValue) -> str:
    """Return the SHA-256 of canonical JSON: sorted keys, no spaces, ASCII."""
    return sha256(_CANONICAL.encode(values).encode()).hexdigest()


def run_record(row: Row) -> RunRecord:
    """Return a run."""
    return RunRecord(
        id=row["id"],
        agent=row["agent"],
        status=status_of(row),
        pass_no=row["pass_no"],
        pending=row["pending"],
        last_seq=row["last_seq"],
        cancel_reason=row["cancel_reason"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        request=load(row["request"]),
        checkpoint=load(row["checkpoint"]),
        checkpoint_seq=row["checkpoint_seq"],
        result=load(row["result"]),
        idempotency_key=row["idempotency_key"],
        fence=row["fence"],
        lease_owner=row["lease_owner"],
        lease_until=row["lease_until"],
        due_at=row["due_at"],
        trace=load(row["trace"]),
        failures=_failures(row),
    )


def is_given_up(run: RunRecord) -> bool:
    """Return whether the store has failed a run, whose content may be what ended the processes of its workers."""
    return isinstance(run.result, dict) and run.result.get("error_type") == GIVEN_UP


def _failures(row: Row) -> Failures | None:
    if _optional(row, "attempts") is None:
        return None
    return Failures(
        attempts=row["attempts"],
        since=row["failing_since"],
        failed_at=row["failed_at"],
        next_at=row["next_at"],
        error_type=row["last_error_type"],
        error=row["last_error"],
    )


def status_of(row: Row) -> RunStatus:
    """Return the status of a run. A queued one is stored as due without a time, so that no version claims it."""
    status: RunStatus = row["status"]
    if status != "due":
        return status
    if row["due_at"] is None:
        return "queued"
    return "retrying" if _optional(row, "is_retrying") else status


def _optional(row: Row, name: str) -> Any:
    """Return a column that not all statements read; a row of SQLite is no mapping otherwise."""
    return row[name] if name in row.keys() else None  # noqa: SIM118


def call_record(row: Row) -> CallRecord:
    """Return a call."""
    return CallRecord(
        id=row["id"],
        run_id=row["run_id"],
        seq=row["seq"],
        pass_no=row["pass_no"],
        kind=row["kind"],
        tool=row["tool"],
        tool_call_id=row["tool_call_id"],
        status=row["status"],
        request=load(row["request"]),
        output=load(row["payload"]),
        digest=row["digest"],
        expires_at=row["deadline"],
        heartbeat_at=row["heartbeat_at"],
        progress=load(row["progress"]),
        created_at=row["created_at"],
        dispatched_at=row["dispatched_at"],
        settled_at=row["settled_at"],
        trace=load(row["trace"]),
        settlement_trace=load(row["settlement_trace"]),
    )


def journal_entry(row: Row) -> JournalEntry:
    """Return a journal entry."""
    return JournalEntry(
        run_id=row["run_id"],
        seq=row["seq"],
        key=row["key"],
        value=load(row["value"]),
        fence=row["fence"],
        created_at=row["created_at"],
    )


def stored_event(row: Row) -> StoredEvent:
    """Return an event."""
    return StoredEvent(run_id=row["run_id"], seq=row["seq"], value=load(row["value"]), created_at=row["created_at"])
