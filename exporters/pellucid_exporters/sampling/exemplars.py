"""Which traces the tail sampler has dropped, so that no exemplar leads to one of them."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from opentelemetry.sdk.metrics.export import MetricsData

MOST_DECISIONS: Final = 65_536
"""Traces whose fate is remembered. An exemplar is asked about within a scrape interval, or while it is repeated."""

MOST_WAITING: Final = 32
"""Exemplars of one series that wait for the decision on their runs; the oldest go first."""


class Fates:
    """What has become of traces. A trace is dropped when all its runs in this process that are over were."""

    def __init__(self) -> None:
        self.renew()

    def begin(self, trace_id: int) -> None:
        """Note that a run of this trace has begun."""
        with self._lock:
            self._undecided[trace_id] += 1

    def decide(self, trace_id: int, *, kept: bool) -> None:
        """Note what became of a run that has begun."""
        with self._lock:
            self._undecided[trace_id] -= 1
            if self._undecided[trace_id] <= 0:
                del self._undecided[trace_id]
            self._kept[trace_id] = self._kept.pop(trace_id, False) or kept
            if len(self._kept) > MOST_DECISIONS:
                del self._kept[next(iter(self._kept))]

    def is_dropped(self, trace_id: int) -> bool:
        """Whether runs of this trace were dropped and none was kept."""
        return self._kept.get(trace_id) is False

    def is_undecided(self, trace_id: int) -> bool:
        """Whether it may still turn out either way."""
        return trace_id in self._undecided and self._kept.get(trace_id) is not True

    def renew(self) -> None:
        """Start afresh, as in a forked child."""
        self._lock = threading.RLock()  # a garbage collection in here may end a span, which leads here again
        self._undecided: Counter[int] = Counter()
        self._kept: dict[int, bool] = {}


class Withheld:
    """Keeps exemplars back until it is known whether their traces are kept."""

    def __init__(
        self,
        is_dropped: Callable[[int], bool] = lambda _: False,
        is_undecided: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._is_dropped = is_dropped
        self._is_undecided = is_undecided
        self._waiting: dict[Hashable, deque[Any]] = {}

    def release(self, series: Hashable, fresh: Iterable[Any]) -> list[Any]:
        """Take in exemplars of a series; return those, also of earlier calls, whose traces are not dropped.

        Exemplars are anything with a `trace_id`. Not from two threads at once.
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
        """Leave in the points of one collection only the exemplars that `release` returns."""
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        series = (scope.scope.name, metric.name, frozenset((point.attributes or {}).items()))
                        if point.exemplars or series in self._waiting:
                            # The SDK makes points for each reader and collection anew: nobody else has these.
                            point.exemplars[:] = self.release(series, point.exemplars)  # type: ignore[index]  # a list
