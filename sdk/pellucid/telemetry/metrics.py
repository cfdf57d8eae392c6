"""The instruments of `semconv`, made once per meter provider, and the state behind the observable ones."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

from anyio.lowlevel import EventLoopToken, current_token
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import INVALID_SPAN, set_span_in_context

from pellucid import semconv
from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.concurrency.forks import reset_in_child
from pellucid.concurrency.tasks import is_running
from pellucid.version import __version__

MAX_PROVIDERS: Final = 4096
"""Providers whose gauges are kept; the oldest go first. Ids made up per request must not eat the memory."""


class Leveled(Protocol):
    """A circuit breaker, whoever changes it."""

    @property
    def level(self) -> int:
        """0 closed, 1 half-open, 2 open."""
        ...


class Hubs:
    """What is known of each tool provider at this moment, read by the observable gauges when they are collected."""

    __slots__ = ("__weakref__", "_circuits", "_inflight", "_last_success", "_lock", "_objectives", "_sizes")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a garbage collection in here may end a fetch, which leads here again
        self._circuits: BoundedMap[str, tuple[dict[str, str], WeakSet[Leveled]]] = _table()
        self._inflight: BoundedMap[str, dict[object, tuple[float, EventLoopToken]]] = _table()
        self._objectives: BoundedMap[str, float] = _table()
        self._last_success: BoundedMap[str, float] = _table()
        self._sizes: BoundedMap[str, float] = _table()
        reset_in_child(self, _lock=threading.RLock, _inflight=_table)

    @contextmanager
    def fetching(self, provider_id: str) -> Iterator[None]:
        """Count a fetch as in flight while the context lasts, whatever ends it."""
        key, began = object(), (time.monotonic(), current_token())
        with self._lock:
            fetches = self._inflight.setdefault(provider_id, {})
            fetches[key] = began
        try:
            yield
        finally:
            with self._lock:
                fetches.pop(key, None)

    def declare(self, provider_id: str, objective: float | None) -> None:
        """Note the latency objective of a provider, in seconds."""
        if objective is not None:
            self._objectives.put(provider_id, objective)

    def succeeded(self, provider_id: str) -> None:
        """Note a successful round trip of now."""
        self._last_success.put(provider_id, time.time())

    def sized(self, provider_id: str, tools: int) -> None:
        """Note how many tools a provider lists."""
        self._sizes.put(provider_id, tools)

    def circuit(self, labels: dict[str, str], circuit: Leveled) -> None:
        """Show a circuit breaker from now on, as long as anybody uses it."""
        with self._lock:
            _, circuits = self._circuits.setdefault(repr(labels), (labels, WeakSet()))
            circuits.add(circuit)

    @property
    def gauges(self) -> Mapping[str, Callable[[], Mapping[str, float]]]:
        """What the gauges of providers show, by the name of the instrument."""
        return {
            semconv.DISCOVERY_OBJECTIVE.name: self.objectives,
            semconv.DISCOVERY_INFLIGHT.name: self.inflight,
            semconv.DISCOVERY_INFLIGHT_AGE.name: self.ages,
            semconv.DISCOVERY_LAST_SUCCESS.name: self.last_success,
            semconv.CATALOG_SIZE.name: self.sizes,
        }

    def circuits(self) -> list[tuple[dict[str, str], float]]:
        """States of the circuit breakers that have ever opened, with their labels; of several of one name the worst."""
        with self._lock:
            found = [(labels, [each.level for each in circuits]) for _, (labels, circuits) in self._circuits.items()]
        return [(labels, max(levels)) for labels, levels in found if levels]

    def objectives(self) -> dict[str, float]:
        """Objectives in seconds by provider."""
        return dict(self._objectives.items())

    def last_success(self) -> dict[str, float]:
        """Times of the last successful round trips by provider, in seconds since the epoch."""
        return dict(self._last_success.items())

    def sizes(self) -> dict[str, float]:
        """Sizes of the latest catalogues by provider."""
        return dict(self._sizes.items())

    def inflight(self) -> dict[str, int]:
        """Fetches in flight by provider."""
        return {provider_id: len(starts) for provider_id, starts in self._under_way()}

    def ages(self) -> dict[str, float]:
        """Age in seconds of the oldest fetch in flight by provider; 0 when there is none."""
        now = time.monotonic()
        return {provider_id: now - min(starts, default=now) for provider_id, starts in self._under_way()}

    def _under_way(self) -> list[tuple[str, list[float]]]:
        """Return when fetches started, without those that will never end because their event loop was stopped."""
        with self._lock:
            found = [(provider_id, list(fetches.values())) for provider_id, fetches in self._inflight.items()]
        return [(provider_id, [start for start, loop in fetches if is_running(loop)]) for provider_id, fetches in found]


def _table() -> BoundedMap[str, Any]:
    return BoundedMap(MAX_PROVIDERS, by_use=False)


class Instruments:
    """Every instrument of `semconv.METRICS`; histograms and counters by their name in `by_name`.

    Attributes:
        counts_usage: The newest conventions are asked for, which count tokens instead of distributing them.
    """

    __slots__ = ("by_name", "counts_usage", "hubs")

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(semconv.SCOPE, __version__)
        self.hubs = hubs = Hubs()
        self.by_name: dict[str, Any] = {}
        observed: dict[str, Callable[[], Iterable[tuple[dict[str, str], float]]]] = {
            semconv.CIRCUIT_STATE.name: hubs.circuits,
            **{name: _by_provider(read) for name, read in hubs.gauges.items()},
        }
        latest = _asks_for_latest()
        self.counts_usage = latest
        for metric in (*semconv.METRICS, *(_LATEST if latest else ())):
            if latest and metric is semconv.TOKEN_USAGE:
                continue  # there are counters instead
            name = semconv.RENAMED.get(metric.name, metric.name) if latest else metric.name
            words = {"name": name, "unit": metric.unit, "description": metric.description}
            if metric.kind == "histogram":
                buckets = list(metric.buckets)
                self.by_name[metric.name] = meter.create_histogram(**words, explicit_bucket_boundaries_advisory=buckets)
            elif metric.kind == "counter":
                self.by_name[metric.name] = meter.create_counter(**words)
            elif metric.kind == "updown" and metric.name not in observed:
                self.by_name[metric.name] = meter.create_up_down_counter(**words)
            elif metric.kind == "updown":
                meter.create_observable_up_down_counter(**words, callbacks=[_observe(observed[metric.name])])
            else:
                meter.create_observable_gauge(**words, callbacks=[_observe(observed[metric.name])])


_LATEST: Final = (*semconv.USAGE_COUNTERS.values(), *semconv.CALL_TOKENS.values())


def _asks_for_latest() -> bool:
    """Whether the application opts in to the newest conventions."""
    return semconv.OPT_IN in [value.strip() for value in os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").split(",")]


def _by_provider(read: Callable[[], Mapping[str, float]]) -> Callable[[], Iterable[tuple[dict[str, str], float]]]:
    return lambda: [({semconv.PROVIDER_ID: provider_id}, value) for provider_id, value in read().items()]


def _observe(
    read: Callable[[], Iterable[tuple[dict[str, str], float]]],
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def callback(_options: CallbackOptions) -> Iterable[Observation]:
        # Whoever collects may be in a span of its own, which has nothing to do with what is observed.
        nowhere = set_span_in_context(INVALID_SPAN, Context())
        return [Observation(value, labels, nowhere) for labels, value in read()]

    return callback


class _Made:
    """The instruments of each meter provider."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_provider: WeakKeyDictionary[MeterProvider, Instruments] = WeakKeyDictionary()
        reset_in_child(self, _lock=threading.Lock)

    def of(self, provider: MeterProvider) -> Instruments:
        found = self._by_provider.get(provider)
        if found is None:
            with self._lock:
                found = self._by_provider.get(provider)
                if found is None:
                    found = self._by_provider[provider] = Instruments(provider)
        return found


instruments_of: Final = _Made().of
"""Return the instruments of a meter provider, made at the first call."""
