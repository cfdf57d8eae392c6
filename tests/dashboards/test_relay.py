"""`pellucid alerts relay`: what Alertmanager hears from Prometheus has the link to a trace that shows it."""

from __future__ import annotations

import json
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, quote, urlencode, urlsplit
from urllib.request import urlopen

import anyio
import anyio.to_thread
import pytest
import yaml

import pellucid_dashboards
from pellucid import Agent, DiscoveryProvider, Tool
from pellucid.cli import main
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_dashboards.relay.enriching import Relay
from pellucid_dashboards.relay.server import MOST_BYTES, RelayServer
from pellucid_exporters import configure
from pellucid_exporters.options import Otlp, Prometheus
from support.alertmanager_server import alertmanager_server, alerts_of, post, serving, webhook
from support.otlp_receiver import otlp_receiver
from support.processes import PATIENCE
from support.prometheus_server import prometheus_server, scrape_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pellucid_exporters import Telemetry
    from support.alertmanager_server import Webhook

CONFIG = Path(pellucid_dashboards.__file__).parent / "files" / "alertmanager"
TRACES = "http://jaeger.example"
FIRST, SLOWEST, FAILED, NEWEST = (digit * 32 for digit in "1234")


def exemplar(trace_id: str, value: float, at: float) -> dict[str, Any]:
    """Return an exemplar as Prometheus has them."""
    return {"labels": {"trace_id": trace_id, "span_id": "0" * 16}, "value": str(value), "timestamp": at}


class FakePrometheus(ThreadingHTTPServer):
    """Has four exemplars of any series.

    Attributes:
        asked: The selectors.
        broken: Answers with an error.
        cut: Bytes that its answers lack at the end.
    """

    asked: list[str]
    broken = False
    cut = 0


class _Answers(BaseHTTPRequestHandler):
    server: FakePrometheus

    def do_GET(self) -> None:
        self.server.asked.append(parse_qs(urlsplit(self.path).query)["query"][0])
        now = time.time()
        found = [
            {"seriesLabels": {}, "exemplars": [exemplar(FIRST, 0.1, now - 300), exemplar(SLOWEST, 9.0, now - 200)]},
            {"seriesLabels": {"error_type": "TimeoutError"}, "exemplars": [exemplar(FAILED, 2.0, now - 100)]},
            {"seriesLabels": {}, "exemplars": [exemplar(NEWEST, 0.2, now), exemplar("not a trace", 99, now)]},
        ]
        body = json.dumps({"status": "success", "data": found}).encode()
        self.send_response(503 if self.server.broken else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) - self.server.cut])

    def log_message(self, *line: Any) -> None:
        pass


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    """Return what answers as Prometheus does."""
    server = FakePrometheus(("127.0.0.1", 0), _Answers)
    server.asked = []
    with serving(server):
        yield server


@pytest.fixture
def hook() -> Iterator[Webhook]:
    """Return what stands for Alertmanager."""
    with webhook() as found:
        yield found


@pytest.fixture
def relay(prometheus: FakePrometheus, hook: Webhook) -> Iterator[str]:
    """Return the base URL of a relay between the two."""
    url = f"http://127.0.0.1:{prometheus.server_port}"
    made = Relay(prometheus=url, alertmanagers=[hook.url], traces=f"{TRACES}/", viewer="http://localhost:4380/")
    with serving(RelayServer(("127.0.0.1", 0), made)) as base:
        yield base


def relayed(relay: str, hook: Webhook, labels: Mapping[str, str], **annotations: str) -> Any:
    """Send one alert and return what arrives."""
    assert post(f"{relay}/api/v2/alerts", [{"labels": labels, "annotations": annotations}]) == 200
    arrived: Any = hook.until(bool)
    [alert] = arrived
    assert alert["labels"] == labels
    return alert


