"""Access to `/metrics`, its formats, and the servers that serve it."""

from __future__ import annotations

import gzip
import logging
import socket
import ssl
import threading
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import anyio
import httpx2
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app
from starlette.applications import Starlette
from starlette.routing import Mount

from pellucid import Agent, TelemetryOptions
from pellucid.errors import ConfigError
from pellucid.testing import ScriptedModel
from pellucid_exporters import MetricsApp, PrometheusReader, configure
from pellucid_exporters.options import Prometheus, Settings
from pellucid_exporters.prometheus.exposition import negotiate
from support.metrics_proto import PROTOBUF, decode
from support.openmetrics import OPENMETRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pellucid_exporters.telemetry import Telemetry as Configured

TOKEN = "a-token-that-nobody-guesses"


@contextmanager
def serving(**options: Any) -> Iterator[Configured]:
    """A pipeline that serves `/metrics` on a free port."""
    telemetry = configure("shop", prometheus=Prometheus(**{"port": 0, **options}), set_global=False)
    try:
        yield telemetry
    finally:
        telemetry.shutdown()


def get(url: str | None, context: ssl.SSLContext | None = None, **headers: str) -> bytes:
    """Return the body of an answer."""
    assert url is not None
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    with urlopen(Request(url, headers=named), timeout=60, context=context) as answer:
        body: bytes = answer.read()
        return body


PROTO = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily"


TEXT, OPEN = "text/plain; version=0.0.4; charset=utf-8", "application/openmetrics-text; version=1.0.0; charset=utf-8"
DELIMITED = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, TEXT),
        ("", TEXT),
        ("*/*", TEXT),
        ("application/json", TEXT),
        ("text/plain;version=1.0.0;escaping=dots", "text/plain; version=1.0.0; charset=utf-8; escaping=dots"),
        ("application/openmetrics-text", OPEN),
        ("application/openmetrics-text;version=0.0.1", OPEN),
        ("application/openmetrics-text;version=7.0.0", TEXT),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.4", OPEN),
        ("application/openmetrics-text;q=0.3,text/plain;q=0.4", TEXT),
        ("text/plain, application/openmetrics-text", OPEN),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;q=much", TEXT),
        (PROTOBUF, DELIMITED),
        (f"{PROTO};encoding=text, text/plain;q=0.1", TEXT),
        (f"{PROTO};encoding=delimited;q=0.1, {OPENMETRICS};q=0.2", OPEN),
        (f'{PROTO.upper()};q=1;encoding="delimited"', TEXT),
        (
            'Application/Vnd.Google.Protobuf; proto="io.prometheus.client.MetricFamily"; encoding=delimited',
            DELIMITED,
        ),
    ],
)  # fmt: skip
def test_negotiation(accept: str | None, expected: str) -> None:
    """A client gets the format with the highest q, the richest of equals, or plain text if it asks for none."""
    assert negotiate(accept).content_type == expected


def test_answers_are_compressed_on_request() -> None:
    """An answer is compressed for a client that accepts gzip, and not for one that refuses it."""
    with serving() as telemetry:
        assert b"target_info" in gzip.decompress(get(telemetry.prometheus_url, Accept_Encoding="deflate, gzip;q=0.5"))
        assert b"target_info" in get(telemetry.prometheus_url, Accept_Encoding="gzip;q=0, deflate")


def test_a_selection_by_name() -> None:
    """`name[]` selects series, as with `prometheus_client`."""
    with serving() as telemetry:
        meter = telemetry.meter_provider.get_meter("app")
        meter.create_counter("one").add(1)
        meter.create_counter("two").add(1)
        text = get(f"{telemetry.prometheus_url}?name[]=two_total&name[]=nothing")
        assert [line for line in text.decode().splitlines() if not line.startswith("#")] == ["two_total 1.0"]


def test_only_get_is_allowed() -> None:
    """Methods other than GET are refused, with the allowed ones."""
    with serving() as telemetry:
        parts = urlsplit(str(telemetry.prometheus_url))
        connection = HTTPConnection(parts.netloc, timeout=10)
        connection.request("POST", "/metrics", body=b"x")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Allow"], answer.read()) == (405, "GET", b"")
        connection.close()


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}", "Bearer \xfc"],
)
def test_without_the_token_nobody_gets_anything(authorization: str | None) -> None:
    """A request without the token gets 401 with the scheme to use, and no metric."""
    with serving(bearer_token=TOKEN) as telemetry:
        request = Request(str(telemetry.prometheus_url))
        if authorization is not None:
            request.add_header("Authorization", authorization)
        with pytest.raises(HTTPError) as refused:
            urlopen(request, timeout=60)
        with refused.value as answer:
            assert (answer.code, answer.headers["WWW-Authenticate"], answer.read()) == (401, "Bearer", b"")
        assert b"target_info" in get(telemetry.prometheus_url, Authorization=f"bearer {TOKEN}")


