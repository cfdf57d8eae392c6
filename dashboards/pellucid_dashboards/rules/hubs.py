"""Alerts on tool hubs: slow, hanging, failing, down, backed off, changing, or queried too often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_dashboards.names import label
from pellucid_dashboards.promql import FAILED, JOB, ROUND_TRIPS, SUCCEEDED, by, number, where
from pellucid_dashboards.rules import words
from pellucid_dashboards.rules.discovery import (
    ERROR_RATIO,
    HUB,
    WINDOWS,
    discoveries,
    duration_of,
    over_objective,
    round_trips,
)
from pellucid_dashboards.rules.model import Alert, Context, Severity
from pellucid_dashboards.rules.queries import increase, mostly, select, summed
from pellucid_dashboards.rules.words import queried, seconds, share

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROVIDER: Final = label(semconv.PROVIDER_ID)
_OWN: Final = (JOB, _PROVIDER)
_DASHBOARD: Final = words.dashboard("pellucid-tool-hubs", provider=_PROVIDER)
_OBJECTIVE: Final = queried(
    f"max({select(semconv.DISCOVERY_OBJECTIVE)}{{%s}})", _OWN, "humanizeDuration", "none declared"
)
_AFTERMATH: Final = 360.0
"""Seconds for which inhibition of other pages continues, since windows of 5 min still include the past problem."""
_P95: Final = queried(f"{duration_of(95)}{{%s}}", _OWN, "humanizeDuration", "unknown")


def hub_alerts(context: Context) -> Iterator[Alert]:
    """Yield the alerts."""
    thresholds = context.thresholds
    yield _slow(context, "fast", thresholds.slow_fast_burn, ("5m", "1h"), "page", 120.0)
    yield _slow(context, "slow", thresholds.slow_slow_burn, ("30m", "6h"), "ticket", 900.0)
    yield _hanging(context)
    yield _failing(context)
    yield _down(context)
    yield _circuit_open(context)
    yield _catalog_changing(context)
    yield _cache_misses(context)


def _slow(
    context: Context, burn: str, factor: float, windows: tuple[str, str], severity: Severity, after: float
) -> Alert:
    short, long = windows
    recent = context.window(WINDOWS[short])
    thresholds = context.thresholds
    limit = factor * thresholds.slow_budget
    return Alert(
        name="ToolHubSlow",
        expression=f"""
{over_objective(short)} > {number(limit)}
and on ({HUB}) {over_objective(long)} > {number(limit)}
and on ({HUB}) {round_trips(long)} >= {number(thresholds.slow_min_round_trips)}
""",
        severity=severity,
        after=after,
        labels={"burn": burn},
        summary=f"{words.HUB} is slow: {words.SHARE} of its round trips in {recent} took longer than its objective of "
        f"{_OBJECTIVE}; p95 is {_P95}.",
        description=f"At most {share(thresholds.slow_budget)} of round trips should take longer than what the hub "
        f"declared. More than {share(limit)} did in the last {recent} and in the last {context.window(WINDOWS[long])}, "
        f"{factor:g} times as many. Runs wait for them.",
        dashboard=_DASHBOARD,
    )


def _hanging(context: Context) -> Alert:
    thresholds = context.thresholds
    seen = select(semconv.DISCOVERY_INFLIGHT_AGE)
    age = f"max by ({HUB}) (max_over_time({seen}[{context.window(60)}]))"
    objective = f"max by ({HUB}) ({select(semconv.DISCOVERY_OBJECTIVE)})"
    return Alert(
        name="ToolHubHanging",
        expression=f"""
{age} > on ({HUB}) (
  clamp_min({objective} * {number(thresholds.hanging_objectives)}, {number(thresholds.hanging_after)})
  or on ({HUB}) {age} * 0 + {number(thresholds.hanging_after)}
)
""",
        severity="page",
        after=0.0,
        keep=_AFTERMATH,  # also: each attempt ends at its timeout, and the age of the next one starts at 0
        summary=f"{words.HUB} hangs: a fetch of its tools has been under way for {words.DURATION}; "
        f"its objective is {_OBJECTIVE}.",
        description=f"It has not answered for more than {seconds(thresholds.hanging_after)}, and for more than "
        f"{thresholds.hanging_objectives:g} times its objective. No histogram shows this before the fetch ends. "
        f"All runs that need its tools wait.",
        dashboard=_DASHBOARD,
    )


def _failing(context: Context) -> Alert:
    thresholds = context.thresholds
    five = context.window(300)
    failed = summed(discoveries("5m"), HUB, *ROUND_TRIPS, FAILED)
    return Alert(
        name="ToolHubFailing",
        expression=f"""
{ERROR_RATIO} > {number(thresholds.hub_failing)}
and on ({HUB}) {failed} >= {number(thresholds.hub_failing_min)}
""",
        severity="page",
        after=120.0,
        summary=f"{words.HUB} fails: {words.SHARE} of its round trips in {five}; the limit is "
        f"{share(thresholds.hub_failing)}.",
        description="Unless a reliability rule or stale_if_error stands in for it, each failure ends a run.",
        dashboard=_DASHBOARD,
    )


def _down(context: Context) -> Alert:
    thresholds = context.thresholds
    ten = context.window(600)
    failed = summed(discoveries("10m"), HUB, FAILED)
    stale = summed(discoveries("10m"), HUB, where(semconv.DISCOVERY_CACHE, "=", "stale"), SUCCEEDED)
    succeeded = summed(discoveries("10m"), HUB, *ROUND_TRIPS, SUCCEEDED)
    last = f"max by ({HUB}) ({select(semconv.DISCOVERY_LAST_SUCCESS)})"
    since = queried(
        f"time() - max({select(semconv.DISCOVERY_LAST_SUCCESS)}{{%s}})",
        _OWN,
        "humanizeDuration",
        "longer than known",
    )
    return Alert(
        name="ToolHubDown",
        expression=f"""
