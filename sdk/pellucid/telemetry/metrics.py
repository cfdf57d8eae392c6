"""Instruments of `semconv`, created once per meter provider, and the readers of stores behind some of them."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
from opentelemetry.trace import INVALID_SPAN, set_span_in_context
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.concurrency.forks import reset_in_child
from pellucid.telemetry.hubs import Hubs
from pellucid.telemetry.labels import Labels
from pellucid.version import __version__

_INSTRUMENTS: Final = "_pellucid_instruments"
"""Attribute of a meter provider that holds its instruments."""


Observe: TypeAlias = Callable[[], Iterable[tuple[Mapping[str, AttributeValue], float]]]
"""Function that returns labels and values of an observable instrument."""

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


_READ: Final = (
    semconv.DURABLE_SLOTS,
    semconv.DURABLE_SLOTS_USED,
    *(metric for metric in semconv.DURABLE_METRICS if metric.kind == "gauge"),
)
"""Instruments that readers of stores observe."""


class Instruments:
    """The instruments of agents, of their windows, and of durable runs.

    Attributes:
        by_name: Histograms and counters by name; those of features from their first use.
        hubs: State behind the observable gauges of providers.
        labels: Bounds of labels.
        meter: Meter of the instruments.
        more: Instruments of other packages, by the name of the package.
        readers: Readers behind those of stores.
        counts_usage: Whether the application opted in to the newest conventions, which count tokens with counters
            instead of a histogram.
    """

    def __init__(self, provider: MeterProvider) -> None:
        self.meter = meter = provider.get_meter(semconv.SCOPE, __version__)
        self.more: dict[str, Any] = {}
        self.hubs = hubs = Hubs()
        self.readers = readers = Readers()
        self.by_name: dict[str, Any] = {}
        self.counts_usage = latest = _uses_latest()
        observed: dict[str, Observe] = {
            semconv.CIRCUIT_STATE.name: hubs.circuits,
            semconv.HUB_INFO.name: hubs.infos,
            **{name: _by_provider(read) for name, read in hubs.gauges.items()},
            **{gauge.name: partial(readers.read, gauge) for gauge in _READ},
        }
        for metric in (*_METRICS, *(_LATEST if latest else ())):
            if latest and metric is semconv.TOKEN_USAGE:
                continue  # replaced by counters
            name = semconv.RENAMED.get(metric.name, metric.name) if latest else metric.name
            if metric.name in observed:
                observe(meter, metric, observed[metric.name], name)
            else:
                self.by_name[metric.name] = create(meter, metric, name)
        self.labels = Labels(self.by_name[semconv.TELEMETRY_DROPPED.name])

    def added(self, metric: semconv.Metric) -> Any:
        """Return the histogram or counter of a feature, created at its first use."""
        return self.by_name.setdefault(metric.name, create(self.meter, metric))


_METRICS: Final = (*semconv.METRICS, *semconv.COMPACTION_METRICS, *semconv.DURABLE_METRICS)
_LATEST: Final = (*semconv.USAGE_COUNTERS.values(), *semconv.CALL_TOKENS.values())


def _uses_latest() -> bool:
    """Return whether the application opted in to the newest conventions."""
    return semconv.OPT_IN in [value.strip() for value in os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").split(",")]


def _by_provider(read: Callable[[], Mapping[str, float]]) -> Observe:
    return lambda: [({semconv.PROVIDER_ID: provider_id}, value) for provider_id, value in read().items()]


def create(meter: Meter, metric: semconv.Metric, name: str | None = None) -> Any:
    """Return a new histogram or counter. Args: name: that of the metric unless given."""
    options: dict[str, Any] = {"name": name or metric.name, "unit": metric.unit, "description": metric.description}
    if metric.kind == "histogram":
        return meter.create_histogram(**options, explicit_bucket_boundaries_advisory=list(metric.buckets))
    return (meter.create_up_down_counter if metric.kind == "updown" else meter.create_counter)(**options)


def observe(meter: Meter, metric: semconv.Metric, read: Observe, name: str | None = None) -> None:
    """Create a gauge, or an up-down counter, of what a function reads at each collection."""

    def callback(_options: CallbackOptions) -> Iterable[Observation]:
        # The collector may run in a span of its own, which is unrelated to the observation.
        no_span = set_span_in_context(INVALID_SPAN, Context())
        return [Observation(value, labels, no_span) for labels, value in read()]

    is_updown = metric.kind == "updown"
    make = meter.create_observable_up_down_counter if is_updown else meter.create_observable_gauge
    make(name or metric.name, [callback], metric.unit, metric.description)


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
