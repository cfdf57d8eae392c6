"""Exporters for Pellucid."""

from pellucid_exporters.options import Otlp, Prometheus
from pellucid_exporters.pipeline import configure
from pellucid_exporters.telemetry import Telemetry

__all__ = ["Otlp", "Prometheus", "Telemetry", "configure"]
