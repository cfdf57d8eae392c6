"""Statistics of tool hubs, computed from discovery spans: for a terminal, without a Prometheus."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Literal, TypeAlias

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from pellucid import semconv
from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.text import clean
from pellucid_exporters.console.tables import table
from pellucid_exporters.console.tree import duration
from pellucid_exporters.stored.quantiles import percentile

MOST_HUBS: Final = 1_000
"""Maximum number of hubs; beyond it, the hub that has been idle for longest is evicted."""
MOST_DURATIONS: Final = 1_000
"""Number of latest round trips of each hub from which percentiles are computed."""

Verdict: TypeAlias = Literal["ok", "slow", "failing", "-"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HubStats:
    """Statistics of one hub.

    Attributes:
        round_trips: Requests that reached the hub.
        hits: Discoveries answered by a cache or by another caller's round trip.
        failures: Round trips that ended otherwise than with a list of tools.
        p50, p95: Percentiles of successful round trips, in seconds; None without one.
        objective: Target duration of a round trip, in seconds.
        verdict: `failing` if the last round trip failed, `slow` if p95 is over the objective, `ok`, or `-` if no
            round trip has completed.
    """

    provider_id: str
    round_trips: int
    hits: int
    failures: int
    p50: float | None
    p95: float | None
    objective: float | None
    verdict: Verdict


@dataclass(slots=True)
class _Hub:
    """Numbers of one hub.

    Attributes:
        number: Position in the order of first requests.
    """

    number: int
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_DURATIONS))
    round_trips: int = 0
    hits: int = 0
    failures: int = 0
    failing: bool = False


class HubStatsProcessor(SpanProcessor):
    """Collects `HubStats` from `discover_tools` spans and the requests to hubs that they have as events."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: garbage collection may end a span while the lock is held
        self._hubs: BoundedMap[str, _Hub] = BoundedMap(MOST_HUBS)
        self._numbers = count()

    def on_end(self, span: ReadableSpan) -> None:
        """Count a discovery."""
        attributes: Mapping[str, Any] = span.attributes or {}
        if attributes.get(semconv.PHASE) != semconv.DISCOVERY or semconv.PROVIDER_ID not in attributes:
            return
        with self._lock:
            if attributes.get(semconv.DISCOVERY_CACHE) in ("hit", "joined", "stale"):
                self._hub(attributes).hits += 1
            for event in span.events:
                if event.name == semconv.HUB_LISTING:
                    _add(self._hub(event.attributes or {}), event.attributes or {})

    def _hub(self, attributes: Mapping[str, Any]) -> _Hub:
        name = str(attributes.get(semconv.PROVIDER_ID))
        return self._hubs.get(name) or self._hubs.setdefault(name, _Hub(next(self._numbers)))

    def stats(self, objectives: Mapping[str, float | None] | None = None) -> list[HubStats]:
        """Return the statistics of each hub, in the order of first requests."""
        with self._lock:
            hubs = sorted(self._hubs.items(), key=lambda item: item[1].number)
            return [_stats(name, hub, (objectives or {}).get(name)) for name, hub in hubs]


def _add(hub: _Hub, request: Mapping[str, Any]) -> None:
    hub.round_trips += 1
    hub.failing = request.get(semconv.OUTCOME) != semconv.COMPLETED
    hub.failures += hub.failing
    seconds = request.get(semconv.HUB_LISTING_SECONDS)
    if not hub.failing and isinstance(seconds, float):
        hub.durations.append(seconds)


def _stats(provider_id: str, hub: _Hub, objective: float | None) -> HubStats:
    ordered = sorted(hub.durations)
    p95 = percentile(0.95, ordered)
    verdict: Verdict = "ok"
    if hub.failing:
        verdict = "failing"
    elif p95 is None:
        verdict = "-"
    elif objective is not None and p95 > objective:
        verdict = "slow"
    return HubStats(
        provider_id=provider_id,
        round_trips=hub.round_trips,
        hits=hub.hits,
        failures=hub.failures,
        p50=percentile(0.5, ordered),
        p95=p95,
        objective=objective,
        verdict=verdict,
    )


def hub_table(stats: Sequence[HubStats]) -> str:
    """Format statistics as a text table."""
    head = ("hub", "round trips", "from cache", "failures", "p50", "p95", "objective", "verdict")
    rows = [
        (
            clean(hub.provider_id),
            f"{hub.round_trips:,}",
            f"{hub.hits:,}",
            f"{hub.failures:,}",
            *("-" if value is None else duration(value) for value in (hub.p50, hub.p95, hub.objective)),
            hub.verdict,
        )
        for hub in stats
    ]
    return table(head, rows)
