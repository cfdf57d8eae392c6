"""A worker: claims runs that are due and continues them, and sweeps for what others have lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import TaskGroup

from pellucid.agent import Agent
from pellucid.durable.runs.draining import Draining
from pellucid.durable.runs.live.hub import LiveHub
from pellucid.durable.runs.live.pass_text import PassText
from pellucid.durable.runs.passes import PATIENCE, give_back, run_pass
from pellucid.durable.runs.presence import Presence
from pellucid.durable.runs.retries import RetryPolicy
from pellucid.durable.runs.sources import Claims, Source, Work
from pellucid.durable.runs.tokens import Completion
from pellucid.durable.states.metrics import PassOutcome, StoreMetrics
from pellucid.durable.store import Recovery, RunStore
from pellucid.errors import StoreError, StoreUnavailable

_log = logging.getLogger("pellucid.durable_runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Part of `DurableRuns` that continues runs; its arguments say what the attributes are."""

    store: RunStore
    agents: Mapping[str, Agent[Any, Any]]
    claims: Claims
    draining: Draining
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

    async def work(self, concurrency: int, drain_timeout: float) -> None:
        """Continue runs of the agents as they become due, until cancelled or drained; then give the others back."""
        slots, presence = anyio.Semaphore(concurrency), Presence(self.claims, concurrency)
        if self.hub is not None:
            self.hub.open()
        with self.metrics.working(concurrency):
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._sweep, presence, drain_timeout)
                    with self.draining.claiming():
                        while not self.draining.is_active:
                            await slots.acquire()
                            self._begin(tasks, await self.source.next(), slots)
                    with self.draining.ending():
                        await self.claims.passes.end_all()
                    tasks.cancel_scope.cancel()
            finally:
                with anyio.move_on_after(PATIENCE, shield=True), suppress(StoreError):
                    await presence.end()

    async def work_until_idle(self, concurrency: int) -> int:
        """Continue the runs that are due until none is; return the number of passes."""
        await self.recover()
        slots, passes = anyio.Semaphore(concurrency), 0
        while True:
            before = passes
            async with anyio.create_task_group() as tasks:
                await slots.acquire()
                while not self.draining.is_active and (claim := await self.claims.any()) is not None:
                    passes += 1
                    self._begin(tasks, Work(claim), slots)
                    await self.claims.passes.have_room()
                    await slots.acquire()
                slots.release()
            if passes == before:
                return passes

    def _begin(self, tasks: TaskGroup, work: Work, slots: anyio.Semaphore) -> None:
        self.claims.passes.begin(is_alone=work.claim.is_alone)
        tasks.start_soon(self._continue, work, slots)

    async def _continue(self, work: Work, slots: anyio.Semaphore) -> None:
        claim = work.claim
        self.metrics.claimed(claim, work.source)
        outcome: PassOutcome = "interrupted"
        try:
            live = PassText(self.hub, claim, is_always=self.is_always_streamed) if self.hub is not None else None
            agent, gate = self.agents[claim.run.agent], self.draining.gate(live)
            if self.draining.is_active and claim.run.status != "failed":  # the claim was under way at the drain
                outcome = await give_back(self.store, claim)
            else:
                outcome = await run_pass(self.store, agent, claim, self.deps, self.completion, gate, self.retry)
        finally:
            self.metrics.pass_ended(claim.run.agent, outcome)
            work.end(outcome)
            self.claims.passes.end()
            slots.release()

    async def _sweep(self, presence: Presence, drain_timeout: float) -> None:
        """Expire overdue calls, recover runs of workers that ended, and look whether this one is to end."""
        while True:
            try:
                await self.recover()
                await self.claims.look_for_suspect()
                if await presence.renew():
                    self.draining.begin(drain_timeout)
                await self.metrics.read()
            except StoreUnavailable as error:
                self.metrics.clear()
                _log.warning("durable_runs.store_unavailable %s", error)
            await anyio.sleep(self.poll)
