"""Choice between the own recorder and the SDK's."""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.environment_variables import OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from pellucid.errors import ConfigError
from pellucid_exporters.recorder.metrics.trial import needs_sdk
from pellucid_exporters.recorder.spans import RecorderTracerProvider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.metrics.export import MetricReader

    from pellucid_exporters.recorder.names import Recorder

_log: Final = logging.getLogger(__name__)


def make_tracer_provider(recorder: Recorder | None, **options: Any) -> TracerProvider:
    """Return a provider of tracers, with options of the SDK's.

    Raises:
        ConfigError: `recorder` is "fast", and only the SDK can do what the environment asks for.
    """
    if _is_fast(recorder, "spans", _internal_metrics()):
        return RecorderTracerProvider(**options)
    return TracerProvider(**options)


def make_meter_provider(recorder: Recorder | None, readers: Sequence[MetricReader], **options: Any) -> MeterProvider:
    """Return a provider of meters, with options of the SDK's.

    Raises:
        ConfigError: `recorder` is "fast", and only the SDK can do what a reader or the environment asks for.
    """
    if _is_fast(recorder, "metrics", _unsupported_version()):
        from pellucid_exporters.recorder.metrics.provider import RecorderMeterProvider  # of an SDK that has its parts

        return RecorderMeterProvider(readers, **options)
    return MeterProvider(readers, **options)


def _is_fast(recorder: Recorder | None, signal: str, reason: str | None) -> bool:
    """Return whether the own recorder is used; `reason` names what only the SDK can do."""
    wanted = recorder or os.environ.get("PELLUCID_RECORDER", "").strip().lower()
    if wanted == "sdk":
        return False
    if reason is None:
        return True
    if recorder is not None:
        raise ConfigError(f"recorder='fast': {reason} needs the OpenTelemetry SDK's recorder; leave recorder= out")
    _log.info("the OpenTelemetry SDK records %s, which takes longer: %s needs it", signal, reason)
    return False


@cache
def _unsupported_version() -> str | None:
    return needs_sdk()


def _internal_metrics() -> str | None:
    is_enabled = os.environ.get(OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED, "").strip().lower() == "true"
    return OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED if is_enabled else None
