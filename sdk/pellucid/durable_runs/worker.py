"""A worker: claims runs that are due and continues them, and sweeps for what others have lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio

from pellucid.agent import Agent
from pellucid.durable import Claim, Recovery, RunStore
from pellucid.durable_runs.metrics import PassOutcome, StoreMetrics
from pellucid.durable_runs.passes import run_pass
from pellucid.durable_runs.tokens import Completion
from pellucid.errors import StoreUnavailable

_log = logging.getLogger("pellucid.durable_runs")

_WAIT: Final = 60.0
"""Seconds after which a worker looks for work again, whatever it was notified of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Part of `DurableRuns` that continues runs; its arguments say what the attributes are."""

    store: RunStore
    agents: Mapping[str, Agent[Any]]
    name: str
    lease: float
    poll: float
    max_expired_leases: int | None
    deps: Any
    completion: Completion | None
    metrics: StoreMetrics

    async def recover(self) -> Recovery:
        """Make the runs of processes that ended due again, and expire overdue calls; a second call changes nothing."""
        return self.metrics.recovered(await self.store.recover())

    async def work(self, concurrency: int) -> None:
        """Continue runs of the agents as they become due, until cancelled; then give unfinished ones back."""
        slots = anyio.Semaphore(concurrency)
        with self.metrics.working(concurrency):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._sweep)
                while True:
                    await slots.acquire()
                    tasks.start_soon(self._continue, await self._next(), slots)

    async def work_until_idle(self, concurrency: int) -> int:
        """Continue the runs that are due until none is; return the number of passes."""
        await self.recover()
        slots, passes = anyio.Semaphore(concurrency), 0
        while True:
            before = passes
            async with anyio.create_task_group() as tasks:
                await slots.acquire()
                while (claim := await self._claim()) is not None:
                    passes += 1
                    tasks.start_soon(self._continue, claim, slots)
                    await slots.acquire()
                slots.release()
            if passes == before:
                return passes

    async def _continue(self, claim: Claim, slots: anyio.Semaphore) -> None:
        self.metrics.claimed(claim)
        outcome: PassOutcome = "interrupted"
        try:
            outcome = await run_pass(self.store, self.agents[claim.run.agent], claim, self.deps, self.completion)
        finally:
            self.metrics.pass_ended(claim.run.agent, outcome)
            slots.release()

    async def _claim(self) -> Claim | None:
        # A claim whose caller is cancelled would be lost until its lease ends; this one is given back by its pass.
        claim: Claim | None = None
        with anyio.CancelScope(shield=True):
            claim = await self.store.claim(self.name, list(self.agents), self.lease, self.max_expired_leases)
        return claim  # noqa: RET504  (mypy holds that the scope may swallow exceptions)

    async def _next(self) -> Claim:
        """Wait for a run that is due, and claim it."""
        while True:
            try:
                if (claim := await self._claim()) is not None:
                    return claim
                await self.store.wait_for_work(list(self.agents), _WAIT)
            except StoreUnavailable as error:
                _log.warning("durable_runs.store_unavailable %s", error)
                await anyio.sleep(self.poll)

    async def _sweep(self) -> None:
        """Expire overdue calls, and recover runs of workers that ended."""
        while True:
            try:
                await self.recover()
                await self.metrics.read()
            except StoreUnavailable as error:
                self.metrics.clear()
                _log.warning("durable_runs.store_unavailable %s", error)
            await anyio.sleep(self.poll)
