"""Alerts on tool hubs: slow, silent, failing, down, backed off, changing, or queried too often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_dashboards.names import label
from pellucid_dashboards.promql import (
    ANSWERED_REQUESTS,
    BROKEN_REQUESTS,
    INSTANCE,
    JOB,
    SUCCEEDED,
    UNANSWERED_REQUESTS,
    by,
    number,
    where,
)
from pellucid_dashboards.rules import words
from pellucid_dashboards.rules.discovery import (
    ERROR_RATIO,
    HUB,
    WINDOWS,
    discoveries,
    duration_of,
    hub_requests,
    over_objective,
    round_trips,
)
from pellucid_dashboards.rules.model import Alert, alert
from pellucid_dashboards.rules.queries import increase, mostly, select, summed, total
from pellucid_dashboards.rules.words import queried
from pellucid_exporters.alerting import hubs
from pellucid_exporters.alerting.definition import Context, Words
from pellucid_exporters.alerting.hubs import BURNS, Burn

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROVIDER: Final = label(semconv.PROVIDER_ID)
_OWN: Final = (JOB, _PROVIDER)
_PROCESS: Final = f"{HUB}, {INSTANCE}"
_DASHBOARD: Final = words.dashboard("pellucid-tool-hubs", provider=_PROVIDER)
_OBJECTIVE: Final = queried(
    f"max({select(semconv.DISCOVERY_OBJECTIVE)}{{%s}})", _OWN, "humanizeDuration", "none declared"
)
_P95: Final = queried(f"{duration_of(95)}{{%s}}", _OWN, "humanizeDuration", "unknown")
_NAMES: Final = {seconds: name for name, seconds in WINDOWS.items()}


def hub_alerts(context: Context) -> Iterator[Alert]:
    """Yield the alerts."""
    for burn in BURNS:
        yield _slow(context, burn)
    yield _slow_streak(context)
    yield _silent(context)
    yield _failing(context)
    yield _down(context)
    yield _circuit_open(context)
    yield _catalog_changing(context)
    yield _cache_misses(context)


def _slow(context: Context, burn: Burn) -> Alert:
    return alert(
        hubs.slow(context, burn, _words(words.SHARE)),
        expression=_burns(context, burn),
        dashboard=_DASHBOARD,
    )


def _burns(context: Context, burn: Burn) -> str:
    """Return the condition that a hub spends its budget of slow requests at a speed."""
    short, long = _NAMES[burn.short], _NAMES[burn.long]
    limit = number(burn.limit(context.thresholds))
    return f"""
{over_objective(short)} > {limit}
and on ({HUB}) {over_objective(long)} > {limit}
and on ({HUB}) {round_trips(long)} >= {number(context.thresholds.slow_min_round_trips)}
"""


def _slow_streak(context: Context) -> Alert:
    """Return the alert on hubs that are called too seldom for a share: by processes that stay, or by ones that end."""
    least = number(context.thresholds.slow_streak)
    requests = total(semconv.HUB_LISTING_DURATION, window=context.window(86400), labels=_PROCESS)
    streak = f"min_over_time({select(semconv.HUB_STREAK)}[{context.window(300)}]) >= {least}"
    others = "\n".join(f"unless on ({HUB}) ({_burns(context, burn).strip()})" for burn in BURNS)
    return alert(
        hubs.slow_streak(context, _words(words.NUMBER)),
        expression=f"""
