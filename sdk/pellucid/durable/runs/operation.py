"""Methods of durable runs for operators: what there is, and what a run waits for."""

from __future__ import annotations

from pellucid.durable.states.descriptions import RunDescription, description_of
from pellucid.durable.store import CallKind, CallRecord, RunFilter, RunPage, RunStore


class Operation:
    """Methods for operators."""

    _store: RunStore

    async def list(
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

        ```python
        page = await runs.list(status="failed", agent="support", older_than=3600)
        ```

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
        return await self._store.list_runs(
            status=status,
            agent=agent,
            older_than=older_than,
            worker=worker,
            key=key,
            text=text,
            cursor=cursor,
            limit=limit,
        )

    async def describe(self, run_id: str) -> RunDescription:
        """Return where a run is, who holds it, what it waits for, and what has been done.

        Raises:
            UnknownRun: there is no such run.
        """
        return description_of(await self._store.details(run_id))

    async def waiting_calls(
        self, *, tool: str | None = None, kind: CallKind | None = None, limit: int = 50
    ) -> tuple[CallRecord, ...]:
        """Return the calls that runs wait for, the oldest first.

        Args:
            tool: Calls of this tool.
            kind: `external` calls, or approvals: `approval`.
            limit: Maximum number of calls.
        """
        return await self._store.waiting_calls(tool=tool, kind=kind, limit=limit)
