"""Methods of the store on workers."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from pellucid.durable.store import workers
from pellucid.durable.store.transactions import Transactions
from pellucid.durable.store.workers import WorkerRecord


class WorkerMethods(Transactions):
    """Workers: each has a row while it works. A row that is not renewed for a minute is dropped by another one."""

    async def register_worker(
        self, worker_id: str, name: str, agents: Collection[str], slots: int, version: str | None = None
    ) -> bool:
        """Note that a worker is there, now and every few seconds; return whether it was asked to end."""
        return await self._write(
            partial(workers.register, worker_id=worker_id, name=name, agents=list(agents), slots=slots, version=version)
        )

    async def is_worker_to_end(self, worker_id: str) -> bool:
        """Return whether a worker was asked to end."""
        return await self._read(partial(workers.is_to_end, worker_id=worker_id))

    async def remove_worker(self, worker_id: str) -> None:
        """Note that a worker has ended."""
        await self._write(partial(workers.remove, worker_id=worker_id))

    async def drain_workers(self, name: str) -> int:
        """Ask the workers of a name to claim nothing more and to end; return how many there are."""
        return await self._write(partial(workers.request_drain, name=name))

    async def workers(self) -> tuple[WorkerRecord, ...]:
        """Return the workers, by their names."""
        return await self._read(workers.listed)
