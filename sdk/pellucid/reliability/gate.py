"""The gate around an operation: rules decide after each attempt, within the attempt's own boundary."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio
from opentelemetry import trace
from opentelemetry.trace import Span

from pellucid import semconv
from pellucid.errors import (
    CircuitOpen,
    ConfigError,
    DiscoveryCircuitOpen,
    ModelCircuitOpen,
    ReliabilityFailFast,
    error_kind_of,
    error_type_of,
)
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
from pellucid.messages import Usage
from pellucid.reliability.breaker import Circuit, CircuitBreaker, Circuits, Permit, Refused, State
from pellucid.reliability.rules import Decision, Operation, Rule, RuleFailed, Situation, Spent, Then, first_match
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
_REFUSALS: Final[dict[Operation, type[CircuitOpen]]] = {
    "discovery": DiscoveryCircuitOpen,
    "inference": ModelCircuitOpen,
    "tool": CircuitOpen,
}
_CIRCUIT: Final[dict[State, tuple[type[Event], int]]] = {
    "closed": (CircuitClosed, 0),
    "half_open": (CircuitHalfOpened, 1),
    "open": (CircuitOpened, 2),
}


class Reliability:
    """What to do when discovery, inference or a tool fails. Without it nothing is tried again, and failures are loud.

    ```python
    Reliability(
        [
            Rule(when=lambda s: s.operation == "discovery" and s.attempt < 3, then=retry(), kind="hub-transient"),
            Rule(when=lambda s: s.error_kind == "rate_limited" and s.attempt < 5, then=retry(), kind="rate-limit"),
            Rule(when=lambda s: s.operation == "discovery", then=fallback(last_known_catalog), kind="degraded"),
        ],
        pre_check=[Rule(when=lambda s: s.usage.cost > 2, then=fail_fast(), kind="budget")],
        breaker=CircuitBreaker(failures=5, cooldown=30),
    )
    ```

    The first rule that matches decides; without one a response is taken, and an error raised. A cancellation is no
    failure. May be shared by agents; breakers then are, too.

    Args:
        post_decide: Rules asked after each attempt, whatever came of it.
        pre_check: Rules asked before the first attempt; only `fail_fast()` does anything there.
        breaker: Each provider, model and tool gets a circuit breaker of this kind, which outlives runs.
        fails_closed: A rule that cannot be evaluated ends the run; otherwise it is passed over. Both are counted.
        clock: Monotonic seconds.
        sleep: Waits so many seconds.
        jitter: Returns a number from 0 to 1.

    Raises:
        ConfigError: something of this is no rule.
    """

    def __init__(
        self,
        post_decide: Sequence[Rule] = (),
        *,
        pre_check: Sequence[Rule] = (),
        breaker: CircuitBreaker | None = None,
        fails_closed: bool = True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        for rule in (*post_decide, *pre_check):
            if not isinstance(rule, Rule):
                raise ConfigError(f"Reliability: {rule!r} is no Rule(when=, then=, kind=)")
        self.post_decide = tuple(post_decide)
        self.pre_check = tuple(pre_check)
        self.fails_closed = fails_closed
        self.clock = clock
        self.sleep = sleep
        self.jitter = jitter
        self.circuits = Circuits(breaker, clock) if breaker is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is called: one of these."""

    operation: Operation
    provider_id: str | None = None
    tool_name: str | None = None
    model: str | None = None

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

    Attributes:
        subject: What is called; another model after `retry_other`.
        attempt: Number of the attempt, from 1.
        taken: What was decided of the last attempt, if a rule matched; with its kind.
    """

    def __init__(self, reliability: Reliability, scope: Scope, subject: Subject, *, usage: Callable[[], Usage]) -> None:
        self.subject = subject
        self.attempt = 0
        self.taken: tuple[Decision, str] | None = None
        self._reliability = reliability
        self._scope = scope
        self._usage = usage
        self._began = reliability.clock()
        self._situation: Situation | None = None
        self._kind = "other_model"  # what a FallbackModel does by itself

    def pre_check(self) -> None:
        """Ask the rules for before the first attempt.

        Raises:
            ReliabilityFailFast: one ends the run.
        """
        if not self._reliability.pre_check:
            return
        situation = self._situate(None, None)
        found = self._match(self._reliability.pre_check, situation)
        if found is not None and found[0].then == "fail_fast":
            self._tell(found[0], found[1], trace.get_current_span(), situation)
            raise ReliabilityFailFast(found[1], f"the rule {found[1]!r} did not let {self._what()} begin", None)

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
        circuit = circuits.of((self.subject.operation, self.subject.name))
        before = circuit.state
        permit = circuit.admit()
        self._tell_circuit(circuit, before)
        if isinstance(permit, Refused):
            raise _REFUSALS[self.subject.operation](self.subject.name, permit.retry_after)
        yield from self._reporting(circuit, permit)

    def _reporting(self, circuit: Circuit, permit: Permit) -> Any:
        before = circuit.state
        try:
            yield
        except BaseException as error:
            kind = error_kind_of(error) if isinstance(error, Exception) else "cancelled"
            circuit.report(permit, kind, cancelled=kind == "cancelled")
            self._tell_circuit(circuit, before)
            raise
        circuit.report(permit, None)
        self._tell_circuit(circuit, before)

    def judge(
        self, span: Span, *, response: object = None, error: Exception | None = None, barred: str | None = None
    ) -> None:
        """Decide about an attempt while its span is open, and tell of it there.

        Args:
            span: The attempt's.
            response: What it returned.
            error: What it raised.
            barred: Why it must not be done again, if so; the error then stays what it is.
        """
        situation = self._situate(response, error)
        self.taken = self._match(self._reliability.post_decide, situation)
        if self.taken is not None and self.taken[0].then in ("retry", "retry_other"):
            if situation.error_kind == "cancelled":
                self.taken = None
            elif barred is not None:
                span.add_event("reliability.not_retried", {semconv.RELIABILITY_KIND: barred})
                self.taken = None
            elif self.attempt >= MAX_ATTEMPTS:
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
            decision = self.taken[0] if self.taken is not None else None
            if decision is None:
                goes_on = error is not None and otherwise(error)
            else:
                if decision.then == "fail_fast":
                    raise self._failed_fast(error)
                if decision.then == "fallback":
                    assert self._situation is not None
                    return await instead(decision, self._situation)
                goes_on = other() if decision.then == "retry_other" else await self._pause(decision)
            if not goes_on:
                if error is not None:
                    raise error
                return response

    async def _pause(self, decision: Decision) -> bool:
        """Wait before the next attempt; return whether there is time for it."""
        wait = self._wait(decision)
        deadline = self._scope.deadline
        if wait is None or (deadline is not None and anyio.current_time() + wait >= deadline):
            return False
        if wait > 0:
            await self._reliability.sleep(wait)
        return True

    def _failed_fast(self, error: Exception | None) -> ReliabilityFailFast:
        """Return what ends the run."""
        assert self.taken is not None
        kind = self.taken[1]
        return ReliabilityFailFast(kind, f"the rule {kind!r} ended {self._what()} at attempt {self.attempt}", error)

    def _what(self) -> str:
        return f"{self.subject.operation} of {self.subject.name!r}"

    def _wait(self, decision: Decision) -> float | None:
        """Return the seconds to wait, or None if that is longer than the rule allows."""
        asked = getattr(self._situation.error, "retry_after", None) if self._situation is not None else None
        if decision.honour_retry_after and isinstance(asked, int | float):
            return asked if asked <= decision.max_backoff else None
        ceiling = min(decision.max_backoff, decision.backoff * 2.0 ** min(self.attempt - 1, 30))
        return self._reliability.jitter() * ceiling

    def _situate(self, response: object, error: Exception | None) -> Situation:
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
        left = list(rules)
        while True:
            try:
                rule = first_match(left, situation)
            except RuleFailed as failure:
                self._scope.fault("reliability", failure.__cause__ or failure)
                if self._reliability.fails_closed:
                    return Decision(then="fail_fast"), failure.kind
                left = left[[each.kind for each in left].index(failure.kind) + 1 :]
                continue
            return (rule.then, rule.kind) if rule is not None and rule.then.then not in ("ok", "continue") else None

    def _tell(self, decision: Decision, kind: str, span: Span, situation: Situation) -> None:
        self._kind = kind
        self._emit(_TOLD[decision.then], span, situation, kind, decision.then)

    def _emit(self, event: type[Event], span: Span, situation: Situation, kind: str, then: str) -> None:
        error = situation.error
        span.add_event(
            event.name, {semconv.RELIABILITY_THEN: then, semconv.RELIABILITY_KIND: kind, semconv.ATTEMPT: self.attempt}
        )
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

    def _tell_circuit(self, circuit: Circuit, before: State) -> None:
        state = circuit.state
        if state == before:
            return
        event, number = _CIRCUIT[state]
        self._scope.instruments.hubs.circuit(self.subject.labels, number)
        subject = self.subject
        span = trace.get_current_span()
        span.add_event(event.name)
        payload = {"provider_id": subject.provider_id, "tool_name": subject.tool_name, "model": subject.model}
        self._scope.emit(event, span.get_span_context(), payload)
