"""State of tool providers behind the observable gauges, which read it at collection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol, TypeAlias
from weakref import WeakSet

from anyio.lowlevel import EventLoopToken
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.concurrency.forks import in_child
from pellucid.concurrency.tasks import is_running

MAX_PROVIDERS: Final = 4096
"""Maximum number of providers with gauges; the oldest are evicted first, so that ids created per request do not fill
the memory."""

_STREAK: Final = semconv.HUB_STREAK.name

RequestKey: TypeAlias = object
"""Key of a request that was sent and has not ended."""


class Leveled(Protocol):
    """Circuit breaker with a level for the gauge."""

    @property
    def level(self) -> int:
        """Level of the gauge: 0 closed, 1 half-open, 2 open."""


class ProviderState:
    """State of one provider. Thread-safe.

    Attributes:
        info: Declarations of its provider about the hub, by label.
        values: Values of gauges as last set, by the name of the instrument.
    """

    __slots__ = ("_inflight", "_lock", "_waiting_since", "_was_sent", "info", "values")

    def __init__(self, lock: threading.RLock) -> None:
        self.info: Mapping[str, AttributeValue] = {}
        self.values: dict[str, float] = {}
        self.renew(lock)

    def renew(self, lock: threading.RLock) -> None:
        """Forget requests, such as those of a parent process."""
        self._lock = lock
        self._inflight: dict[RequestKey, tuple[float, EventLoopToken]] = {}
        self._was_sent = False
        self._waiting_since: float | None = None

    def sent(self, loop: EventLoopToken) -> RequestKey:
        """Note a request that was sent in an event loop, and return the key for `ended`."""
        key, now = object(), time.monotonic()
        with self._lock:
            self._was_sent = True
            self._inflight[key] = now, loop
            if self._waiting_since is None:
                self._waiting_since = now
        return key

    def ended(self, key: RequestKey | None, *, is_answered: bool | None) -> None:
        """Note that a request was answered or given up; None if that says nothing about the hub."""
        with self._lock:
            start, _ = self._inflight.pop(key, (None, None))
            if is_answered:
                self._waiting_since = None
            elif is_answered is None and start is not None and self._waiting_since == start:
                self._waiting_since = min((other for other, _ in self._inflight.values()), default=None)

    def streak(self, *, is_late: bool) -> None:
        """Count consecutive requests that were over the hub's objective."""
        with self._lock:
            self.values[_STREAK] = self.values.get(_STREAK, 0.0) + 1 if is_late else 0.0

    def starts(self) -> list[float] | None:
        """Return the starts of requests in flight, or None if there never was one.

        Those whose event loop was stopped never end, and are left out.
        """
        with self._lock:
            inflight = list(self._inflight.values()) if self._was_sent else None
        return None if inflight is None else [start for start, loop in inflight if is_running(loop)]

    def unanswered(self, now: float) -> float | None:
        """Return the seconds since the first request after the last answer, or None if there never was a request."""
        with self._lock:
            since, was_sent = self._waiting_since, self._was_sent
        return (0.0 if since is None else now - since) if was_sent else None


class Hubs:
    """Current state of all tool providers."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # garbage collection here may end a fetch, which re-enters
        self._circuits: BoundedMap[tuple[str, str], WeakSet[Leveled]] = BoundedMap(MAX_PROVIDERS, by_use=False)
        self._hubs: BoundedMap[str, ProviderState] = BoundedMap(MAX_PROVIDERS, by_use=False)
        in_child(self, Hubs._renew)

    def of(self, provider_id: str) -> ProviderState:
        """Return the state of a provider."""
        return self._hubs.get(provider_id) or self._hubs.setdefault(provider_id, ProviderState(self._lock))

    def set(self, gauge: semconv.Metric, provider_id: str, value: float) -> None:
        """Set the gauge of a provider: its objective, its last success or the size of its catalogue."""
        self.of(provider_id).values[gauge.name] = value

    def circuit(self, label: str, name: str, circuit: Leveled) -> None:
        """Add a circuit breaker to the gauge, as long as the breaker is alive."""
        with self._lock:
            self._circuits.setdefault((label, name), WeakSet()).add(circuit)

    @property
    def gauges(self) -> Mapping[str, Callable[[], Mapping[str, float]]]:
        """Functions that read the gauges of providers, by the name of the instrument."""
        return {
            semconv.DISCOVERY_INFLIGHT.name: self.inflight,
            semconv.DISCOVERY_INFLIGHT_AGE.name: self.ages,
            semconv.HUB_UNANSWERED_AGE.name: self.unanswered,
            **{gauge.name: partial(self.latest, gauge) for gauge in _SET},
        }

    def infos(self) -> list[tuple[dict[str, AttributeValue], float]]:
        """Return the labels of the hubs about which anything is declared."""
        return [({semconv.PROVIDER_ID: name, **hub.info}, 1.0) for name, hub in self._hubs.items() if hub.info]

    def circuits(self) -> list[tuple[dict[str, str], float]]:
        """Return labels and level of the circuit breakers that have ever opened; of several of one name the worst."""
        with self._lock:
            levels = [(key, [circuit.level for circuit in circuits]) for key, circuits in self._circuits.items()]
        return [({label: name}, max(values)) for (label, name), values in levels if values]

    def latest(self, gauge: semconv.Metric) -> dict[str, float]:
        """Return the values of a gauge by provider, as last set."""
        values = [(provider_id, hub.values.get(gauge.name)) for provider_id, hub in self._hubs.items()]
        return {provider_id: value for provider_id, value in values if value is not None}

    def inflight(self) -> dict[str, int]:
        """Return the number of requests in flight by provider."""
        return {provider_id: len(starts) for provider_id, starts in self._starts()}

    def ages(self) -> dict[str, float]:
        """Return the age in seconds of the oldest request in flight by provider; 0 if there is none."""
        now = time.monotonic()
        return {provider_id: now - min(starts, default=now) for provider_id, starts in self._starts()}

    def unanswered(self) -> dict[str, float]:
        """Return the seconds since the first request after each hub's last answer; 0 after an answer."""
        now = time.monotonic()
        ages = [(provider_id, hub.unanswered(now)) for provider_id, hub in self._hubs.items()]
        return {provider_id: age for provider_id, age in ages if age is not None}

    def _starts(self) -> list[tuple[str, list[float]]]:
        found = [(provider_id, hub.starts()) for provider_id, hub in self._hubs.items()]
        return [(provider_id, starts) for provider_id, starts in found if starts is not None]

    def _renew(self) -> None:
        self._lock = threading.RLock()
        for hub in self._hubs.values():
            hub.renew(self._lock)


_SET: Final = (
    semconv.DISCOVERY_OBJECTIVE,
    semconv.HUB_SLO,
    semconv.DISCOVERY_TTL,
    semconv.DISCOVERY_LAST_SUCCESS,
    semconv.CATALOG_SIZE,
    semconv.HUB_STREAK,
)
"""Gauges of providers with the value that was last set."""
