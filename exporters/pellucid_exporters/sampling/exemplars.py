"""Filter of exemplars: none of them may link to a trace that the tail sampler dropped."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from opentelemetry.sdk.metrics.export import MetricsData

MOST_DECISIONS: Final = 65_536
"""Maximum number of stored decisions. One is needed for a scrape interval, or while an exemplar is repeated."""

MOST_WAITING: Final = 32
"""Maximum number of exemplars of one series that wait for the decisions on their runs; the oldest are evicted."""


class SamplingDecisions:
    """Sampling decisions by trace. A trace is dropped if all its ended runs in this process were dropped."""

    def __init__(self) -> None:
        self.renew()

    def begin(self, trace_id: int) -> None:
        """Register a started run of this trace."""
        with self._lock:
            self._undecided[trace_id] += 1

    def decide(self, trace_id: int, *, kept: bool) -> None:
        """Record the decision on a registered run."""
        with self._lock:
            self._undecided[trace_id] -= 1
            if self._undecided[trace_id] <= 0:
                del self._undecided[trace_id]
            self._kept[trace_id] = self._kept.pop(trace_id, False) or kept
            if len(self._kept) > MOST_DECISIONS:
                del self._kept[next(iter(self._kept))]

    def is_dropped(self, trace_id: int) -> bool:
        """Return whether runs of this trace were dropped and none was kept."""
        return self._kept.get(trace_id) is False

    def is_undecided(self, trace_id: int) -> bool:
        """Return whether the decision on this trace is pending."""
        return trace_id in self._undecided and self._kept.get(trace_id) is not True

    def renew(self) -> None:
        """Reset, for example in a forked child."""
        self._lock = threading.RLock()  # reentrant: garbage collection may end a span while the lock is held
        self._undecided: Counter[int] = Counter()
        self._kept: dict[int, bool] = {}


class ExemplarBuffer:
    """Buffer that withholds exemplars until their traces are decided."""

    def __init__(
        self,
        is_dropped: Callable[[int], bool] = lambda _: False,
        is_undecided: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._is_dropped = is_dropped
        self._is_undecided = is_undecided
        self._waiting: dict[Hashable, deque[Any]] = {}

    def forget(self) -> None:
        """Discard the exemplars that wait."""
        self._waiting.clear()

    def release(self, series: Hashable, fresh: Iterable[Any]) -> list[Any]:
        """Add exemplars of a series; return those, also of earlier calls, whose traces are not dropped.

        An exemplar is any object with a `trace_id`. Not thread-safe.
        """
        waiting = self._waiting.pop(series, ())
        released: list[Any] = []
        held: deque[Any] = deque(maxlen=MOST_WAITING)
        for exemplar in (*waiting, *fresh):
            if self._is_undecided(exemplar.trace_id):
                held.append(exemplar)
            elif not self._is_dropped(exemplar.trace_id):
                released.append(exemplar)
        if held:
            self._waiting[series] = held
        return released

    def release_into(self, data: MetricsData) -> None:
        """Replace the exemplars in the points of one collection by those that `release` returns."""
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        series = (scope.scope.name, metric.name, frozenset((point.attributes or {}).items()))
                        if point.exemplars or series in self._waiting:
                            # The SDK creates new points for each reader and collection, so that these are not shared.
                            point.exemplars[:] = self.release(series, point.exemplars)  # type: ignore[index]  # a list
