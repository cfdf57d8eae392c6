"""The relay; and for durable runs a server, workers, and what scales these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pellucid_dashboards.kubernetes.pods import (
    disruption_budget,
    environment,
    resources,
    service,
    template,
    workload,
)
from pellucid_dashboards.relay.command import PORT as RELAY_PORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid_dashboards.kubernetes.setup import Setup

_SERVER_PORT: Final = 8000
_METRICS_PORT: Final = 9464
_REPLICAS: Final = 2
_MOST_WORKERS: Final = 10
_DRAIN: Final = 30
"""Seconds that runs have at SIGTERM to come to the end of a step."""
_GRACE: Final = 60
"""Seconds from SIGTERM to SIGKILL: giving runs back, open requests and telemetry have 5 s each, after that time."""


def relay(setup: Setup) -> Iterator[dict[str, Any]]:
    """Yield the relay, which adds traces to alerts."""
    probe = {"httpGet": {"path": "/-/healthy", "port": "relay"}}
    container = {
        "name": "relay",
        "image": setup.image,
        "args": [
            "alerts",
            "relay",
            "--host=0.0.0.0",
            f"--prometheus={setup.prometheus}",
            f"--alertmanager={setup.alertmanager}",
            f"--traces={setup.traces}",
        ],
        "ports": [{"name": "relay", "containerPort": RELAY_PORT}],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "resources": resources("20m", "64Mi", most="128Mi"),
    }
    yield workload(setup, "Deployment", "relay", template(setup, "relay", container), replicas=1)
    yield service(setup, "relay", {"relay": RELAY_PORT})


def durable(setup: Setup) -> Iterator[dict[str, Any]]:
    """Yield server and workers of durable runs, for the agents of the set-up."""
    yield workload(setup, "Deployment", "server", _server(setup), replicas=_REPLICAS)
    yield service(setup, "server", {"http": _SERVER_PORT})
    yield disruption_budget(setup, "server")
    size = {} if setup.operators else {"replicas": _REPLICAS}
    yield workload(setup, "Deployment", "worker", _worker(setup), **size)
    yield disruption_budget(setup, "worker")
    if setup.operators:
        yield _scaling(setup)


def _secrets(setup: Setup, *, server: bool) -> list[dict[str, Any]]:
    keys = {"PELLUCID_STORE": "store", "PELLUCID_QUEUE": "queue", "PELLUCID_CALL_KEYS": "call-keys"}
    keys |= {"PELLUCID_API_TOKEN": "api-token"} if server else {}
    optional = {"queue", "call-keys"}
    found = []
    for name, key in keys.items():
        reference: dict[str, Any] = {"name": setup.secret, "key": key}
        reference |= {"optional": True} if key in optional else {}
        found.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    return found


def _server(setup: Setup) -> dict[str, Any]:
    container = {
        "name": "server",
        "image": setup.image,
        "args": ["serve", *setup.agents, "--no-worker", "--host=0.0.0.0", f"--port={_SERVER_PORT}"],
        "env": [*environment(setup, f"{setup.name}-server"), *_secrets(setup, server=True)],
        "ports": [{"name": "http", "containerPort": _SERVER_PORT}],
        "startupProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 2, "failureThreshold": 30},
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "timeoutSeconds": 5},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 3},
        # Until all nodes know that it takes no more requests.
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
        "resources": resources("250m", "256Mi", most="512Mi"),
    }
    return template(setup, "server", container, terminationGracePeriodSeconds=_GRACE)


def _worker(setup: Setup) -> dict[str, Any]:
    alive = {"httpGet": {"path": "/healthz", "port": "metrics"}}
    container = {
        "name": "worker",
        "image": setup.image,
        "args": [
            "worker",
            *setup.agents,
            f"--metrics-port={_METRICS_PORT}",
            "--metrics-host=0.0.0.0",
            f"--drain-timeout={_DRAIN}",
        ],
        "env": [*environment(setup, f"{setup.name}-worker"), *_secrets(setup, server=False)],
        "ports": [{"name": "metrics", "containerPort": _METRICS_PORT}],
        "startupProbe": {**alive, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 30},
        # Others take over its runs when their leases end, so there is no hurry.
        "livenessProbe": {**alive, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics"}, "periodSeconds": 5, "timeoutSeconds": 5},
        "resources": resources("250m", "256Mi", most="1Gi"),
    }
    return template(setup, "worker", container, terminationGracePeriodSeconds=_GRACE)


def _scaling(setup: Setup) -> dict[str, Any]:
    query = f'max(pellucid_durable_due_age_seconds{{job="{setup.name}-worker"}})'
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": setup.metadata("worker"),
        "spec": {
            "scaleTargetRef": {"name": f"{setup.name}-worker"},
            # Without a worker nobody reads the age from the database.
            "minReplicaCount": 1,
            "maxReplicaCount": _MOST_WORKERS,
            "fallback": {"failureThreshold": 3, "replicas": _REPLICAS},
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "AverageValue",
                    "metadata": {"serverAddress": setup.prometheus, "query": query, "threshold": "10"},
                }
            ],
        },
    }
