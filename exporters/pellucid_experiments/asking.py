"""One attempt at a trial: a run of the candidate, live or with the hubs and tools of a recorded run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from anyio.to_thread import run_sync
from opentelemetry.trace import format_span_id, format_trace_id

from pellucid import semconv
from pellucid.budgets import Budget
from pellucid.context import Identity
from pellucid.errors import CheckpointError
from pellucid.messages import Usage
from pellucid.run.loop import execute
from pellucid.run.outcomes import RunResult
from pellucid.run.start import conversation, create_run
from pellucid.run.state import CallerContext
from pellucid.scores import Evidence, SpanFacts
from pellucid.scores.evidence import evidence_of
from pellucid.semconv.experiments import EXPERIMENT_CANDIDATE, EXPERIMENT_CASE, EXPERIMENT_NAME, EXPERIMENT_REPEAT
from pellucid.telemetry.pipeline import Pipeline
from pellucid_experiments.candidates import Candidate
from pellucid_experiments.naming import conversation_of
from pellucid_experiments.trials import Planned, known_sum
from pellucid_replay import Recording, Tape, TapeError
from pellucid_replay.replaying import checked_passes, played
from pellucid_replay.session import Session
from pellucid_replay.tracing import ReplayedSpan, ReplayTracerProvider, kept_pipeline

_TAPES: Final = 16
"""Recorded runs that are kept in memory: the repeats of a case follow each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A run of a candidate.

    Attributes:
        result: Its result; None if there is none.
        error: Its error.
        problem: Why it could not be replayed; empty if it could.
        pipeline: Where its telemetry went.
        spans: Its spans, and those of the runs nested in it.
    """

    result: RunResult[Any] | None = None
    error: Exception | None = None
    problem: str = ""
    pipeline: Pipeline
    spans: Sequence[ReplayedSpan] = ()

    @property
    def root(self) -> ReplayedSpan | None:
        """The span of the run; the last one, if it continued others."""
        roots = [span for span in self.spans if span.parent is None and _phase(span) == semconv.RUN]
        return roots[-1] if roots else None

    @property
    def run_id(self) -> str:
        """Id of the run; empty if there is none."""
        return str(self.root.attributes.get(semconv.RUN_ID, "")) if self.root is not None else ""

    @property
    def trace_id(self) -> str:
        """Its trace; empty if there is none."""
        context = self.root.get_span_context() if self.root is not None else None
        return format_trace_id(context.trace_id) if context is not None and context.is_valid else ""

    @property
    def seconds(self) -> float | None:
        """Duration of the run."""
        return _seconds(self.root) if self.root is not None else None

    @property
    def usage(self) -> Usage:
        """Tokens and cost of the model calls, also of a run that failed."""
        if self.result is not None:
            return self.result.usage
        chats = [span.attributes for span in self.spans if _phase(span) == semconv.INFERENCE]
        return Usage(
            input_tokens=known_sum(chat.get(semconv.USAGE_INPUT_TOKENS) for chat in chats),
            output_tokens=known_sum(chat.get(semconv.USAGE_OUTPUT_TOKENS) for chat in chats),
            cost=known_sum(chat.get(semconv.COST_USD) for chat in chats),
        )

    def evidence(self, planned: Planned, model: str) -> Evidence:
        """Return what scorers see of it."""
        assert self.result is not None  # others are not judged
        facts = [_facts(span) for span in self.spans]
        return evidence_of(self.result, seconds=self.seconds, spans=facts, case=planned.case, model=model)


class Asker:
    """Asks candidates.

    Args:
        experiment: Name of the experiment.
        recording: Where hubs and tools come from; None calls them.
        live: Parts that call out in spite of that: `tool:<name>`, `hub:<provider id>`.
        deps: Value that tools receive.
    """

    def __init__(self, experiment: str, recording: Recording | None, live: Collection[str], deps: Any) -> None:
        self._experiment = experiment
        self._recording = recording
        self._live = frozenset(live)
        self._deps = deps
        self._tapes: dict[str, Tape] = {}

    async def ask(self, planned: Planned, candidate: Candidate, budget: Budget | None) -> Attempt:
        """Run a candidate once; what the run raises is part of the attempt."""
        marks: dict[str, str | int] = {
            EXPERIMENT_NAME: self._experiment,
            EXPERIMENT_CANDIDATE: planned.candidate,
            EXPERIMENT_CASE: planned.case.id,
            EXPERIMENT_REPEAT: planned.repeat,
        }
        kept = kept_pipeline(candidate.pipeline, marks)
        identity = Identity(conversation_id=conversation_of(self._experiment))
        caller = CallerContext(identity=identity, signal=None, deps=self._deps, budget=budget, pipeline=kept[0])
        try:
            if self._recording is None:
                return await self._run(planned, candidate, caller, kept)
            return await self._replay(self._recording, planned, candidate, caller, kept)
        except Exception as error:  # noqa: BLE001  (one case that fails in any way does not end the experiment)
            return Attempt(error=error, pipeline=kept[0], spans=kept[1].spans)

    async def _run(
        self,
        planned: Planned,
        candidate: Candidate,
        caller: CallerContext,
        kept: tuple[Pipeline, ReplayTracerProvider],
    ) -> Attempt:
        run = create_run(candidate.setup, conversation((), planned.case.input), caller)
        return Attempt(result=await execute(run), pipeline=kept[0], spans=kept[1].spans)

    async def _replay(
        self,
        recording: Recording,
        planned: Planned,
        candidate: Candidate,
        caller: CallerContext,
        kept: tuple[Pipeline, ReplayTracerProvider],
    ) -> Attempt:
        try:
            tape = await self._tape(recording, planned.case.source)
            passes = checked_passes(tape)
        except TapeError as error:
            return Attempt(problem=str(error), pipeline=kept[0])
        recorded = passes[0].identity or Identity()
        caller = replace(caller, identity=replace(recorded, conversation_id=conversation_of(self._experiment)))
        session = Session(live=self._live | {"model"}, timing=0, on_divergence="stop")
        messages = conversation((), planned.case.input)
        options: dict[str, Any] = {"deps": self._deps, "caller": caller, "messages": messages}
        try:
            replayed = await played(candidate.setup, passes, session, kept, has_request=False, **options)
        except CheckpointError as error:  # decisions name calls by the ids that the recorded model gave them
            problem = f"the recorded run waited for a person or a result, which a new run cannot be given: {error}"
            return Attempt(problem=problem, pipeline=kept[0], spans=kept[1].spans)
        problem = ""
        if replayed.divergence is not None:
            problem = f"the recording has no answer at {replayed.divergence}"
        elif replayed.is_stopped:
            problem = "the recorded run was stopped before its end"
        return Attempt(
            result=replayed.result if not problem else None,
            error=replayed.error if not problem else None,
            problem=problem,
            pipeline=kept[0],
            spans=replayed.spans,
        )

    async def _tape(self, recording: Recording, run_id: str) -> Tape:
        tape = self._tapes.get(run_id)
        if tape is None:
            tape = await run_sync(Tape.load, recording, run_id)
            while len(self._tapes) >= _TAPES:
                del self._tapes[next(iter(self._tapes))]
            self._tapes[run_id] = tape
        return tape


def _phase(span: ReplayedSpan) -> Any:
    return span.attributes.get(semconv.PHASE)


def _seconds(span: ReplayedSpan) -> float | None:
    return (span.stop - span.start) / 1e9 if span.stop is not None else None


def _facts(span: ReplayedSpan) -> SpanFacts:
    outer = span.parent.get_span_context() if span.parent is not None else None
    return SpanFacts(
        name=span.name,
        span_id=format_span_id(span.get_span_context().span_id),
        parent_id=format_span_id(outer.span_id) if outer is not None else "",
        attributes=dict(span.attributes),
        seconds=_seconds(span) or 0.0,
        error_type=str(span.attributes.get(semconv.ERROR_TYPE, "")),
    )
