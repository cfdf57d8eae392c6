"""Choice of exemplars between two collections; the SDK's reservoirs are offered only those that they would hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from random import random
from typing import TYPE_CHECKING, Final, TypeAlias

from opentelemetry.context import Context, get_current
from opentelemetry.sdk.metrics import (
    AlignedHistogramBucketExemplarReservoir,
    AlwaysOffExemplarFilter,
    AlwaysOnExemplarFilter,
    SimpleFixedSizeExemplarReservoir,
    TraceBasedExemplarFilter,
)
from opentelemetry.trace import (
    INVALID_SPAN,
    INVALID_SPAN_CONTEXT,
    NonRecordingSpan,
    SpanContext,
    get_current_span,
    set_span_in_context,
)

from pellucid_exporters.recorder.metrics.reservoir import LargestAndSample, LargestReservoir
from pellucid_exporters.recorder.metrics.series import Series

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import ExemplarFilter, ExemplarReservoir

Item: TypeAlias = tuple[Series, float, int, SpanContext | None]
"""A measurement: series, amount, nanoseconds since the epoch, and the span of an exemplar, if it can become one.

The span is `INVALID_SPAN_CONTEXT` if there was none. Only its context is stored: an item does not keep a span alive.
"""

Tagger: TypeAlias = Callable[[Series, float, int, Context | None], SpanContext | None]
"""Decides whether a measurement can become an exemplar, and returns the span for it (see `Item`)."""


def tagger_of(exemplar_filter: ExemplarFilter) -> Tagger:
    """Return what a filter decides, without calling the SDK's own ones."""

    def by_filter(series: Series, amount: float, time: int, context: Context | None) -> SpanContext | None:
        if exemplar_filter.should_sample(amount, time, series.attributes, context or get_current()):
            return _current(series, amount, time, context)
        return None

    return _TAGGERS.get(type(exemplar_filter), by_filter)


def _current(_series: Series, _amount: float, _time: int, context: Context | None) -> SpanContext | None:
    span = get_current_span(context or None)
    return INVALID_SPAN_CONTEXT if span is INVALID_SPAN else span.get_span_context()


def _sampled(_series: Series, _amount: float, _time: int, context: Context | None) -> SpanContext | None:
    span = get_current_span(context or None).get_span_context()
    return span if span.trace_flags & 1 else None


def _none(_series: Series, _amount: float, _time: int, _context: Context | None) -> None:
    return None


_TAGGERS: Final[dict[type, Tagger]] = {
    TraceBasedExemplarFilter: _sampled,
    AlwaysOnExemplarFilter: _current,
    AlwaysOffExemplarFilter: _none,
}


def context_of(span: SpanContext | None) -> Context:
    """Return a context with as much of the span of an item as exemplars use."""
    if span is None or span is INVALID_SPAN_CONTEXT:
        return Context()
    return set_span_in_context(NonRecordingSpan(span), Context())


class Choice(ABC):
    """Exemplars chosen for one reservoir since the last collection. Not thread-safe."""

    @abstractmethod
    def add(self, items: Sequence[Item]) -> None:
        """Consider measurements that can become exemplars, oldest first."""

    @abstractmethod
    def flush(self) -> None:
        """Offer the chosen ones to the reservoir, and begin anew."""


def choice_of(reservoir: ExemplarReservoir) -> Choice:
    """Return the choice that a reservoir makes; one of a view is offered every measurement at once."""
    if type(reservoir) is AlignedHistogramBucketExemplarReservoir:
        return _NewestPerBucket(reservoir)
    if type(reservoir) is SimpleFixedSizeExemplarReservoir:
        return _Random(reservoir)
    if type(reservoir) is LargestReservoir:
        return _Largest(reservoir)
    return _All(reservoir)


class _NewestPerBucket(Choice):
    def __init__(self, reservoir: AlignedHistogramBucketExemplarReservoir) -> None:
        self._reservoir, self._boundaries = reservoir, reservoir._boundaries
        self._newest: dict[int, Item] = {}

    def add(self, items: Sequence[Item]) -> None:
        boundaries = self._boundaries
        self._newest.update((bisect_left(boundaries, item[1]), item) for item in items)

    def flush(self) -> None:
        _offer(self._reservoir, self._newest.values())
        self._newest.clear()


class _Random(Choice):
    """A sample in which each measurement is with the same probability (algorithm R, as in the SDK)."""

    def __init__(self, reservoir: SimpleFixedSizeExemplarReservoir) -> None:
        self._reservoir, self._size = reservoir, reservoir._size
        self._chosen: list[Item] = []
        self._seen = 0

    def add(self, items: Sequence[Item]) -> None:
        for item in items:
            self._seen += 1
            if self._seen <= self._size:
                self._chosen.append(item)
            elif (index := int(random() * self._seen)) < self._size:  # noqa: S311  (a sample, no secret)
                self._chosen[index] = item

    def flush(self) -> None:
        _offer(self._reservoir, self._chosen)
        self._chosen.clear()
        self._seen = 0


class _Largest(Choice):
    def __init__(self, reservoir: LargestReservoir) -> None:
        self._reservoir = reservoir
        self._chosen: LargestAndSample[Item] = LargestAndSample(reservoir.size)

    def add(self, items: Sequence[Item]) -> None:
        for item in items:
            self._chosen.add(item[1], item)

    def flush(self) -> None:
        _offer(self._reservoir, self._chosen.take())


class _All(Choice):
    def __init__(self, reservoir: ExemplarReservoir) -> None:
        self._reservoir = reservoir

    def add(self, items: Sequence[Item]) -> None:
        _offer(self._reservoir, items)

    def flush(self) -> None:
        pass


def _offer(reservoir: ExemplarReservoir, items: Iterable[Item]) -> None:
    for series, amount, time, span in items:
        reservoir.offer(amount, time, series.attributes, context_of(span))
