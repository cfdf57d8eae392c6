"""Alerts on Collector, Prometheus, Alertmanager and Jaeger, and one that always fires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid_dashboards.promql import INSTANCE, JOB, number
from pellucid_dashboards.rules import words
from pellucid_dashboards.rules.model import Alert
from pellucid_dashboards.rules.queries import NEXT, grown
from pellucid_exporters.alerting.definition import Context, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WATCHDOG: Final = "Watchdog"

_SERVER: Final = f"{JOB}, {INSTANCE}"
_WHO: Final = f"{words.value_of(INSTANCE)} of {words.value_of(JOB)}"
_HEALTH: Final = "/d/pellucid-telemetry-health?var-service=$__all"
_BYTES: Final = "{{ $value | humanize1024 }}B"

_ITEMS: Final = ("spans", "metric_points", "log_records")
_UNWRITTEN: Final = {
    "compactions": "prometheus_tsdb_compactions_failed_total",
    "log writes": "prometheus_tsdb_wal_writes_failed_total",
    "checkpoints": "prometheus_tsdb_checkpoint_creations_failed_total",
    "truncations": "prometheus_tsdb_head_truncations_failed_total",
}


def stack_alerts(context: Context) -> Iterator[Alert]:
    """Yield the alerts."""
    yield _watchdog()
    yield _queue_full(context)
    yield _refusing(context)
    yield _failing(context)
    yield _notifications(context)
    yield _rules(context)
    yield _reload()
    yield _messages(context)
    yield _disk_filling(context)
    yield _disk_failing(context)
    yield _traces_disk(context)


def _watchdog() -> Alert:
    return Alert(
        name=WATCHDOG,
        expression="vector(1)",
        severity="none",
        summary="Prometheus evaluates rules, and Alertmanager delivers: this alert always fires.",
        description="Whoever receives it calls for help when it stays away.",
        dashboard=_HEALTH,
    )


def _queue_full(context: Context) -> Alert:
    limit = context.thresholds.collector_queue
    used = "otelcol_exporter_queue_size / (otelcol_exporter_queue_capacity > 0)"
    return Alert(
        name="CollectorQueueFull",
        expression=f"max by ({_SERVER}, exporter, data_type) ({used}) > {number(limit)}",
        severity="ticket",
        after=120.0,
        summary=f"Collector {_WHO}: {words.SHARE} of the queue of {words.value_of('exporter')} is used; the limit is "
        f"{share(limit)}.",
        description="What it sends to does not take as much as comes in, or does not answer. A full queue loses what "
        "comes next.",
        dashboard=_HEALTH,
    )


def _refusing(context: Context) -> Alert:
    limit, ten = context.thresholds.collector_lost, context.window(600)
    return Alert(
        name="CollectorRefusing",
        expression=_summed(_collected("receiver_refused"), f"{_SERVER}, receiver", ten, limit),
        severity="ticket",
        summary=f"Collector {_WHO} refused {words.NUMBER} items from {words.value_of('receiver')} in {ten}; the limit "
        f"is {limit:g}.",
        description="Its memory or its queue was full. Applications try again for a while, and lose them after that.",
        dashboard=_HEALTH,
    )


def _failing(context: Context) -> Alert:
    limit, ten = context.thresholds.collector_lost, context.window(600)
    lost = {**_collected("exporter_send_failed"), **_collected("exporter_enqueue_failed")}
    return Alert(
        name="CollectorFailing",
        expression=_summed(lost, f"{_SERVER}, exporter", ten, limit),
        severity="ticket",
        summary=f"Collector {_WHO} lost {words.NUMBER} items for {words.value_of('exporter')} in {ten}; the limit is "
        f"{limit:g}.",
        description="Retries were exhausted, they were rejected, or the queue was full. Applications do not know.",
        dashboard=_HEALTH,
    )


def _notifications(context: Context) -> Alert:
    limit, three = context.thresholds.notifications_lost, context.window(180)
    # A failed request is both; servers before 3 count as dropped only what no Alertmanager got.
    lost = {name: f"prometheus_notifications_{name}_total" for name in ("errors", "dropped")}
    return Alert(
        name="PrometheusNotificationsFailing",
        expression=_summed(lost, f"{_SERVER}, alertmanager", three, limit, of="max"),
        severity="page",
        after=300.0,
        summary=f"Prometheus {_WHO} failed to send {words.NUMBER} alerts to {words.value_of('alertmanager')} in "
        f"{three}; the limit is {limit:g}.",
        description="While no Alertmanager takes alerts, no message is sent.",
        dashboard=_HEALTH,
    )


def _rules(context: Context) -> Alert:
    limit, ten = context.thresholds.rules_failing, context.window(600)
    lost = {
        "failed": "prometheus_rule_evaluation_failures_total",
        "missed": "prometheus_rule_group_iterations_missed_total",
    }
    return Alert(
        name="PrometheusRulesFailing",
        expression=_summed(lost, f"{_SERVER}, rule_group", ten, limit),
        severity="page",
        summary=f"Prometheus {_WHO}: {words.NUMBER} evaluations of {words.value_of('rule_group')} failed or were "
        f"missed in {ten}; the limit is {limit:g}.",
        description="Alerts of this group may not fire, and others may lack the series that it records.",
        dashboard=_HEALTH,
    )


def _reload() -> Alert:
    reloads = '{__name__=~"(prometheus|alertmanager)_config_last_reload_successful"}'
    return Alert(
        name="ConfigReloadFailing",
        expression=f"max by ({_SERVER}) ({reloads}) == 0",
        severity="ticket",
        after=300.0,
        summary=f"{_WHO} did not take its configuration: the last reload has the state {words.NUMBER} instead of 1.",
        description="It goes on with the one before, and does not start with this one.",
        dashboard=_HEALTH,
    )


def _messages(context: Context) -> Alert:
    limit, ten = context.thresholds.messages_failed, context.window(600)
    # Cancelled are those that a newer message of the same group replaced, or a reload.
    failed = 'alertmanager_notifications_failed_total{reason!="contextCanceled"}'
    return Alert(
        name="AlertmanagerFailing",
        expression=_summed({"failed": failed}, f"{_SERVER}, integration", ten, limit),
        severity="page",
        summary=f"Alertmanager {_WHO} failed to send {words.NUMBER} messages by {words.value_of('integration')} in "
        f"{ten}; the limit is {limit:g}.",
        description="It tried each of them until the next was due, and gave up.",
        dashboard=_HEALTH,
    )


def _disk_filling(context: Context) -> Alert:
    limit = context.thresholds.prometheus_disk
    parts = '{__name__=~"prometheus_tsdb_(storage_blocks|wal_storage_size|head_chunks_storage_size)_bytes"}'
    size = f"max by ({_SERVER}) (prometheus_tsdb_retention_limit_bytes > 0)"
    return Alert(
        name="PrometheusDiskFilling",
        expression=f"sum by ({_SERVER}) ({parts}) / {size} > {number(limit)}",
        severity="ticket",
        after=900.0,
        summary=f"Prometheus {_WHO} uses {words.SHARE} of the size that its data may have; the limit is "
        f"{share(limit)}.",
        description="Beyond its size it removes the oldest data, before the time for which it is to be kept.",
        dashboard=_HEALTH,
    )


def _disk_failing(context: Context) -> Alert:
    limit, ten = context.thresholds.prometheus_writes_failed, context.window(600)
    return Alert(
        name="PrometheusDiskFailing",
        expression=_summed(_UNWRITTEN, _SERVER, ten, limit),
        severity="page",
        summary=f"Prometheus {_WHO} failed {words.NUMBER} times to write its data in {ten}; the limit is {limit:g}.",
        description="Its disk is full or broken. It will lose samples, and stop evaluating alerts.",
        dashboard=_HEALTH,
    )


def _traces_disk(context: Context) -> Alert:
    limit = context.thresholds.traces_free
    free = '{__name__=~"jaeger_storage_badger_(key|value)_log_bytes_available"}'
    return Alert(
        name="TracesDiskFilling",
        expression=f"min by ({_SERVER}) ({free}) < {number(limit)}",
        severity="ticket",
        after=300.0,
        summary=f"Jaeger {_WHO} has {_BYTES} left on the disk with its traces; the limit is {limit / 1e9:g} GB.",
        description="On a full disk it stores no more traces. Old ones free their space some time after they expired.",
        dashboard=_HEALTH,
    )


def _collected(event: str) -> Mapping[str, str]:
    """Return selectors of what a Collector counts of each kind; its configuration decides about the ending."""
    names = (f"otelcol_{event}_{items}" for items in _ITEMS)
    return {name: f'{{__name__=~"{name}(_total)?"}}' for name in names}


def _summed(counters: Mapping[str, str], labels: str, window: str, limit: float, *, of: str = "sum") -> str:
    """Return the increase of several counters within a window by labels, where it reaches a limit."""
    kinds = (f'label_replace({grown(each, window)}, "kind", "{kind}", "", "")' for kind, each in counters.items())
    return f"{of} by ({labels}) (\n  {NEXT.join(kinds)}\n) >= {number(limit)}"
