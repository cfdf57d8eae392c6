"""Methods of the store for operators."""

from __future__ import annotations

from functools import partial
from typing import Literal

from pellucid.durable.store import overviews, queries
from pellucid.durable.store.details import RunDetails, details
from pellucid.durable.store.overviews import MAX_LISTED, STATUSES, RunFilter, RunPage, RunQuery, start_of
from pellucid.durable.store.records import CallKind, CallRecord
from pellucid.durable.store.transactions import Transactions, seconds
from pellucid.durable.store.troubles import Trouble, troubles
from pellucid.errors import ConfigError


class OverviewMethods(Transactions):
    """Lists of runs, what is known of one, what is stuck, and the end of old ones."""

    async def list_runs(
        self,
        *,
        status: RunFilter | None = None,
        agent: str | None = None,
        older_than: float | None = None,
        worker: str | None = None,
        key: str | None = None,
        text: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> RunPage:
        """Return runs, the one that was submitted last first.

        What is asked for narrows the list down together. A page looks at 1,000 runs at most, in this order, and may
        have few runs or none and yet a cursor, if few of those are asked for.

        Args:
            status: Runs of this status; `retrying` are those that are due again after a pass failed, and `open` all
                that have not ended.
            agent: Runs of this agent.
            older_than: Runs that were submitted more than so many seconds ago.
            worker: Runs that this worker holds.
            key: The run with this idempotency key.
            text: Runs with this text in their id, key, input or error, without regard to case.
            cursor: `RunPage.cursor` of the page before.
            limit: Maximum number of runs, up to 500.

        Raises:
            ConfigError: the status, the time, the cursor or the limit is not valid.
        """
        if status is not None and status not in STATUSES:
            raise ConfigError(f"list(status={status!r}): must be one of {', '.join(STATUSES)}")
        if not 1 <= limit <= MAX_LISTED:
            raise ConfigError(f"list(limit={limit!r}): must be 1 to {MAX_LISTED}")
        query = RunQuery(
            status=status,
            agent=agent,
            older_than=None if older_than is None else seconds(older_than, "list", "older_than"),
            worker=worker,
            key=key,
            text=text or None,
        )
        return await self._read(partial(overviews.list_runs, query=query, position=start_of(cursor), limit=limit))

    async def details(self, run_id: str) -> RunDetails:
        """Return what is known of a run, as of one moment.

        Raises:
            UnknownRun: there is no such run.
        """
        return await self._read(partial(details, run_id=run_id))

    async def waiting_calls(
        self, *, tool: str | None = None, kind: CallKind | None = None, limit: int = 50
    ) -> tuple[CallRecord, ...]:
        """Return the calls that runs wait for, the oldest first, of one tool or kind."""
        return await self._read(partial(queries.waiting_calls, tool=tool, kind=kind, limit=limit))

    async def ids(self, start: str, *, of: Literal["runs", "calls"], limit: int) -> tuple[str, ...]:
        """Return ids that begin so: of runs (only ids that `submit` has made), or of calls."""
        return await self._read(partial(queries.ids, of=of, start=start, limit=limit))

    async def troubles(self, *, limit: int = 20) -> tuple[Trouble, ...]:
        """Return what does not go on by itself, or not soon; at most `limit` of each kind."""
        return await self._read(partial(troubles, limit=limit))
