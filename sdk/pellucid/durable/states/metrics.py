"""Telemetry of what `DurableRuns` learns from its store: counters, late results, and gauges."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias, get_args

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Tracer, get_current_span
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.agent import Agent, configuration_of
from pellucid.approvals.checkpoint import context_of
from pellucid.approvals.external import CallStatus
from pellucid.concurrency.forks import reset_in_child
from pellucid.durable.states.records import identity_of
from pellucid.durable.store import CallRecord, Claim, Recovery, RunStatus, RunStore, Settlement, Statistics
from pellucid.errors import StoreError
from pellucid.events import AsyncToolLate
from pellucid.telemetry import Pipeline, Scope, current_default
from pellucid.telemetry.metrics import Readings
from pellucid.telemetry.pipeline import complete
from pellucid.version import __version__

PassOutcome: TypeAlias = Literal["waiting", "completed", "failed", "retrying", "cancelled", "fenced", "interrupted"]
"""Outcome of a pass: `waiting` also if all its calls were settled meanwhile; `retrying` if it failed and the run
goes on; `fenced` if another worker has the run; `interrupted` if the worker was stopped or the store could not be
reached."""

CallbackOutcome: TypeAlias = Literal["delivered", "failed", "dead"]
"""Outcome of an attempt to deliver a state: `failed` if another one follows, `dead` if none does."""

SCOPE: Final = "pellucid.callbacks"
"""Instrumentation scope of the requests to callback URLs."""

INTERVAL: Final = 10.0
"""Seconds between two readings of the store, at least."""

_MOST_TIME: Final = 0.01
"""Share of the time of one connection that readings may take. They count all calls that wait, so that with very many of
them they become rarer."""

_OPEN: Final = ("queued", "due", "retrying", "running", "waiting")
"""Statuses of runs that have not ended."""


class StoreMetrics:
    """Telemetry of a store.

    Args:
        store: The store.
        agents: The agents of this process, by name.
        telemetry: Destination of the telemetry, as for an agent.
        interval: Minimum seconds between two readings.
    """

    def __init__(
        self, store: RunStore, agents: Mapping[str, Agent[Any, Any]], telemetry: Pipeline | None, interval: float
    ) -> None:
        self._store = store
        self._agents = agents
        self._telemetry = telemetry
        self._least_interval = self._interval = max(INTERVAL, interval)
        self._scope_key: object = None
        self._scope: Scope | None = None
        self._slots = 0
        self._slots_used = 0
        reset_in_child(self, _slots=int, _slots_used=int)
        self._readings: Readings = {}
        self._read_at = -math.inf

    # Counters

    async def settled(self, settlement: Settlement, status: CallStatus) -> Settlement:
        """Count a settlement that a caller tried; emit a late result. Return the settlement."""
        self._count_settlement(settlement, status)
        if settlement.has_expired:
            self._count_settlement(replace(settlement, outcome="settled"), "expired")
        call = settlement.call
        if settlement.outcome == "late" and call is not None and call.kind == "external":
            self._count(semconv.EXTERNAL_LATE, {semconv.TOOL_NAME: call.tool}, _context(call))
            await self._emit_late(call, status)
        return settlement

    def recovered(self, recovery: Recovery) -> Recovery:
        """Count the calls that a sweep has expired. Return the recovery."""
        for settlement in recovery.expired:
            self._count_settlement(settlement, "expired")
        return recovery

    def claimed(self, claim: Claim, source: str) -> None:
        """Measure a claim, and count it if the worker before let its lease expire."""
        self._slots_used += 1
        agent = {semconv.AGENT_NAME: claim.run.agent}
        submission = context_of(claim.run.trace) if isinstance(claim.run.trace, dict) else None
        self._count(semconv.DURABLE_DUE_WAIT, agent, submission, value=claim.waited)
        self._count(semconv.DURABLE_CLAIMS, {**agent, semconv.DURABLE_SOURCE: source})
        if claim.is_recovered:
            self._count(semconv.DURABLE_RECOVERIES, agent)

    def pass_ended(self, agent: str, outcome: PassOutcome) -> None:
        """Count a pass."""
        self._slots_used -= 1
        self._count(semconv.DURABLE_PASSES, {semconv.AGENT_NAME: agent, semconv.DURABLE_PASS: outcome})

    def purged(self, numbers: Mapping[RunStatus, int]) -> None:
        """Count runs that were deleted."""
        for status, number in numbers.items():
            self._count(semconv.DURABLE_PURGED, {semconv.DURABLE_STATUS: status}, value=number)

    def delivering(self) -> None:
        """Create the series of attempts to deliver states, so that the first increase is visible."""
        for outcome in get_args(CallbackOutcome):
            self._count(semconv.DURABLE_CALLBACKS, {semconv.DURABLE_CALLBACK: outcome}, value=0)

    def called_back(self, outcome: CallbackOutcome, context: Context) -> None:
        """Count an attempt to deliver a state."""
        self._count(semconv.DURABLE_CALLBACKS, {semconv.DURABLE_CALLBACK: outcome}, context)

    @property
    def tracer(self) -> Tracer:
        """Tracer of the current telemetry, for spans that belong to no phase of a run."""
        provider = complete(self._telemetry).tracer_provider or trace.get_tracer_provider()
        return provider.get_tracer(SCOPE, __version__)

    @contextmanager
    def working(self, slots: int) -> Iterator[None]:
        """Report the slots of a worker within the context."""
        for agent in self._agents:  # so that the first increase is visible
            self._count(semconv.DURABLE_RECOVERIES, {semconv.AGENT_NAME: agent}, value=0)
        self._slots += slots
        self._current_scope().instruments.readers.add(self)
        try:
            yield
        finally:
            self._slots -= slots
            self.clear()

    def _count_settlement(self, settlement: Settlement, status: CallStatus) -> None:
        call = settlement.call
        labels: dict[str, AttributeValue] = {
            semconv.DURABLE_SETTLEMENT: settlement.outcome,
            semconv.ASYNC_STATUS: status,
        }
        if call is not None:
            labels |= {semconv.TOOL_NAME: call.tool, semconv.DURABLE_KIND: call.kind}
        self._count(semconv.DURABLE_SETTLEMENTS, labels, _context(call))

    def _count(
        self,
        metric: semconv.Metric,
        labels: Mapping[str, AttributeValue],
        context: Context | None = None,
        value: float = 1,
    ) -> None:
        self._current_scope().count(metric, value, labels, context if context is not None else Context())

    async def _emit_late(self, call: CallRecord, status: CallStatus) -> None:
        """Emit a late result to the listeners of the telemetry and of the run's agent."""
        listeners = [configuration_of(agent).setup.listeners for agent in self._agents.values()]
        receivers = [*self._current_scope().listeners, *listeners]
        if not any(receiver.has_listener(AsyncToolLate.name) for receiver in receivers):
            return
        try:
            run = await self._store.run(call.run_id)
        except StoreError:  # the result is late in the store, with or without the event
            return
        if run is None:
            return
        agent = self._agents.get(run.agent)
        scope = Scope(
            agent=run.agent,
            run_id=run.id,
            identity=identity_of(run),
            pipeline=self._telemetry,
            listeners=(configuration_of(agent).setup.listeners,) if agent is not None else (),
        )
        payload = {
            "result_id": call.id,
            "tool_name": call.tool,
            "tool_call_id": call.tool_call_id,
            "execution": "external-dispatch",
            "status": status,
        }
        scope.emit(AsyncToolLate, get_current_span(_context(call)).get_span_context(), payload)

    # Gauges

    @property
    def readings(self) -> Readings:
        """Slots of the workers, and the latest readings unless they are too old."""
        if not self._slots:
            return {}
        slots: Readings = {
            semconv.DURABLE_SLOTS.name: [({}, self._slots)],
            semconv.DURABLE_SLOTS_USED.name: [({}, self._slots_used)],
        }
        is_recent = time.monotonic() - self._read_at < 3 * self._interval
        return {**slots, **self._readings} if is_recent else slots

    async def read(self) -> None:
        """Read the store, unless it was just read.

        Raises:
            StoreUnavailable: the store could not be reached.
        """
        if time.monotonic() - self._read_at < self._interval:
            return
        started = time.monotonic()
        statistics = await self._store.statistics(is_open_only=True)
        self._readings, self._read_at = _readings(statistics, self._agents), time.monotonic()
        self._interval = max(self._least_interval, (self._read_at - started) / _MOST_TIME)
        self._current_scope().instruments.readers.add(self)

    def clear(self) -> None:
        """Forget the readings: they are no longer true."""
        self._readings, self._read_at = {}, -math.inf

    def _current_scope(self) -> Scope:
        """Return a scope of the current telemetry, which an application may configure at any time."""
        key = (current_default(), metrics.get_meter_provider())
        if self._scope is None or key != self._scope_key:
            self._scope, self._scope_key = Scope(pipeline=self._telemetry), key
        return self._scope


