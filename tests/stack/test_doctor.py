"""`pellucid doctor` about the servers of the stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stack.scene import until
from support.doctor import Doctor, doctor

if TYPE_CHECKING:
    from stack.compose import Stack
    from stack.scene import Application, Jaeger

__all__ = ["doctor"]
pytestmark = [pytest.mark.integration, pytest.mark.stack]


@pytest.mark.short
@pytest.mark.parametrize(("protocol", "port"), [("http/protobuf", 4318), ("grpc", 4317)])
def test_the_collector_takes_everything(stack: Stack, jaeger: Jaeger, doctor: Doctor, protocol: str, port: int) -> None:
    """The Collector takes all signals by both protocols, and the doctor's span is in Jaeger."""
    report = doctor("--otlp", stack["otel-collector"].url(port=port), "--protocol", protocol)
    assert report.code == 0, report.text
    assert len(report.about("OTLP", "ok")) == 3
    until(lambda: jaeger.search(service="pellucid-doctor", operation="pellucid.doctor.test"), 60, "the doctor's span")


@pytest.mark.short
@pytest.mark.parametrize(("protocol", "port"), [("http/protobuf", 4317), ("grpc", 4318)])
def test_the_other_protocol_s_port_is_named(stack: Stack, doctor: Doctor, protocol: str, port: int) -> None:
    """The doctor names the right protocol for a port of the other one."""
    report = doctor("--otlp", stack["otel-collector"].url(port=port), "--protocol", protocol)
    other = {"grpc": "http/protobuf", "http/protobuf": "grpc"}[protocol]
    assert report.code == 1
    assert all(f"OTEL_EXPORTER_OTLP_PROTOCOL={other}" in line for line in report.about("OTLP")), report.text


@pytest.mark.short
@pytest.mark.parametrize(("protocol", "port"), [("http/protobuf", 4318), ("grpc", 4317)])
def test_jaeger_takes_traces_only(stack: Stack, doctor: Doctor, protocol: str, port: int) -> None:
    """Jaeger itself takes traces only, and the doctor says how not to send it the rest."""
    report = doctor("--otlp", stack["jaeger"].url(port=port), "--protocol", protocol)
    assert report.code == 1
    assert len(report.about("OTLP traces", "ok")) == 1, report.text
    for signal in ("metrics", "logs"):
        [line] = report.about(f"OTLP {signal}", "wrong")
        assert f"OTEL_{signal.upper()}_EXPORTER=none" in line


def test_prometheus_is_as_dashboards_and_rules_need_it(
    stack: Stack, doctor: Doctor, broken: dict[str, Application]
) -> None:
    """The doctor finds nothing wrong with the stack's Prometheus."""
    report = doctor("--prometheus", stack["prometheus"].url())
    assert report.code == 0, report.text
    assert report.about("Prometheus", "ok"), report.text


@pytest.mark.short
def test_a_page_of_prometheus_is_no_collector(stack: Stack, doctor: Doctor) -> None:
    """The doctor says that the address of another server is no OTLP receiver."""
    for service in ("prometheus", "alertmanager", "relay"):
        report = doctor("--otlp", stack[service].url(), "--signal", "traces")
        assert report.code == 1
        [line] = report.about("OTLP traces", "wrong")
        assert "OTLP receiver" in line
