"""Two tiers of collectors: an agent on each node, and gateways to which agents send whole traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid_dashboards.kubernetes.pods import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    disruption_budget,
    resources,
    service,
    template,
    workload,
)
from pellucid_dashboards.kubernetes.setup import COLLECTOR_IMAGE, SERVICE_LABEL
from pellucid_dashboards.kubernetes.yaml_text import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid_dashboards.kubernetes.setup import Setup

_FOLDER: Final = Path(__file__).parent.parent / "files" / "kubernetes"
_PORTS: Final = {"otlp-grpc": 4317, "otlp-http": 4318}
_HEALTH: Final = 13133
_GATEWAYS: Final = 2


def collectors(setup: Setup) -> Iterator[dict[str, Any]]:
    """Yield both tiers: resources of OpenTelemetry Operator, or without it what it would make of them."""
    for tier in ("agent", "gateway"):
        yield from [_resource(setup, tier)] if setup.operators else _objects(setup, tier)


def _config(tier: str) -> str:
    return (_FOLDER / f"collector-{tier}.yaml").read_text(encoding="utf-8")


def _environment(setup: Setup, tier: str) -> list[dict[str, str]]:
    gateway = f"{setup.name}-gateway-collector"
    variables = {
        "agent": {"GATEWAY": f"{gateway}:4317", "GATEWAY_PODS": f"{gateway}-headless"},
        "gateway": {"TRACES_ENDPOINT": setup.traces_endpoint, "METRICS_ENDPOINT": setup.metrics_endpoint},
    }[tier]
    # Go leaves memory to others before the limit of the container ends the process.
    memory = {"agent": "200MiB", "gateway": "800MiB"}[tier]
    return [{"name": name, "value": value} for name, value in {**variables, "GOMEMLIMIT": memory}.items()]


def _resources(tier: str) -> dict[str, Any]:
    return resources("100m", "128Mi", most="256Mi") if tier == "agent" else resources("250m", "512Mi", most="1Gi")


def _resource(setup: Setup, tier: str) -> dict[str, Any]:
    metadata = setup.metadata(tier)
    size: dict[str, Any] = {"mode": "daemonset"}
    if tier == "gateway":
        size = {"mode": "deployment", "replicas": _GATEWAYS, "podDisruptionBudget": {"maxUnavailable": 1}}
    return {
        "apiVersion": "opentelemetry.io/v1beta1",
        "kind": "OpenTelemetryCollector",
        "metadata": {**metadata, "labels": {**setup.labels(tier), SERVICE_LABEL: f"{setup.name}-{tier}"}},
        "spec": {
            **size,
            "image": COLLECTOR_IMAGE,
            "env": _environment(setup, tier),
            "resources": _resources(tier),
            "podSecurityContext": POD_SECURITY,
            "securityContext": CONTAINER_SECURITY,
            "config": Raw(_config(tier)),
        },
    }


def _objects(setup: Setup, tier: str) -> Iterator[dict[str, Any]]:
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": setup.metadata(tier),
        "data": {"collector.yaml": _config(tier)},
    }
    probe = {"httpGet": {"path": "/", "port": _HEALTH}}
    container = {
        "name": "collector",
        "image": COLLECTOR_IMAGE,
        "args": ["--config=/etc/collector/collector.yaml"],
        "env": _environment(setup, tier),
        "ports": [{"name": name, "containerPort": port} for name, port in {**_PORTS, "metrics": 8888}.items()],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "resources": _resources(tier),
        "volumeMounts": [{"name": "config", "mountPath": "/etc/collector", "readOnly": True}],
    }
    pods = template(setup, tier, container, volumes=[{"name": "config", "configMap": {"name": f"{setup.name}-{tier}"}}])
    name = f"{tier}-collector"
    if tier == "agent":
        yield workload(setup, "DaemonSet", tier, pods)
        yield service(setup, tier, _PORTS, name, internalTrafficPolicy="Local")
        return
    yield workload(setup, "Deployment", tier, pods, replicas=_GATEWAYS)
    yield service(setup, tier, _PORTS, name)
    yield service(setup, tier, _PORTS, f"{name}-headless", clusterIP="None")
    yield disruption_budget(setup, tier)
