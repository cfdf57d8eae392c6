"""Scores of the runs of an agent as they end: in the background, never in the way of a run."""

from __future__ import annotations

import atexit
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

import anyio
from anyio.to_thread import run_sync

from pellucid.concurrency.forks import reset_in_child
from pellucid.errors import JournalError, RunCancelled
from pellucid.messages import Message, Usage
from pellucid.run.failure import conversation_of
from pellucid.run.outcomes import RunResult
from pellucid.run.state import Run, Setup
from pellucid.scores.evidence import Evidence, evidence_of, question_of, since_question, tool_uses
from pellucid.scores.record import record
from pellucid.scores.scored import Score, Scored, of_run
from pellucid.scores.scoring import Scorer, check_scorer, scores_of
from pellucid.semconv.names import AGENT_NAME
from pellucid.semconv.scores import EVALUATION_DROPPED, EVALUATION_REASON
from pellucid.telemetry import Pipeline, Scope
from pellucid.telemetry.pipeline import unsettled

MOST_WAITING: Final = 1_000
"""Runs of this process that wait to be scored; further ones are dropped."""

AT_ONCE: Final = 32
"""Runs of an agent that are scored at once."""

PATIENCE: Final = 5.0
"""Seconds that the end of the process waits for scores."""

_log: Final = logging.getLogger("pellucid.scores")

_is_scoring: Final[ContextVar[bool]] = ContextVar("pellucid_is_scoring", default=False)
"""True while a scorer runs. Its own runs are not scored: it might run the agent that it scores."""


@dataclass(slots=True, eq=False)
class _Job:
    """A run to be scored. Attributes: make: Returns its evidence. is_dropped: Whether no more scores are recorded."""

    scorers: Sequence[Scorer]
    make: Callable[[], Evidence]
    agent: str
    pipeline: Pipeline
    is_dropped: bool = False

    def drop(self, reason: str) -> None:
        _log.warning("a run of agent %r has not got all its scores: %s", self.agent, reason)
        scope = Scope(agent=self.agent, pipeline=self.pipeline)
        scope.count(EVALUATION_DROPPED, 1, {AGENT_NAME: self.agent, EVALUATION_REASON: reason})

    def goes_to(self, pipeline: Pipeline | None) -> bool:
        return pipeline is None or self.pipeline is pipeline or self.pipeline.meter_provider is pipeline.meter_provider


class _Worker:
    """The thread of this process that scores, with an event loop of its own; it starts with the first run."""

    def __init__(self) -> None:
        self._renew()
        reset_in_child(self, _thread=self._renew)

    def _renew(self) -> None:
        self._changed = threading.Condition()
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._unfinished: dict[_Job, None] = {}
        self._thread: threading.Thread | None = None

    def offer(self, job: _Job) -> None:
        """Take a run, or drop it if too many wait."""
        with self._changed:
            is_full = len(self._unfinished) >= MOST_WAITING
            if not is_full:
                self._unfinished[job] = None
                if self._thread is None or not self._thread.is_alive():
                    self._start()
        if is_full:
            job.drop("full")
        else:
            self._jobs.put(job)

    def _start(self) -> None:
        if self._thread is None:
            atexit.register(self.settle, None, PATIENCE, True)
        self._thread = threading.Thread(
            target=Context().run, args=(anyio.run, self._serve), name="pellucid-scores", daemon=True
        )
        self._thread.start()

    def settle(self, pipeline: Pipeline | None, within: float, is_last: bool) -> bool:
        """Wait until the runs are scored whose telemetry goes to a pipeline; at the last, drop the rest."""
        if threading.current_thread() is self._thread:
            return True

        def is_done() -> bool:
            return not any(job.goes_to(pipeline) for job in self._unfinished)

        with self._changed:
            if self._changed.wait_for(is_done, within) or not is_last:
                return is_done()
            late = [job for job in self._unfinished if job.goes_to(pipeline)]
            for job in late:
                job.is_dropped = True
                del self._unfinished[job]
        for job in late:
            job.drop("shutdown")
        return not late

    async def _serve(self) -> None:
        threads = anyio.CapacityLimiter(1)
        slots: defaultdict[str, anyio.Semaphore] = defaultdict(partial(anyio.Semaphore, AT_ONCE))
        async with anyio.create_task_group() as tasks:
            while True:
                job = await run_sync(self._jobs.get, abandon_on_cancel=True, limiter=threads)
                tasks.start_soon(self._work, job, slots[job.agent])

    async def _work(self, job: _Job, slots: anyio.Semaphore) -> None:
        _is_scoring.set(True)
        try:
            async with slots:  # a scorer that hangs delays those of its own agent only
                if not job.is_dropped:
                    await self._score(job)
        except Exception:  # noqa: BLE001  (the thread serves all agents)
            _log.exception("scores of a run of agent %r were not recorded", job.agent)
        finally:
            with self._changed:
                self._unfinished.pop(job, None)
                self._changed.notify_all()

    async def _score(self, job: _Job) -> None:
        evidence = job.make()

        def keep(scores: Sequence[Score]) -> None:
            for score in scores if not job.is_dropped else ():
                record(evidence.scored, score, job.pipeline)

        await scores_of(job.scorers, evidence, on_scores=keep)