def _context(call: CallRecord | None) -> Context:
    """Return the OpenTelemetry context of the dispatch of a call."""
    return context_of(call.trace) if call is not None and isinstance(call.trace, dict) else Context()


def _readings(statistics: Statistics, agents: Mapping[str, object]) -> Readings:
    due_age = {**dict.fromkeys(agents, 0.0), **{due.agent: due.age for due in statistics.due}}
    retrying_age = {**dict.fromkeys(agents, 0.0), **{runs.agent: runs.age for runs in statistics.retrying}}
    pending = [
        ({semconv.TOOL_NAME: calls.tool, semconv.DURABLE_KIND: calls.kind}, calls) for calls in statistics.pending
    ]
    return {
        semconv.DURABLE_RUNS.name: [
            ({semconv.DURABLE_STATUS: status}, statistics.runs.get(status, 0)) for status in _OPEN
        ],
        semconv.DURABLE_DUE_AGE.name: [({semconv.AGENT_NAME: agent}, age) for agent, age in due_age.items()],
        semconv.DURABLE_RETRYING_AGE.name: [({semconv.AGENT_NAME: agent}, age) for agent, age in retrying_age.items()],
        semconv.DURABLE_CALLBACK_AGE.name: [({}, statistics.callback_age or 0.0)],
        semconv.DURABLE_PENDING.name: [(labels, calls.number) for labels, calls in pending],
        semconv.DURABLE_PENDING_AGE.name: [(labels, calls.age) for labels, calls in pending],
        semconv.DURABLE_DEADLINE_USED.name: [
            (labels, calls.deadline_used) for labels, calls in pending if calls.deadline_used is not None
        ],
    }
