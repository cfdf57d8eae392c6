"""The gate around an operation: rules decide after each attempt, within the attempt's own boundary."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio
from opentelemetry import trace
from opentelemetry.trace import Span
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.errors import CircuitOpen, DiscoveryCircuitOpen, ModelCircuitOpen, ReliabilityFailFast
from pellucid.events import (
    CircuitClosed,
    CircuitHalfOpened,
    CircuitOpened,
    Event,
    ReliabilityFailedFast,
    ReliabilityFellBack,
    ReliabilityRecovered,
    ReliabilityRetried,
)
from pellucid.failures import describe, error_kind_of, error_type_of, retry_after_of
from pellucid.messages import Usage
from pellucid.reliability.breaker import Circuit, Permit, Refused, State
from pellucid.reliability.options import Reliability
from pellucid.reliability.rules import Decision, Operation, Rule, Situation, Spent, Then
from pellucid.telemetry import Scope
from pellucid.telemetry.phases import PAYLOADS

T = TypeVar("T")

MAX_ATTEMPTS: Final = 50
"""Attempts after which a rule that would try for ever is stopped, loudly."""

_TOLD: Final[dict[Then, type[Event]]] = {
    "retry": ReliabilityRetried,
    "retry_other": ReliabilityRetried,
    "fallback": ReliabilityFellBack,
    "fail_fast": ReliabilityFailedFast,
}
_NOT_DONE: Final[dict[Then, tuple[str, str]]] = {
    "retry": ("reliability.not_retried", "try again"),
    "retry_other": ("reliability.not_retried", "try another model"),
    "fallback": ("reliability.not_fallen_back", "fall back"),
}
"""The span event where a decision cannot be carried out, and what the failure says then."""

_REFUSALS: Final[dict[Operation, type[CircuitOpen]]] = {
    "discovery": DiscoveryCircuitOpen,
    "inference": ModelCircuitOpen,
    "tool": CircuitOpen,
}
_CIRCUIT: Final[dict[State, type[Event]]] = {
    "closed": CircuitClosed,
    "half_open": CircuitHalfOpened,
    "open": CircuitOpened,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is called: one of these.

    Attributes:
        apart: Tells two of one name apart, for their breakers.
    """

    operation: Operation
    provider_id: str | None = None
    tool_name: str | None = None
    model: str | None = None
    apart: Hashable = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.provider_id or self.tool_name or self.model or ""

    @property
    def labels(self) -> dict[str, str]:
        """Its name as the label that names it in metrics."""
        if self.model is not None:
            return {semconv.REQUEST_MODEL: self.model}
        return {semconv.TOOL_NAME: self.name} if self.tool_name is not None else {semconv.PROVIDER_ID: self.name}


