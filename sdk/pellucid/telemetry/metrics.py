"""Instruments of `semconv`, created once per meter provider, and the state behind the observable ones."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias
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
"""Maximum number of providers with gauges; the oldest are evicted first, so that ids created per request do not fill
the memory."""

_INSTRUMENTS: Final = "_pellucid_instruments"
"""Attribute of a meter provider that holds its instruments."""


class Leveled(Protocol):
    """Circuit breaker with a level for the gauge."""

    @property
    def level(self) -> int:
        """Level of the gauge: 0 closed, 1 half-open, 2 open."""


Readings: TypeAlias = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Labels and values of gauges, by the name of the instrument."""


class Reader(Protocol):
    """Reader of a store, whose latest readings are gauges."""

    @property
    def readings(self) -> Readings:
        """Latest readings; empty if there are none, or they are too old."""


class Readers:
    """Readers of stores, as long as they are alive. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._readers: WeakSet[Reader] = WeakSet()
        reset_in_child(self, _lock=threading.RLock)

    def add(self, reader: Reader) -> None:
        """Add a reader to the gauges."""
        with self._lock:
            self._readers.add(reader)

    def read(self, gauge: semconv.Metric) -> list[tuple[dict[str, str], float]]:
        """Return labels and values of a gauge.

        Of several readers, it is the largest value, as they may read one store; up-down counters are added.
        """
        combine = sum if gauge.kind == "updown" else max
        found: dict[frozenset[tuple[str, str]], list[float]] = defaultdict(list)
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            for labels, value in reader.readings.get(gauge.name, ()):
                found[frozenset(labels.items())].append(value)
        return [(dict(key), combine(values)) for key, values in found.items()]


class Hubs:
    """Current state of each tool provider, read by the observable gauges at collection."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # garbage collection here may end a fetch, which re-enters
        self._circuits: BoundedMap[tuple[str, str], WeakSet[Leveled]] = _table()
        self._inflight: BoundedMap[str, dict[object, tuple[float, EventLoopToken]]] = _table()
        self._unanswered: BoundedMap[str, float | None] = _table()
        self._latest: dict[str, BoundedMap[str, float]] = {metric.name: _table() for metric in _SET}
        reset_in_child(self, _lock=threading.RLock, _inflight=_table, _unanswered=_table)

    def sent(self, provider_id: str) -> object:
        """Note a request that was sent to a hub, and return the key for `ended`."""
        key, now = object(), time.monotonic()
        with self._lock:
            self._inflight.setdefault(provider_id, {})[key] = (now, current_token())
            if self._unanswered.get(provider_id) is None:
                self._unanswered.put(provider_id, now)
        return key

    def ended(self, provider_id: str, key: object, *, is_answered: bool | None) -> None:
        """Note that a request was answered or given up; None if that says nothing about the hub."""
        with self._lock:
            others = self._inflight.setdefault(provider_id, {})
            start, _ = others.pop(key, (None, None))
            if is_answered:
                self._unanswered.put(provider_id, None)
            elif is_answered is None and start is not None and self._unanswered.get(provider_id) == start:
                self._unanswered.put(provider_id, min((other for other, _ in others.values()), default=None))

    def streak(self, provider_id: str, *, is_late: bool) -> None:
        """Count consecutive requests that were over the hub's objective."""
        with self._lock:
            before = self._latest[semconv.HUB_STREAK.name].get(provider_id) or 0.0
            self.set(semconv.HUB_STREAK, provider_id, before + 1 if is_late else 0.0)

    def set(self, gauge: semconv.Metric, provider_id: str, value: float) -> None:
        """Set the gauge of a provider: its objective, its last success or the size of its catalogue."""
        latest = self._latest[gauge.name]
        if latest.get(provider_id) != value:
            latest.put(provider_id, value)

    def succeeded(self, provider_id: str) -> None:
        """Set the time of the last successful round trip to now."""
        self.set(semconv.DISCOVERY_LAST_SUCCESS, provider_id, time.time())

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

    def circuits(self) -> list[tuple[dict[str, str], float]]:
        """Return labels and level of the circuit breakers that have ever opened; of several of one name the worst."""
        with self._lock:
            levels = [(key, [circuit.level for circuit in circuits]) for key, circuits in self._circuits.items()]
        return [({label: name}, max(values)) for (label, name), values in levels if values]

    def latest(self, gauge: semconv.Metric) -> dict[str, float]:
        """Return the values of a gauge by provider, as last set."""
        return dict(self._latest[gauge.name].items())

    def inflight(self) -> dict[str, int]:
        """Return the number of fetches in flight by provider."""
        return {provider_id: len(starts) for provider_id, starts in self._starts()}

    def ages(self) -> dict[str, float]:
        """Return the age in seconds of the oldest fetch in flight by provider; 0 if there is none."""
        now = time.monotonic()
        return {provider_id: now - min(starts, default=now) for provider_id, starts in self._starts()}

    def unanswered(self) -> dict[str, float]:
        """Return the seconds since the first request after each hub's last answer; 0 after an answer."""
        now = time.monotonic()
        with self._lock:
            return {id_: 0.0 if since is None else now - since for id_, since in self._unanswered.items()}

    def _starts(self) -> list[tuple[str, list[float]]]:
        """Return the starts of fetches in flight, without those whose event loop was stopped and that never end."""
        with self._lock:
            inflight = [(id_, list(fetches.values())) for id_, fetches in self._inflight.items()]
        return [(id_, [start for start, loop in fetches if is_running(loop)]) for id_, fetches in inflight]


