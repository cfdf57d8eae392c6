"""Circuit breakers: what fails again and again is left alone for a while, and then tried by one caller."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pellucid.errors import ConfigError, ErrorKind

State: TypeAlias = Literal["closed", "half_open", "open"]

COUNTED: Final[frozenset[ErrorKind]] = frozenset(
    {"auth", "invalid_response", "rate_limited", "timeout", "unavailable", "unknown"}
)
"""Failures that say something of who was called; a bad request says more of the caller."""

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
    """The circuit is open. Attributes: retry_after: seconds until somebody may try."""

    retry_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """A call may be made. Attributes: generation: how often the circuit had changed before; is_probe: it decides."""

    generation: int
    is_probe: bool


class Circuit:
    """The state of one breaker; safe from any thread and event loop. Attributes: state: what it is now."""

    def __init__(self, options: CircuitBreaker, clock: Callable[[], float]) -> None:
        self.state: State = "closed"
        self._options = options
        self._clock = clock
        self._lock = threading.RLock()
        self._failures = 0
        self._opened = 0.0
        self._generation = 0
        self._probing = False

    def admit(self) -> Permit | Refused:
        """Ask whether a call may be made. Each permit is to be given back by `report`."""
        with self._lock:
            if self.state == "open":
                left = self._opened + self._options.cooldown - self._clock()
                if left > 0:
                    return Refused(retry_after=left)
                self._become("half_open")
            if self.state == "half_open":
                if self._probing:
                    return Refused(retry_after=self._options.cooldown)
                self._probing = True
            return Permit(generation=self._generation, is_probe=self._probing)

    def report(self, permit: Permit, kind: ErrorKind | None, *, cancelled: bool = False) -> None:
        """Say how a call ended: without an error, with one of a kind, or not at all."""
        with self._lock:
            if permit.generation != self._generation:
                return  # it began before the circuit changed, and says nothing of now
            if permit.is_probe:
                self._probing = False
            if cancelled or (kind is not None and kind not in self._options.on):
                return
            if kind is None:
                self._failures = 0
                if self.state != "closed":
                    self._become("closed")
                return
            self._failures += 1
            if permit.is_probe or self._failures >= self._options.failures:
                self._opened = self._clock()
                self._become("open")

    def _become(self, state: State) -> None:
        self.state = state
        self._failures = 0
        self._generation += 1
        self._probing = False


class Circuits:
    """The circuits of one `Reliability`, by what is called."""

    def __init__(self, options: CircuitBreaker, clock: Callable[[], float]) -> None:
        self._options = options
        self._clock = clock
        self._lock = threading.RLock()
        self._circuits: OrderedDict[Hashable, Circuit] = OrderedDict()

    def of(self, subject: Hashable) -> Circuit:
        """Return the circuit of a provider, model or tool."""
        with self._lock:
            circuit = self._circuits.get(subject)
            if circuit is None:
                circuit = self._circuits[subject] = Circuit(self._options, self._clock)
                if len(self._circuits) > MOST:
                    idle = next((key for key, each in self._circuits.items() if each.state == "closed"), None)
                    self._circuits.pop(idle if idle is not None else next(iter(self._circuits)))
            else:
                self._circuits.move_to_end(subject)
            return circuit
