"""Alerts on tool hubs: slow, silent, failing, down, backed off, changing, or queried too often."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pellucid import semconv
from pellucid.semconv.tool_locks import DEFINITION_CHANGES
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
    BUDGET,
    ERROR_RATIO,
    HUB,
    LAST_SUCCESS,
    OBJECTIVE,
    P95,
    SILENCE,
    UNANSWERED_AGE,
    WINDOWS,
    budget,
    discoveries,
    hub_requests,
    over_objective,
    round_trips,
)
from pellucid_dashboards.rules.model import Alert, alert
from pellucid_dashboards.rules.queries import increase, mostly, select, summed, total
from pellucid_dashboards.rules.words import queried
from pellucid_exporters.alerting import hubs
from pellucid_exporters.alerting.definition import Context, Definition, Words, share
from pellucid_exporters.alerting.hubs import ALL, BURNS, Burn

_PROVIDER: Final = label(semconv.PROVIDER_ID)
_OWN: Final = (JOB, _PROVIDER)
_PROCESS: Final = f"{HUB}, {INSTANCE}"
_DASHBOARD: Final = words.dashboard("pellucid-tool-hubs", provider=_PROVIDER)
_DECLARED: Final = words.objective_of(OBJECTIVE, _OWN)
_P95: Final = queried(f"{P95}{{%s}}", _OWN, "humanizeDuration", "unknown")

_NAMES: Final = {seconds: name for name, seconds in WINDOWS.items()}


def slow(context: Context, burn: Burn) -> Alert:
    """Return the alert on hubs that spend their budget of slow requests at a speed."""
    default = share(context.thresholds.slow_budget)
    allowed = queried(f"max({BUDGET}{{%s}})", _OWN, "humanizePercentage", default)
    return _alert(
        hubs.slow(context, burn, _words(words.SHARE, budget=allowed)),
        expression=_burns(context, burn),
    )


def _burns(context: Context, burn: Burn) -> str:
    """Return the condition that a hub spends its budget of slow requests at a speed."""
    short, long = _NAMES[burn.short], _NAMES[burn.long]
    limit = f"clamp_max({number(burn.factor_of(context.thresholds))} * {budget(context, long)}, {ALL})"
    return f"""
{over_objective(short)} > on ({HUB}) {limit}
and on ({HUB}) {over_objective(long)} > on ({HUB}) {limit}
and on ({HUB}) {round_trips(long)} >= {number(context.thresholds.slow_min_round_trips)}
"""


def slow_streak(context: Context) -> Alert:
    """Return the alert on hubs that are called too seldom for a share: by processes that stay, or by ones that end."""
    least = number(context.thresholds.slow_streak)
    streak, day = select(semconv.HUB_STREAK), context.window(86400)
    lasting = f"min_over_time({streak}[{context.window(300)}]) >= {least}"
    # Slow and answered requests change it: one that is as it was a day ago is that of a process that asks no more.
    unchanged = f"({streak} >= {least}) == {streak} offset {day}"
    others = "\n".join(f"unless on ({HUB}) ({_burns(context, burn).strip()})" for burn in BURNS)
    return _alert(
        hubs.slow_streak(context, _words(words.NUMBER)),
        expression=f"""
