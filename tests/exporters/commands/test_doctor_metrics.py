"""`pellucid doctor` scrapes an application and asks a Prometheus about it."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trustme

from pellucid import Agent, DiscoveryProvider
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.options import Prometheus
from support.doctor import Doctor, doctor
from support.hubs import named
from support.prometheus_server import PrometheusServer, prometheus_server, scrape_config
from support.vendor_server import Answer, answer_json, vendor_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pellucid_exporters import Telemetry

__all__ = ["doctor"]

TOKEN = "t0ken-of-the-scraper"
EXPOSED = "# TYPE up gauge\nup 1\n# EOF\n"
RULES = {
    "groups": [
        {
            "name": "pellucid",
            "rules": [
                {
                    "alert": "ToolHubSilent",
                    "expr": "pellucid_tool_discovery_inflight_age_seconds >= 0",
                    "labels": {"severity": "page"},
                },
                {"record": "pellucid:discovery:count", "expr": "pellucid_tool_discovery_duration_seconds_count"},
            ],
        }
    ]
}

SENT = {"version": "3.8.0", "activeTargets": [], "result": [{"metric": {"job": "shop"}, "value": [0, "1"]}]}
"""Answer of a Prometheus to any question: no targets, and series of one job."""


@contextmanager
def application(*, runs: int = 1, options: Prometheus | None = None) -> Iterator[Telemetry]:
    """Run an agent on a hub, and serve its metrics."""
    telemetry = configure("shop", prometheus=options or Prometheus(port=0), set_global=False)
    try:
        for _ in range(runs):
            provider = DiscoveryProvider(FakeHub([*named("search")]), id="hub")
            Agent("main", model=ScriptedModel("done"), providers=[provider], telemetry=telemetry).run_sync("go")
        yield telemetry
    finally:
        telemetry.shutdown()


def url(telemetry: Telemetry) -> str:
    """Return the address of its metrics."""
    assert telemetry.prometheus_url is not None
    return telemetry.prometheus_url


def test_an_application_that_has_run_an_agent_is_fine(doctor: Doctor) -> None:
    """The doctor finds nothing wrong with an application that has run an agent."""
    with application() as telemetry:
        report = doctor("--metrics", url(telemetry))
    assert report.code == 0, report.text
    said = "\n".join(report.about("/metrics", "ok"))
    assert all(word in said for word in ("OpenMetrics", "families have samples", "exemplars", "protobuf")), report.text


@pytest.mark.parametrize("place", ["{url}/", "/metrics/"])
def test_a_redirect_within_the_server_is_followed(doctor: Doctor, place: str) -> None:
    """The doctor follows a redirect within the server, as Prometheus does."""
    with application() as telemetry, vendor_server() as server:
        page = httpx.get(url(telemetry), headers={"Accept": "application/openmetrics-text;version=1.0.0"})
        moved = Answer(status=307, headers={"Location": place.format(url=f"{server.url}/metrics")})
        exposed = Answer(headers={"content-type": page.headers["content-type"]}, body=[page.content])
        server.always(lambda asked: exposed if asked.path.endswith("/") else moved)
        report = doctor("--metrics", f"{server.url}/metrics")
    assert report.code == 0, report.text


def test_redirects_without_an_end_are_named(doctor: Doctor) -> None:
    """Redirects without an end are named after a few of them."""
    with vendor_server() as server:
        server.always(lambda asked: Answer(status=307, headers={"Location": "/metrics"}))
        report = doctor("--metrics", f"{server.url}/metrics")
    assert "answered 307" in report.about("/metrics", "wrong")[0], report.text


def test_an_application_without_runs_is_named(doctor: Doctor) -> None:
    """An application without runs is named, as it has none of Pellucid's families."""
    with application(runs=0) as telemetry:
        report = doctor("--metrics", url(telemetry))
    assert "none of Pellucid's families" in report.about("/metrics", "wrong")[0]


