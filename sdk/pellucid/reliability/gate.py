"""Gate around an operation: rules decide after each attempt, within the attempt's own boundary."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio
from opentelemetry import trace
from opentelemetry.trace import Span
from opentelemetry.util.types import AttributeValue

from pellucid import events, semconv
from pellucid.errors import CircuitOpen, DiscoveryCircuitOpen, ModelCircuitOpen, ReliabilityFailFast
from pellucid.events import Event
from pellucid.failures import describe, error_kind_of, error_type_of, retry_after_of
from pellucid.messages import Usage
from pellucid.reliability.breaker import Circuit, Permit, Refused, State
from pellucid.reliability.options import Reliability
from pellucid.reliability.rules import Decision, Operation, Rule, Situation, Spent, Then
from pellucid.telemetry import Scope
from pellucid.telemetry.phases import PAYLOADS

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
"""Span event, and verb in the note on the failure, of a decision that cannot be carried out."""

_REFUSALS: Final[dict[Operation, type[CircuitOpen]]] = {
    "discovery": DiscoveryCircuitOpen,
    "inference": ModelCircuitOpen,
    "tool": CircuitOpen,
}
_CIRCUIT_EVENTS: Final[dict[State, type[Event]]] = {
    "closed": events.CircuitClosed,
    "half_open": events.CircuitHalfOpened,
    "open": events.CircuitOpened,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Provider, tool or model of an operation; only one of them is set.

    Attributes:
        operation: `discovery`, `inference` or `tool`.
        provider_id: Id of the provider, for `discovery`.
        tool_name: Name of the tool, for `tool`.
        model: Name of the model, for `inference`.
        apart: Key that separates the circuit breakers of two subjects of one name.
    """

    operation: Operation
    provider_id: str | None = None
    tool_name: str | None = None
    model: str | None = None
    apart: Hashable = None

    @property
    def name(self) -> str:
        """Id of the provider, or name of the tool or model."""
        return self.provider_id or self.tool_name or self.model or ""

    @property
    def labels(self) -> dict[str, str]:
        """Metric label with the name."""
        if self.model is not None:
            return {semconv.REQUEST_MODEL: self.model}
        return {semconv.TOOL_NAME: self.name} if self.tool_name is not None else {semconv.PROVIDER_ID: self.name}


