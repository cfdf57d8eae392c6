"""Recording rules of tool hubs: requests, their durations, failures and share over the objective; and discoveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_dashboards.promql import (
    BROKEN_REQUESTS,
    BUDGET_SPENT,
    DECLARED,
    INSTANCE,
    UNANSWERED_REQUESTS,
    by,
    number,
    where,
)
from pellucid_dashboards.rules.model import Record
from pellucid_dashboards.rules.queries import composed, observed_increase, quantile, ratio, select, summed, total
from pellucid_exporters.alerting.definition import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HUB: Final = by(semconv.PROVIDER_ID)
"""Labels by which the series of hubs are grouped."""

_OUTCOMES: Final = by(semconv.PROVIDER_ID, semconv.OUTCOME)

SINGLE: Final = where(semconv.PROVIDER_KIND, "!=", "combined")
"""Combined providers are excluded: their parts have their own series, and would be counted and alerted on twice."""

WINDOWS: Final = {
    "5m": 300.0,
    "10m": 600.0,
    "30m": 1800.0,
    "1h": 3600.0,
    "6h": 21600.0,
    "1d": 86400.0,
    "3d": 259200.0,
    "7d": 604800.0,
}
"""Windows of counts, burn rates and streaks, in seconds."""

_PARTS: Final = {"10m": "5m", "30m": "5m", "1h": "30m", "6h": "1h", "1d": "6h", "3d": "1d", "7d": "1d"}
"""Of which shorter windows each is made. Only those of 5 min read the series of processes."""

ERROR_RATIO: Final = "pellucid:discovery_errors:ratio_rate5m"
"""Series of the share of failed requests."""

OBJECTIVE: Final = "pellucid:hub_objective_seconds:max"
"""Series of the longest objective that processes declare for a hub."""

BUDGET: Final = "pellucid:hub_slow_budget:min"
"""Series of the share of requests that may be over the objective, of hubs that declare one."""

LAST_SUCCESS: Final = "pellucid:hub_last_success_seconds:max"
"""Series of when a hub succeeded last, in seconds since the epoch."""

UNANSWERED_AGE: Final = "pellucid:hub_unanswered_age_seconds:max"
"""Series of for how long a hub has not answered a process; it is there if any process has asked the hub."""

SILENCE: Final = "pellucid:hub_silence_seconds:max"
"""The same of processes that ask still: one that does not ask the hub any more says nothing about it."""

_PROCESS: Final = f"{HUB}, {INSTANCE}"


P95: Final = "pellucid:discovery_duration_seconds:p95_5m"
"""Series of the 95th percentile of requests over 5 min, in seconds."""


def discoveries(window: str) -> str:
    """Return the name of the series of discoveries of any kind within 5 or 10 min, by cache and error too."""
    return f"pellucid:discoveries:increase{window}"


def hub_requests(window: str) -> str:
    """Return the name of the series of requests within a window of up to 1 h, by outcome."""
    return f"pellucid:hub_requests:increase{window}"


def over_objective(window: str) -> str:
    """Return the name of the series of the share of requests that took longer than the hub's objective."""
    return f"pellucid:discovery_over_objective:ratio_rate{window}"


def round_trips(window: str) -> str:
    """Return the name of the series of the number of requests within a window."""
    return f"pellucid:discovery_round_trips:increase{window}"


def late(window: str) -> str:
    """Return the name of the series of the number of requests that took longer than the hub's objective."""
    return f"pellucid:discovery_over_objective:increase{window}"


def budget(context: Context, window: str) -> str:
    """Return the budget of each hub that has requests in a window: its own, or the threshold's."""
    default = f"{over_objective(window)} * 0 + {number(context.thresholds.slow_budget)}"
    own = f"last_over_time({BUDGET}[{context.window(WINDOWS[window])}])"
    return f"({own} or on ({HUB}) {default})"


def budget_records(context: Context) -> Iterator[Record]:
    """Yield the recording rules of what is spent of budgets."""
    yield Record(name=BUDGET_SPENT, expression=f"{over_objective('7d')} / on ({HUB}) {budget(context, '7d')}")