_SET: Final = (
    semconv.DISCOVERY_OBJECTIVE,
    semconv.DISCOVERY_TTL,
    semconv.DISCOVERY_LAST_SUCCESS,
    semconv.CATALOG_SIZE,
    semconv.HUB_STREAK,
)
"""Gauges of providers with the value that was last set."""

_READ: Final = (
    semconv.DURABLE_SLOTS,
    semconv.DURABLE_SLOTS_USED,
    semconv.DURABLE_RUNS,
    semconv.DURABLE_DUE_AGE,
    semconv.DURABLE_PENDING,
    semconv.DURABLE_PENDING_AGE,
    semconv.DURABLE_DEADLINE_USED,
    semconv.DURABLE_CALLBACK_AGE,
)
"""Instruments that readers of stores observe."""


def _table() -> BoundedMap[Any, Any]:
    return BoundedMap(MAX_PROVIDERS, by_use=False)


class Instruments:
    """All instruments of `semconv.METRICS`.

    Attributes:
        by_name: Histograms and counters by name.
        hubs: State behind the observable gauges of providers.
        readers: Readers behind those of stores.
        counts_usage: Whether the application opted in to the newest conventions, which count tokens with counters
            instead of a histogram.
    """

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(semconv.SCOPE, __version__)
        self.hubs = hubs = Hubs()
        self.readers = readers = Readers()
        self.by_name: dict[str, Any] = {}
        self.counts_usage = latest = _uses_latest()
        observed: dict[str, Callable[[], Iterable[tuple[dict[str, str], float]]]] = {
            semconv.CIRCUIT_STATE.name: hubs.circuits,
            **{name: _by_provider(read) for name, read in hubs.gauges.items()},
            **{gauge.name: partial(readers.read, gauge) for gauge in _READ},
        }
        for metric in (*semconv.METRICS, *(_LATEST if latest else ())):
            if latest and metric is semconv.TOKEN_USAGE:
                continue  # replaced by counters
            name = semconv.RENAMED.get(metric.name, metric.name) if latest else metric.name
            options: dict[str, Any] = {"name": name, "unit": metric.unit, "description": metric.description}
            is_updown = metric.kind == "updown"
            if metric.name in observed:
                create = meter.create_observable_up_down_counter if is_updown else meter.create_observable_gauge
                create(**options, callbacks=[_observe(observed[metric.name])])
            elif metric.kind == "histogram":
                options["explicit_bucket_boundaries_advisory"] = list(metric.buckets)
                self.by_name[metric.name] = meter.create_histogram(**options)
            else:
                counter = meter.create_up_down_counter if is_updown else meter.create_counter
                self.by_name[metric.name] = counter(**options)


_LATEST: Final = (*semconv.USAGE_COUNTERS.values(), *semconv.CALL_TOKENS.values())


def _uses_latest() -> bool:
    """Return whether the application opted in to the newest conventions."""
    return semconv.OPT_IN in [value.strip() for value in os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").split(",")]


def _by_provider(read: Callable[[], Mapping[str, float]]) -> Callable[[], Iterable[tuple[dict[str, str], float]]]:
    return lambda: [({semconv.PROVIDER_ID: provider_id}, value) for provider_id, value in read().items()]


def _observe(
    read: Callable[[], Iterable[tuple[dict[str, str], float]]],
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def callback(_options: CallbackOptions) -> Iterable[Observation]:
        # The collector may run in a span of its own, which is unrelated to the observation.
        no_span = set_span_in_context(INVALID_SPAN, Context())
        return [Observation(value, labels, no_span) for labels, value in read()]

    return callback


class _InstrumentCache:
    """Instruments by meter provider, for as long as it exists.

    The instruments lead back to their provider, so nothing but the provider itself may keep them: a weak dictionary
    would keep both for good.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_provider: WeakKeyDictionary[MeterProvider, Instruments] = WeakKeyDictionary()
        reset_in_child(self, _lock=threading.RLock)

    def of(self, provider: MeterProvider) -> Instruments:
        namespace: dict[Any, Any] | None = getattr(provider, "__dict__", None)  # None if it has slots
        kept: MutableMapping[Any, Instruments] = self._by_provider if namespace is None else namespace
        key = provider if namespace is None else _INSTRUMENTS
        with self._lock:
            instruments = kept.get(key)
            if instruments is None:
                instruments = kept[key] = Instruments(provider)
            return instruments


instruments_of: Final = _InstrumentCache().of
"""Return the instruments of a meter provider, created at the first call."""
