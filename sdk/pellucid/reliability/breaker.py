"""Circuit breakers: after repeated failures calls are rejected for a while, then one caller tries again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from pellucid.concurrency.forks import reset_in_child
from pellucid.errors import ConfigError, DiscoveryBackoff, DiscoveryError, ErrorKind, JournalError, PolicyHalt
from pellucid.failures import error_kind_of

State: TypeAlias = Literal["closed", "half_open", "open"]

COUNTED: Final[frozenset[ErrorKind]] = frozenset(
    {"auth", "invalid_response", "rate_limited", "timeout", "unavailable", "unknown"}
)
"""Failures of the provider, model or tool that is called; a bad request is a failure of the caller."""

LEVELS: Final[Mapping[State, int]] = {"closed": 0, "half_open": 1, "open": 2}
"""Values of the gauge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """Conditions under which calls of a provider, model or tool are rejected.

    Attributes:
        failures: Consecutive failures that open the circuit.
        cooldown: Seconds after which one caller may try again; the others are rejected until its call has ended.
        on: Kinds of failures that count; others count neither as a failure nor as a success.
    """

    failures: int = 5
    cooldown: float = 30.0
    on: Collection[ErrorKind] = COUNTED

    def __post_init__(self) -> None:
        if self.failures < 1 or self.cooldown < 0:
            raise ConfigError(
                f"CircuitBreaker(failures={self.failures!r}, cooldown={self.cooldown!r}): failures must be at least 1 "
                f"and cooldown must not be negative"
            )


class Permit(NamedTuple):
    """Permission to make a call.

    Attributes:
        generation: Number of state changes of the circuit before this permit.
        is_probe: Whether the outcome of the call decides the next state of the circuit.
        change: New state of the circuit if granting the permit changed it.
    """

    generation: int
    is_probe: bool
    change: State | None = None


class Circuit:
    """State of one circuit breaker. Safe to use from any thread and event loop.

    Attributes:
        state: Current state.
    """

    def __init__(self, options: CircuitBreaker, clock: Callable[[], float]) -> None:
        self.state: State = "closed"
        self._options = options
        self._clock = clock
        self._lock = threading.RLock()
        self._failures = 0
        self._opened = 0.0
        self._generation = 0
        self._probing = False
        reset_in_child(self, _lock=threading.RLock, state=lambda: "closed", _failures=int, _probing=bool)

    def admit(self) -> Permit | float:
        """Return a permit for a call, or the seconds until a caller may try again. Pass each permit to `report`."""
        with self._lock:
            change: State | None = None
            if self.state == "open":
                remaining = self._opened + self._options.cooldown - self._clock()
                if remaining > 0:
                    return remaining
                change = self._become("half_open")
            if self.state == "half_open":
                if self._probing:
                    return self._options.cooldown
                self._probing = True
            return Permit(self._generation, self._probing, change)

    def report(self, permit: Permit, error: BaseException | None = None) -> State | None:
        """Report the outcome of a call, and return the new state of the circuit if it changed.

        Of many calls that fail at the same time, one opens the circuit, and only that one gets the new state.

        Args:
            permit: The permit of the call.
            error: Exception of the call, if it failed.
        """
        with self._lock:
            if permit.generation != self._generation:
                return None  # the call started before the circuit changed, and does not count
            if permit.is_probe:
                self._probing = False
            if error is not None and not self._counts(error):
                return None
            if error is None:
                self._failures = 0
                return self._become("closed") if self.state != "closed" else None
            self._failures += 1
            if permit.is_probe or self._failures >= self._options.failures:
                self._opened = self._clock()
                return self._become("open")
            return None

    def _counts(self, error: BaseException) -> bool:
        """Return whether an error counts as a failure of the provider, model or tool."""
        if not isinstance(error, Exception) or isinstance(error, DiscoveryBackoff | JournalError | PolicyHalt):
            return False  # there was no call, it did not end, or a step of a durable run was not written
        if isinstance(error, DiscoveryError) and error.joined:
            return False  # the error counts for the run with the round trip
        return error_kind_of(error) in self._options.on

    @property
    def level(self) -> int:
        """Value of the gauge."""
        return LEVELS[self.state]

    def _become(self, state: State) -> State:
        self.state = state
        self._failures = 0
        self._generation += 1
        self._probing = False
        return state