_WORKER: Final = _Worker()
unsettled.append(_WORKER.settle)


def wait_for_scores(timeout: float = PATIENCE) -> bool:
    """Wait until the runs that have ended are scored, such as in a test; return whether they are.

    It blocks its thread. `flush()` of the telemetry waits too.
    """
    return _WORKER.settle(None, timeout, False)


def scored(setup: Setup, scorers: Sequence[Scorer]) -> Setup:
    """Return the setup of an agent whose runs are scored.

    Raises:
        ConfigError: a scorer is none.
    """
    for scorer in scorers:
        check_scorer(scorer)
    return replace(setup, ended=partial(_ended, scorers))


def _ended(
    scorers: Sequence[Scorer], run: Run, outcome: RunResult[Any] | Exception | None, *, is_final: bool = False
) -> None:
    """Take a run that has ended, to score it in the background; it never raises.

    A run that is paused or was cancelled is not scored. A pass of a durable run is not, unless it is the last one.
    """
    is_durable = run.journal.is_durable and run.nesting.outer is None
    is_paused = isinstance(outcome, RunResult) and outcome.checkpoint is not None
    is_cancelled = isinstance(outcome, RunCancelled) or (outcome is None and run.scope.cancelled)
    is_interrupted = isinstance(outcome, JournalError)  # another pass continues it
    if is_durable != is_final or is_paused or is_cancelled or is_interrupted or _is_scoring.get():
        return
    if run.scope.start:  # otherwise it was not started
        run.scope.guarded("event", _offer, scorers, run, outcome)


def _offer(scorers: Sequence[Scorer], run: Run, outcome: RunResult[Any] | Exception | None) -> None:
    scope = run.scope
    # Of a run that went on after a pause, only the last part is known.
    seconds = (scope.now() - scope.start) / 1e9 if run.pausing.resumption is None else None
    model = run.setup.model.name if len(run.setup.models) == 1 else ""
    if isinstance(outcome, RunResult):
        make = partial(evidence_of, outcome, seconds=seconds, model=model)
    else:
        make = partial(_failed, _scored(run, model), conversation_of(run), run.nesting.spent, seconds, scope.iteration)
    _WORKER.offer(_Job(scorers, make, scope.agent, scope.pipeline))


def _scored(run: Run, model: str) -> Scored:
    scope = run.scope
    about = {"run_id": scope.run_id, "agent": scope.agent, "version": run.setup.version or "", "model": model}
    return of_run(scope.trace_id, scope.span_id, **about)


def _failed(
    about: Scored, messages: tuple[Message, ...], usage: Usage, seconds: float | None, iterations: int
) -> Evidence:
    """Return what scorers see of a run that raised."""
    return Evidence(
        scored=about,
        input=question_of(messages),
        messages=messages,
        tools=tool_uses(since_question(messages)),
        usage=usage,
        seconds=seconds,
        iterations=iterations,
        status="failed",
    )
