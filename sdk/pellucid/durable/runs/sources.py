"""Sources of a worker's claims: the store alone, or a queue with the store behind it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

import anyio

from pellucid.durable.runs.slots import Passes
from pellucid.durable.states.metrics import PassOutcome
from pellucid.durable.states.work_queue import GIVEN_UP, Delivery, WorkQueue
from pellucid.durable.store import Claim, RunStore
from pellucid.errors import StoreUnavailable

_log = logging.getLogger("pellucid.durable_runs")

_WAIT: Final = 60.0
"""Seconds after which a worker looks for work again, whatever it was notified of."""

ClaimSource: TypeAlias = Literal["store", "queue"]
"""`queue` if a message named the run; `store` if the worker found it in the database."""


@dataclass(frozen=True, slots=True)
class Work:
    """A claimed run.

    Attributes:
        claim: The claim.
        source: Source by which the worker found the run.
        end: Called once, when the pass has ended.
    """

    claim: Claim
    source: ClaimSource = "store"
    end: Callable[[PassOutcome], None] = lambda outcome: None


class Source(Protocol):
    """Source of claimed runs."""

    async def next(self) -> Work:
        """Wait for a run that is due, and claim it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Claims of one worker; `DurableRuns` says what the attributes are.

    A claim whose caller is cancelled would be lost until its lease ends, so claiming cannot be cancelled: the pass
    gives the claim back.
    """

    store: RunStore
    agents: Sequence[str]
    worker: str
    lease: float
    max_expired_leases: int | None
    passes: Passes
    versions: Mapping[str, str] | None = None

    async def any(self) -> Claim | None:
        """Claim the run that has been due for longest, or else one whose lease has expired.

        A suspect is claimed while no pass runs here, and first if it has waited for the length of a lease.
        """
        claim: Claim | None = None
        with anyio.CancelScope(shield=True):
            is_idle = self.passes.are_over
            if (
                is_idle
                and self.passes.has_suspect
                and (suspect := await self.store.suspect(self.agents, versions=self.versions)) is not None
            ):
                claim = await self.one(*suspect)
            self.passes.has_suspect = self.passes.has_suspect and not is_idle
            if claim is None:
                claim = await self.store.claim(
                    self.worker,
                    self.agents,
                    self.lease,
                    self.max_expired_leases,
                    with_suspects=is_idle,
                    versions=self.versions,
                )
        return claim

    async def one(self, run_id: str, agent: str) -> Claim | None:
        """Claim one run, if it can be continued; a suspect while no pass runs here."""
        claim: Claim | None = None
        with anyio.CancelScope(shield=True):
            claim = await self.store.claim_run(
                run_id,
                agent,
                self.worker,
                self.lease,
                self.max_expired_leases,
                with_suspects=self.passes.are_over,
                versions=self.versions,
            )
        return claim  # noqa: RET504  (mypy holds that the scope may swallow exceptions)

    async def wait(self, poll: float) -> None:
        """Wait until a run can be claimed here."""
        is_idle = self.passes.are_over
        while (
            not await self.store.wait_for_work(
                self.agents, _WAIT if is_idle else poll, with_suspects=is_idle, versions=self.versions
            )
            and is_idle == self.passes.are_over
        ):
            pass

    async def look_for_suspect(self) -> None:
        """Stop claiming beside passes that run here, if no other worker has claimed a suspect in time."""
        if not self.passes.are_over:
            self.passes.expect(
                has_suspect=await self.store.suspect(self.agents, self.lease, versions=self.versions) is not None
            )


class StoreSource:
    """The store alone: it notifies all workers of each run that is due."""

    def __init__(self, claims: Claims, poll: float) -> None:
        self._claims = claims
        self._poll = poll

    async def next(self) -> Work:
        """Wait for a run that is due, and claim it."""
        while True:
            try:
                await self._claims.passes.have_room()
                if (claim := await self._claims.any()) is not None:
                    return Work(claim)
                await self._claims.wait(self._poll)
            except StoreUnavailable as error:
                _log.warning("durable_runs.store_unavailable %s", error)
                await anyio.sleep(self._poll)


class QueueSource:
    """A queue, whose messages go to one worker each, and sweeps of the store for runs that no message has announced."""

    def __init__(self, claims: Claims, queue: WorkQueue, poll: float) -> None:
        self._claims = claims
        self._queue = queue
        self._poll = poll
        self._next_sweep = -math.inf

    async def next(self) -> Work:
        """Wait for a run that is due, and claim it."""
        while True:
            await self._claims.passes.have_room()
            try:
                work = await (self._receive() if anyio.current_time() < self._next_sweep else self._sweep())
            except StoreUnavailable as error:
                _log.warning("durable_runs.store_unavailable %s", error)
                await anyio.sleep(self._poll)
                continue
            if work is not None:
                return work

    async def _sweep(self) -> Work | None:
        """Claim a run; if there is one, the next call is a sweep again."""
        claim = await self._claims.any()
        if claim is not None:
            return Work(claim)
        self._next_sweep = anyio.current_time() + self._poll
        return None

    async def _receive(self) -> Work | None:
        timeout = max(0.0, self._next_sweep - anyio.current_time())
        delivery = await self._queue.receive(self._claims.agents, timeout)
        if delivery is None:
            return None
        try:
            claim = await self._claims.one(delivery.run_id, delivery.agent)
        except BaseException:
            delivery.give_back()
            raise
        if claim is None:  # continued or cancelled already: the message was late, or came twice
            delivery.acknowledge()
            return None
        return Work(claim, "queue", lambda outcome: _end(delivery, claim, outcome))


def _end(delivery: Delivery, claim: Claim, outcome: PassOutcome) -> None:
    if claim.run.status == "failed":
        delivery.bury(GIVEN_UP)
    elif outcome == "interrupted":
        delivery.give_back()
    else:
        delivery.acknowledge()
