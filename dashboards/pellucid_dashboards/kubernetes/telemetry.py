"""Rules, monitors and dashboards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pellucid_dashboards.dashboard_files import shipped_dashboards, to_json
from pellucid_dashboards.kubernetes.setup import SERVICE_LABEL
from pellucid_dashboards.kubernetes.yaml_text import Raw
from pellucid_dashboards.rules.render import render

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pellucid_dashboards.kubernetes.setup import Setup

FOLDER_TITLE: Final = "Pellucid"
"""Grafana's folder with the dashboards."""


def rules(setup: Setup) -> dict[str, Any]:
    """Return the rules: a PrometheusRule, or without the operator a ConfigMap with the file."""
    text = render(setup.thresholds, labels=setup.alert_labels)
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
    """Yield an object for each dashboard: a ConfigMap, or a resource of Grafana Operator."""
    for uid, dashboard in shipped_dashboards(setup.uids).items():
        metadata = setup.metadata("dashboards", f"dashboard-{uid.removeprefix('pellucid-')}")
        make = _operated if setup.dashboards == "grafana-operator" else _config_map
        yield make(metadata, uid, to_json(dashboard))


def _config_map(metadata: Mapping[str, Any], uid: str, text: str) -> dict[str, Any]:
    """Return what Grafana's sidecar finds by its label."""
    labels = {**metadata["labels"], "grafana_dashboard": "1"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata, "labels": labels, "annotations": {"grafana_folder": FOLDER_TITLE}},
        "data": {f"{uid}.json": text},
    }


def _operated(metadata: Mapping[str, Any], uid: str, text: str) -> dict[str, Any]:
    """Return what Grafana Operator gives to the instances of Grafana that have the label of its own examples."""
    return {
        "apiVersion": "grafana.integreatly.org/v1beta1",
        "kind": "GrafanaDashboard",
        "metadata": dict(metadata),
        "spec": {
            "instanceSelector": {"matchLabels": {"dashboards": "grafana"}},
            "folder": FOLDER_TITLE,
            "uid": uid,
            "json": text,
        },
    }
