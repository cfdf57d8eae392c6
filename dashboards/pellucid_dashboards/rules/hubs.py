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
from pellucid_dashboards.rules.model import Alert, alert
from pellucid_dashboards.rules.queries import increase, mostly, select, summed
from pellucid_dashboards.rules.words import queried
from pellucid_exporters.alerting import hubs
from pellucid_exporters.alerting.definition import Context, Words
from pellucid_exporters.alerting.hubs import BURNS, Burn

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROVIDER: Final = label(semconv.PROVIDER_ID)
_OWN: Final = (JOB, _PROVIDER)
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
    yield _hanging(context)
    yield _failing(context)
    yield _down(context)
    yield _circuit_open(context)
    yield _catalog_changing(context)
    yield _cache_misses(context)


def _slow(context: Context, burn: Burn) -> Alert:
    short, long = _NAMES[burn.short], _NAMES[burn.long]
    limit = number(burn.limit(context.thresholds))
    return alert(
        hubs.slow(context, burn, _words(words.SHARE)),
        expression=f"""
{over_objective(short)} > {limit}
and on ({HUB}) {over_objective(long)} > {limit}
and on ({HUB}) {round_trips(long)} >= {number(context.thresholds.slow_min_round_trips)}
""",
        dashboard=_DASHBOARD,
    )


def _hanging(context: Context) -> Alert:
    thresholds = context.thresholds
    seen = select(semconv.DISCOVERY_INFLIGHT_AGE)
    age = f"max by ({HUB}) (max_over_time({seen}[{context.window(60)}]))"
    objective = f"max by ({HUB}) ({select(semconv.DISCOVERY_OBJECTIVE)})"
    return alert(
        hubs.hanging(context, _words(words.DURATION)),
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
    context.window(300)
    failed = summed(discoveries("5m"), HUB, *ROUND_TRIPS, FAILED)
    return alert(
        hubs.failing(context, _words(words.SHARE)),
        expression=f"""
{ERROR_RATIO} > {number(thresholds.hub_failing)}
and on ({HUB}) {failed} >= {number(thresholds.hub_failing_min)}
""",
        dashboard=_DASHBOARD,
    )


def _down(context: Context) -> Alert:
    thresholds = context.thresholds
    context.window(600)
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
    return alert(
        hubs.down(context, _words(words.NUMBER, last_success=since)),
        expression=f"""
(
  {failed} + on ({HUB}) {stale}
  or on ({HUB}) {failed}
  or on ({HUB}) {stale}
) >= {number(thresholds.hub_down_min)}
unless on ({HUB}) ({succeeded} > 0 unless on ({HUB}) {last})
unless on ({HUB}) time() - {last} < {number(thresholds.hub_down_after * context.scale)}
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
    return alert(
        hubs.cache_misses(context, _words(words.SHARE)),
        expression=mostly(discoveries("10m"), HUB, misses, lookups, above=limit, least=least),
        dashboard=_DASHBOARD,
    )


def _words(value: str, *, last_success: str = "") -> Words:
    return Words(subject=words.HUB, value=value, objective=_OBJECTIVE, p95=_P95, last_success=last_success)
