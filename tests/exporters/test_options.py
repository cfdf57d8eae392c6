"""Options: short forms, refusals, and what the environment says."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from pellucid.errors import ConfigError
from pellucid_exporters import configure
from pellucid_exporters.options import (
    Otlp,
    Prometheus,
    Settings,
    resolve_console,
    resolve_otlp,
    resolve_prometheus,
)
from pellucid_exporters.recorder.metrics.provider import RecorderMeterProvider
from pellucid_exporters.recorder.names import resolve_recorder
from pellucid_exporters.recorder.spans import RecorderTracerProvider
from pellucid_exporters.resource import make_resource

if TYPE_CHECKING:
    from pellucid_exporters.recorder.names import Recorder


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No `OTEL_*` variable of the machine reaches a test."""
    for name in list(os.environ):
        if name.startswith("OTEL_") or name == "PELLUCID_RECORDER":
            monkeypatch.delenv(name)


def test_environment_chooses_exporters(monkeypatch: pytest.MonkeyPatch) -> None:
    """`OTEL_*_EXPORTER` and the endpoints choose exporters, unless an argument does."""
    assert resolve_otlp(None) is None
    assert resolve_prometheus(None) is None
    assert resolve_console(False) is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    assert resolve_otlp(None) == Otlp()
    assert resolve_otlp(False) is None
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "prometheus, otlp")
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "console")
    assert resolve_otlp(None) == Otlp(traces=False, logs=False)
    assert resolve_prometheus(None) == Prometheus(port=9464)
    assert resolve_prometheus(False) is None
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_HOST", "::1")
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", "9999")
    assert resolve_prometheus(None) == Prometheus(host="::1", port=9999)
    assert resolve_otlp(True) == Otlp()


def test_short_forms() -> None:
    """Short forms of the options mean the same as the full ones."""
    assert resolve_otlp("https://collector") == Otlp(endpoint="https://collector")
    assert resolve_prometheus(True) == Prometheus()
    assert resolve_prometheus(9000) == Prometheus(port=9000)
    assert resolve_prometheus("0.0.0.0:9000") == Prometheus(host="0.0.0.0", port=9000)
    assert resolve_prometheus("[::1]:9000") == Prometheus(host="::1", port=9000)
    assert resolve_prometheus("9000") == Prometheus(port=9000)


def test_protocols_of_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment may give one signal a protocol of its own; the option wins over both."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/protobuf")
    assert [Otlp().protocol_of(signal) for signal in ("traces", "logs")] == ["grpc", "http/protobuf"]
    assert Otlp(protocol="grpc").protocol_of("logs") == "grpc"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: Otlp(endpoint="localhost:4318"), r"^OTLP endpoint 'localhost:4318' .* as 'http://localhost:4318'$"),
        (lambda: Otlp(endpoint="me:secret@localhost:4318?key=secret"), r"'localhost:4318' .* 'http://localhost:4318'$"),
        (lambda: Otlp(endpoint="http://[::1"), "is not a URL"),
        (lambda: Otlp(endpoint="http://collector:43180000"), "is not a URL"),
        (lambda: Otlp(endpoint="http://collector:4318/v1/traces"), "give the base URL"),
        (lambda: Otlp(protocol="http/json"), "use one of http/protobuf, grpc"),  # type: ignore[arg-type]  # on purpose
        (lambda: Otlp(timeout=0), "more than 0 seconds"),
        (lambda: Prometheus(port=70000), "between 0 and 65535"),
        (lambda: Prometheus(port=range(0)), "between 0 and 65535"),
        (lambda: resolve_prometheus("localhost"), "'host:port'"),
        (lambda: resolve_recorder("quick"), "use one of fast, sdk"),  # type: ignore[arg-type]  # on purpose
    ],
)
def test_options_are_refused_early(options: Any, message: str) -> None:
    """An option that cannot work fails at once and says what would."""
    with pytest.raises(ConfigError, match=message):
        options()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"service_name": ""}, r"service_name=''\): give a name, such as 'support'"),
        ({"service_name": 5}, r"service_name=5\): give a name, such as 'support'"),
        ({"otlp": 5}, r"otlp=5\): give a URL, such as 'http://localhost:4318', True or False, or Otlp\(\.\.\.\)"),
        ({"otlp": {"headers": "hunter2"}}, r"otlp=<dict>\): give a URL"),
        ({"prometheus": 1.5}, r"prometheus=1\.5\): give a port, 'host:port', True or False, or Prometheus\(\.\.\.\)"),
        ({"console": "yes"}, r"console='yes'\): give True or False, or Console\(\.\.\.\)"),
        ({"file": 5}, r"file=5\): give a path, or File\(\.\.\.\)"),
        ({"local": 5}, r"local=5\): give a path, True or False, or Local\(\.\.\.\)"),
        ({"tail_sampling": 5}, r"tail_sampling=5\): give TailSampling\(\.\.\.\)"),
        ({"metric_limits": 5}, r"metric_limits=5\): give MetricLimits\(\.\.\.\)"),
        ({"capture": "metadata"}, r"capture='metadata'\): give CapturePolicy\('metadata'\)"),
        ({"resource": "x"}, r"resource='x'\): give a dictionary of attributes, or a Resource"),
    ],
)
def test_arguments_of_configure_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    """A wrong argument is refused with its name, its value unless it may have secrets, and what to give."""
    with pytest.raises(ConfigError, match=rf"^configure\({problem}"):
        configure(**{"service_name": "shop", "set_global": False, **options})


def test_headers_are_not_shown() -> None:
    """The representation of options does not show credentials in headers."""
    assert "hunter2" not in repr(Settings(service_name="shop", otlp=Otlp(headers={"authorization": "hunter2"})))


def test_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resource attributes in code win over those of the environment, but for the name of the service."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=theirs,team=blue,zone=a")
    found = make_resource("shop", {"team": "red"}).attributes
    assert (found["service.name"], found["team"], found["zone"]) == ("shop", "red", "a")
    assert found["telemetry.sdk.language"] == "python"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "canary")
    assert make_resource("shop", Resource({"team": "red"})).attributes["service.name"] == "canary"


@pytest.mark.parametrize("chosen", ["fast", "sdk"])
def test_recorder_is_chosen(chosen: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder is the one of the argument, else of the environment, else our own."""
    kinds = {"fast": (RecorderTracerProvider, RecorderMeterProvider), "sdk": (TracerProvider, MeterProvider)}
    assert recorder_of(None) == kinds["fast"]
    assert recorder_of(chosen) == kinds[chosen]
    monkeypatch.setenv("PELLUCID_RECORDER", chosen)
    assert recorder_of(None) == kinds[chosen]
    assert recorder_of("fast") == kinds["fast"]
    assert recorder_of("sdk") == kinds["sdk"]


def test_recorder_that_can_what_is_needed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Metrics of the SDK about itself choose the SDK's tracer; asking for our own is refused with the reason."""
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    with caplog.at_level(logging.INFO, "pellucid_exporters"):
        assert recorder_of(None) == (TracerProvider, RecorderMeterProvider)
    assert "takes longer: OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED is set" in caplog.text
    with pytest.raises(ConfigError, match=r"OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED is set.*leave recorder= out"):
        recorder_of("fast")


def recorder_of(chosen: Recorder | None) -> tuple[type, type]:
    """Return the providers that `configure` makes."""
    telemetry = configure("shop", recorder=chosen, set_global=False)
    telemetry.shutdown()
    return type(telemetry.tracer_provider), type(telemetry.meter_provider)