class Gate:
    """What the rules say of one operation of a run, attempt by attempt.

    What is decided is told when it is certain that it will be done: there is time for the wait, another model is left.

    Args:
        usage: Returns what the run has used.
        over: Returns why nothing more may be begun in the run, if so.
        bar: Returns why a decision about an error cannot be carried out, if so; the attempt is then taken as it is.

    Attributes:
        subject: What is called; another model after `retry_other`.
        attempt: Number of the attempt, from 1.
        taken: What was decided of the last attempt, if a rule matched; with its kind.
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
        self.taken: tuple[Decision, str] | None = None
        self._reliability = reliability
        self._scope = scope
        self._usage = usage
        self._over = over
        self._bar = bar
        self._began = reliability.clock()
        self._situation: Situation | None = None
        self._broken: Exception | None = None
        self._wait = 0.0
        self._kind = "other_model"  # what a FallbackModel does by itself

    def pre_check(self) -> None:
        """Ask the rules for before the first attempt.

        Raises:
            ReliabilityFailFast: one ends the run.
        """
        if not self._reliability.pre_check:
            return
        situation = self._situate()
        found = self._match(self._reliability.pre_check, situation)
        if found is not None and found[0].then == "fail_fast":
            self._tell(found[0], found[1], trace.get_current_span(), situation)
            raise self._failed_fast(found[1], f"did not let {self._what()} begin", None)

    @contextmanager
    def admitted(self) -> Any:
        """Let an attempt through the breaker, if there is one and it is closed, and tell it how the attempt ended.

        Raises:
            CircuitOpen: the circuit is open; nothing was called.
        """
        circuits = self._reliability.circuits
        if circuits is None:
            yield
            return
        circuit = circuits.of((self.subject.operation, self.subject.name, self.subject.apart))
        permit = circuit.admit()
        if isinstance(permit, Refused):
            raise _REFUSALS[self.subject.operation](self.subject.name, permit.retry_after)
        self._tell_circuit(circuit, permit.change)
        yield from self._reporting(circuit, permit)

    def _reporting(self, circuit: Circuit, permit: Permit) -> Any:
        try:
            yield
        except BaseException as error:
            self._tell_circuit(circuit, circuit.report(permit, failed=circuit.counts(error)))
            raise
        self._tell_circuit(circuit, circuit.report(permit, failed=False))

    async def judged(self, span: Span, call: Callable[[], Awaitable[T]], *, unjudged: type[Any] | None = None) -> T:
        """Do one attempt that is admitted, and judge what came of it; for attempts without a span of their own.

        What is `unjudged` has not come to anything yet.
        """
        try:
            with self.admitted():
                response = await call()
        except Exception as error:
            self.judge(span, error=error)
            raise
        if unjudged is None or not isinstance(response, unjudged):
            self.judge(span, response=response)
        return response

    def judge(self, span: Span, *, response: object = None, error: Exception | None = None) -> None:
        """Decide about an attempt while its span is open, and tell of it there."""
        situation = self._situate(response, error)
        self.taken = self._match(self._reliability.post_decide, situation)
        if self.taken is not None and (why := self._barred(self.taken[0], situation)) is not None:
            name, what = _NOT_DONE[self.taken[0].then]
            self._note(span, name, self._facts(self.taken[0].then, why))
            if error is not None:
                error.add_note(f"the rule {self.taken[1]!r} could not {what}: {why}")
            self.taken = None
        elif self.taken is not None and self.taken[0].then.startswith("retry") and self.attempt >= MAX_ATTEMPTS:
            self.taken = (Decision(then="fail_fast"), "max_attempts")
        if self.taken is not None:
            self._tell(*self.taken, span, situation)
        elif error is None and self.attempt > 1:
            self._emit(ReliabilityRecovered, span, situation, self._kind, "recovered")

    async def run(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        instead: Callable[[Decision, Situation], Awaitable[T]],
        other: Callable[[], bool] = lambda: False,
        otherwise: Callable[[Exception], bool] = lambda error: False,
    ) -> T:
        """Do attempts until the rules take one.

        Args:
            attempt: Does one, and has it judged within its boundary.
            instead: Returns the result of a fallback.
            other: Goes to another model; returns whether there is one.
            otherwise: Where no rule says what to do about an error: returns whether to go on with another attempt.

        Raises:
            ReliabilityFailFast: a rule ended the run.
            Exception: what the last attempt raised.
        """
        self.pre_check()
        while True:
            self.attempt += 1
            try:
                response, error = await attempt(), None
            except Exception as failure:  # noqa: BLE001  (raised below, unless a rule knows better)
                error = failure
            decision, kind = self.taken or (None, "")
            self.taken = None  # the next attempt may end in a way that is not judged
            if decision is None:
                goes_on = error is not None and otherwise(error)
            elif decision.then == "fail_fast":
                raise self._failed_fast(kind, f"ended {self._what()} at attempt {self.attempt}", error)
            elif decision.then == "fallback":
                return await self._fall_back(instead, decision, kind, error)
            elif decision.then == "retry_other":
                goes_on = other()
            else:
                await self._pause()
                goes_on = True
            if not goes_on:
                if error is not None:
                    raise error
                return response

    async def _fall_back(
        self, instead: Callable[[Decision, Situation], Awaitable[T]], decision: Decision, kind: str, error: Any
    ) -> T:
        """Return what a rule has instead; where that fails, what had failed is raised, and says so."""
        assert self._situation is not None
        try:
            return await instead(decision, self._situation)
        except Exception as failure:
            self._scope.fault("reliability", failure)
            if error is None:
                raise self._failed_fast(kind, f"had no fallback for {self._what()}", failure) from failure
            error.add_note(f"the fallback of the rule {kind!r} failed, too: {describe(failure)}")
            raise error from error.__cause__

    def _barred(self, decision: Decision, situation: Situation) -> str | None:
        """Return why a decision cannot be carried out, or None; settles how long to wait."""
        if decision.then not in _NOT_DONE:
            return None
        if situation.error_kind == "cancelled":
            return "cancelled"
        why = self._over() or self._bar(decision, situation.error)
        if why is not None or decision.then != "retry":
            return why
        wait = self._waiting(decision, situation)
        if wait is None:
            return "retry_after"
        self._wait = wait
        deadline = self._scope.deadline
        return "deadline" if deadline is not None and anyio.current_time() + wait >= deadline else None

    async def _pause(self) -> None:
        """Wait before the next attempt."""
        if self._wait > 0:
            await self._reliability.sleep(self._wait)

    def _waiting(self, decision: Decision, situation: Situation) -> float | None:
        """Return the seconds to wait, or None if that is longer than the rule allows."""
        delay = retry_after_of(situation.error) if situation.error is not None else None
        if decision.honour_retry_after and delay is not None:
            return delay if delay <= decision.max_backoff else None
        ceiling = min(decision.max_backoff, decision.backoff * 2.0 ** min(self.attempt - 1, 30))
        return self._reliability.jitter() * ceiling

    def _failed_fast(self, kind: str, what: str, cause: Exception | None) -> ReliabilityFailFast:
        """Return what ends the run."""
        if self._broken is not None:
            reason = f"the rule {kind!r} could not be evaluated, and {what}"
            return ReliabilityFailFast(kind, reason, self._broken)
        return ReliabilityFailFast(kind, f"the rule {kind!r} {what}", cause)

    def _what(self) -> str:
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
            elapsed=self._reliability.clock() - self._began,
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
                    self._broken = failure
                    return Decision(then="fail_fast"), rule.kind
                continue
            if matches:
                return (rule.then, rule.kind) if rule.then.then not in ("ok", "continue") else None
        return None

    def _tell(self, decision: Decision, kind: str, span: Span, situation: Situation) -> None:
        self._kind = kind
        self._emit(_TOLD[decision.then], span, situation, kind, decision.then)

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
        known = {name: payload[name] for name in PAYLOADS[event]}
        self._scope.emit(event, span.get_span_context(), known)

    def _facts(self, then: str, kind: str) -> dict[str, AttributeValue]:
        return {semconv.RELIABILITY_THEN: then, semconv.RELIABILITY_KIND: kind, semconv.ATTEMPT: self.attempt}

    def _note(self, span: Span, name: str, facts: Mapping[str, AttributeValue]) -> None:
        try:
            if span.is_recording():  # that of an attempt that was left behind has ended
                span.add_event(name, facts)
        except Exception as error:  # noqa: BLE001  (spans are the application's)
            self._scope.fault("span", error)

    def _tell_circuit(self, circuit: Circuit, change: State | None) -> None:
        if change is None:
            return
        subject, event, span = self.subject, _CIRCUIT[change], trace.get_current_span()
        self._scope.instruments.hubs.circuit(subject.labels, circuit)
        self._note(span, event.name, {})
        payload = {"provider_id": subject.provider_id, "tool_name": subject.tool_name, "model": subject.model}
        self._scope.emit(event, span.get_span_context(), payload)