class Gate:
    """Attempts at one operation of a run, and the decisions of the rules about them.

    A decision is emitted once it is certain to be carried out: there is time for the wait, another model is available.

    Args:
        reliability: Rules and circuit breakers.
        scope: Telemetry of the run.
        subject: Provider, tool or model of the operation.
        usage: Returns the usage of the run.
        over: Returns why the run must stop, or None.
        bar: Returns why a decision about an error cannot be carried out, or None; without the decision, the attempt is
            accepted as it is.

    Attributes:
        subject: Provider, tool or model of the attempt; another model after `retry_other`.
        attempt: Number of the attempt, from 1.
        decision: Decision about the last attempt and the rule's kind, if a rule matched.
    """

    def __init__(
        self,
        reliability: Reliability,
        scope: Scope,
        subject: Subject,
        *,
        usage: Callable[[], Usage],
        over: Callable[[], str | None],
        bar: Callable[[Decision, BaseException | None], str | None],
    ) -> None:
        self.subject = subject
        self.attempt = 0
        self.decision: tuple[Decision, str] | None = None
        self._reliability = reliability
        self._scope = scope
        self._usage = usage
        self._over = over
        self._bar = bar
        self._started = reliability.clock()
        self._situation: Situation | None = None
        self._rule_failure: Exception | None = None
        self._wait = 0.0
        self._kind = "other_model"  # for a FallbackModel that changes models without a rule

    def pre_check(self) -> None:
        """Evaluate the `pre_check` rules.

        Raises:
            ReliabilityFailFast: a rule ended the run.
        """
        if not self._reliability.pre_check:
            return
        situation = self._situate()
        decision, kind = self._match(self._reliability.pre_check, situation) or (None, "")
        if decision is not None and decision.then == "fail_fast":
            self._emit_decision(decision, kind, trace.get_current_span(), situation)
            raise self._failed_fast(kind, f"did not allow {self._operation()} to start", None)

    @contextmanager
    def admitted(self) -> Any:
        """Admit an attempt if the circuit allows it, and report its outcome to the circuit.

        Raises:
            CircuitOpen: the circuit is open; no call was made.
        """
        circuits = self._reliability.circuits
        if circuits is None:
            yield
            return
        circuit = circuits.of((self.subject.operation, self.subject.name, self.subject.apart))
        permit = circuit.admit()
        if isinstance(permit, Refused):
            raise _REFUSALS[self.subject.operation](self.subject.name, permit.retry_after)
        self._emit_circuit(circuit, permit.change)
        yield from self._reporting(circuit, permit)

    def _reporting(self, circuit: Circuit, permit: Permit) -> Any:
        try:
            yield
        except BaseException as error:
            self._emit_circuit(circuit, circuit.report(permit, failed=circuit.counts(error)))
            raise
        self._emit_circuit(circuit, circuit.report(permit, failed=False))

    async def run_attempt(self, span: Span, call: Callable[[], Awaitable[T]], *, pending: type[Any] | None = None) -> T:
        """Make one admitted attempt and decide about its outcome; for attempts without a span of their own.

        Args:
            span: Span for the decision.
            call: Makes the attempt.
            pending: Type of a response that is not final, and is not decided about.
        """
        try:
            with self.admitted():
                response = await call()
        except Exception as error:
            self.judge(span, error=error)
            raise
        if pending is None or not isinstance(response, pending):
            self.judge(span, response=response)
        return response

    def judge(self, span: Span, *, response: object = None, error: Exception | None = None) -> None:
        """Decide about an attempt while its span is open, and add the decision to the span."""
        situation = self._situate(response, error)
        self.decision = self._match(self._reliability.post_decide, situation)
        if self.decision is not None and (obstacle := self._barred(self.decision[0], situation)) is not None:
            name, verb = _NOT_DONE[self.decision[0].then]
            self._note(span, name, self._facts(self.decision[0].then, obstacle))
            if error is not None:
                error.add_note(f"the rule {self.decision[1]!r} could not {verb}: {obstacle}")
            self.decision = None
        elif self.decision is not None and self.decision[0].then.startswith("retry") and self.attempt >= MAX_ATTEMPTS:
            self.decision = (Decision(then="fail_fast"), "max_attempts")
        if self.decision is not None:
            self._emit_decision(*self.decision, span, situation)
        elif error is None and self.attempt > 1:
            self._emit(events.ReliabilityRecovered, span, situation, self._kind, "recovered")

    async def run(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        instead: Callable[[Decision, Situation], Awaitable[T]],
        other: Callable[[], bool] = lambda: False,
        otherwise: Callable[[Exception], bool] = lambda error: False,
    ) -> T:
        """Make attempts until the rules accept one.

        Args:
            attempt: Makes one attempt, and calls `judge` within its boundary.
            instead: Returns the result of a fallback.
            other: Switches to another model; returns whether there is one.
            otherwise: Returns whether to make another attempt after an error that no rule decides about.

        Raises:
            ReliabilityFailFast: a rule ended the run.
            Exception: the error of the last attempt.
        """
        self.pre_check()
        while True:
            self.attempt += 1
            try:
                response, error = await attempt(), None
            except Exception as failure:  # noqa: BLE001  (raised below, unless a rule decides otherwise)
                error = failure
            decision, kind = self.decision or (None, "")
            self.decision = None  # the next attempt may end without a decision
            if decision is None:
                is_retried = error is not None and otherwise(error)
            elif decision.then == "fail_fast":
                raise self._failed_fast(kind, f"ended {self._operation()} at attempt {self.attempt}", error)
            elif decision.then == "fallback":
                return await self._fall_back(instead, decision, kind, error)
            elif decision.then == "retry_other":
                is_retried = other()
            else:
                await self._pause()
                is_retried = True
            if not is_retried:
                if error is not None:
                    raise error
                return response

    async def _fall_back(
        self, instead: Callable[[Decision, Situation], Awaitable[T]], decision: Decision, kind: str, error: Any
    ) -> T:
        """Return the result of a fallback; if it fails, raise the error of the attempt with a note, or fail fast."""
        assert self._situation is not None
        try:
            return await instead(decision, self._situation)
        except Exception as failure:
            self._scope.fault("reliability", failure)
            if error is None:
                raise self._failed_fast(kind, f"had no fallback for {self._operation()}", failure) from failure
            error.add_note(f"the fallback of the rule {kind!r} also failed: {describe(failure)}")
            raise error from error.__cause__

    def _barred(self, decision: Decision, situation: Situation) -> str | None:
        """Return why a decision cannot be carried out, or None; set the wait before a retry."""
        if decision.then not in _NOT_DONE:
            return None
        if situation.error_kind == "cancelled":
            return "cancelled"
        obstacle = self._over() or self._bar(decision, situation.error)
        if obstacle is not None or decision.then != "retry":
            return obstacle
        wait = self._delay(decision, situation)
        if wait is None:
            return "retry_after"
        self._wait = wait
        deadline = self._scope.deadline
        return "deadline" if deadline is not None and anyio.current_time() + wait >= deadline else None

    async def _pause(self) -> None:
        """Wait before the next attempt."""
        if self._wait > 0:
            await self._reliability.sleep(self._wait)

    def _delay(self, decision: Decision, situation: Situation) -> float | None:
        """Return the seconds to wait, or None if that is longer than the rule allows."""
        delay = retry_after_of(situation.error) if situation.error is not None else None
        if decision.honour_retry_after and delay is not None:
            return delay if delay <= decision.max_backoff else None
        ceiling = min(decision.max_backoff, decision.backoff * 2.0 ** min(self.attempt - 1, 30))
        return self._reliability.jitter() * ceiling

    def _failed_fast(self, kind: str, action: str, cause: Exception | None) -> ReliabilityFailFast:
        """Return the error that ends the run."""
        if self._rule_failure is not None:
            reason = f"the rule {kind!r} could not be evaluated, and {action}"
            return ReliabilityFailFast(kind, reason, self._rule_failure)
        return ReliabilityFailFast(kind, f"the rule {kind!r} {action}", cause)

    def _operation(self) -> str:
        return f"{self.subject.operation} of {self.subject.name!r}"

    def _situate(self, response: object = None, error: Exception | None = None) -> Situation:
        self._situation = Situation(
            operation=self.subject.operation,
            provider_id=self.subject.provider_id,
            tool_name=self.subject.tool_name,
            model=self.subject.model,
            attempt=self.attempt,
            error=error,
            error_kind=error_kind_of(error) if error is not None else None,
            elapsed=self._reliability.clock() - self._started,
            usage=Spent.of(self._usage()),
            iteration=self._scope.iteration,
            identity=self._scope.identity,
            response=response,
        )
        return self._situation

    def _match(self, rules: Sequence[Rule], situation: Situation) -> tuple[Decision, str] | None:
        for rule in rules:
            try:
                matches = rule.matches(situation)
            except Exception as failure:  # noqa: BLE001  (rules are the application's)
                self._scope.fault("reliability", failure)
                if self._reliability.fails_closed:
                    self._rule_failure = failure
                    return Decision(then="fail_fast"), rule.kind
                continue
            if matches:
                return (rule.then, rule.kind) if rule.then.then not in ("ok", "continue") else None
        return None

    def _emit_decision(self, decision: Decision, kind: str, span: Span, situation: Situation) -> None:
        self._kind = kind
        self._emit(_EVENTS[decision.then], span, situation, kind, decision.then)

    def _emit(self, event: type[Event], span: Span, situation: Situation, kind: str, then: str) -> None:
        error = situation.error
        self._note(span, event.name, self._facts(then, kind))
        labels = {
            semconv.OPERATION: situation.operation,
            semconv.RELIABILITY_THEN: then,
            semconv.RELIABILITY_KIND: kind,
        }
        self._scope.count(semconv.RELIABILITY_DECISIONS, 1, labels)
        payload = {
            "operation": situation.operation,
            "provider_id": situation.provider_id,
            "tool_name": situation.tool_name,
            "model": situation.model,
            "attempt": self.attempt,
            "kind": kind,
            "error": self._scope.text_of(error) if error is not None else None,
            "error_type": error_type_of(error) if error is not None else None,
        }
        fields = {name: payload[name] for name in PAYLOADS[event]}
        self._scope.emit(event, span.get_span_context(), fields)

    def _facts(self, then: str, kind: str) -> dict[str, AttributeValue]:
        return {semconv.RELIABILITY_THEN: then, semconv.RELIABILITY_KIND: kind, semconv.ATTEMPT: self.attempt}

    def _note(self, span: Span, name: str, facts: Mapping[str, AttributeValue]) -> None:
        try:
            if span.is_recording():  # the span of an abandoned attempt has ended
                span.add_event(name, facts)
        except Exception as error:  # noqa: BLE001  (spans are the application's)
            self._scope.fault("span", error)

    def _emit_circuit(self, circuit: Circuit, change: State | None) -> None:
        if change is None:
            return
        subject, event, span = self.subject, _CIRCUIT_EVENTS[change], trace.get_current_span()
        self._scope.instruments.hubs.circuit(subject.labels, circuit)
        self._note(span, event.name, {})
        payload = {"provider_id": subject.provider_id, "tool_name": subject.tool_name, "model": subject.model}
        self._scope.emit(event, span.get_span_context(), payload)
