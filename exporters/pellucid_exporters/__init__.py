"""Exporters for Pellucid's telemetry: OTLP, Prometheus, the console, files and a local store.

Names are imported on first use: pytest loads the plugin of this package in every session where the package is
installed, and must not import exporters that the session does not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pellucid.module_names import load_from, module_getattr

if TYPE_CHECKING:
    from pellucid_exporters.console import Console
    from pellucid_exporters.file.options import File
    from pellucid_exporters.file.reader import FileReader
    from pellucid_exporters.local.options import Local
    from pellucid_exporters.local.reader import StoreReader
    from pellucid_exporters.log_handler import LogHandler
    from pellucid_exporters.metric_limits import MetricLimits
    from pellucid_exporters.options import Otlp, Prometheus
    from pellucid_exporters.pipeline import configure
    from pellucid_exporters.prometheus.endpoint import MetricsApp
    from pellucid_exporters.prometheus.reader import PrometheusReader
    from pellucid_exporters.sampling.rules import TailSampling
    from pellucid_exporters.telemetry import Telemetry

__all__ = [
    "Console",
    "File",
    "FileReader",
    "Local",
    "LogHandler",
    "MetricLimits",
    "MetricsApp",
    "Otlp",
    "Prometheus",
    "PrometheusReader",
    "StoreReader",
    "TailSampling",
    "Telemetry",
    "configure",
]

_HOMES = {
    "Console": "console",
    "File": "file.options",
    "FileReader": "file.reader",
    "Local": "local.options",
    "LogHandler": "log_handler",
    "MetricLimits": "metric_limits",
    "MetricsApp": "prometheus.endpoint",
    "Otlp": "options",
    "Prometheus": "options",
    "PrometheusReader": "prometheus.reader",
    "StoreReader": "local.reader",
    "TailSampling": "sampling.rules",
    "Telemetry": "telemetry",
    "configure": "pipeline",
}

if not TYPE_CHECKING:
    __getattr__ = module_getattr(
        __name__, lazy=load_from({name: f"{__name__}.{home}" for name, home in _HOMES.items()})
    )