(
  max by ({HUB}) ({streak} and on ({_PROCESS}) {requests} > 0)
  or on ({HUB}) round({round_trips("1d")}) >= {least} and on ({HUB}) {over_objective("1d")} == 1
)
unless on ({HUB}) {round_trips("1h")} >= {number(context.thresholds.slow_min_round_trips)}
{others}
""",
        dashboard=_DASHBOARD,
    )


def _silent(context: Context) -> Alert:
    thresholds = context.thresholds
    minute = context.window(60)
    inflight = f"max_over_time({select(semconv.DISCOVERY_INFLIGHT)}[{minute}]) > 0"
    unanswered = total(semconv.HUB_LISTING_DURATION, UNANSWERED_REQUESTS, window=context.window(300), labels=_PROCESS)
    # Of each process: one that does not ask the hub any more says nothing about it.
    age = f"""max by ({HUB}) (
  {select(semconv.HUB_UNANSWERED_AGE)}
  and on ({_PROCESS}) (max by ({_PROCESS}) ({inflight}) or on ({_PROCESS}) {unanswered} > 0)
)"""
    objective = f"max by ({HUB}) ({select(semconv.DISCOVERY_OBJECTIVE)})"
    since = (
        "{{ with printf `vector(time() - %v)` $value | query }}{{ . | first | value | toTime "
        '| printf "%v" | reReplaceAll "^.* ([0-9:]{5}).*$" "$1 UTC" }}{{ end }}'
    )
    requests = queried(
        f"(sum({hub_requests('1h')}{{%s,{UNANSWERED_REQUESTS}}}) or vector(0))"
        f" + (sum({select(semconv.DISCOVERY_INFLIGHT)}{{%s}}) or vector(0))",
        _OWN,
        'printf "%.0f"',
        "unknown",
    )
    return alert(
        hubs.silent(context, _words(words.DURATION, since=since, requests=requests)),
        expression=f"""
{age} > on ({HUB}) (
  clamp_min({objective} * {number(thresholds.hanging_objectives)}, {number(thresholds.hanging_after)})
  or on ({HUB}) {age} * 0 + {number(thresholds.hanging_after)}
)
""",
        dashboard=_DASHBOARD,
    )


def _failing(context: Context) -> Alert:
    thresholds = context.thresholds
    failed = summed(hub_requests("5m"), HUB, BROKEN_REQUESTS)
    return alert(
        hubs.failing(context, _words(words.SHARE)),
        expression=f"""
{ERROR_RATIO} > {number(thresholds.hub_failing)}
and on ({HUB}) {failed} >= {number(thresholds.hub_failing_min)}
""",
        dashboard=_DASHBOARD,
    )


def _down(context: Context) -> Alert:
    """Return the alert on hubs without a success for so long, by this process or the one before it."""
    thresholds = context.thresholds
    after = context.window(thresholds.hub_down_after)
    failed = summed(hub_requests("10m"), HUB, BROKEN_REQUESTS)
    succeeded = summed(hub_requests("10m"), HUB, ANSWERED_REQUESTS)
    last = f"max by ({HUB}) (max_over_time({select(semconv.DISCOVERY_LAST_SUCCESS)}[{after}]))"
    known = f"max by ({HUB}) (max_over_time({select(semconv.HUB_UNANSWERED_AGE)}[{after}] offset {after}))"
    since = queried(
        f"time() - max({select(semconv.DISCOVERY_LAST_SUCCESS)}{{%s}})",
        _OWN,
        'humanizeDuration | printf "its last success was %s ago"',
        "it has had no success since its processes started",
    )
    return alert(
        hubs.down(context, _words(words.NUMBER, last_success=since)),
        expression=f"""
{failed} >= {number(thresholds.hub_down_min)}
unless on ({HUB}) ({succeeded} > 0 unless on ({HUB}) {last})
unless on ({HUB}) time() - {last} < {number(thresholds.hub_down_after * context.scale)}
and on ({HUB}) ({last} or on ({HUB}) {known})
""",
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
    return alert(
        hubs.circuit_open(
            Words(subject=f"{who} ({words.value_of(JOB)})", value=words.NUMBER, objective=_OBJECTIVE),
            lambda clause: f"{{{{ if $labels.{_PROVIDER} }}}}{clause}{{{{ end }}}}",
        ),
        expression=f"""
max by ({labels}) (max_over_time({select(semconv.CIRCUIT_STATE)}[{context.window(120)}])) == 2
""",
        dashboard=_DASHBOARD,
    )


def _catalog_changing(context: Context) -> Alert:
    thresholds = context.thresholds
    context.window(3600)
    changes = increase(semconv.CATALOG_CHANGES, window=context.window(3600))
    return alert(
        hubs.catalog_changing(context, _words(words.NUMBER)),
        expression=f"""
max by ({HUB}) (round(
  {changes}
)) > {number(thresholds.catalog_changes)}
""",
        dashboard=_DASHBOARD,
    )


def _cache_misses(context: Context) -> Alert:
    thresholds = context.thresholds
    context.window(600)
    limit, least = thresholds.cache_misses, thresholds.cache_misses_min
    lookups = (where(semconv.DISCOVERY_CACHE, "!=", "none"), SUCCEEDED)
    misses = (where(semconv.DISCOVERY_CACHE, "=", "miss"), SUCCEEDED)
    objective = f"max by ({HUB}) ({select(semconv.DISCOVERY_OBJECTIVE)})"
    return alert(
        hubs.cache_misses(context, _words(words.SHARE)),
        expression=f"""
{mostly(discoveries("10m"), HUB, misses, lookups, above=limit, least=least)}
and on ({HUB}) max by ({HUB}) ({select(semconv.DISCOVERY_TTL)}) > 0
and on ({HUB}) {duration_of(95)} > on ({HUB}) {objective} * {number(thresholds.cache_misses_near)}
""",
        dashboard=_DASHBOARD,
    )


def _words(value: str, **more: str) -> Words:
    return Words(subject=words.HUB, value=value, objective=_OBJECTIVE, p95=_P95, **more)
