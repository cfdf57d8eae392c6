"""Exemplars of exponential histograms: few of each series and collection, and always the largest measurement.

The SDK keeps 20, at random: a Prometheus with room for 100,000 exemplars has those of a few applications for minutes,
and the slowest call may not be among them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from random import random
from typing import Any, Final, Generic, TypeAlias, TypeVar

from opentelemetry.context import Context
from opentelemetry.sdk.metrics import Exemplar, ExemplarReservoir
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.trace import INVALID_SPAN, SpanContext, get_current_span
from opentelemetry.util.types import Attributes

T = TypeVar("T")

FEW: Final = 4
"""Exemplars of one series and collection."""

MANY: Final = 20
"""The same where most may be omitted later, because their traces are not kept."""

Measured: TypeAlias = tuple[float, int, Attributes, SpanContext | None]
"""Amount, nanoseconds since the epoch, attributes, and the ids of the span: an exemplar does not keep a span alive."""


class HistogramWithLargest(ExponentialBucketHistogramAggregation):
    """Aggregation into exponential histograms with such exemplars.

    A view could select them through public names only, but with a view that matches all histograms the SDK warns of
    histograms of one name in several scopes.
    """

    def __init__(self, exemplars: int = FEW) -> None:
        super().__init__()
        self._exemplars = exemplars

    def _create_aggregation(self, *arguments: Any, **named: Any) -> Any:
        created = super()._create_aggregation(*arguments, **named)
        created._reservoir = LargestReservoir(self._exemplars)
        return created


class LargestAndSample(Generic[T]):
    """The item of the largest value, and a random sample of the others, all equally probable (algorithm R)."""

    def __init__(self, size: int) -> None:
        self._others = size - 1
        self._largest: tuple[float, T] | None = None
        self._sample: list[T] = []
        self._seen = 0

    def add(self, value: float, item: T) -> None:
        """Consider an item."""
        if self._largest is None:
            self._largest = value, item
            return
        if value >= self._largest[0]:
            (_, item), self._largest = self._largest, (value, item)  # the former largest is one of the others
        self._seen += 1
        if self._seen <= self._others:
            self._sample.append(item)
        elif (index := int(random() * self._seen)) < self._others:  # noqa: S311  (a sample, no secret)
            self._sample[index] = item

    def take(self) -> list[T]:
        """Return the items, and begin anew."""
        taken = [*self._sample, *([self._largest[1]] if self._largest else ())]
        self._largest, self._sample, self._seen = None, [], 0
        return taken


class LargestReservoir(ExemplarReservoir):
    """Reservoir of the largest and others, in the order of time: Prometheus rejects exemplars that go back."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._chosen: LargestAndSample[Measured] = LargestAndSample(size)

    def offer(self, value: float, time_unix_nano: int, attributes: Attributes, context: Context) -> None:
        """Consider a measurement."""
        span = get_current_span(context)
        ids = None if span is INVALID_SPAN else span.get_span_context()
        with self._lock:
            self._chosen.add(value, (value, time_unix_nano, attributes, ids))

    def collect(self, point_attributes: Attributes) -> list[Exemplar]:
        """Return the exemplars since the last collection, without attributes that their data point has."""
        with self._lock:
            taken = self._chosen.take()
        return [_exemplar(measured, point_attributes or {}) for measured in sorted(taken, key=lambda each: each[1])]


def _exemplar(measured: Measured, known: Mapping[str, Any]) -> Exemplar:
    value, time, attributes, ids = measured
    others = {name: each for name, each in (attributes or {}).items() if name not in known}
    return Exemplar(others, value, time, ids and ids.span_id, ids and ids.trace_id)
