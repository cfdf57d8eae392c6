"""A worker: claims runs that are due and continues them, and sweeps for what others have lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from pellucid.agent import Agent
from pellucid.durable.runs.live.hub import LiveHub
from pellucid.durable.runs.live.pass_text import PassText
from pellucid.durable.runs.passes import run_pass
from pellucid.durable.runs.retries import RetryPolicy
from pellucid.durable.runs.sources import Claims, Source, Work
from pellucid.durable.runs.tokens import Completion
from pellucid.durable.states.metrics import PassOutcome, StoreMetrics
from pellucid.durable.store import Recovery, RunStore
from pellucid.errors import StoreUnavailable

_log = logging.getLogger("pellucid.durable_runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Part of `DurableRuns` that continues runs; its arguments say what the attributes are."""

    store: RunStore
    agents: Mapping[str, Agent[Any, Any]]
    claims: Claims
    source: Source
    poll: float
    deps: Any
    completion: Completion | None
    metrics: StoreMetrics
    hub: LiveHub | None
    is_always_streamed: bool
    retry: RetryPolicy | None

    async def recover(self) -> Recovery:
        """Make the runs of processes that ended due again, and expire overdue calls; a second call changes nothing."""
        return self.metrics.recovered(await self.store.recover())

    async def work(self, concurrency: int) -> None:
        """Continue runs of the agents as they become due, until cancelled; then give unfinished ones back."""
        slots = anyio.Semaphore(concurrency)
        if self.hub is not None:
            self.hub.open()
        with self.metrics.working(concurrency):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._sweep)
                while True:
                    await slots.acquire()
                    tasks.start_soon(self._continue, await self.source.next(), slots)

    async def work_until_idle(self, concurrency: int) -> int:
        """Continue the runs that are due until none is; return the number of passes."""
        await self.recover()
        slots, passes = anyio.Semaphore(concurrency), 0
        while True:
            before = passes
            async with anyio.create_task_group() as tasks:
                await slots.acquire()
                while (claim := await self.claims.any()) is not None:
                    passes += 1
                    tasks.start_soon(self._continue, Work(claim), slots)
                    await slots.acquire()
                slots.release()
            if passes == before:
                return passes

    async def _continue(self, work: Work, slots: anyio.Semaphore) -> None:
        claim = work.claim
        self.metrics.claimed(claim, work.source)
        outcome: PassOutcome = "interrupted"
        try:
            live = PassText(self.hub, claim, is_always=self.is_always_streamed) if self.hub is not None else None
            agent = self.agents[claim.run.agent]
            outcome = await run_pass(self.store, agent, claim, self.deps, self.completion, live, self.retry)
        finally:
            self.metrics.pass_ended(claim.run.agent, outcome)
            work.end(outcome)
            slots.release()

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
