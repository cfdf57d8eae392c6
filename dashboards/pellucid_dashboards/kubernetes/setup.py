"""Description of a set-up on Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pellucid_dashboards.dashboard_files import SHIPPED_UIDS
from pellucid_exporters.alerting.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PARTS: Final = ("telemetry", "collector", "relay")
"""Parts that can be chosen; server and workers are there when there are agents."""
DASHBOARDS: Final = ("configmap", "grafana-operator")
"""Kinds of objects that dashboards can be."""
COLLECTOR_IMAGE: Final = "otel/opentelemetry-collector-contrib:0.150.1"
SERVICE_LABEL: Final = "pellucid/service"
"""Label of pods that are scraped on their port `metrics`. Its value is the service's name, and becomes the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Choices for the manifests.

    Attributes:
        name: Begins the name of each object.
        namespace: Where all goes; None leaves it to `kubectl`.
        image: With Pellucid and the agents.
        parts: Some of `PARTS`.
        agents: Agents of server and workers, as `pellucid serve` takes them; none for neither.
        operators: Whether the resources of Prometheus Operator, OpenTelemetry Operator and KEDA are used.
        prometheus: Where it answers, for the relay and for KEDA.
        alertmanager: Where the relay sends.
        traces: Where people reach Jaeger.
        traces_endpoint: Takes spans by OTLP over gRPC.
        metrics_endpoint: Takes metrics by OTLP over HTTP.
        secret: An existing one, with the keys `store` and `api-token`, and maybe `queue` and `call-keys`.
        thresholds: Thresholds of the alerts.
        alert_labels: Labels of all alerts in addition to their own.
        uids: Uids of Grafana's data sources.
        dashboards: How Grafana gets the dashboards: one of `DASHBOARDS`.
    """

    name: str = "pellucid"
    namespace: str | None = None
    image: str = "pellucid:local"
    parts: Sequence[str] = PARTS
    agents: Sequence[str] = ()
    operators: bool = True
    prometheus: str = "http://prometheus-operated:9090"
    alertmanager: str = "http://alertmanager-operated:9093"
    traces: str = "http://localhost:16686"
    traces_endpoint: str = "jaeger:4317"
    metrics_endpoint: str = "http://prometheus-operated:9090/api/v1/otlp"
    secret: str = "pellucid"  # noqa: S105  (a name)
    thresholds: Thresholds = field(default_factory=Thresholds)
    alert_labels: Mapping[str, str] = field(default_factory=dict)
    uids: Mapping[str, str] = field(default_factory=lambda: dict(SHIPPED_UIDS))
    dashboards: str = DASHBOARDS[0]

    def labels(self, component: str) -> dict[str, str]:
        """Return the labels of an object."""
        return {**self.selector(component), "app.kubernetes.io/part-of": "pellucid"}

    def selector(self, component: str) -> dict[str, str]:
        """Return the labels by which pods of a component are found."""
        return {
            "app.kubernetes.io/name": "pellucid",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/component": component,
        }

    def metadata(self, component: str, suffix: str | None = None) -> dict[str, object]:
        """Return the metadata of an object, named after its component unless there is a suffix."""
        return {"name": f"{self.name}-{suffix or component}", "labels": self.labels(component)}
