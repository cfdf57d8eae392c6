"""Captured telemetry, indexed for the checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import format_span_id, format_trace_id

from pellucid import semconv
from pellucid.events import ReliabilityFailedFast, ReliabilityFellBack, ReliabilityRecovered, ReliabilityRetried
from pellucid.semconv.experiments import EXPERIMENT_NAME
from pellucid.telemetry.capture import CapturePolicy
from pellucid.telemetry.phases import PHASES, Phase

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid.events import Event
    from pellucid_exporters.testing.captured import Captured, Point

DECISIONS: Final = frozenset(
    event.name for event in (ReliabilityRetried, ReliabilityRecovered, ReliabilityFellBack, ReliabilityFailedFast)
)
"""Decisions of reliability rules: counted, emitted to listeners, and recorded on the span where they happened."""

_UNMEASURED: Final = (semconv.REPLAY_OF, EXPERIMENT_NAME)
"""Attributes of runs that are not measured."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """One ended span of a phase.

    Attributes:
        id, trace, parent: Ids in hexadecimal.
        start, end: Times in nanoseconds.
    """

    span: ReadableSpan
    phase: Phase
    attributes: Mapping[str, Any]
    id: str
    trace: str
    parent: str | None
    start: int
    end: int

    @property
    def run(self) -> str | None:
        """Id of the run; None for work outside of runs."""
        return self.attributes.get(semconv.RUN_ID)

    @property
    def iteration(self) -> int:
        """Iteration, 0 if there is none."""
        return int(self.attributes.get(semconv.ITERATION, 0))

    @property
    def outcome(self) -> str | None:
        """Outcome of the phase."""
        return self.attributes.get(semconv.OUTCOME)

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return (self.end - self.start) / 1e9

    def __str__(self) -> str:
        where = f" in iteration {self.iteration}" if self.iteration else ""
        return f"span {self.span.name!r} ({self.id}){where} of run {self.run or 'none'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Captured telemetry of all runs.

    Attributes:
        runs: Ids of the runs whose own span was started here, not in another process.
        started: Names of all started spans of Pellucid, by id.
        ends: Number of times that each span ended.
        others: Traces of the ended spans of Pellucid that are of no phase, such as those of MCP's resources, by id.
    """

    phases: Sequence[Seen]
    by_id: Mapping[str, Seen]
    by_run: Mapping[str, Sequence[Seen]]
    runs: frozenset[str]
    started: Mapping[str, str]
    ends: Mapping[str, int]
    others: Mapping[str, str]
    points: Sequence[Point]
    events: Sequence[Event]
    logs: Sequence[Mapping[str, Any]]
    policy: CapturePolicy

    @classmethod
    def of(cls, captured: Captured) -> Observed:
        """Index captured telemetry."""
        phases = [seen for span in captured.spans if (seen := _seen(span)) is not None]
        ours = [span for span in captured.started if _is_ours(span)]
        by_run: dict[str, list[Seen]] = defaultdict(list)
        ends: dict[str, int] = defaultdict(int)
        others = {_id(span): _trace(span) for span in captured.spans if _is_ours(span) and _seen(span) is None}
        for span in captured.spans:
            ends[_id(span)] += 1
        for seen in phases:
            if seen.run is not None:
                by_run[seen.run].append(seen)
        return cls(
            phases=phases,
            by_id={seen.id: seen for seen in phases},
            by_run=by_run,
            runs=frozenset(
                str((span.attributes or {})[semconv.RUN_ID]) for span in ours if _phase(span) == semconv.RUN
            ),
            started={_id(span): span.name for span in ours},
            ends=ends,
            others=others,
            points=captured.metrics,
            events=list(captured.events),
            logs=[line for line in captured.logs if line["event"] != semconv.EXCEPTION_EVENT],
            policy=(captured.capture or CapturePolicy.from_environment()).within_attribute_limit(),
        )

    def measured(self) -> Observed:
        """Return what metrics are recorded for: everything except replays and experiments."""
        replayed = {seen.run for seen in self.phases if not seen.attributes.keys().isdisjoint(_UNMEASURED)}
        if not replayed:
            return self
        phases = [seen for seen in self.phases if seen.run not in replayed]
        return replace(
            self,
            phases=phases,
            by_id={seen.id: seen for seen in phases},
            by_run={run: seen for run, seen in self.by_run.items() if run not in replayed},
            runs=self.runs - replayed,
            events=[event for event in self.events if event.run_id not in replayed],
        )


def _seen(span: ReadableSpan) -> Seen | None:
    attributes = dict(span.attributes or {})
    phase = PHASES.get(_phase(span))
    context = span.get_span_context()
    if phase is None or context is None or not _is_ours(span):
        return None
    return Seen(
        span=span,
        phase=phase,
        attributes=attributes,
        id=format_span_id(context.span_id),
        trace=format_trace_id(context.trace_id),
        parent=format_span_id(span.parent.span_id) if span.parent is not None else None,
        start=span.start_time or 0,
        end=span.end_time or 0,
    )


def _is_ours(span: ReadableSpan) -> bool:
    return span.instrumentation_scope is not None and span.instrumentation_scope.name == semconv.SCOPE


def _phase(span: ReadableSpan) -> str:
    return str((span.attributes or {}).get(semconv.PHASE))


def _trace(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return format_trace_id(context.trace_id)


def _id(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None  # the SDK's spans have one
    return format_span_id(context.span_id)
