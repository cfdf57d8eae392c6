"""Methods of the store with which workers find and claim runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeAlias

from pellucid.durable.store import queries
from pellucid.durable.store import versions as versions_of_runs
from pellucid.durable.store.claims import Claiming
from pellucid.durable.store.database import Transaction
from pellucid.durable.store.records import Claim, PinnedRuns
from pellucid.durable.store.transactions import Transactions, seconds
from pellucid.durable.store.values import Row

Versions: TypeAlias = Mapping[str, str] | None


class ClaimMethods(Transactions):
    """Claims of runs.

    A *suspect* is a run of which two or more leases have expired in a row: it may be what ended the processes of its
    workers. It is claimed by a worker that runs nothing else.
    """

    async def claim(
        self,
        worker: str,
        agents: Collection[str],
        lease: float,
        max_expired_leases: int | None = None,
        *,
        with_suspects: bool = True,
        versions: Versions = None,
    ) -> Claim | None:
        """Claim the run that has been due for longest, or else one whose lease has expired; None if there is none.

        No other worker gets the run until the lease ends; each write of the claim renews it. An earlier claim of the
        run can write nothing from now on. If the answer to the commit is lost, another run is claimed, and the lost
        one again after its lease.

        Args:
            worker: Name of the worker, for people.
            agents: Names of the agents that the worker can run.
            lease: Seconds.
            max_expired_leases: Leases of a suspect that may expire without an entry, call or event in between, or the
                end of a pass; then it fails, and is returned as such: `Claim.run.status`. None for any number. The two
                leases that made it a suspect do not count: another run may have ended those processes.
            with_suspects: Whether the run may be a suspect, which `Claim.is_alone` says then.
            versions: Versions of the agents, by name. The run is pinned to the version, unless it is pinned already,
                and no run that is pinned to another one is claimed. None to claim all runs, and to pin none.
        """
        claiming = Claiming(
            worker=worker,
            lease=seconds(lease, "claim", "lease"),
            max_expired_leases=max_expired_leases,
            with_suspects=with_suspects,
            versions=versions,
        )
        return await self._claimed(claiming, partial(claiming.any, agents=list(agents)))

    async def claim_run(
        self,
        run_id: str,
        agent: str,
        worker: str,
        lease: float,
        max_expired_leases: int | None = None,
        *,
        with_suspects: bool = True,
        versions: Versions = None,
    ) -> Claim | None:
        """Claim one run of an agent, if it is due or its lease has expired; None otherwise. See `claim`."""
        claiming = Claiming(
            worker=worker,
            lease=seconds(lease, "claim_run", "lease"),
            max_expired_leases=max_expired_leases,
            with_suspects=with_suspects,
            versions=versions,
        )
        return await self._claimed(claiming, partial(claiming.one, run_id=run_id, agent=agent))

    async def _claimed(self, claiming: Claiming, work: Callable[[Transaction], Row | None]) -> Claim | None:
        claims: list[Claim | None] = []
        await self._write(work, then=lambda transaction, row: claims.append(claiming.read(transaction, row)))
        return claims[-1]

    async def suspect(
        self, agents: Collection[str], older_than: float = 0.0, *, versions: Versions = None
    ) -> tuple[str, str] | None:
        """Return id and agent of the suspect that has waited for longest, if that is `older_than` seconds or more."""
        work = partial(
            queries.suspect,
            agents=list(agents),
            older_than=seconds(older_than, "suspect", "older_than"),
            versions=versions,
        )
        return await self._read(work)

    async def pinned(self) -> tuple[PinnedRuns, ...]:
        """Return how many open runs wait for, or are continued by, workers of one version of their agent."""
        return await self._read(versions_of_runs.pinned)

    async def wait_for_work(
        self,
        agents: Collection[str],
        timeout: float,  # noqa: ASYNC109
        *,
        with_suspects: bool = True,
        versions: Versions = None,
    ) -> bool:
        """Wait until a run of one of the agents can be claimed; return False after `timeout` seconds without one."""
        names = list(agents)
        work = partial(queries.has_work, agents=names, with_suspects=with_suspects, versions=versions)
        check = partial(self._read, work)
        return await self._wait([("work", name) for name in names], check, self._database.poll, timeout)
