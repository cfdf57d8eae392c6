"""Dashboard `Telemetry health`: reliability of the data on the other dashboards."""

from __future__ import annotations

from typing import Any, Final

from pellucid import semconv
from pellucid_dashboards.grafana.assembly import Shelf, assemble
from pellucid_dashboards.grafana.panels import Panel, Query, as_legend, lines
from pellucid_dashboards.grafana.queries import SERVICE, grouped, of_agents, or_none, quantile, rate, select
from pellucid_dashboards.names import series

UID: Final = "pellucid-telemetry-health"


def dashboard() -> dict[str, Any]:
    """Return the dashboard `Telemetry health`."""
    return assemble(
        UID,
        "Pellucid / Telemetry health",
        "Can what the other dashboards show be trusted?",
        [
            Shelf(panels=[_processes(), _busy()]),
            Shelf(panels=[_dropped(), _errors()]),
            Shelf(panels=[_sampling(), _overflows()]),
        ],
        chosen_by=[],
        alerts=(
            'alertname=~"Telemetry.*|Metric.*|TargetMissing|Collector.*|Prometheus.*|Config.*|Alertmanager.*|Traces.*"',
            SERVICE,
        ),
    )


def _processes() -> Panel:
    return lines(
        "Processes that report",
        "Does every process of every service still send its metrics, or answer scrapes?",
        "none",
        Query(expr=grouped("count", of_agents(f"target_info{{{SERVICE}}}", "job"), ("job",)), legend="{{job}}"),
        stacked=True,
    )


def _busy() -> Panel:
    slowest = quantile(0.9, semconv.WAKEUP_DELAY, SERVICE, by=("job", "instance"))
    return lines(
        "Delay by the event loop",
        "How late does the event loop of each process resume a tenth of the runs that waited for a hub? What a process"
        " measures includes its own delay.",
        "s",
        Query(expr=or_none(slowest, "job", "instance"), legend="{{job}} {{instance}}", exemplar=True),
    )


def _dropped() -> Panel:
    return _by_part(
        "Lost",
        "What is lost in a minute, because a queue was full or its export failed?",
        semconv.TELEMETRY_DROPPED,
    )


def _errors() -> Panel:
    return _by_part(
        "Faults",
        "How many listeners, processors, serialisers and exporters fail in a minute?",
        semconv.TELEMETRY_ERRORS,
    )


def _by_part(title: str, question: str, metric: semconv.Metric) -> Panel:
    part = (semconv.TELEMETRY_PART,)
    found = or_none(f"60 * {rate(metric, SERVICE, by=part)}", *part)
    return lines(title, question, "cpm", Query(expr=found, legend=as_legend(*part)), stacked=True)


def _overflows() -> Panel:
    metric = (semconv.METRIC_NAME,)
    found = or_none(grouped("sum", select(series(semconv.TELEMETRY_OVERFLOWS), SERVICE), metric), *metric)
    return lines(
        "Metrics beyond their limit of series",
        "In how many processes does a metric have more label sets than its limit, so that further ones share a series"
        " without the names of hubs, tools and agents?",
        "none",
        Query(expr=found, legend=as_legend(*metric)),
        stacked=True,
    )


def _sampling() -> Panel:
    reason = (semconv.SAMPLING_REASON,)
    decided = f"60 * {rate(semconv.SAMPLING_DECISIONS, SERVICE, by=reason)}"
    return lines(
        "Runs that tail sampling decided",
        "Of how many runs a minute is the trace kept, why, and how many are dropped? `none`: all are kept.",
        "cpm",
        Query(expr=or_none(decided, *reason), legend=as_legend(*reason)),
        Query(expr=or_none(f"60 * {rate(semconv.SAMPLED_OUT, SERVICE)}"), legend="spans left out"),
    )
