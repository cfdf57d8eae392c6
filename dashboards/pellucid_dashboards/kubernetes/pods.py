"""Parts of pods that all workloads share."""

from __future__ import annotations

from typing import Any, Final

from pellucid_dashboards.kubernetes.setup import SERVICE_LABEL, Setup

UID: Final = 10001
CONTAINER_SECURITY: Final = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
POD_SECURITY: Final = {
    "runAsNonRoot": True,
    "runAsUser": UID,
    "runAsGroup": UID,
    "fsGroup": UID,
    "seccompProfile": {"type": "RuntimeDefault"},
}
DOWNWARD: Final = {
    "K8S_POD_NAME": "metadata.name",
    "K8S_POD_UID": "metadata.uid",
    "K8S_NAMESPACE_NAME": "metadata.namespace",
    "K8S_NODE_NAME": "spec.nodeName",
}
"""Variables and the fields of the downward API that they have."""
RESOURCE_ATTRIBUTES: Final = (
    "k8s.pod.name=$(K8S_POD_NAME),k8s.pod.uid=$(K8S_POD_UID),"
    "k8s.namespace.name=$(K8S_NAMESPACE_NAME),k8s.node.name=$(K8S_NODE_NAME)"
)


def environment(setup: Setup, service: str) -> list[dict[str, Any]]:
    """Return the variables of a process with telemetry: its service, where it runs, and where spans and logs go."""
    found: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in DOWNWARD.items()
    ]
    found += [
        {"name": "OTEL_SERVICE_NAME", "value": service},
        {"name": "OTEL_RESOURCE_ATTRIBUTES", "value": RESOURCE_ATTRIBUTES},
    ]
    if "collector" in setup.parts:
        # Metrics are scraped; sent as well, everything would be counted twice.
        found += [
            {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": f"http://{setup.name}-agent-collector:4318"},
            {"name": "OTEL_METRICS_EXPORTER", "value": "none"},
        ]
    return found


def resources(cpu: str, memory: str, *, most: str) -> dict[str, Any]:
    """Return what a container is given, and how much memory at most."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": most}}


def template(setup: Setup, component: str, container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return the template of pods with one container, which can write to `/tmp` only.

    Args:
        setup: Choices for the manifests.
        component: What the pods are.
        container: The container; security is added.
        spec: More of the pods.
    """
    labels = {**setup.labels(component), SERVICE_LABEL: f"{setup.name}-{component}"}
    metadata: dict[str, Any] = {"labels": labels}
    ports = [port for port in container.get("ports", ()) if port["name"] in ("metrics", "http")]
    if not setup.operators and ports and component != "relay":
        port = str(ports[-1]["containerPort"])
        metadata["annotations"] = {"prometheus.io/scrape": "true", "prometheus.io/port": port}
    mounts = [*container.get("volumeMounts", []), {"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108  (in the container)
    return {
        "metadata": metadata,
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": POD_SECURITY,
            **{key: value for key, value in spec.items() if key != "volumes"},
            "containers": [{**container, "securityContext": CONTAINER_SECURITY, "volumeMounts": mounts}],
            "volumes": [*spec.get("volumes", []), {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}],
        },
    }


def workload(setup: Setup, kind: str, component: str, pods: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a Deployment or DaemonSet."""
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": setup.metadata(component),
        "spec": {**spec, "selector": {"matchLabels": setup.selector(component)}, "template": pods},
    }


def service(
    setup: Setup, component: str, ports: dict[str, int], suffix: str | None = None, **spec: Any
) -> dict[str, Any]:
    """Return a Service for the pods of a component."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": setup.metadata(component, suffix),
        "spec": {
            **spec,
            "selector": setup.selector(component),
            "ports": [{"name": name, "port": port, "targetPort": port} for name, port in ports.items()],
        },
    }


def disruption_budget(setup: Setup, component: str) -> dict[str, Any]:
    """Return a budget that lets one pod go at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": setup.metadata(component),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": setup.selector(component)}},
    }