@pytest.mark.parametrize(
    ("name", "trace"),
    [("ToolHubSlow", SLOWEST), ("ToolHubFailing", FAILED), ("ToolHubDown", FAILED), ("ToolHubSilent", SLOWEST)],
)
def test_the_trace_shows_what_the_alert_says(relay: str, hook: Webhook, name: str, trace: str) -> None:
    """The trace of an alert is the slowest for slowness, and one that failed for failures; its words stay."""
    labels = {"alertname": name, "pellucid_provider_id": "hub"}
    alert = relayed(relay, hook, labels, summary="hub: 9 s")
    links = {"trace_url": f"{TRACES}/trace/{trace}", "run_url": f"http://localhost:4380/traces/{trace}"}
    assert alert["annotations"] == {"summary": "hub: 9 s", "trace_id": trace, **links}


@pytest.mark.parametrize(
    ("labels", "asked"),
    [
        (
            {"job": "shop", "pellucid_provider_id": 'a"b\\c', "severity": "page"},
            'pellucid_hub_listing_duration_seconds job="shop",pellucid_provider_id="a\\"b\\\\c"',
        ),
        (
            {"gen_ai_tool_name": "search", "pellucid_provider_id": "hub"},
            'gen_ai_execute_tool_duration_seconds gen_ai_tool_name="search",pellucid_provider_id="hub"',
        ),
        (
            {"gen_ai_agent_name": "main"},
            'gen_ai_invoke_agent_duration_seconds gen_ai_agent_name="main"',
        ),
        (
            {"gen_ai_request_model": "m"},
            'gen_ai_client_operation_duration_seconds gen_ai_request_model="m"',
        ),
    ],
)
def test_asks_about_what_the_alert_is_about(
    relay: str, hook: Webhook, prometheus: FakePrometheus, labels: dict[str, str], asked: str
) -> None:
    """The relay asks about the series of the alert's subject, and labels cannot break out of the query."""
    relayed(relay, hook, labels)
    name, _, matchers = asked.partition(" ")
    assert prometheus.asked == [f'{{__name__=~"{name}|{name}_bucket",{matchers}}}']


def test_an_alert_about_none_of_these_stays_as_it_is(relay: str, hook: Webhook, prometheus: FakePrometheus) -> None:
    """An alert on a missing target stays as it is, and Prometheus is not asked for a trace."""
    assert relayed(relay, hook, {"alertname": "TargetMissing", "job": "shop"})["annotations"] == {}
    assert prometheus.asked == []


@pytest.mark.parametrize(("broken", "cut"), [(True, 0), (False, 10)], ids=["answers 503", "ends in an answer"])
def test_alerts_arrive_without_prometheus(
    relay: str, hook: Webhook, prometheus: FakePrometheus, broken: bool, cut: int
) -> None:
    """Alerts arrive when Prometheus does not answer: a lookup that fails costs the link, not the alert."""
    prometheus.broken, prometheus.cut = broken, cut
    alert = relayed(relay, hook, {"alertname": "ToolHubSlow", "pellucid_provider_id": "hub"}, summary="slow")
    assert alert["annotations"] == {"summary": "slow"}


def test_says_that_no_alertmanager_took_them(prometheus: FakePrometheus) -> None:
    """Prometheus gets an error when no Alertmanager took the alerts, and so sends them again."""
    made = Relay(
        prometheus=f"http://127.0.0.1:{prometheus.server_port}", alertmanagers=["http://127.0.0.1:9"], traces=""
    )
    with serving(RelayServer(("127.0.0.1", 0), made)) as base, pytest.raises(HTTPError, match="502"):
        post(f"{base}/api/v2/alerts", [{"labels": {"alertname": "X"}}])


def test_one_alertmanager_of_two_is_enough(prometheus: FakePrometheus, hook: Webhook) -> None:
    """Each Alertmanager gets the alerts, and one that is away does not keep them from the other."""
    made = Relay(
        prometheus=f"http://127.0.0.1:{prometheus.server_port}",
        alertmanagers=["http://127.0.0.1:9", hook.url],
        traces=TRACES,
    )
    with serving(RelayServer(("127.0.0.1", 0), made)) as base:
        relayed(base, hook, {"alertname": "ToolHubSlow", "pellucid_provider_id": "hub"})