def test_missing_exemplars_are_named(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing exemplars are named, if a sampler records no spans."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with application() as telemetry:
        report = doctor("--metrics", url(telemetry))
    assert "no exemplars" in report.about("/metrics", "wrong")[0]


def test_a_token_is_asked_for_and_used(doctor: Doctor, tmp_path: Path) -> None:
    """A token is used and never printed; without it the option is named."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with application(options=Prometheus(port=0, bearer_token=TOKEN)) as telemetry:
        without = doctor("--metrics", url(telemetry))
        given = doctor("--metrics", url(telemetry), "--token-file", str(file))
    assert "answered 401" in without.about("/metrics", "wrong")[0]
    assert "--token-file" in without.text
    assert given.code == 0, given.text
    assert TOKEN not in given.text


def test_https_is_asked_with_its_authority(doctor: Doctor, tmp_path: Path) -> None:
    """HTTPS is asked with the authority of `--ca`; without it the option is named."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    ca, chain = tmp_path / "ca.pem", tmp_path / "chain.pem"
    authority.cert_pem.write_to_path(str(ca))
    certificate.private_key_and_cert_chain_pem.write_to_path(str(chain))
    with application(options=Prometheus(port=0, certificate=chain)) as telemetry:
        without = doctor("--metrics", url(telemetry))
        given = doctor("--metrics", url(telemetry), "--ca", str(ca))
    assert "--ca FILE" in without.about("/metrics", "wrong")[0]
    assert given.code == 0, given.text


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(status=404), "answered 404"),
        (Answer(status=302, headers={"Location": "http://elsewhere.example/"}), "answered 302"),
        (Answer(headers={"content-type": "text/plain"}, body=[EXPOSED.encode()]), "to a request for OpenMetrics"),
        (Answer(headers={"content-type": "application/openmetrics-text"}, body=[b"{"]), "not valid OpenMetrics"),
        (
            Answer(headers={"content-type": "application/openmetrics-text"}, body=[EXPOSED.encode()]),
            "none of Pellucid's families",
        ),
    ],
)
def test_what_is_not_pellucids_is_named(doctor: Doctor, answer: Answer, words: str) -> None:
    """Servers that are not Pellucid's are named."""
    with vendor_server() as server:
        server.always(lambda asked: answer)
        report = doctor("--metrics", f"{server.url}/metrics")
    assert words in report.about("/metrics", "wrong")[0], report.text


@contextmanager
def dripping_server() -> Iterator[str]:
    """Answer byte by byte, without an end: no single read ever takes too long."""
    over = threading.Event()

    def drip() -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):  # the client goes away
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n\r\n")
            while not over.wait(0.02):
                connection.sendall(b"#")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        over.set()
        thread.join(60)


def test_an_answer_without_an_end_ends_the_check(doctor: Doctor) -> None:
    """An answer without an end is given up at the timeout and named, though the server keeps it alive."""
    with dripping_server() as address:
        report = doctor("--metrics", address, timeout=1.0)
    assert "came to no end" in report.about("metrics", "wrong")[0]


@contextmanager
def observed(tmp_path: Path, telemetry: Telemetry, **more: Any) -> Iterator[PrometheusServer]:
    """Run a Prometheus with our rules that has scraped the application."""
    features = more.pop("features", ["exemplar-storage", "native-histograms"])
    rules = tmp_path / "rules.yml"
    rules.write_text(str(RULES).replace("'", '"'))
    config = {
        "global": {"evaluation_interval": "100ms"},
        "scrape_configs": [scrape_config(url(telemetry))],
        "rule_files": [str(rules)],
        **more,
    }
    with prometheus_server(config, features=features) as server:
        server.until(lambda: server.query("pellucid_tool_discovery_inflight_age_seconds"))
        server.until(lambda: server.query("ALERTS") or not more.get("rule_files", True))
        yield server


@pytest.mark.prometheus
def test_a_prometheus_that_has_everything_is_fine(doctor: Doctor, tmp_path: Path) -> None:
    """The doctor finds nothing wrong with a Prometheus that has all, and mentions the alerts that fire."""
    with application() as telemetry, observed(tmp_path, telemetry) as server:
        report = doctor("--metrics", url(telemetry), "--prometheus", server.url)
    assert report.code == 0, report.text
    said = "\n".join(report.about("Prometheus"))
    for words in (
        "is version",
        "is up",
        "series of pellucid",
        "native histograms arrive",
        "keeps exemplars",
        "1 recording rules and 1 alerts",
        "firing now: ToolHubSilent",
        "no Alertmanager",
    ):
        assert words in said, report.text


