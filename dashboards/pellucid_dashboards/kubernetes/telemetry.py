"""Rules, monitors and dashboards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pellucid_dashboards.dashboard_files import shipped_dashboards
from pellucid_dashboards.kubernetes.setup import SERVICE_LABEL
from pellucid_dashboards.kubernetes.yaml_text import Raw
from pellucid_dashboards.rules.render import render

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pellucid_dashboards.kubernetes.setup import Setup


def rules(setup: Setup) -> dict[str, Any]:
    """Return the rules: a PrometheusRule, or without the operator a ConfigMap with the file."""
    text = render(setup.thresholds)
    if not setup.operators:
        metadata = setup.metadata("rules")
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"pellucid_rules.yml": text}}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": setup.metadata("rules"),
        "spec": Raw(text),
    }


def monitors(setup: Setup) -> Iterator[dict[str, Any]]:
    """Yield PodMonitors: of all pods with the label of a service, which collectors have too, and of the server."""
    if not setup.operators:
        return
    labelled = {"matchExpressions": [{"key": SERVICE_LABEL, "operator": "Exists"}]}
    yield _monitor(setup, "applications", labelled, "metrics")
    if setup.agents:
        yield _monitor(setup, "server", {"matchLabels": setup.selector("server")}, "http")


def _monitor(setup: Setup, component: str, selector: Mapping[str, Any], port: str) -> dict[str, Any]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": setup.metadata(component),
        "spec": {
            "jobLabel": SERVICE_LABEL,
            "selector": dict(selector),
            # Native histograms are in the format of protocol buffers only; classic ones come beside them.
            "scrapeProtocols": ["PrometheusProto", "OpenMetricsText1.0.0", "PrometheusText0.0.4"],
            "scrapeClassicHistograms": True,
            "podMetricsEndpoints": [{"port": port, "path": "/metrics", "interval": "15s"}],
        },
    }


def dashboards(setup: Setup) -> Iterator[dict[str, Any]]:
    """Yield a ConfigMap for each dashboard, which Grafana's sidecar finds by its label."""
    for uid, dashboard in shipped_dashboards(setup.uids).items():
        metadata = setup.metadata("dashboards", f"dashboard-{uid.removeprefix('pellucid-')}")
        labels = {**setup.labels("dashboards"), "grafana_dashboard": "1"}
        annotations = {"grafana_folder": "Pellucid"}
        text = json.dumps(dashboard, indent=2, sort_keys=True, ensure_ascii=False)
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**metadata, "labels": labels, "annotations": annotations},
            "data": {f"{uid}.json": f"{text}\n"},
        }
