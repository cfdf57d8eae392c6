"""Where the telemetry of Pellucid goes.

Names are imported when they are first used: the pytest plugin of this package is loaded in every session of whoever
installed it, and must not drag in exporters that the session never asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pellucid.module_names import load_from, module_getattr

if TYPE_CHECKING:
    from pellucid_exporters.console import Console
    from pellucid_exporters.file.options import File
    from pellucid_exporters.options import Otlp, Prometheus
    from pellucid_exporters.pipeline import configure
    from pellucid_exporters.prometheus.endpoint import MetricsApp
    from pellucid_exporters.prometheus.reader import PrometheusReader
    from pellucid_exporters.sampling.rules import TailSampling
    from pellucid_exporters.telemetry import Telemetry

__all__ = [
    "Console",
    "File",
    "MetricsApp",
    "Otlp",
    "Prometheus",
    "PrometheusReader",
    "TailSampling",
    "Telemetry",
    "configure",
]

_HOMES = {
    "Console": "console",
    "File": "file.options",
    "MetricsApp": "prometheus.endpoint",
    "Otlp": "options",
    "Prometheus": "options",
    "PrometheusReader": "prometheus.reader",
    "TailSampling": "sampling.rules",
    "Telemetry": "telemetry",
    "configure": "pipeline",
}

if not TYPE_CHECKING:
    __getattr__ = module_getattr(
        __name__, lazy=load_from({name: f"{__name__}.{home}" for name, home in _HOMES.items()})
    )