(
  {failed} + on ({HUB}) {stale}
  or on ({HUB}) {failed}
  or on ({HUB}) {stale}
) >= {number(thresholds.hub_down_min)}
unless on ({HUB}) ({succeeded} > 0 unless on ({HUB}) {last})
unless on ({HUB}) time() - {last} < {number(thresholds.hub_down_after * context.scale)}
""",
        severity="page",
        after=60.0,
        keep=_AFTERMATH,
        summary=f"{words.HUB} is down: {words.NUMBER} attempts in {ten} got nothing new from it; its last success is "
        f"{since} ago, the limit {seconds(thresholds.hub_down_after * context.scale)}, its latency objective "
        f"{_OBJECTIVE}.",
        description="No round trip succeeded, although runs requested one. They use an old catalogue, or fail.",
        dashboard=_DASHBOARD,
    )


def _circuit_open(context: Context) -> Alert:
    labels = by(semconv.PROVIDER_ID, semconv.TOOL_NAME, semconv.REQUEST_MODEL)
    tool, model = label(semconv.TOOL_NAME), label(semconv.REQUEST_MODEL)
    who = (
        f"{{{{ if $labels.{_PROVIDER} }}}}Tool hub {words.value_of(_PROVIDER)}"
        f"{{{{ else if $labels.{tool} }}}}Tool {words.value_of(tool)}"
        f"{{{{ else }}}}Model {words.value_of(model)}{{{{ end }}}}"
    )
    return Alert(
        name="ToolHubCircuitOpen",
        expression=f"""
max by ({labels}) (max_over_time({select(semconv.CIRCUIT_STATE)}[{context.window(120)}])) == 2
""",
        severity="ticket",
        after=60.0,
        summary=f"{who} ({words.value_of(JOB)}) is not called: its circuit breaker is open "
        f"(state {words.NUMBER}, 0 is closed)"
        f"{{{{ if $labels.{_PROVIDER} }}}}; the hub's latency objective is {_OBJECTIVE}{{{{ end }}}}.",
        description="It failed so often in a row that calls are refused without being made, but for a probe after each "
        "cooldown. It stays open until a probe succeeds, which needs somebody who asks.",
        dashboard=_DASHBOARD,
    )


def _catalog_changing(context: Context) -> Alert:
    thresholds = context.thresholds
    hour = context.window(3600)
    changes = increase(semconv.CATALOG_CHANGES, window=context.window(3600))
    return Alert(
        name="ToolCatalogChanging",
        expression=f"""
max by ({HUB}) (round(
  {changes}
)) > {number(thresholds.catalog_changes)}
""",
        severity="ticket",
        after=0.0,
        summary=f"{words.HUB} changes what it lists: {words.NUMBER} times in {hour}; the limit is "
        f"{thresholds.catalog_changes:g}.",
        description="Each change makes the model's prompt cache worthless. Two servers of different versions behind "
        "one address look like this. Lists that differ by who asks do not: each caller's is compared with its own.",
        dashboard=_DASHBOARD,
    )


def _cache_misses(context: Context) -> Alert:
    thresholds = context.thresholds
    ten = context.window(600)
    limit, least = thresholds.cache_misses, thresholds.cache_misses_min
    lookups = (where(semconv.DISCOVERY_CACHE, "!=", "none"), SUCCEEDED)
    misses = (where(semconv.DISCOVERY_CACHE, "=", "miss"), SUCCEEDED)
    return Alert(
        name="DiscoveryCacheMissStorm",
        expression=mostly(discoveries("10m"), HUB, misses, lookups, above=limit, least=least),
        severity="ticket",
        after=300.0,
        summary=f"{words.HUB} is asked too often: {words.SHARE} of the lookups in its cache missed in {ten}; the limit "
        f"is {share(limit)}, its latency objective {_OBJECTIVE}.",
        description="A cache that misses this often costs each run a round trip. The time to live is too short, the "
        "key has too many values, or each run makes a provider of its own.",
        dashboard=_DASHBOARD,
    )
