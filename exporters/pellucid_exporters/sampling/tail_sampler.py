"""Tail sampler: buffers the spans of a run until it ends, then exports all or none of them."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakKeyDictionary

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanProcessor

from pellucid import semconv
from pellucid.telemetry.metrics import instruments_of
from pellucid_exporters.sampling.rules import Findings, Reason, TailSampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace import ReadableSpan, Span
    from opentelemetry.trace import SpanContext

    from pellucid_exporters.sampling.exemplars import SamplingDecisions

_log: Final = logging.getLogger("pellucid_exporters.tail_sampler")

_Key: TypeAlias = tuple[int, int]
"""Trace id and span id; a span id is unique only within its trace."""

_NO_SPAN: Final = trace.set_span_in_context(trace.INVALID_SPAN, Context())
"""Context without a trace for the sampler's counters: an exemplar would link to the run that it drops.

An empty context has no effect: the SDK uses the current one instead."""


class _Run:
    """An outermost run.

    Attributes:
        root: Key of the run's own span.
        spans: Ended spans that wait for the decision.
        reason: Reason why the run was kept or dropped; None until decided.
        early: Whether it was decided before its end because a limit was reached.
    """

    __slots__ = ("early", "findings", "reason", "root", "spans", "trace_id")

    def __init__(self, root: _Key, findings: Findings) -> None:
        self.root = root
        self.trace_id, _ = root
        self.findings = findings
        self.spans: list[ReadableSpan] = []
        self.reason: Reason | None = None
        self.early = False


class TailSampler(SpanProcessor):
    """Span processor in front of the span queues.

    A span belongs to a run if its parent does, by the very span object in its context, or, where another task or
    thread has only the id, by a span that is open. Spans that an abandoned tool starts hours later still follow the
    decision, without a memory of ids.
    """

    def __init__(
        self,
        options: TailSampling,
        queues: Sequence[SpanProcessor],
        *,
        decisions: SamplingDecisions,
        meter_provider: MeterProvider,
        on_fault: Callable[[], None],
    ) -> None:
        """Create a sampler.

        Args:
            options: The rules and limits.
            queues: Receive spans that are kept, and spans that belong to no run.
            decisions: Receives the decisions.
            meter_provider: Provides the counters; also has the objectives of hubs.
            on_fault: Called for each rule that raises.
        """
        instruments = instruments_of(meter_provider)
        self._options = options
        self._queues = queues
        self._trace_decisions = decisions
        self._objectives = partial(instruments.hubs.latest, semconv.DISCOVERY_OBJECTIVE)
        self._sampled_out = instruments.by_name[semconv.SAMPLED_OUT.name]
        self._decisions = instruments.by_name[semconv.SAMPLING_DECISIONS.name]
        self._on_fault = on_fault
        self._fault_logged = False
        self._clear()

    def _clear(self) -> None:
        # Reentrant: garbage collection may end the spans of a discarded coroutine while the lock is held.
        self._lock = threading.RLock()
        self._closed = False
        self._members: WeakKeyDictionary[trace.Span, _Run] = WeakKeyDictionary()
        self._open: dict[_Key, _Run] = {}
        self._undecided: dict[_Key, _Run] = {}
        self._waiting = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Assign a span to its run, if any."""
        context = span.get_span_context()
        if not context.trace_flags.sampled:
            return
        decided: Sequence[_Run] = ()
        with self._lock:
            run = self._run_of_parent(span, parent_context)
            if run is None:
                if self._closed or (span.attributes or {}).get(semconv.PHASE) != semconv.RUN:
                    return
                run = _Run(_key(context), Findings(self._options, span.start_time or 0))
                self._undecided[run.root] = run
                self._trace_decisions.begin(run.trace_id)
            self._members[span] = run
            self._open[_key(context)] = run
            decided = self._make_room()
        self._carry_out(decided)

    def on_end(self, span: ReadableSpan) -> None:
        """Buffer a span until its run is decided; forward or drop other spans at once."""
        context = span.context
        if context is None or not context.trace_flags.sampled:
            return
        decided: Sequence[_Run] = ()
        with self._lock:
            run = self._open.pop(_key(context), None)
            waits = run is not None and run.reason is None
            if run is not None and waits:
                is_outermost = _key(context) == run.root
                run.findings.add(span, self._objectives, is_outermost=is_outermost)
                run.spans.append(span)
                self._waiting += 1
                decided = self._decide(run, run.findings.reason) if is_outermost else self._make_room()
        if waits:
            self._carry_out(decided)
        elif run is None or run.reason != "dropped":
            self._forward([span])
        else:
            self._sampled_out.add(1, context=_NO_SPAN)

    def shutdown(self) -> None:
        """Forward all undecided spans and close the queues."""
        with self._lock:
            self._closed = True
            decided = [done for run in list(self._undecided.values()) for done in self._decide(run, "shutdown")]
        self._carry_out(decided)
        for queue in self._queues:
            queue.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the queues; runs in progress stay undecided."""
        flushed = [queue.force_flush(timeout_millis) for queue in self._queues]
        return all(flushed)

    def renew(self) -> None:
        """Reset in a forked child: buffered spans belong to the parent."""
        self._clear()
        self._trace_decisions.renew()

    def _run_of_parent(self, span: Span, parent_context: Context | None) -> _Run | None:
        if span.parent is None:
            return None
        return self._members.get(trace.get_current_span(parent_context)) or self._open.get(_key(span.parent))

    def _make_room(self) -> Sequence[_Run]:
        """Decide the oldest runs until the limits are met. Spans that never end are abandoned with their run."""
        options, decided = self._options, list[_Run]()
        if len(self._undecided) > options.max_runs:
            decided += self._decide_early(next(iter(self._undecided.values())))
        if self._waiting > options.max_spans:
            holding = [run for run in self._undecided.values() if run.spans]
            while holding and self._waiting > options.max_spans:
                decided += self._decide_early(holding.pop(0))
        if len(self._open) > options.max_spans:
            decided += self._decide_early(self._open.pop(next(iter(self._open))))
        return decided

    def _decide_early(self, run: _Run) -> Sequence[_Run]:
        run.early = run.reason is None
        return self._decide(run, run.findings.so_far())

    def _decide(self, run: _Run, reason: Reason | None) -> Sequence[_Run]:
        """Decide a run; return it for `_carry_out`, or None if it was decided before."""
        if self._undecided.pop(run.root, None) is None:
            return ()
        run.reason = reason or ("share" if self._options.shares(run.trace_id) else "dropped")
        self._waiting -= len(run.spans)
        self._trace_decisions.decide(run.trace_id, kept=run.reason != "dropped")
        return (run,)

    def _carry_out(self, decided: Sequence[_Run]) -> None:
        """Apply a decision without holding the lock: queues, counters and log handlers may acquire their own locks."""
        for run in decided:
            spans, run.spans = run.spans, []
            assert run.reason is not None  # it is decided
            self._decisions.add(
                1, {semconv.SAMPLING_REASON: run.reason, semconv.SAMPLING_EARLY: run.early}, context=_NO_SPAN
            )
            if run.findings.error is not None:
                self._complain(run.findings.error)
            if run.reason != "dropped":
                self._forward(spans)
            elif spans:
                self._sampled_out.add(len(spans), context=_NO_SPAN)

    def _forward(self, spans: Sequence[ReadableSpan]) -> None:
        for queue in self._queues:
            for span in spans:
                queue.on_end(span)

    def _complain(self, error: Exception) -> None:
        self._on_fault()
        if not self._fault_logged:
            self._fault_logged = True
            _log.warning("a rule of the tail sampler failed (%s); runs are kept then, and counted", error)


def _key(context: SpanContext) -> _Key:
    return context.trace_id, context.span_id
