"""Gate around an operation: rules decide after each attempt, within the attempt's own boundary."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

import anyio
from opentelemetry import trace
from opentelemetry.trace import Span

from pellucid import events, semconv
from pellucid.errors import CircuitOpen, DiscoveryCircuitOpen, JournalError, ModelCircuitOpen, ReliabilityFailFast
from pellucid.events import Event
from pellucid.failures import describe, error_kind_of, retry_after_of
from pellucid.messages import Usage
from pellucid.reliability.breaker import Circuit, Permit, State
from pellucid.reliability.options import Reliability
from pellucid.reliability.rules import Operation, Reaction, Rule, Situation, Spent, Then, fail_fast
from pellucid.telemetry import Boundary, Scope

T = TypeVar("T")

MAX_ATTEMPTS: Final = 50
"""Maximum number of attempts; the gate then ends the run with the kind `max_attempts`."""

_EVENTS: Final[dict[Then, type[Event]]] = {
    "retry": events.ReliabilityRetried,
    "retry_other": events.ReliabilityRetried,
    "fallback": events.ReliabilityFellBack,
    "fail_fast": events.ReliabilityFailedFast,
}
_NOT_DONE: Final[dict[Then, tuple[str, str]]] = {
    "retry": ("reliability.not_retried", "try again"),
    "retry_other": ("reliability.not_retried", "try another model"),
    "fallback": ("reliability.not_fallen_back", "fall back"),
}
"""Span event, and verb in the note on the failure, of a reaction that cannot be carried out."""

_OPERATIONS: Final[dict[Operation, tuple[str, str, type[CircuitOpen]]]] = {
    "discovery": ("provider_id", semconv.PROVIDER_ID, DiscoveryCircuitOpen),
    "inference": ("model", semconv.REQUEST_MODEL, ModelCircuitOpen),
    "tool": ("tool_name", semconv.TOOL_NAME, CircuitOpen),
}
"""Field with the name of a subject, metric label with the name, and error of an open circuit."""

_CIRCUIT_EVENTS: Final[dict[State, type[Event]]] = {
    "closed": events.CircuitClosed,
    "half_open": events.CircuitHalfOpened,
    "open": events.CircuitOpened,
}


@dataclass(frozen=True, slots=True)
class Subject:
    """Provider, tool or model of an operation.

    Attributes:
        operation: `discovery`, `inference` or `tool`.
        name: Id of the provider, or name of the tool or model.
        apart: Key that separates the circuit breakers of two subjects of one name.
    """

    operation: Operation
    name: str
    apart: Hashable = None

    @property
    def facts(self) -> dict[str, Any]:
        """The name, by the field of situations and events that holds it."""
        return {_OPERATIONS[self.operation][0]: self.name}

    def __str__(self) -> str:
        return f"{self.operation} of {self.name!r}"


@dataclass(eq=False)
class Gate:
    """Attempts at one operation of a run, and the reactions of the rules about them.

    A reaction is emitted once it is certain to be carried out: there is time for the wait, another model is available.

    Attributes:
        reliability: Rules and circuit breakers.
        scope: Telemetry of the run.
        subject: Provider, tool or model of the attempt; another model after `retry_other`.
        usage: Returns the usage of the run.
        stop_cause: Returns why the run must stop, or None.
        obstacle: Returns why a reaction about an error cannot be carried out, or None; without the reaction, the
            attempt is accepted as it is.
        enclosing: Boundary around all attempts; None if each has one of its own.
        attempt: Number of the attempt, from 1.
        reaction: Reaction about the last attempt, if a rule matched.
    """

    reliability: Reliability
    scope: Scope
    subject: Subject
    usage: Callable[[], Usage]
    stop_cause: Callable[[], str | None]
    obstacle: Callable[[Reaction, BaseException | None], str | None]
    enclosing: Boundary | None = None
    attempt: int = field(init=False, default=0)
    reaction: Reaction | None = field(init=False, default=None)
    _situation: Situation | None = field(init=False, default=None)
    _rule_failure: Exception | None = field(init=False, default=None)
    _wait: float = field(init=False, default=0.0)
    _announce: Callable[[], object] | None = field(init=False, default=None)
    _kind: str = field(init=False, default="other_model")  # for a FallbackModel that changes models without a rule

    def __post_init__(self) -> None:
        self._started = self.reliability.clock()

    @contextmanager
    def admitted(self) -> Any:
        """Admit an attempt if the circuit allows it, and report its outcome to the circuit.

        Raises:
            CircuitOpen: the circuit is open; no call was made.
        """
        subject = self.subject
        circuit = self.reliability.circuit_of((subject.operation, subject.name, subject.apart))
        if circuit is None:
            yield
            return
        permit = circuit.admit()
        if not isinstance(permit, Permit):
            raise _OPERATIONS[subject.operation][2](subject.name, permit)
        self._emit_circuit(circuit, permit.change)
        try:
            yield
        except BaseException as error:
            self._emit_circuit(circuit, circuit.report(permit, error))
            raise
        self._emit_circuit(circuit, circuit.report(permit))

    async def run_attempt(
        self, b: Boundary, failed: type[Event], call: Callable[[], Awaitable[T]], *, pending: tuple[type[Any], ...] = ()
    ) -> T:
        """Make one admitted attempt and decide about its outcome; for attempts without a span of their own.

        Args:
            b: Boundary around all attempts.
            failed: Event of a failure after which the rules continue.
            call: Makes the attempt.
            pending: Types of responses that are not final, and are not decided about.
        """
        started = self.scope.now()
        try:
            with self.admitted():
                response = await call()
        except JournalError:  # ends the pass of a durable run, whatever the rules say
            self.reaction = None
            raise
        except Exception as error:
            self.judge(b.span, error=error)
            if self.reaction is not None and self.reaction.then != "fail_fast":
                self._emit_failed(b, failed, started, error)
            raise
        if not isinstance(response, pending):
            self.judge(b.span, response=response)
        return response

    def _emit_failed(self, b: Boundary, failed: type[Event], started: int, error: Exception) -> None:
        """Emit the failure of an attempt, although the operation continues."""
        facts = self.scope.error_facts(error)
        outcome = semconv.TIMEOUT if facts["error_type"] == semconv.TIMEOUT else semconv.FAILED
        payload = {**b.facts(), "duration_ms": (self.scope.now() - started) / 1e6, "outcome": outcome, **facts}
        self.scope.emit(failed, b.span.get_span_context(), payload)

    def judge(self, span: Span, *, response: object = None, error: Exception | None = None) -> None:
        """Decide about an attempt while its span is open, and add the reaction to the span."""
        situation = self._situate(response, error)
        reaction = self._match(self.reliability.post_decide, situation)
        if reaction is not None and (obstacle := self._obstacle_of(reaction, situation)) is not None:
            name, verb = _NOT_DONE[reaction.then]
            facts = {semconv.RELIABILITY_THEN: reaction.then, semconv.RELIABILITY_KIND: obstacle}
            self.scope.add_event(span, name, {**facts, semconv.ATTEMPT: self.attempt})
            if error is not None:
                error.add_note(f"the rule {reaction.kind!r} could not {verb}: {obstacle}")
            reaction = None
        elif reaction is not None and reaction.then.startswith("retry") and self.attempt >= MAX_ATTEMPTS:
            reaction = replace(fail_fast(), kind="max_attempts")
        if reaction is not None:
            self._emit_reaction(reaction, span, situation)
        elif error is None and self.attempt > 1:
            self._emit(events.ReliabilityRecovered, span, situation, self._kind, "recovered")
        self.reaction = reaction

    async def run(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        fall_back: Callable[[Reaction, Situation], Awaitable[T]],
        next_model: Callable[[], bool] = lambda: False,
        continues: Callable[[Exception], bool] = lambda error: False,
    ) -> T:
        """Make attempts until the rules accept one.

        Args:
            attempt: Makes one attempt, and calls `judge` within its boundary.
            fall_back: Returns the result of a fallback.
            next_model: Switches to another model; returns whether there is one.
            continues: Returns whether to make another attempt after an error that no rule decides about.

        Raises:
            ReliabilityFailFast: a rule ended the run.
            Exception: the error of the last attempt.
        """
        self._pre_check()
        while True:
            self.attempt += 1
            try:
                response, error = await attempt(), None
            except Exception as failure:  # noqa: BLE001  (raised below, unless a rule decides otherwise)
                error = failure
            reaction, self.reaction = self.reaction, None  # the next attempt may end without a reaction
            self._emit_announced(reaction)
            if reaction is None:
                is_retried = error is not None and continues(error)
            elif reaction.then == "fail_fast":
                raise self._failed_fast(reaction, f"ended {self.subject} at attempt {self.attempt}", error)
            elif reaction.then == "fallback":
                return await self._fall_back(fall_back, reaction, error)
            elif reaction.then == "retry_other":
                is_retried = next_model()
            else:
                is_retried = True
                if self._wait > 0:
                    await self.reliability.sleep(self._wait)
            if not is_retried:
                if error is not None:
                    raise error
                return response

    def _pre_check(self) -> None:
        """Evaluate the `pre_check` rules.

        Raises:
            ReliabilityFailFast: a rule ended the run.
        """
        if not self.reliability.pre_check:
            return
        situation = self._situate()
        reaction = self._match(self.reliability.pre_check, situation)
        if reaction is not None and reaction.then == "fail_fast":
            self._emit_reaction(reaction, trace.get_current_span(), situation)
            raise self._failed_fast(reaction, f"did not allow {self.subject} to start", None)

    async def _fall_back(
        self, fall_back: Callable[[Reaction, Situation], Awaitable[T]], reaction: Reaction, error: Any
    ) -> T:
        """Return the result of a fallback; if it fails, raise the error of the attempt with a note, or fail fast."""
        assert self._situation is not None
        try:
            return await fall_back(reaction, self._situation)
        except Exception as failure:
            self.scope.fault("reliability", failure)
            if error is None:
                raise self._failed_fast(reaction, f"had no fallback for {self.subject}", failure) from failure
            error.add_note(f"the fallback of the rule {reaction.kind!r} also failed: {describe(failure)}")
            raise error from error.__cause__

    def _obstacle_of(self, reaction: Reaction, situation: Situation) -> str | None:
        """Return why a reaction cannot be carried out, or None; set the wait before a retry."""
        if reaction.then not in _NOT_DONE:
            return None
        if situation.error_kind == "cancelled":
            return "cancelled"
        obstacle = self.stop_cause() or self.obstacle(reaction, situation.error)
        if obstacle is not None or reaction.then != "retry":
            return obstacle
        wait = self._delay(reaction, situation)
        if wait is None:
            return "retry_after"
        self._wait = wait
        deadline = self.scope.deadline
        return "deadline" if deadline is not None and anyio.current_time() + wait >= deadline else None

    def _delay(self, reaction: Reaction, situation: Situation) -> float | None:
        """Return the seconds to wait, or None if that is longer than the rule allows."""
        delay = retry_after_of(situation.error) if situation.error is not None else None
        if reaction.honour_retry_after and delay is not None:
            return delay if delay <= reaction.max_backoff else None
        ceiling = min(reaction.max_backoff, reaction.backoff * 2.0 ** min(self.attempt - 1, 30))
        return self.reliability.jitter() * ceiling

    def _failed_fast(self, reaction: Reaction, action: str, cause: Exception | None) -> ReliabilityFailFast:
        """Return the error that ends the run."""
        reason = f"the rule {reaction.kind!r} {action}"
        if self._rule_failure is not None:
            reason = f"the rule {reaction.kind!r} could not be evaluated, and {action}"
        return ReliabilityFailFast(reaction.kind, reason, self._rule_failure or cause)

    def _situate(self, response: object = None, error: Exception | None = None) -> Situation:
        self._situation = Situation(
            operation=self.subject.operation,
            **self.subject.facts,
            attempt=self.attempt,
            error=error,
            error_kind=error_kind_of(error) if error is not None else None,
            elapsed=self.reliability.clock() - self._started,
            usage=Spent.of(self.usage()),
            iteration=self.scope.iteration,
            identity=self.scope.identity,
            response=response,
        )
        return self._situation

    def _match(self, rules: Sequence[Rule], situation: Situation) -> Reaction | None:
        """Return the reaction of the first rule that matches, with the rule's kind."""
        for rule in rules:
            try:
                matches = rule.matches(situation)
            except Exception as failure:  # noqa: BLE001  (rules are the application's)
                self.scope.fault("reliability", failure)
                if self.reliability.fails_closed:
                    self._rule_failure = failure
                    return replace(fail_fast(), kind=rule.kind)
                continue
            if matches:
                return replace(rule.then, kind=rule.kind) if rule.then.then not in ("ok", "continue") else None
        return None

    def _emit_reaction(self, reaction: Reaction, span: Span, situation: Situation) -> None:
        self._kind = reaction.kind
        self._emit(_EVENTS[reaction.then], span, situation, reaction.kind, reaction.then)

    def _emit(self, event: type[Event], span: Span, situation: Situation, kind: str, then: str) -> None:
        facts = {semconv.RELIABILITY_THEN: then, semconv.RELIABILITY_KIND: kind}
        self.scope.add_event(span, event.name, {**facts, semconv.ATTEMPT: self.attempt})
        self.scope.count(semconv.RELIABILITY_DECISIONS, 1, {semconv.OPERATION: situation.operation, **facts})
        payload = {"operation": situation.operation, **self.subject.facts, "attempt": self.attempt, "kind": kind}
        payload.update(self.scope.error_facts(situation.error))
        emit = partial(self.scope.emit, event, span.get_span_context(), payload)
        if situation.error is None:
            emit()
        else:
            self._announce = emit  # once the failure that it follows has been emitted

    def _emit_announced(self, reaction: Reaction | None) -> None:
        """Emit the event of a reaction, now that the attempt has ended; at the end of the boundary if it ends there."""
        announce, self._announce = self._announce, None
        if announce is None:
            return
        if self.enclosing is not None and reaction is not None and reaction.then == "fail_fast":
            self.enclosing.afterwards(announce)
        else:
            announce()

    def _emit_circuit(self, circuit: Circuit, change: State | None) -> None:
        if change is None:
            return
        subject, event, span = self.subject, _CIRCUIT_EVENTS[change], trace.get_current_span()
        self.scope.instruments.hubs.circuit(_OPERATIONS[subject.operation][1], subject.name, circuit)
        self.scope.add_event(span, event.name, {})
        self.scope.emit(event, span.get_span_context(), subject.facts)
