"""Exemplars of exponential histograms: few of each series and collection, and always the largest measurement.

The SDK keeps 20, at random: a Prometheus with room for 100,000 exemplars has those of a few applications for minutes,
and the slowest call may not be among them.
"""

from __future__ import annotations

import threading
from random import random
from typing import Any, Final, Generic, TypeAlias, TypeVar

from opentelemetry.context import Context
from opentelemetry.sdk.metrics import (
    AlignedHistogramBucketExemplarReservoir,
    Exemplar,
    ExemplarReservoir,
    Histogram,
)
from opentelemetry.sdk.metrics.view import View
from opentelemetry.trace import INVALID_SPAN, get_current_span
from opentelemetry.util.types import Attributes

T = TypeVar("T")

OTHERS: Final = 3
"""Exemplars beside the largest."""

Measured: TypeAlias = tuple[float, int, Attributes, Context]
"""Amount, nanoseconds since the epoch, attributes, and the context with the span."""


def exemplar_view() -> View:
    """Return a view that gives histograms such exemplars, and those with explicit buckets one for each bucket."""
    return View(instrument_type=Histogram, exemplar_reservoir_factory=_builder_of)


def _builder_of(_aggregation: type) -> Any:
    return _build


def _build(**options: Any) -> ExemplarReservoir:
    if "boundaries" in options:
        return AlignedHistogramBucketExemplarReservoir(**options)
    return LargestReservoir()


class LargestAndSample(Generic[T]):
    """The item of the largest value, and a random sample of the others, all equally probable (algorithm R)."""

    def __init__(self) -> None:
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
        if self._seen <= OTHERS:
            self._sample.append(item)
        elif (index := int(random() * self._seen)) < OTHERS:  # noqa: S311  (a sample, no secret)
            self._sample[index] = item

    def take(self) -> list[T]:
        """Return the items, and begin anew."""
        taken = [*self._sample, *([self._largest[1]] if self._largest else ())]
        self._largest, self._sample, self._seen = None, [], 0
        return taken


class LargestReservoir(ExemplarReservoir):
    """Reservoir of the largest and others, in the order of time: Prometheus rejects exemplars that go back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chosen: LargestAndSample[Measured] = LargestAndSample()

    def offer(self, value: float, time_unix_nano: int, attributes: Attributes, context: Context) -> None:
        """Consider a measurement."""
        with self._lock:
            self._chosen.add(value, (value, time_unix_nano, attributes, context))

    def collect(self, point_attributes: Attributes) -> list[Exemplar]:
        """Return the exemplars since the last collection, without attributes that their data point has."""
        with self._lock:
            taken = self._chosen.take()
        known = point_attributes or {}
        return [_exemplar(measured, known) for measured in sorted(taken, key=lambda measured: measured[1])]


def _exemplar(measured: Measured, known: Attributes) -> Exemplar:
    value, time, attributes, context = measured
    others = {name: each for name, each in (attributes or {}).items() if name not in (known or {})}
    span = get_current_span(context)
    if span is INVALID_SPAN:
        return Exemplar(others, value, time)
    ids = span.get_span_context()
    return Exemplar(others, value, time, ids.span_id, ids.trace_id)
