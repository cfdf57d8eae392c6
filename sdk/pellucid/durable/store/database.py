"""The interface between a store and a database: transactions, and notifications of their commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from pellucid.durable.store.records import Changes, RunDue
from pellucid.durable.store.values import Row
from pellucid.durable.store.wakeups import Wakeups

T = TypeVar("T")

Execute: TypeAlias = Callable[[str, Mapping[str, Any]], Sequence[Row]]

Channel: TypeAlias = Literal["work", "events", "callbacks"]
"""`work` with the name of an agent: a run is due; `events` with the id of a run: it has new events, or has ended;
`callbacks` with an empty key: a state is to be delivered."""


UNAVAILABLE: Final = "is not available"
FULL_DISK: Final = "has a full disk"
"""`reason` of a `StoreUnavailable`."""


class Transaction:
    """A transaction of a worker thread.

    Attributes:
        is_repeat: Whether the transaction may have been committed before, by a connection that was lost.
        notifications: Channels and keys to notify of the commit.
        due: Runs that can be claimed after the commit.
    """

    def __init__(self, execute: Execute, statements: Mapping[str, str], *, is_repeat: bool = False) -> None:
        self._execute = execute
        self._statements = statements
        self.is_repeat = is_repeat
        self.notifications: dict[tuple[Channel, str], None] = {}
        self.due: list[RunDue] = []

    def has(self, statement: str, /) -> bool:
        """Return whether the dialect has a statement of that name."""
        return statement in self._statements

    def all(self, statement: str, /, **parameters: Any) -> Sequence[Row]:
        """Run a named statement and return its rows."""
        return self._execute(self._statements[statement], parameters)

    def one(self, statement: str, /, **parameters: Any) -> Row | None:
        """Run a named statement and return its first row, or None."""
        rows = self._execute(self._statements[statement], parameters)
        return rows[0] if rows else None

    def notify_due(self, agent: str, run_id: str, fence: int, *, is_later: bool = False) -> None:
        """Notify workers that a run is due if the transaction commits; `is_later` if it cannot be claimed yet."""
        self.notifications["work", agent] = None
        if not is_later:
            self.due.append(RunDue(run_id, agent, fence))

    def notify_events(self, run_id: str) -> None:
        """Notify readers that a run has new events, or has ended, if the transaction commits."""
        self.notifications["events", run_id] = None

    def notify_callbacks(self) -> None:
        """Notify those who deliver states to callback URLs that one is due, if the transaction commits."""
        self.notifications["callbacks", ""] = None

    @property
    def changes(self) -> Changes:
        """Changes of the commit that may concern other processes."""
        return Changes(tuple(self.due), tuple(key for channel, key in self.notifications if channel == "events"))


class TransactionLost(Exception):
    """A transaction ended without an answer of the database; its cause is the database's error.

    Attributes:
        is_outcome_unknown: Whether it may have been committed.
        is_transient: Whether repeating it can help.
        is_committed: Whether it was committed, and only what follows it was lost.
        reason: `reason` of the `StoreUnavailable`.
    """

    def __init__(
        self,
        *,
        is_outcome_unknown: bool = False,
        is_transient: bool = True,
        is_committed: bool = False,
        reason: str = UNAVAILABLE,
    ) -> None:
        super().__init__()
        self.is_committed = is_committed
        self.is_outcome_unknown = is_outcome_unknown
        self.is_transient = is_transient
        self.reason = reason


class Database(Protocol):
    """Connections of one dialect. All methods block, and are called in worker threads.

    Attributes:
        name: Its name in errors; without secrets.
        writers: Number of transactions that may write at the same time.
        readers: Number of transactions that may read at the same time.
        poll: Seconds after which a waiter looks for itself, in case a notification was lost.
        can_send: Whether `send` reaches other processes.
    """

    name: str
    writers: int
    readers: int
    poll: float
    can_send: bool

    def schema(self) -> tuple[int | str, int]:
        """Return version and revision of the schema, without changing it; see `statements.schema`.

        Raises:
            TransactionLost: the database is not available.
        """
        ...

    def open(self) -> None:
        """Create the schema, or bring it to the current version.

        Raises:
            ConfigError: the schema is not one that this version of Pellucid knows.
            TransactionLost: the database is not available.
        """
        ...

    def write(
        self,
        work: Callable[[Transaction], T],
        *,
        is_repeat: bool = False,
        is_single: bool = False,
        then: Callable[[Transaction, T], None] | None = None,
    ) -> T:
        """Run a function in a transaction that may write, and commit; roll back if the function raises.

        Args:
            work: The function.
            is_repeat: As in `Transaction`.
            is_single: Whether PostgreSQL may commit each statement of the function by itself: one of them writes all.
            then: Reads after the commit, on the same connection, with the result of the function.

        Raises:
            TransactionLost: the database did not answer.
        """
        ...

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run a function that only reads in a transaction, which sees one state of the database.

        Raises:
            TransactionLost: the database did not answer.
        """
        ...

    def watch(self, wakeups: Wakeups) -> None:
        """Start to notify `wakeups` of commits, of all processes, in a thread of the database's own."""
        ...

    def send(self, messages: Sequence[tuple[str, str]]) -> None:
        """Send texts on channels to the receivers of all processes that watch, this one included.

        Raises:
            TransactionLost: the database did not answer.
        """
        ...

    def close(self) -> None:
        """End the thread of `watch` and close all connections."""
        ...
