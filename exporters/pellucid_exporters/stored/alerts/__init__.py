"""Alerts computed from stored telemetry: the conditions and words of the shipped rules of Prometheus."""

from pellucid_exporters.stored.alerts.alert import Alert
from pellucid_exporters.stored.alerts.evaluation import UNTOLD, evaluate

__all__ = ["UNTOLD", "Alert", "evaluate"]