def request_records(context: Context) -> Iterator[Record]:
    """Yield the recording rules of requests within 5 min, which read each process, and of 10 min."""
    five = context.window(300)
    requests = total(semconv.HUB_LISTING_DURATION, window=five, labels=_OUTCOMES)
    yield Record(name=hub_requests("5m"), expression=requests)
    yield _composed(context, hub_requests, "10m", _OUTCOMES)
    yield Record(name=round_trips("5m"), expression=summed(hub_requests("5m"), HUB))
    yield Record(name=late("5m"), expression=total(semconv.HUB_OVER_OBJECTIVE, window=five, labels=HUB))
    yield _late_share("5m")
    yield Record(name=DECLARED, expression=f"max by ({by(*semconv.HUB_INFO.attributes)}) ({select(semconv.HUB_INFO)})")
    yield Record(name=BUDGET, expression=f"1 - max by ({HUB}) ({select(semconv.HUB_SLO)})")
    failed = summed(hub_requests("5m"), HUB, BROKEN_REQUESTS)
    yield Record(name=ERROR_RATIO, expression=ratio(failed, round_trips("5m"), HUB))


def window_records(context: Context, *windows: str) -> Iterator[Record]:
    """Yield the recording rules of requests within longer windows."""
    for window in windows:
        if WINDOWS[window] <= WINDOWS["1h"]:
            yield _composed(context, hub_requests, window, _OUTCOMES)
        yield _composed(context, round_trips, window, HUB)
        yield _composed(context, late, window, HUB)
        yield _late_share(window)


def latency_records(context: Context) -> Iterator[Record]:
    """Yield the recording rule of the latency."""
    expression = quantile(0.95, semconv.HUB_LISTING_DURATION, window=context.window(300), labels=HUB)
    yield Record(name=P95, expression=expression)


def wait_records(context: Context) -> Iterator[Record]:
    """Yield the recording rules of discoveries, as runs wait for them.

    A process has a series for each hub and each outcome of the cache. Its first lookups are misses whatever the cache
    is like, so its first samples are not counted.
    """
    kinds = by(semconv.PROVIDER_ID, semconv.DISCOVERY_CACHE, semconv.ERROR_TYPE)
    waits = observed_increase(semconv.DISCOVERY_DURATION, SINGLE, window=context.window(300))
    yield Record(name=discoveries("5m"), expression=f"sum by ({kinds}) (\n  {waits}\n)")
    yield _composed(context, discoveries, "10m", kinds)


def state_records(context: Context) -> Iterator[Record]:
    """Yield the recording rules of what processes know of a hub at present."""
    for name, metric in (
        (OBJECTIVE, semconv.DISCOVERY_OBJECTIVE),
        (LAST_SUCCESS, semconv.DISCOVERY_LAST_SUCCESS),
        (UNANSWERED_AGE, semconv.HUB_UNANSWERED_AGE),
    ):
        yield Record(name=name, expression=f"max by ({HUB}) ({select(metric)})")
    inflight = f"max_over_time({select(semconv.DISCOVERY_INFLIGHT)}[{context.window(60)}]) > 0"
    window = context.window(300)
    unanswered = total(semconv.HUB_LISTING_DURATION, UNANSWERED_REQUESTS, window=window, labels=_PROCESS)
    yield Record(
        name=SILENCE,
        expression=f"""
max by ({HUB}) (
  {select(semconv.HUB_UNANSWERED_AGE)}
  and on ({_PROCESS}) ({inflight} or on ({_PROCESS}) {unanswered} > 0)
)
""",
    )


def _composed(context: Context, name: Callable[[str], str], window: str, labels: str) -> Record:
    part = _PARTS[window]
    expression = composed(name(part), labels, part=WINDOWS[part], whole=WINDOWS[window], context=context)
    return Record(name=name(window), expression=expression)


def _late_share(window: str) -> Record:
    return Record(name=over_objective(window), expression=f"{late(window)} / ({round_trips(window)} > 0)")
