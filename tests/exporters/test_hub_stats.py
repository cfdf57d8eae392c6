"""Statistics of each hub, without a Prometheus."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider

from pellucid import semconv
from pellucid_exporters.console.hub_stats import MOST_HUBS, HubStatsProcessor, hub_table

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND


class Hubs:
    """Statistics fed with discoveries of chosen durations."""

    def __init__(self) -> None:
        self.processor = HubStatsProcessor()
        self.provider = TracerProvider()
        self.provider.add_span_processor(self.processor)

    def discovery(
        self,
        hub: str,
        ms: int,
        *,
        cache: str = "miss",
        error: str | None = None,
        outcome: str | None = None,
    ) -> None:
        """Feed one discovery, with a request to the hub if it missed the cache; only that says how it ended."""
        attributes = {
            semconv.PHASE: semconv.DISCOVERY,
            semconv.PROVIDER_ID: hub,
            semconv.DISCOVERY_CACHE: cache,
        }
        tracer = self.provider.get_tracer(semconv.SCOPE)
        span = tracer.start_span(f"discover_tools {hub}", attributes=attributes, start_time=SECOND)
        if cache == "miss":
            request: dict[str, str | float] = {
                semconv.PROVIDER_ID: hub,
                semconv.OUTCOME: outcome or (semconv.FAILED if error else semconv.COMPLETED),
                semconv.HUB_LISTING_SECONDS: ms / 1000,
            }
            span.add_event(semconv.HUB_LISTING, request, SECOND)
        span.end(end_time=SECOND + 2 * ms * MILLISECOND)


def test_percentiles_are_of_round_trips_that_succeeded() -> None:
    """Percentiles are those of round trips that succeeded, without cache hits, failures and refusals."""
    hubs = Hubs()
    for ms in range(1, 101):
        hubs.discovery("a", ms)
    hubs.discovery("a", 0, cache="hit")
    hubs.discovery("a", 0, cache="joined")
    hubs.discovery("a", 0, cache="pending")
    hubs.discovery("a", 0, cache="none")
    hubs.discovery("a", 0, error="OSError")
    hubs.discovery("a", 1)
    (stats,) = hubs.processor.stats({"a": 0.2})
    assert (stats.round_trips, stats.hits, stats.failures) == (102, 2, 1)
    assert (stats.p50, stats.p95) == (0.05, 0.095)
    assert stats.verdict == "ok"


def test_verdicts() -> None:
    """A hub over its objective is slow, one whose last round trip failed is failing, one never asked has none."""
    hubs = Hubs()
    hubs.discovery("slow", 300)
    hubs.discovery("failing", 1)
    hubs.discovery("failing", 1, error="OSError")
    hubs.discovery("idle", 0, cache="hit")
    hubs.discovery("free", 900)
    objectives = {"slow": 0.2, "failing": 0.2, "idle": 0.2}
    verdicts = {stats.provider_id: stats.verdict for stats in hubs.processor.stats(objectives)}
    assert verdicts == {"slow": "slow", "failing": "failing", "idle": "-", "free": "ok"}


def test_a_request_that_was_given_up_is_a_failure() -> None:
    """A hub that did not answer is failing, whether it ran out of time or its callers left."""
    hubs = Hubs()
    for outcome in (semconv.TIMEOUT, semconv.ABANDONED):
        hubs.discovery(outcome, 5, outcome=outcome)
    assert [(stats.failures, stats.p50, stats.verdict) for stats in hubs.processor.stats()] == [
        (1, None, "failing"),
        (1, None, "failing"),
    ]


def test_of_very_many_hubs_the_idlest_is_forgotten() -> None:
    """The hub that was asked least recently of very many is forgotten; the others keep their order."""
    hubs = Hubs()
    first, idlest, *others = (f"hub-{number}" for number in range(MOST_HUBS))
    for hub in (first, idlest, *others):
        hubs.discovery(hub, 1)
    hubs.discovery(first, 0, cache="hit")
    hubs.discovery("new", 1)
    assert [stats.provider_id for stats in hubs.processor.stats()] == [first, *others, "new"]


def test_the_table_is_aligned_and_harmless() -> None:
    """The table of hubs is aligned, and a hub's name cannot write to the terminal."""
    hubs = Hubs()
    hubs.discovery("catalogue", 408)
    hubs.discovery("x\x1b[2J", 1, error="OSError")
    assert hub_table(hubs.processor.stats({"catalogue": 0.2})).splitlines() == [
        "hub        round trips  from cache  failures     p50     p95  objective  verdict",
        "catalogue            1           0         0  408 ms  408 ms     200 ms  slow",
        "x\N{REPLACEMENT CHARACTER}[2J                1           0         1       -       -          -  failing",
    ]