def test_the_token_is_not_shown() -> None:
    """The token is in no representation of options, and in no error."""
    assert TOKEN not in repr(Settings(service_name="shop", prometheus=Prometheus(bearer_token=TOKEN)))
    with pytest.raises(ConfigError) as refused:
        Prometheus(bearer_token=f"{TOKEN} {TOKEN}")
    assert TOKEN not in str(refused.value)


class Files:
    """An authority, a certificate of the server's, and what clients need."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        issued = self.authority.issue_cert("127.0.0.1")
        self.certificate, self.key, self.ca = directory / "cert.pem", directory / "key.pem", directory / "ca.pem"
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(self.key))
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.both = directory / "both.pem"
        self.both.write_bytes(issued.private_key_and_cert_chain_pem.bytes())

    def client(self, *, issuer: trustme.CA | None = None) -> ssl.SSLContext:
        """Return what a client trusts, with a certificate of its own on request."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if issuer is not None:
            issuer.issue_cert("scraper@example.org").configure_cert(context)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Certificates."""
    return Files(tmp_path)


def test_https(files: Files) -> None:
    """`/metrics` is served over TLS with a certificate, together with a token, to clients that trust it."""
    with serving(certificate=files.certificate, key=str(files.key), bearer_token=TOKEN) as telemetry:
        url = telemetry.prometheus_url
        assert url is not None
        assert url.startswith("https://")
        body = get(url, files.client(), Accept=PROTOBUF, Authorization=f"Bearer {TOKEN}")
        assert "target_info" in decode(body)
        with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
            get(url, ssl.create_default_context())
        with pytest.raises((URLError, ConnectionError)):
            get(url.replace("https", "http"))
    with serving(certificate=files.both) as telemetry:
        assert b"target_info" in get(telemetry.prometheus_url, files.client())


def test_only_known_clients(files: Files) -> None:
    """A server with an authority for clients serves only clients with a certificate of it."""
    with serving(certificate=files.certificate, key=files.key, client_ca=files.ca) as telemetry:
        for stranger in (files.client(), files.client(issuer=trustme.CA())):
            with pytest.raises((URLError, ssl.SSLError, ConnectionError)):
                get(telemetry.prometheus_url, stranger)
        assert b"target_info" in get(telemetry.prometheus_url, files.client(issuer=files.authority))


def test_a_client_that_says_nothing_keeps_nobody_waiting(files: Files) -> None:
    """A connection without a handshake, and one without a request, do not keep others from being served."""
    with serving(certificate=files.certificate, key=files.key) as telemetry:
        parts = urlsplit(str(telemetry.prometheus_url))
        address = (str(parts.hostname), int(parts.port or 0))
        with (
            socket.create_connection(address),
            socket.create_connection(address) as second,
            files.client().wrap_socket(second, server_hostname="127.0.0.1"),
        ):
            assert b"target_info" in get(telemetry.prometheus_url, files.client())


def test_certificates_are_refused_early(files: Files, tmp_path: Path) -> None:
    """Wrong certificates, keys and ports raise ConfigError that names the option, before a port is opened."""
    missing, broken = tmp_path / "missing.pem", tmp_path / "broken.pem"
    broken.write_text("not a certificate")
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a password")
        )
    )
    with pytest.raises(ConfigError, match=r"certificate='.*missing.pem'\): there is no such file"):
        Prometheus(certificate=missing)
    with pytest.raises(ConfigError, match=r"key='.*missing.pem'\): there is no such file"):
        Prometheus(certificate=files.certificate, key=missing)
    with pytest.raises(ConfigError, match=r"client_ca='.*missing.pem'\): there is no such file"):
        Prometheus(certificate=files.both, client_ca=missing)
    for options in ({"key": files.key}, {"client_ca": files.ca}):
        with pytest.raises(ConfigError, match="HTTPS needs a certificate of this server"):
            Prometheus(**options)  # type: ignore[arg-type]  # a mapping has no names
    with pytest.raises(ConfigError, match="nothing is served"):
        Prometheus(port=None, certificate=files.both)
    for port in (range(0), range(65535, 65537), -1):
        with pytest.raises(ConfigError, match="between 0 and 65535"):
            Prometheus(port=port)
    before = set(threading.enumerate())
    for options, message in (
        ({"certificate": files.certificate}, "cannot be used"),  # without its key
        ({"certificate": broken, "key": files.key}, "cannot be used"),
        ({"certificate": files.certificate, "key": locked}, "cannot be used"),
        ({"certificate": files.both, "client_ca": broken}, "client_ca='.*broken.pem'"),
    ):
        with pytest.raises(ConfigError, match=message), serving(**options):
            pass
    assert set(threading.enumerate()) <= before


def test_the_first_free_port_of_a_range() -> None:
    """Processes that are given the same range get a port each, and an error that names the range when it is full."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        ports = range(first, min(first + 20, 65536))
        with serving(port=ports) as one, serving(port=ports) as two:
            found = [urlsplit(str(telemetry.prometheus_url)).port for telemetry in (one, two)]
            assert all(port in ports for port in found)
            assert len({first, *found}) == 3
        with (
            pytest.raises(ConfigError, match=f"{first} failed: .*; stop what uses port {first}"),
            serving(port=range(first, first + 1)),
        ):
            pass


