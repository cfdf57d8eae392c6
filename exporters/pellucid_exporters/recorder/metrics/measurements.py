"""Recording of one instrument: measurements wait in a queue and are aggregated many at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import time_ns
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pellucid.concurrency.forks import in_child
from pellucid_exporters.recorder.metrics.aggregations import AGGREGATORS
from pellucid_exporters.recorder.metrics.exemplars import Choice, Item, choice_of, context_of, tagger_of
from pellucid_exporters.recorder.metrics.series import Series, has_only_scalars
from pellucid_exporters.sdk_internals import (
    Measurement,
    _DropAggregation,
    _ExponentialBucketHistogramAggregation,
    _hash_attributes,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.util.types import Attributes

    from pellucid_exporters.sdk_internals import (
        MetricReaderStorage,
        SynchronousMeasurementConsumer,
        _Aggregation,
        _ViewInstrumentMatch,
    )

MOST_WAITING: Final = 256
"""Number of measurements of an instrument that are aggregated at once, by the thread that makes the last of them."""

MOST_KNOWN: Final = 20_000
"""Maximum number of series that an instrument finds fast, twice the limit of `MetricLimits`; then it begins anew."""

_here = threading.local()


@contextmanager
def exclusive() -> Iterator[bool]:
    """Yield whether this thread may take locks of the storage: not while it is inside, where they may be held.

    Garbage collection can run at any allocation, and a span that ends in `__del__` records measurements.
    """
    if getattr(_here, "is_inside", False):
        yield False
        return
    _here.is_inside = True
    try:
        yield True
    finally:
        _here.is_inside = False


class Measurements:
    """Measurements of one synchronous instrument, on their way to the SDK's aggregations of each reader."""

    def __init__(self, instrument: Any, consumer: SynchronousMeasurementConsumer) -> None:
        self._instrument, self._consumer = instrument, consumer
        self._tag = tagger_of(consumer._sdk_config.exemplar_filter)
        self._known: dict[tuple[Any, ...] | None, Series] = {}
        self._start()
        in_child(self, Measurements._start)

    def _start(self) -> None:
        """Start without measurements, also in a forked child."""
        self._waiting: deque[Item] = deque()
        self._choices: WeakKeyDictionary[MetricReaderStorage, dict[_Aggregation[Any], Choice]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def add(self, amount: float, attributes: Attributes, context: Context | None) -> None:
        """Add a valid measurement."""
        try:
            series = self._known[_lookup_key(attributes)]
            is_new = False
        except (AttributeError, KeyError, TypeError):
            series = self._learn(attributes)
            is_new = True
        time = time_ns()
        waiting = self._waiting
        waiting.append((series, amount, time, self._tag(series, amount, time, context)))
        if is_new or len(waiting) >= MOST_WAITING:  # a new one now: the storage numbers and dates them by arrival
            self.aggregate()

    def aggregate(self) -> None:
        """Bring waiting measurements into the SDK's aggregations."""
        with exclusive() as is_allowed:
            if is_allowed:
                with self._lock:
                    self._aggregate()

    def offer_exemplars(self, storage: MetricReaderStorage) -> None:
        """Bring the chosen exemplars of one reader into the SDK's reservoirs, before its collection."""
        with exclusive() as is_allowed:
            if is_allowed:
                with self._lock:
                    for choice in self._choices.pop(storage, {}).values():
                        choice.flush()

    def _learn(self, attributes: Attributes) -> Series:
        series = Series(attributes, self._instrument)
        if attributes is None or has_only_scalars(attributes):
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[_lookup_key(attributes)] = series
        return series

    def _aggregate(self) -> None:
        waiting = self._waiting
        arrived = [waiting.popleft() for _ in range(len(waiting))]  # only the owner of the lock removes, others append
        if not arrived or not self._instrument._is_enabled():
            return
        by_series: dict[Series, list[Item]] = {}
        for item in arrived:
            by_series.setdefault(item[0], []).append(item)
        for storage in self._consumer._reader_storages.values():
            choices = self._choices.setdefault(storage, {})
            for match in storage._get_or_init_view_instrument_match(self._instrument):
                if not isinstance(match._aggregation, _DropAggregation):
                    with match._lock:  # a collection of differences replaces the aggregations
                        for aggregation, items in _by_aggregation(match, by_series, arrived).items():
                            self._aggregate_items(aggregation, items, choices)

    def _aggregate_items(
        self, aggregation: _Aggregation[Any], items: list[Item], choices: dict[_Aggregation[Any], Choice]
    ) -> None:
        aggregator = AGGREGATORS.get(type(aggregation))
        if aggregator is None:
            self._aggregate_each(aggregation, items)
            return
        aggregator(aggregation, [item[1] for item in items], self._instrument)
        sampled = [item for item in items if item[3] is not None]
        if isinstance(aggregation, _ExponentialBucketHistogramAggregation):
            sampled = [item for item in sampled if item[1] != 0]  # as the SDK does
        if sampled:
            choice = choices.get(aggregation)
            if choice is None:
                choice = choices[aggregation] = choice_of(aggregation._reservoir)
            choice.add(sampled)

    def _aggregate_each(self, aggregation: _Aggregation[Any], items: list[Item]) -> None:
        """Aggregate in the way of an aggregation that is not the SDK's own."""
        for series, amount, time, span in items:
            measurement = Measurement(amount, time, self._instrument, context_of(span), series.attributes)
            aggregation.aggregate(measurement, span is not None)


def _lookup_key(attributes: Attributes) -> tuple[Any, ...] | None:
    """Return a key for attributes as they were given: their order counts, and 1, 1.0 and `True` differ."""
    if attributes is None:
        return None
    values = attributes.values()
    return (*attributes, *values, *map(type, values))


def _by_aggregation(
    match: _ViewInstrumentMatch, by_series: dict[Series, list[Item]], arrived: list[Item]
) -> dict[_Aggregation[Any], list[Item]]:
    """Group measurements by aggregation, in the order of arrival; the match must be locked.

    Several series are one aggregation if they differ in the order of their attributes only, or in attributes that a
    view leaves out, or if they exceed the limit.
    """
    aggregations = {series: _aggregation_of(match, series) for series in by_series}
    if len(set(aggregations.values())) == len(by_series):
        return {aggregations[series]: items for series, items in by_series.items()}
    by_aggregation: dict[_Aggregation[Any], list[Item]] = {}
    for item in arrived:
        by_aggregation.setdefault(aggregations[item[0]], []).append(item)
    return by_aggregation


def _aggregation_of(match: _ViewInstrumentMatch, series: Series) -> _Aggregation[Any]:
    """Return the aggregation of a series, or that of all which exceed the limit; the match must be locked."""
    attributes, key = series.attributes or {}, series.key
    if (kept := match._view._attribute_keys) is not None:
        attributes = {name: value for name, value in attributes.items() if name in kept}
        key = _hash_attributes(attributes)
    return match._attributes_aggregation.get(key) or match._get_or_create_aggregation(key, dict(attributes))
