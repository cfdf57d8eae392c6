"""Recording of one instrument: measurements wait in a queue and are aggregated many at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import time_ns
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from opentelemetry.sdk.metrics._internal._view_instrument_match import _hash_attributes
from opentelemetry.sdk.metrics._internal.aggregation import _DropAggregation, _ExponentialBucketHistogramAggregation
from opentelemetry.sdk.metrics._internal.measurement import Measurement

from pellucid_exporters.recorder.metrics.aggregations import AGGREGATORS
from pellucid_exporters.recorder.metrics.exemplars import Choice, Item, choice_of, context_of, tagger_of
from pellucid_exporters.recorder.metrics.series import Series, has_only_scalars

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.metrics._internal._view_instrument_match import _ViewInstrumentMatch
    from opentelemetry.sdk.metrics._internal.aggregation import _Aggregation
    from opentelemetry.sdk.metrics._internal.measurement_consumer import SynchronousMeasurementConsumer
    from opentelemetry.sdk.metrics._internal.metric_reader_storage import MetricReaderStorage
    from opentelemetry.util.types import Attributes

MOST_WAITING: Final = 256
"""Number of measurements of an instrument that are aggregated at once, by the thread that makes the last of them."""

MOST_KNOWN: Final = 4096
"""Maximum number of series that an instrument finds fast, twice the SDK's cardinality limit; then it begins anew."""

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


class Recording:
    """Measurements of one synchronous instrument, on their way to the SDK's aggregations of each reader."""

    def __init__(self, instrument: Any, consumer: SynchronousMeasurementConsumer) -> None:
        self._instrument, self._consumer = instrument, consumer
        self._tag = tagger_of(consumer._sdk_config.exemplar_filter)
        self._known: dict[tuple[Any, ...] | None, Series] = {}
        self._waiting: deque[Item] = deque()
        self._choices: WeakKeyDictionary[MetricReaderStorage, dict[_Aggregation[Any], Choice]] = WeakKeyDictionary()
        self.renew()

    def renew(self) -> None:
        """Reset the lock in a forked child; waiting measurements stay."""
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
        by_series: dict[Series, list[Item]] = {}
        for _ in range(len(waiting)):  # others append meanwhile, but only the owner of the lock removes
            item = waiting.popleft()
            by_series.setdefault(item[0], []).append(item)
        if not by_series or not self._instrument._is_enabled():
            return
        for storage in self._consumer._reader_storages.values():
            choices = self._choices.setdefault(storage, {})
            for match in storage._get_or_init_view_instrument_match(self._instrument):
                if not isinstance(match._aggregation, _DropAggregation):
                    for series, items in by_series.items():
                        self._aggregate_series(match, series, items, choices)

    def _aggregate_series(
        self,
        match: _ViewInstrumentMatch,
        series: Series,
        items: list[Item],
        choices: dict[_Aggregation[Any], Choice],
    ) -> None:
        with match._lock:  # a collection of differences replaces the aggregations
            aggregation = _aggregation_of(match, series)
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


def _aggregation_of(match: _ViewInstrumentMatch, series: Series) -> _Aggregation[Any]:
    """Return the aggregation of a series, or that of all which exceed the limit; the match must be locked."""
    attributes, key = series.attributes or {}, series.key
    if (kept := match._view._attribute_keys) is not None:
        attributes = {name: value for name, value in attributes.items() if name in kept}
        key = _hash_attributes(attributes)
    return match._attributes_aggregation.get(key) or match._get_or_create_aggregation(key, dict(attributes))
