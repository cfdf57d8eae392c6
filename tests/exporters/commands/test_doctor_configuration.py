"""`pellucid doctor` reads the environment: what is unknown, malformed or contradictory in it, and what it turns on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from pellucid import ConfigError
from pellucid_commands.doctor.configuration import check_capture
from pellucid_commands.doctor.findings import Setup
from support.doctor import Doctor, doctor

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["doctor"]

ENDPOINT = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
SECRET = "s3cr3t-of-the-backend"


def wrong(doctor: Doctor, *variables: tuple[str, str]) -> str:
    """Return the one line that the environment or the configuration is blamed in."""
    report = doctor(variables=variables, timeout=0.5)
    (line,) = [*report.about("environment", "wrong"), *report.about("configuration", "wrong")]
    assert report.code == 1
    return line


def test_an_empty_environment_is_fine(doctor: Doctor) -> None:
    """Nothing is on, and it says so without an alarm."""
    report = doctor()
    assert report.code == 0
    assert "no problems found" in report.text
    assert "nothing" in report.about("exporters", "note")[0]


@pytest.mark.parametrize("level", [logging.NOTSET, logging.INFO])
def test_what_is_logged_afterwards_is_as_before(doctor: Doctor, level: int) -> None:
    """Loggers are silent during the checks only; a level that the application has disabled stays disabled."""
    logging.disable(level)
    try:
        doctor()
        assert logging.root.manager.disable == level
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPIONT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ("OTEL_SERVICENAME", "OTEL_SERVICE_NAME"),
        ("PELLUCID_CAPTUER", "PELLUCID_CAPTURE"),
        ("PELLUCID_MODE", "PELLUCID_CAPTURE"),
    ],
)
def test_a_misspelt_variable_is_named_with_the_one_that_was_meant(doctor: Doctor, name: str, meant: str) -> None:
    """Nothing else tells: OpenTelemetry ignores it."""
    line = wrong(doctor, (name, "x"))
    assert name in line
    assert meant in line


def test_variables_of_others_are_left_alone(doctor: Doctor) -> None:
    """Other instrumentation reads them; what nobody here reads is only mentioned."""
    others = [("OTEL_PYTHON_EXCLUDED_URLS", "x"), ("OTEL_INSTRUMENTATION_HTTP_X", "x"), ("OTEL_GO_X_SOMETHING", "x")]
    report = doctor(variables=others)
    assert report.code == 0
    assert [line.split()[2] for line in report.about("environment")] == ["OTEL_GO_X_SOMETHING"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "http://host:port"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/v1/traces", "base URL"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:port", "http://host:port"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf, grpc"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "gzip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "seconds"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "Bearer abc", "name=value"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file.pem", "/no/such/file.pem"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "sometimes", "cumulative"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp, console, none"),
        ("OTEL_METRICS_EXPORTER", "otlp,statsd", "prometheus"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "10%", "0 to 1"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1m", "milliseconds"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many", "whole number"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "from 1"),
        ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "-1", "from 0"),
        ("OTEL_RESOURCE_ATTRIBUTES", "production", "name=value"),
        ("OTEL_SDK_DISABLED", "yes", "true, false"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "none", "trace_based"),
        ("OTEL_EXPORTER_PROMETHEUS_PORT", "94640", "65535"),
    ],
)
def test_a_malformed_value_is_named(doctor: Doctor, name: str, value: str, words: str) -> None:
    """With what it may be."""
    line = wrong(doctor, (name, value))
    assert name in line
    assert words in line


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ([("OTEL_SDK_DISABLED", "true")], "turns all telemetry off"),
        ([("OTEL_TRACES_EXPORTER", "none,otlp")], "none and more"),
        (
            [("OTEL_TRACES_EXPORTER", "console"), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1")],
            "does not name otlp",
        ),
        ([("OTEL_TRACES_SAMPLER", "always_off")], "exemplars"),
        ([("OTEL_METRICS_EXEMPLAR_FILTER", "always_off")], "trace_based"),
        ([("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_EXPORTER_OTLP_COMPRESSION", "deflate")], "gzip"),
        ([("OTEL_EXPORTER_OTLP_CLIENT_KEY", __file__)], "only one of"),
        ([("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1"), ("OTEL_EXPORTER_OTLP_INSECURE", "true")], "https://"),
        ([ENDPOINT, ("OTEL_EXPORTER_OTLP_CERTIFICATE", __file__)], "without TLS"),
    ],
)
def test_variables_that_contradict_each_other_are_named(
    doctor: Doctor, variables: list[tuple[str, str]], words: str
) -> None:
    """Each by itself is fine."""
    assert words in wrong(doctor, *variables)


def test_the_usual_port_of_the_other_protocol_is_mentioned(doctor: Doctor) -> None:
    """It may be meant, so that it is no failure by itself."""
    report = doctor(variables=[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")], timeout=0.5)
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in report.about("configuration", "note")[0]


def test_what_is_on_is_said(doctor: Doctor) -> None:
    """With where it goes, without credentials."""
    variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://me:{SECRET}@127.0.0.1:1"),
        ("OTEL_METRICS_EXPORTER", "prometheus"),
        ("OTEL_LOGS_EXPORTER", "none"),
        ("OTEL_EXPORTER_PROMETHEUS_PORT", "1"),
    ]
    report = doctor(variables=variables)
    (line,) = report.about("exporters", "ok")
    assert "traces by OTLP (http/protobuf) to http://127.0.0.1:1" in line
    assert "/metrics on 127.0.0.1:1" in line
    assert "logs" not in line
    assert (
        "http://127.0.0.1:1/metrics" in report.about("/metrics", "wrong")[0]
    )  # asked, because the environment says so


@pytest.mark.parametrize(
    ("variables", "level", "words"),
    [
        ([], "ok", "redacted"),
        ([("PELLUCID_CAPTURE", "full")], "note", "as they are"),
        ([("PELLUCID_CAPTURE", "metadata")], "ok", "no content leaves"),
        ([("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")], "note", "as they are"),
        ([("PELLUCID_CAPTURE", "everything")], "wrong", "unknown"),
        ([("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "1000")], "note", "1000 bytes"),
        ([("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "100")], "note", "nothing"),
    ],
)
def test_what_of_the_content_leaves_is_said(
    doctor: Doctor, variables: list[tuple[str, str]], level: str, words: str
) -> None:
    """In the words of the privacy page."""
    report = doctor(variables=variables)
    assert any(words in line for line in report.about("capture", level)), report.text


def test_credentials_in_the_clear_are_named(doctor: Doctor) -> None:
    """Headers that leave this machine without TLS."""
    variables = [("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={SECRET}")]
    report = doctor("--otlp", "http://collector.invalid:4318", variables=variables, timeout=1)
    assert "unencrypted" in report.about("capture", "wrong")[0]
    assert SECRET not in report.text


@pytest.mark.parametrize(
    ("url", "headers", "level"),
    [
        ("http://collector.invalid:4318", "", "note"),
        ("http://collector.invalid:4317", "", ""),
        ("http://collector.invalid:4317", "a=b", "wrong"),
        ("http://collector:4318", "", ""),
        ("http://collector:4318", "a=b", "note"),
        ("http://10.1.2.3:4318", "", ""),
        ("http://8.8.8.8:4318", "", "note"),
        ("http://otel.observability.svc:4318", "", ""),
        ("http://localhost:4318", "a=b", ""),
    ],
)
def test_encryption_is_advised_where_it_is_usual(
    monkeypatch: pytest.MonkeyPatch, url: str, headers: str, level: str
) -> None:
    """Beyond the network of containers, a cluster or an office, and for credentials; not for a gRPC port."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
    found = [finding.level for finding in check_capture(Setup(otlp=url)) if "unencrypted" in finding.text]
    assert found == ([level] if level else [])