def own_provider() -> tuple[PrometheusReader, MeterProvider]:
    """A provider that an application made for itself, with a reader of ours."""
    reader = PrometheusReader()
    return reader, MeterProvider(reader.all, resource=Resource({"service.name": "theirs"}), shutdown_on_exit=False)


@pytest.mark.anyio
@pytest.mark.parametrize("accept", [PROTOBUF, OPENMETRICS, "text/plain"])
async def test_an_application_with_its_own_provider_and_server(accept: str) -> None:
    """An ASGI server of an application serves the metrics of its own provider and registry, in each format."""
    reader, provider = own_provider()
    registry = CollectorRegistry()
    Gauge("app_level", "Level", registry=registry).set(3)
    agent = Agent("main", model=ScriptedModel("done"), telemetry=TelemetryOptions(meter_provider=provider))
    await agent.run("go")
    metrics = MetricsApp(reader, registry=registry, bearer_token=TOKEN)
    app = Starlette(routes=[Mount("/metrics", app=metrics.asgi)])
    transport = httpx2.ASGITransport(app)
    with anyio.fail_after(60):
        async with httpx2.AsyncClient(transport=transport, base_url="http://app") as client:
            refused = await client.get("/metrics/")
            assert (refused.status_code, refused.content) == (401, b"")
            headers = {"Accept": accept, "Authorization": f"Bearer {TOKEN}"}
            answer = await client.get("/metrics/", headers=headers)
    if accept == PROTOBUF:
        families = decode(answer.content)
        assert families["app_level"].metric[0].gauge.value == 3
        assert len(families["gen_ai_invoke_agent_duration_seconds"].metric[0].histogram.positive_span) == 1
        assert "target_info" in families
    else:
        assert 'target_info{service_name="theirs"} 1.0' in answer.text
        assert "app_level 3.0" in answer.text
        assert "gen_ai_invoke_agent_duration_seconds_bucket" in answer.text


@pytest.mark.anyio
async def test_the_asgi_app_answers_http_only() -> None:
    """The ASGI app refuses anything but HTTP."""

    async def unused(*_: Any) -> Any:
        raise AssertionError

    with pytest.raises(ValueError, match="answers HTTP, not 'websocket'"):
        await MetricsApp(PrometheusReader()).asgi({"type": "websocket"}, unused, unused)


def call_wsgi(app: Callable[..., Any], accept: str) -> bytes:
    """Call a WSGI application as strictly as the standard library checks."""
    environ: dict[str, Any] = {"HTTP_ACCEPT": accept, "QUERY_STRING": ""}
    setup_testing_defaults(environ)
    answer = validator(app)(environ, lambda *_: lambda _: None)
    try:
        return b"".join(answer)
    finally:
        answer.close()  # type: ignore[attr-defined]  # the validator's iterator has it


def test_the_wsgi_app_of_a_configuration() -> None:
    """A configuration without a port gives `Telemetry.metrics_app` for WSGI, which also serves the registry."""
    registry = CollectorRegistry()
    Gauge("app_level", "Level", registry=registry).set(3)
    with serving(port=None, registry=registry) as telemetry:
        assert telemetry.prometheus_url is None
        assert telemetry.metrics_app is not None
        telemetry.meter_provider.get_meter("app").create_counter("jobs").add(1)
        assert {"target_info", "jobs_total", "app_level"} <= set(
            decode(call_wsgi(telemetry.metrics_app.wsgi, PROTOBUF))
        )
        # The registry itself, as the application may already serve it, has the same without native histograms.
        assert b"jobs_total 1.0" in call_wsgi(make_wsgi_app(registry), OPENMETRICS)
    assert configure("shop", set_global=False).metrics_app is None


def test_a_reader_that_no_provider_has_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """A reader that was not given to a provider serves nothing and says why in the log."""
    with caplog.at_level(logging.WARNING):
        assert MetricsApp(PrometheusReader()).answer("GET", "", {}).body == b""
    assert "until it is registered on a MeterProvider" in caplog.text
