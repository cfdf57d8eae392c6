"""Methods of `DurableRuns` that list workers and end them."""

from __future__ import annotations

from pellucid.durable.runs.draining import Draining
from pellucid.durable.store import RunStore
from pellucid.durable.store.transactions import seconds
from pellucid.durable.store.workers import WorkerRecord


class WorkerMethods:
    """Workers of this process, and of all."""

    _store: RunStore
    _draining: Draining

    def drain(self, timeout: float = 30.0) -> None:
        """End the work of this process: `work` claims nothing more, and returns when its passes have ended.

        Passes get `timeout` seconds: tools that run may end, and no model call begins in the second half of the time.
        What still runs then is given back. A run whose pass has ended between two steps is due at once, for another
        worker. A second call may only shorten the time; 0 gives everything back at once. Call it in the event loop of
        `work`.

        Raises:
            ConfigError: the timeout is not a number of seconds.
        """
        self._draining.begin(seconds(timeout, "drain", "timeout"))

    @property
    def is_draining(self) -> bool:
        """True if this process claims no more runs."""
        return self._draining.is_active

    async def drain_worker(self, name: str) -> int:
        """Ask the workers of a name to end as with `drain`; return how many there are.

        They notice within their `poll`, and give their passes the `drain_timeout` of their `work`.
        """
        return await self._store.drain_workers(name)

    async def workers(self) -> tuple[WorkerRecord, ...]:
        """Return the workers of all processes, by name."""
        return await self._store.workers()