def test_no_secret_is_printed(doctor: Doctor, tmp_path: Path) -> None:
    """Not from headers, not from addresses, not from the token's file, whatever is wrong with them."""
    token = tmp_path / "token"
    token.write_text(f"{SECRET}-token\n")
    report = doctor(
        "--metrics",
        f"http://me:{SECRET}-metrics@127.0.0.1:1/metrics?key={SECRET}-query",
        "--prometheus",
        f"https://me:{SECRET}-prometheus@prometheus.invalid?key={SECRET}-query",
        "--token-file",
        str(token),
        variables=[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", f"https://me:{SECRET}-endpoint@127.0.0.1:1/{'x' * 10}?key={SECRET}-query"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"me:{SECRET}-no-url@host"),
            ("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer {SECRET}-header,nonsense {SECRET}"),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", f"authorization=Basic%20{SECRET}-basic"),
            ("OTEL_RESOURCE_ATTRIBUTES", f"password={SECRET}-resource,{SECRET}"),
        ],
        timeout=1,
    )
    assert report.code == 1
    assert len(report.text.splitlines()) > 8
    assert SECRET not in report.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--timeout", "0"], "more than 0"),
        (["--timeout", "inf"], "at most 3600"),
        (["--timeout", "nan"], "more than 0"),
        (["--protocol", "grpc"], "--otlp"),
        (["--signal", "logs"], "--otlp"),
        (["--ca", "/no/such/file"], "no such file"),
        (["--ca", __file__], "PEM certificates"),
        (["--otlp", "banana"], "'banana' is not a URL; write it as http://host:port"),
        (["--otlp", f"http://me:{SECRET}@host:99999?key={SECRET}"], "'http://host:99999' is not a URL"),
        (["--otlp", f"http://me:{SECRET}@[::1?key={SECRET}"], r"'\[::1' is not a URL"),
        (["--metrics", "banana"], "'banana' is not a URL; write it like http://127.0.0.1:9464/metrics"),
        (["--prometheus", "ftp://x"], "'ftp://x' is not a URL; write it like http://localhost:9090"),
        (["--token-file", "/no/such/file"], "No such file"),
    ],
)
def test_options_that_cannot_work_are_refused(doctor: Doctor, arguments: list[str], words: str) -> None:
    """Before anything is asked."""
    with pytest.raises(ConfigError, match=words) as refusal:
        doctor(*arguments)
    assert SECRET not in str(refusal.value)
