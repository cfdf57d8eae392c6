"""Circuit breakers: what fails again and again is left alone for a while, and then tried by one caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.concurrency.forks import reset_in_child
from pellucid.errors import ConfigError, DiscoveryBackoff, DiscoveryError, ErrorKind, PolicyHalt
from pellucid.failures import error_kind_of

State: TypeAlias = Literal["closed", "half_open", "open"]

COUNTED: Final[frozenset[ErrorKind]] = frozenset(
    {"auth", "invalid_response", "rate_limited", "timeout", "unavailable", "unknown"}
)
"""Failures that say something of who was called; a bad request says more of the caller."""

LEVELS: Final[Mapping[State, int]] = {"closed": 0, "half_open": 1, "open": 2}
"""Values of the gauge."""

MOST: Final = 4096
"""Circuits that are kept; those that were used least recently go first, if they are closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """When a provider, model or tool is left alone.

    Attributes:
        failures: Failures in a row that open the circuit.
        cooldown: Seconds after which one caller may try again; the others are refused until that is known.
        on: Kinds of failures that count; others count neither as a failure nor as a success.
    """

    failures: int = 5
    cooldown: float = 30.0
    on: Collection[ErrorKind] = COUNTED

    def __post_init__(self) -> None:
        if self.failures < 1 or self.cooldown < 0:
            raise ConfigError(
                f"CircuitBreaker(failures={self.failures!r}, cooldown={self.cooldown!r}): there must be at least one "
                f"failure, and a cooldown that is not negative"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The circuit is open.

    Attributes:
        retry_after: Seconds until somebody may try.
    """

    retry_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """A call may be made.

    Attributes:
        generation: How often the circuit had changed before.
        is_probe: Its end decides what becomes of the circuit.
        change: What the circuit has become by this.
    """

    generation: int
    is_probe: bool
    change: State | None = None


class Circuit:
    """The state of one breaker; safe from any thread and event loop.

    Attributes:
        state: What it is now.
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

    def admit(self) -> Permit | Refused:
        """Ask whether a call may be made. Each permit is to be given back by `report`."""
        with self._lock:
            change: State | None = None
            if self.state == "open":
                left = self._opened + self._options.cooldown - self._clock()
                if left > 0:
                    return Refused(retry_after=left)
                change = self._become("half_open")
            if self.state == "half_open":
                if self._probing:
                    return Refused(retry_after=self._options.cooldown)
                self._probing = True
            return Permit(generation=self._generation, is_probe=self._probing, change=change)

    def report(self, permit: Permit, *, failed: bool | None) -> State | None:
        """Say how a call ended, or None if that says nothing of who was called; return what the circuit became by it.

        Of many calls that fail at the same time one opens the circuit, and only that one is told so.
        """
        with self._lock:
            if permit.generation != self._generation:
                return None  # it began before the circuit changed, and says nothing of now
            if permit.is_probe:
                self._probing = False
            if failed is None:
                return None
            if not failed:
                self._failures = 0
                return self._become("closed") if self.state != "closed" else None
            self._failures += 1
            if permit.is_probe or self._failures >= self._options.failures:
                self._opened = self._clock()
                return self._become("open")
            return None

    def counts(self, error: BaseException) -> bool | None:
        """Return whether an error is a failure of who was called, or None if it says nothing of it."""
        if not isinstance(error, Exception) or isinstance(error, DiscoveryBackoff | PolicyHalt):
            return None  # nothing was called, or not to its end
        if isinstance(error, DiscoveryError) and error.joined:
            return None  # it is a failure of whoever called, and counts there
        return True if error_kind_of(error) in self._options.on else None

    @property
    def level(self) -> int:
        """The value of the gauge."""
        return LEVELS[self.state]

    def _become(self, state: State) -> State:
        self.state = state
        self._failures = 0
        self._generation += 1
        self._probing = False
        return state


class Circuits:
    """The circuits of one `Reliability`, by what is called."""

    def __init__(self, options: CircuitBreaker, clock: Callable[[], float]) -> None:
        self._options = options
        self._clock = clock
        self._circuits: BoundedMap[Hashable, Circuit] = BoundedMap(MOST, is_spare=lambda circuit: circuit.level == 0)

    def of(self, subject: Hashable) -> Circuit:
        """Return the circuit of a provider, model or tool."""
        circuit = self._circuits.get(subject)
        return circuit or self._circuits.setdefault(subject, Circuit(self._options, self._clock))