def test_what_is_no_alertmanager_does_not_keep_them_from_one(prometheus: FakePrometheus, hook: Webhook) -> None:
    """A service that is no Alertmanager, and does not answer with HTTP, does not keep the alerts from a real one."""

    class Exchange(StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"SSH-2.0-other\r\n")
            self.rfile.read()  # until the other side has had enough

    with ThreadingTCPServer(("127.0.0.1", 0), Exchange) as other, serving(other):
        made = Relay(
            prometheus=f"http://127.0.0.1:{prometheus.server_port}",
            alertmanagers=[f"http://127.0.0.1:{other.server_address[1]}", hook.url],
            traces=TRACES,
        )
        with serving(RelayServer(("127.0.0.1", 0), made)) as base:
            relayed(base, hook, {"alertname": "ToolHubSlow", "pellucid_provider_id": "hub"})


@pytest.mark.parametrize(
    "body", [b'{"alerts": "none"}', b"[1]", b'"text"', b"[" * 200_000], ids=lambda body: str(body[:9])
)
def test_refuses_what_are_not_alerts(relay: str, body: bytes) -> None:
    """A body that is no list of alerts is refused with 400."""
    for path in ("api/v2/alerts", "webhook"):
        with pytest.raises(HTTPError, match="400"):
            urlopen(f"{relay}/{path}", body, timeout=60)


def test_it_shows_runbooks(relay: str) -> None:
    """The relay serves runbooks at the addresses that alerts have, with their labels; an unknown page is 404."""
    with urlopen(f"{relay}/runbooks/ToolHubSlow?job=shop&pellucid_provider_id=c%26t", timeout=60) as answer:
        page = answer.read().decode()
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "discover_tools c&amp;t" in page
    silence = quote('{alertname="ToolHubSlow",job="shop",pellucid_provider_id="c&t"}', safe="")
    late = 'pellucid:discovery_over_objective:ratio_rate5m{job="shop", pellucid_provider_id="c&t"}'
    for href in (
        f"http://localhost:9093/#/silences/new?filter={silence}",
        "http://localhost:3000/d/pellucid-tool-hubs?var-service=shop&amp;var-provider=c%26t",
        "http://localhost:16686/search?service=shop&amp;lookback=1h&amp;limit=20&amp;operation=discover_tools+c%26t",
        f"http://localhost:9090/graph?{urlencode({'g0.expr': late})}&amp;",
    ):
        assert href in page
    with urlopen(f"{relay}/runbooks/", timeout=60) as answer:
        assert "href='ToolHubSlow'" in answer.read().decode()
    for path in ("/runbooks/Other", "/runbooks/%ff", "/runbooks"):
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{relay}{path}", timeout=60)


def answer_to(relay: str, *lines: str) -> bytes:
    """Return all bytes of the answer to a request."""
    address = urlsplit(relay)
    assert address.hostname is not None
    with socket.create_connection((address.hostname, address.port or 80), timeout=60) as client:
        client.sendall("\r\n".join(lines).encode("latin-1"))
        return client.makefile("rb").read()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 411),
        (["Transfer-Encoding: chunked"], 411),
        (["Content-Length: 2", "Transfer-Encoding: chunked"], 400),
        (["Content-Length: 2", "Content-Length: 3"], 400),
        *[
            ([f"Content-Length: {length}"], 400)
            for length in ("\N{SUPERSCRIPT TWO}", "-1", "+2", "1_0", "2, 2", "0x2", "")
        ],
        ([f"Content-Length: {MOST_BYTES + 1}"], 413),
        (["Content-Length: " + "9" * 5_000], 413),
        (["Content-Length: 2", "Content-Length: 2"], 200),
        (["Content-Length: 2 "], 200),
    ],
    ids=lambda value: str(value)[:60],
)
def test_the_length_of_a_request_is_a_number(relay: str, headers: list[str], status: int) -> None:
    """A request gets an error unless its length is one number that is not too large (RFC 9110, section 8.6)."""
    answer = answer_to(relay, "POST /api/v2/alerts HTTP/1.1", "Host: relay", *headers, "", "[]")
    assert int(answer.split()[1]) == status, answer


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("HEAD /runbooks/ToolHubSlow HTTP/1.0", 200),
        ("HEAD /runbooks/Other HTTP/1.0", 404),
        ("GET http://[ HTTP/1.0", 400),
    ],
)
def test_it_answers_checkers_of_links(relay: str, request_line: str, status: int) -> None:
    """The relay answers HEAD as GET without the page (RFC 9110, section 9.3.2), and any target of a request."""
    head, _, body = answer_to(relay, request_line, "", "").partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status, head
    assert not body or not request_line.startswith("HEAD")


