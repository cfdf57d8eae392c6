"""Transport of OTLP to a collector: encryption, certificates, compression, and variables of the environment."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import certifi
import pytest
import trustme

from pellucid import ConfigError, semconv
from pellucid_exporters import configure
from pellucid_exporters.options import Otlp, resolve_otlp
from support.otlp_receiver import Receiver, Tls, otlp_receiver

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid_exporters.options import OtlpCompression, OtlpProtocol

PROTOCOLS = ("http/protobuf", "grpc")


class Papers:
    """Certificates of an authority, as files."""

    def __init__(self, folder: Path) -> None:
        authority, other = trustme.CA(), trustme.CA()
        server, client = authority.issue_cert("localhost"), other.issue_cert("client")
        self.ca, self.certificate, self.key = folder / "ca.pem", folder / "client.pem", folder / "client-key.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        client.private_key_pem.write_to_path(str(self.key))
        client.cert_chain_pems[0].write_to_path(str(self.certificate))
        chain, key = server.cert_chain_pems[0].bytes(), server.private_key_pem.bytes()
        self.open = Tls(chain, key)
        self.strict = Tls(chain, key, other.cert_pem.bytes())


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    """Make certificates."""
    return Papers(tmp_path)


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> OtlpProtocol:
    """Return each protocol."""
    found: OtlpProtocol = request.param
    return found


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let failures be silent, and the environment name authorities that know nothing of these collectors."""
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())


def arrives(options: Otlp | None, receiver: Receiver) -> bool:
    """Send one span, and return whether it arrived."""
    telemetry = configure("shop", otlp=options, set_global=False)
    try:
        telemetry.tracer_provider.get_tracer(semconv.SCOPE).start_span("sent").end()
        telemetry.flush(4.0)
        return [span.name for span in receiver.spans] == ["sent"]
    finally:
        telemetry.shutdown(1.0)


def test_encryption(papers: Papers, protocol: OtlpProtocol) -> None:
    """Spans arrive over TLS with the authority of the collector's certificate, and not without it."""
    with otlp_receiver(protocol, tls=papers.open) as receiver:
        options = {"endpoint": receiver.endpoint, "protocol": protocol, "timeout": 1.0, "metrics": False}
        assert not arrives(Otlp(**options), receiver)  # type: ignore[arg-type]  # words of several types
        assert arrives(Otlp(**options, certificate=papers.ca), receiver)  # type: ignore[arg-type]  # the same


def test_client_certificates(papers: Papers, protocol: OtlpProtocol) -> None:
    """A collector that asks for a certificate gets it."""
    with otlp_receiver(protocol, tls=papers.strict) as receiver:
        options = {"endpoint": receiver.endpoint, "protocol": protocol, "timeout": 1.0, "metrics": False}
        assert not arrives(Otlp(**options, certificate=papers.ca), receiver)  # type: ignore[arg-type]  # words of several types
        shown = Otlp(
            **options,  # type: ignore[arg-type]  # the same
            certificate=papers.ca,
            client_certificate=papers.certificate,
            client_key=papers.key,
        )
        assert arrives(shown, receiver)


@pytest.mark.parametrize("compression", ["gzip", "deflate", "none"])
def test_compression(protocol: OtlpProtocol, compression: OtlpCompression) -> None:
    """Spans arrive with each compression, but gRPC refuses deflate."""
    if (protocol, compression) == ("grpc", "deflate"):
        with pytest.raises(ConfigError, match="use gzip or none"):
            configure("shop", otlp=Otlp(protocol=protocol, compression=compression), set_global=False)
        return
    with otlp_receiver(protocol) as receiver:
        assert arrives(Otlp(endpoint=receiver.endpoint, protocol=protocol, compression=compression), receiver)
        if protocol == "http/protobuf":
            assert receiver.headers.get("content-encoding", "none") == compression


def test_the_environment_says_everything(
    papers: Papers, protocol: OtlpProtocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endpoint, protocol, headers, compression, certificates and timeout are read from the standard variables."""
    with otlp_receiver(protocol, tls=papers.strict) as receiver:
        for name, value in {
            "ENDPOINT": receiver.endpoint,
            "PROTOCOL": protocol,
            "HEADERS": "x-tenant=acme",
            "COMPRESSION": "gzip",
            "TIMEOUT": "2",
            "CERTIFICATE": papers.ca,
            "CLIENT_CERTIFICATE": papers.certificate,
            "CLIENT_KEY": papers.key,
        }.items():
            monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", str(value))
        assert arrives(resolve_otlp(None), receiver)
        assert receiver.headers["x-tenant"] == "acme"
        if protocol == "http/protobuf":
            assert receiver.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"certificate": "missing.pem"}, "no such file"),
        ({"client_key": __file__}, "give both, or none"),
        ({"client_certificate": __file__, "client_key": "missing.pem"}, "no such file"),
        ({"compression": "zstd"}, "use one of none, gzip, deflate"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str], complaint: str) -> None:
    """A wrong certificate, key or compression raises ConfigError when the options are made."""
    with pytest.raises(ConfigError, match=complaint):
        Otlp(**options)  # type: ignore[arg-type]  # words of several types
