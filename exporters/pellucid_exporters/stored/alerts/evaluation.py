"""Evaluation of all alerts that a store can tell."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pellucid_exporters.alerting.definition import Context
from pellucid_exporters.alerting.thresholds import Thresholds
from pellucid_exporters.stored.alerts.alert import Alert
from pellucid_exporters.stored.alerts.hubs import hub_alerts
from pellucid_exporters.stored.alerts.scores import score_alerts
from pellucid_exporters.stored.alerts.work import work_alerts
from pellucid_exporters.stored.reader import Reader

UNTOLD: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ToolDefinitionsChanged": "spans count such tools in each iteration, and the rule counts each once in a run",
        "ApprovalsWaiting": "decisions are made outside of runs; the store of durable runs has them",
        "ExternalToolStuck": "calls that wait are in the store of durable runs",
        "ExternalResultsRejected": "settlements are in the store of durable runs",
        "RunsNotContinuing": "due runs are in the store of durable runs",
        "WorkersBehind": "claims are in the store of durable runs",
        "DurableRunsRetrying": "retries are in the store of durable runs",
        "DurableWorkersDying": "leases are in the store of durable runs",
        "AgentProcessBusy": "how late a process resumed its runs is a metric; `pellucid top` has the delay of requests",
        "TelemetryDropping": "what was dropped is not in the store; the metrics count it",
        "MetricLabelsOverflow": "series are of metrics; the metrics count those that have overflowed",
        "ToolServerSlow": "requests that servers answer are not of runs; their metrics have them",
        "ToolServerFailing": "requests that servers answer are not of runs; their metrics have them",
        "ToolServerHanging": "requests that servers answer are not of runs; their metrics have them",
        "TargetMissing": "Prometheus knows its targets",
        **dict.fromkeys(
            (
                "Watchdog",
                "CollectorQueueFull",
                "CollectorRefusing",
                "CollectorFailing",
                "PrometheusNotificationsFailing",
                "PrometheusRulesFailing",
                "PrometheusDiskFilling",
                "PrometheusDiskFailing",
                "ConfigReloadFailing",
                "AlertmanagerFailing",
                "TracesDiskFilling",
            ),
            "the servers of the stack are not in the store; Prometheus asks them",
        ),
    }
)
"""Alerts that a store cannot tell, each with the reason."""


def evaluate(reader: Reader, now: int, thresholds: Thresholds | None = None) -> list[Alert]:
    """Return the alerts whose conditions hold, pages first.

    A rule of Prometheus waits until its condition has held for some minutes (`for:`); here an alert fires at once.

    Args:
        reader: The stored telemetry.
        now: Time in nanoseconds since the epoch.
        thresholds: Limits; by default those of the shipped rules.
    """
    context = Context(thresholds=thresholds or Thresholds())
    alerts = [
        *hub_alerts(reader, now, context),
        *work_alerts(reader, now, context),
        *score_alerts(reader, now, context),
    ]
    return sorted(alerts, key=lambda alert: (alert.severity != "page", alert.name, alert.summary))
