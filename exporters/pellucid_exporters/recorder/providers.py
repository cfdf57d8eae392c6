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
from pellucid_exporters.recorder import span_trial
from pellucid_exporters.recorder.forks import start_anew_in_child
from pellucid_exporters.recorder.metrics import trial as metrics_trial

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
    if _is_fast(recorder, "spans", _internal_metrics() or _spans_unsupported()):
        from pellucid_exporters.recorder.spans import RecorderTracerProvider  # of an SDK that has its parts

        return RecorderTracerProvider(**options)
    return TracerProvider(**options)


def make_meter_provider(recorder: Recorder | None, readers: Sequence[MetricReader], **options: Any) -> MeterProvider:
    """Return a provider of meters, with options of the SDK's.

    Raises:
        ConfigError: `recorder` is "fast", and only the SDK can do what a reader or the environment asks for.
    """
    if _is_fast(recorder, "metrics", _metrics_unsupported()):
        from pellucid_exporters.recorder.metrics.provider import RecorderMeterProvider  # of an SDK that has its parts

        return RecorderMeterProvider(readers, **options)
    provider = MeterProvider(readers, **options)
    start_anew_in_child(provider)
    return provider


def _is_fast(recorder: Recorder | None, signal: str, reason: str | None) -> bool:
    """Return whether the own recorder is used; `reason` names what only the SDK can do."""
    wanted = recorder or os.environ.get("PELLUCID_RECORDER", "").strip().lower()
    if wanted == "sdk":
        return False
    if reason is None:
        return True
    if recorder is not None:
        raise ConfigError(f"recorder='fast': {reason}; leave recorder= out")
    _log.info("the OpenTelemetry SDK records %s, which takes longer: %s", signal, reason)
    return False


@cache
def _spans_unsupported() -> str | None:
    return span_trial.needs_sdk()


@cache
def _metrics_unsupported() -> str | None:
    return metrics_trial.needs_sdk()


def _internal_metrics() -> str | None:
    is_enabled = os.environ.get(OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED, "").strip().lower() == "true"
    return (
        f"{OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED} is set, which only the SDK's recorder supports"
        if is_enabled
        else None
    )