@pytest.mark.prometheus
def test_what_a_prometheus_lacks_is_named(doctor: Doctor, tmp_path: Path) -> None:
    """A Prometheus without exemplar storage or rules is named; classic buckets suffice."""
    with (
        application() as telemetry,
        observed(tmp_path, telemetry, features=[], rule_files=[]) as server,
    ):
        report = doctor("--prometheus", server.url)
    lines = report.about("Prometheus", "wrong")
    assert len(lines) == 2, report.text
    assert "--enable-feature=exemplar-storage" in lines[0]
    assert "pellucid rules export" in lines[1]
    assert any("classic buckets only" in line for line in report.about("Prometheus", "note"))


@pytest.mark.prometheus
def test_a_target_that_is_down_or_missing_is_named(doctor: Doctor, tmp_path: Path) -> None:
    """A target that is down or missing is named with Prometheus' own error, and so are missing series."""
    with application() as telemetry:
        gone = url(telemetry)
    config = {"scrape_configs": [scrape_config(gone)]}
    with prometheus_server(config) as server:
        server.until(lambda: server.value('up{job="pellucid"}') == 0)
        down = doctor("--prometheus", server.url)
        other = doctor("--prometheus", server.url, "--metrics", "http://127.0.0.1:1/metrics")
    assert "connection refused" in down.about("Prometheus", "wrong")[0]
    assert "none of Pellucid's series" in down.about("Prometheus", "wrong")[1]
    assert "none of its 1 targets is 127.0.0.1:1" in other.about("Prometheus", "wrong")[0]


@pytest.mark.prometheus
def test_a_target_goes_by_any_name_of_this_machine(doctor: Doctor) -> None:
    """A target is found by its port when Prometheus has another name for the machine."""
    with application() as telemetry:
        target = url(telemetry)
        with prometheus_server({"scrape_configs": [scrape_config(target)]}) as server:
            server.until(lambda: server.query("pellucid_tool_discovery_inflight_age_seconds"))
            report = doctor("--prometheus", server.url, "--metrics", target.replace("127.0.0.1", "localhost"))
    assert f"target {target} is up" in report.about("Prometheus", "ok")[1], report.text


@pytest.mark.prometheus
def test_targets_are_found_by_any_name_of_their_job(doctor: Doctor, tmp_path: Path) -> None:
    """The targets of a job with Pellucid's series are asked for without `--metrics`, also after the job has gone."""
    with application() as telemetry:
        job = {**scrape_config(url(telemetry)), "job_name": "shop"}
        with observed(tmp_path, telemetry, scrape_configs=[job]) as server:
            up = doctor("--prometheus", server.url)
            telemetry.shutdown()
            server.until(lambda: server.value('up{job="shop"}') == 0)
            down = doctor("--prometheus", server.url)
    assert up.code == 0, up.text
    assert any("is up" in line for line in up.about("Prometheus", "ok")), up.text
    assert "is down" in down.about("Prometheus", "wrong")[0]


def test_metrics_that_are_sent_need_no_target(doctor: Doctor) -> None:
    """A job with series and no target is noted, and not wrong: its metrics may have come by OTLP."""
    with vendor_server() as server:
        server.always(lambda asked: answer_json({"status": "success", "data": SENT}))
        report = doctor("--prometheus", server.url)
    assert not any("targets" in line for line in report.about("Prometheus", "wrong")), report.text
    assert "by OTLP" in report.about("Prometheus", "note")[0]


def test_what_is_no_prometheus_is_named(doctor: Doctor) -> None:
    """A server that is no Prometheus, or that wants credentials, is named."""
    with vendor_server() as server:
        server.always(lambda asked: answer_json({"status": "success", "data": []}))
        report = doctor("--prometheus", server.url)
        server.always(lambda asked: Answer(status=401))
        refused = doctor("--prometheus", server.url)
    assert "otherwise than a Prometheus" in report.about("Prometheus", "wrong")[0]
    assert "answered 401" in refused.about("Prometheus", "wrong")[0]