(
  max by ({HUB}) ({lasting} unless on ({_PROCESS}) ({unchanged}))
  or on ({HUB}) round({round_trips("1d")}) >= {least} and on ({HUB}) {over_objective("1d")} > {ALL}
)
unless on ({HUB}) {round_trips("1h")} >= {number(context.thresholds.slow_min_round_trips)}
{others}
""",
    )


def silent(context: Context) -> Alert:
    """Return the alert on hubs that answer no process that asks them."""
    thresholds = context.thresholds
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
    return _alert(
        hubs.silent(context, _words(words.DURATION, since=since, requests=requests)),
        expression=f"""
{SILENCE} > on ({HUB}) (
  clamp_min({OBJECTIVE} * {number(thresholds.hanging_objectives)}, {number(thresholds.hanging_after)})
  or on ({HUB}) {SILENCE} * 0 + {number(thresholds.hanging_after)}
)
""",
    )


def failing(context: Context) -> Alert:
    """Return the alert on hubs of whose requests too many fail."""
    thresholds = context.thresholds
    failed = summed(hub_requests("5m"), HUB, BROKEN_REQUESTS)
    return _alert(
        hubs.failing(context, _words(words.SHARE)),
        expression=f"""
{ERROR_RATIO} > {number(thresholds.hub_failing)}
and on ({HUB}) {failed} >= {number(thresholds.hub_failing_min)}
""",
    )


def down(context: Context) -> Alert:
    """Return the alert on hubs without a success for so long, by this process or the one before it."""
    thresholds = context.thresholds
    after = context.window(thresholds.hub_down_after)
    failed = summed(hub_requests("10m"), HUB, BROKEN_REQUESTS)
    succeeded = summed(hub_requests("10m"), HUB, ANSWERED_REQUESTS)
    last = f"max_over_time({LAST_SUCCESS}[{after}])"
    known = f"max_over_time({UNANSWERED_AGE}[{after}] offset {after})"
    since = queried(
        f"time() - max({LAST_SUCCESS}{{%s}})",
        _OWN,
        'humanizeDuration | printf "its last success was %s ago"',
        "it has had no success since its processes started",
    )
    return _alert(
        hubs.down(context, _words(words.NUMBER, last_success=since)),
        expression=f"""
{failed} >= {number(thresholds.hub_down_min)}
unless on ({HUB}) ({succeeded} > 0 unless on ({HUB}) {last})
unless on ({HUB}) time() - {last} < {number(thresholds.hub_down_after * context.scale)}
and on ({HUB}) ({last} or on ({HUB}) {known})
""",
    )


def circuit_open(context: Context) -> Alert:
    """Return the alert on circuit breakers that are open."""
    labels = by(semconv.PROVIDER_ID, semconv.TOOL_NAME, semconv.REQUEST_MODEL)
    tool, model = label(semconv.TOOL_NAME), label(semconv.REQUEST_MODEL)
    who = (
        f"{{{{ if $labels.{_PROVIDER} }}}}Tool hub {words.value_of(_PROVIDER)}"
        f"{{{{ else if $labels.{tool} }}}}Tool {words.value_of(tool)}"
        f"{{{{ else }}}}Model {words.value_of(model)}{{{{ end }}}}"
    )
    return _alert(
        hubs.circuit_open(
            Words(subject=f"{who} ({words.value_of(JOB)})", value=words.NUMBER, objective=_DECLARED),
            lambda clause: f"{{{{ if $labels.{_PROVIDER} }}}}{clause}{{{{ end }}}}",
        ),
        expression=f"""
max by ({labels}) (max_over_time({select(semconv.CIRCUIT_STATE)}[{context.window(120)}])) == 2
""",
    )


def catalog_changing(context: Context) -> Alert:
    """Return the alert on hubs that list other tools again and again, as one process sees it."""
    thresholds = context.thresholds
    changes = increase(semconv.CATALOG_CHANGES, window=context.window(3600))
    return _alert(
        hubs.catalog_changing(context, _words(words.NUMBER)),
        expression=f"""
max by ({HUB}) (round(
  {changes}
)) > {number(thresholds.catalog_changes)}
""",
    )


def definitions_changed(context: Context) -> Alert:
    """Return the alert on hubs that list tools which differ from the lock file."""
    return _alert(
        hubs.definitions_changed(context, _words(words.NUMBER)),
        expression=f"""
round({total(DEFINITION_CHANGES, window=context.window(3600), labels=HUB)}) > 0
""",
    )


def cache_misses(context: Context) -> Alert:
    """Return the alert on caches that rarely help, of hubs that are slow or nearly so."""
    thresholds = context.thresholds
    limit, least = thresholds.cache_misses, thresholds.cache_misses_min
    lookups = (where(semconv.DISCOVERY_CACHE, "!=", "none"), SUCCEEDED)
    misses = (where(semconv.DISCOVERY_CACHE, "=", "miss"), SUCCEEDED)
    return _alert(
        hubs.cache_misses(context, _words(words.SHARE)),
        expression=f"""
{mostly(discoveries("10m"), HUB, misses, lookups, above=limit, least=least)}
and on ({HUB}) max by ({HUB}) ({select(semconv.DISCOVERY_TTL)}) > 0
and on ({HUB}) {P95} > on ({HUB}) {OBJECTIVE} * {number(thresholds.cache_misses_near)}
""",
    )


def _words(value: str, **more: str) -> Words:
    return Words(subject=words.HUB, value=value, objective=_DECLARED, p95=_P95, **more)


def _alert(definition: Definition, *, expression: str) -> Alert:
    """Return the rule of an alert, with what the hub's provider declares about it."""
    # Of a label that becomes empty, Prometheus (up to 3.13) writes the template into `ALERTS`.
    owner = words.declared(label(semconv.HUB_OWNER), otherwise="unassigned")
    owned = replace(definition, labels={**definition.labels, "owner": owner})
    return replace(
        alert(owned, expression=expression, dashboard=_DASHBOARD),
        annotations={
            "hub_address": words.declared(label(semconv.SERVER_ADDRESS)),
            "hub_runbook_url": words.declared(label(semconv.HUB_RUNBOOK)),
        },
    )