def test_knows_its_paths(relay: str) -> None:
    """The relay answers its health check, and 404 to paths that it does not have."""
    with urlopen(f"{relay}/-/healthy", timeout=60) as answer:
        assert answer.status == 200
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"{relay}/metrics", timeout=60)
    for body in (b"[]", b"no JSON"):
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{relay}/v1/traces", body, timeout=60)


def test_prints_what_alertmanager_tells_it(relay: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The webhook shows state, severity, words and links, and nothing in them can write to the terminal."""
    labels = {"alertname": "ToolHubSlow", "severity": "page"}
    annotations = {"summary": "hub\x1b[31m: 9 s", "trace_url": "http://j/trace/1", "runbook_url": "http://r/#x"}
    alerts = [{"status": "firing", "labels": labels, "annotations": annotations}]
    assert post(f"{relay}/webhook", {"alerts": alerts}) == 200
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("[firing] page ToolHubSlow: hub")
    assert "\x1b" not in shown[0]
    assert shown[1:] == ["    trace: http://j/trace/1", "    runbook: http://r/#x"]


def test_prints_each_notification_in_one_write(relay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notifications that arrive at the same time do not run into each other."""
    written: list[str] = []

    class Stream(StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    monkeypatch.setattr("sys.stdout", Stream())
    alert = {"status": "resolved", "labels": {"alertname": "ToolHubDown"}, "annotations": {"summary": "over"}}
    assert post(f"{relay}/webhook", {"alerts": [alert, alert]}) == 200
    assert list(filter(None, written)) == ["[resolved] alert ToolHubDown: over\n" * 2]


@pytest.mark.parametrize(
    "option",
    [
        ("--prometheus", "ftp://x"),
        ("--prometheus", "http://["),
        ("--alertmanager", "9093"),
        ("--traces", "http://jaeger:166860"),
        ("--port", "1"),
        ("--port", "99999"),
    ],
)
def test_says_what_is_wrong_with_its_options(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """An option that is no URL, or a port that cannot be had, ends the command with 2 and is named."""
    host = ("--host", "192.0.2.1") if option[0] == "--port" else ()
    assert main(["alerts", "relay", *option, *host]) == 2
    said = capsys.readouterr().err
    assert option[1] in said
    assert "--" in said


def test_runs_until_it_is_interrupted() -> None:
    """`pellucid alerts relay` says where it listens, answers there, and ends without a traceback."""
    command = (sys.executable, "-c", "import sys; from pellucid.cli import main; sys.exit(main())")
    with subprocess.Popen(
        [*command, "alerts", "relay", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        [base] = re.findall(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        for _ in range(10):  # who leaves before the answer is no reason for a traceback
            with socket.create_connection(("127.0.0.1", urlsplit(base).port or 0)) as leaving:
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                leaving.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
        with urlopen(f"{base}/-/healthy", timeout=60) as answer:
            assert answer.status == 200
            answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 130
        assert process.stderr.read() == ""


@pytest.mark.anyio
@pytest.mark.integration
@pytest.mark.prometheus
async def test_a_page_has_a_trace_that_the_collector_has(tmp_path: Path) -> None:
    """An alert that arrives in two ways, directly and by the relay, is one, with a link to an exported trace."""
    ask = anyio.to_thread.run_sync
    with otlp_receiver("http/protobuf") as receiver, webhook() as hook:
        otlp = Otlp(endpoint=receiver.endpoint, metrics=False, logs=False)
        telemetry = configure("shop", otlp=otlp, prometheus=Prometheus(port=0), set_global=False)
        try:
            with anyio.fail_after(100), servers(tmp_path, telemetry, hook) as alertmanager:
                await run_on_a_slow_hub(telemetry)
                assert await ask(telemetry.flush, 20.0)
                told = await ask(hook.until, lambda told: "trace_url" in told["alerts"][0]["annotations"])
                [alert] = told["alerts"]
                assert alert["labels"]["pellucid_provider_id"] == "slow"
                trace_id = alert["annotations"]["trace_url"].removeprefix(f"{TRACES}/trace/")
                spans = {span.name for span in receiver.spans if span.trace_id.hex() == trace_id}
                assert "discover_tools slow" in spans
                assert len(await ask(alerts_of, alertmanager)) == 1
        finally:
            telemetry.shutdown()


@contextmanager
def servers(folder: Path, telemetry: Telemetry, hook: Webhook) -> Iterator[str]:
    """Run Prometheus, which tells Alertmanager directly and by a relay; the value is Alertmanager's URL."""
    with alertmanager_server(_configuration(folder, hook)) as alertmanager:
        relay = RelayServer(("127.0.0.1", 0), Relay(prometheus="", alertmanagers=[alertmanager], traces=TRACES))
        with serving(relay) as base:
            config = _prometheus(folder, telemetry, alertmanager, base)
            with prometheus_server(config, features=["exemplar-storage"]) as server:
                relay.relay = replace(relay.relay, prometheus=server.url)
                yield alertmanager


async def run_on_a_slow_hub(telemetry: Telemetry) -> None:
    """Run an agent on a hub that takes 50 ms."""

    async def search(arguments: dict[str, Any], ctx: object) -> str:
        return "nothing"

    provider = DiscoveryProvider(FakeHub([Tool(name="search", run=search)], latency=0.05), id="slow", objective=0.01)
    await Agent("main", model=ScriptedModel("done"), providers=[provider], telemetry=telemetry).run("go")
    await provider.aclose()


def _configuration(folder: Path, hook: Webhook) -> Path:
    """Return our Alertmanager configuration in a folder, with the URL of the test's webhook and without waiting."""
    config = yaml.safe_load((CONFIG / "alertmanager.yml").read_text())
    for receiver in config["receivers"]:
        receiver["webhook_configs"] = [{"url": hook.url}]
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "1s", "repeat_interval": "2s"}
    (folder / "pellucid.tmpl").write_text((CONFIG / "pellucid.tmpl").read_text())
    file = folder / "alertmanager.yml"
    file.write_text(yaml.safe_dump(config))
    return file


def _prometheus(folder: Path, telemetry: Telemetry, *alertmanagers: str) -> dict[str, Any]:
    rule = {
        "alert": "ToolHubSlow",
        "expr": "sum by (job, pellucid_provider_id) (pellucid_tool_discovery_duration_seconds_count) > 0",
        "labels": {"severity": "page"},
        "annotations": {"summary": "{{ $labels.pellucid_provider_id }} is slow"},
    }
    rules = folder / "rules.yml"
    rules.write_text(json.dumps({"groups": [{"name": "test", "rules": [rule]}]}))
    assert telemetry.prometheus_url is not None
    targets = [urlsplit(url).netloc for url in alertmanagers]
    return {
        "global": {"evaluation_interval": "250ms"},
        "rule_files": [str(rules)],
        "scrape_configs": [scrape_config(telemetry.prometheus_url)],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": targets}]}]},
    }
