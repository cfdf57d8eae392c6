"""Alerts on Collector and Jaeger, of what the real programs serve, with the configurations that are shipped."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import yaml

import pellucid_dashboards
from pellucid_dashboards.rules import Thresholds, render
from stack.servers import SERVERS
from support.ports import free_ports
from support.processes import PATIENCE
from support.prometheus_server import PrometheusServer, prometheus_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

pytestmark = [pytest.mark.integration, pytest.mark.stack, pytest.mark.prometheus]

FILES = Path(pellucid_dashboards.__file__).parent / "files"
NOBODY = "127.0.0.1:9"
RESOURCE = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}


@contextmanager
def running(service: str, config: Mapping[str, Any], metrics: int, folder: Path) -> Iterator[None]:
    """Run a program with a configuration, until the end of the block, which begins when it serves its metrics."""
    [server] = (server for server in SERVERS if server.service == service)
    if not server.is_built:
        pytest.skip(f"not built: {service}; `make test-stack` builds it")
    [name] = server.packages
    file, log = folder / f"{service}.yaml", folder / f"{service}.log"
    file.write_text(json.dumps(config))  # JSON is YAML
    with log.open("wb") as output:
        process = subprocess.Popen([server.program(name), f"--config={file}"], stderr=output, stdout=output)
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{metrics}/metrics"), log)
        yield
    finally:
        process.kill()
        process.wait()


def wait_until(question: Callable[[], object], log: Path) -> None:
    """Ask until the answer is true; fail with the program's log otherwise."""
    deadline = time.monotonic() + PATIENCE
    while not question():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def answers(url: str) -> bool:
    """Return whether a URL answers."""
    try:
        with urlopen(url, timeout=10):
            return True
    except URLError:
        return False


def send(port: int, signal: str, body: Mapping[str, Any]) -> int:
    """Post what a Collector receives by HTTP, and return the status."""
    request = Request(
        f"http://127.0.0.1:{port}/v1/{signal}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urlopen(request, timeout=30) as answer:
            status: int = answer.status
            return status
    except URLError as error:
        return getattr(error, "code", 0)


def a_span() -> Mapping[str, Any]:
    """Return a span as OTLP has it."""
    span = {"traceId": "1" * 32, "spanId": "2" * 16, "name": "a", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    return {"resourceSpans": [{"resource": RESOURCE, "scopeSpans": [{"spans": [span]}]}]}


def a_line() -> Mapping[str, Any]:
    """Return a log record as OTLP has it."""
    records = [{"timeUnixNano": "1", "body": {"stringValue": "a"}}]
    return {"resourceLogs": [{"resource": RESOURCE, "scopeLogs": [{"logRecords": records}]}]}


def scraping(port: int, folder: Path, **thresholds: float) -> Mapping[str, Any]:
    """Return a configuration of Prometheus with the shipped rules, whose windows are a twentieth."""
    rules = folder / "rules.yml"
    rules.write_text(render(Thresholds(**thresholds), scale=0.05))  # type: ignore[arg-type]  # numbers
    return {
        "global": {"scrape_interval": "250ms", "evaluation_interval": "250ms"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "stack", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }


def firing(server: PrometheusServer) -> dict[str, str]:
    """Return the summaries of the alerts that fire, by name."""
    found = server.api("alerts")["alerts"]
    return {each["labels"]["alertname"]: each["annotations"]["summary"] for each in found if each["state"] == "firing"}


def test_a_collector_that_cannot_send(tmp_path: Path) -> None:
    """Jaeger is not there: spans are lost, then the queue is full; and logs are refused for want of memory."""
    http, grpc, metrics, health = free_ports(4)
    config = yaml.safe_load((FILES / "otel-collector" / "config.yaml").read_text())
    config["receivers"]["otlp"]["protocols"] = {
        "http": {"endpoint": f"127.0.0.1:{http}"},
        "grpc": {"endpoint": f"127.0.0.1:{grpc}"},
    }
    config["extensions"]["health_check"]["endpoint"] = f"127.0.0.1:{health}"
    config["exporters"]["otlp_http/prometheus"]["endpoint"] = f"http://{NOBODY}/api/v1/otlp"
    # One exporter gives up at once, the other has a queue of one that is never sent.
    at_once = {"endpoint": NOBODY, "tls": {"insecure": True}, "retry_on_failure": {"enabled": False}}
    waiting = {"endpoint": NOBODY, "tls": {"insecure": True}, "sending_queue": {"queue_size": 1, "num_consumers": 1}}
    config["exporters"] |= {"otlp_grpc/jaeger": at_once, "otlp_grpc/waiting": waiting}
    config["processors"]["memory_limiter/none"] = {"check_interval": "100ms", "limit_mib": 2, "spike_limit_mib": 1}
    pipelines = config["service"]["pipelines"]
    pipelines["traces"]["exporters"].append("otlp_grpc/waiting")
    pipelines["logs"]["processors"][0] = "memory_limiter/none"
    config["service"]["telemetry"]["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"] = {
        "host": "127.0.0.1",
        "port": metrics,
    }
    with (
        running("otel-collector", config, metrics, tmp_path),
        prometheus_server(scraping(metrics, tmp_path)) as server,
    ):
        wanted = {"CollectorFailing", "CollectorQueueFull", "CollectorRefusing", "Watchdog"}

        def sent() -> bool:
            send(http, "traces", a_span())
            send(http, "logs", a_line())
            return set(firing(server)) >= wanted

        server.until(sent)
        told = firing(server)
    assert set(told) == wanted
    assert "of the queue of otlp_grpc/waiting" in told["CollectorQueueFull"]
    assert "items from otlp in" in told["CollectorRefusing"]


def test_a_jaeger_whose_disk_fills(tmp_path: Path) -> None:
    """It serves the free space of the folder that its configuration names."""
    query, query_grpc, health, otlp, otlp_http, metrics = free_ports(6)
    text = (FILES / "jaeger" / "config.yaml").read_text().replace("0.0.0.0", "127.0.0.1")
    ports = {"16686": query, "16685": query_grpc, "13133": health, "4317": otlp, "4318": otlp_http}
    for shipped, free in ports.items():
        text = text.replace(f":{shipped}", f":{free}")
    text = text.replace("/etc/jaeger", str(FILES / "jaeger")).replace("/tmp/jaeger", str(tmp_path / "jaeger"))
    config = yaml.safe_load(text)
    config["extensions"]["jaeger_storage"]["backends"]["traces"]["badger"]["maintenance_interval"] = "1s"
    config["service"]["telemetry"]["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"]["port"] = metrics
    with (
        running("jaeger", config, metrics, tmp_path),
        prometheus_server(scraping(metrics, tmp_path, traces_free=1e18)) as server,
    ):
        server.until(lambda: "TracesDiskFilling" in firing(server))
        told = firing(server)
    assert set(told) == {"TracesDiskFilling", "Watchdog"}
    assert "iB left on the disk" in told["TracesDiskFilling"]
