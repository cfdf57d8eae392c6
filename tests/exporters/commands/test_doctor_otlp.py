"""`pellucid doctor` asks collectors, real ones and broken ones, and says what they answered."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import trustme

from support.doctor import Doctor, doctor
from support.otlp_receiver import Tls, attributes_of, otlp_receiver
from support.ports import free_port
from support.rotel_agent import agent_before
from support.vendor_server import answer_json, vendor_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["doctor"]

HTTP, GRPC = "http/protobuf", "grpc"
OTHER = {HTTP: GRPC, GRPC: HTTP}
NAME = "pellucid.doctor.test"


@pytest.fixture(params=[HTTP, GRPC])
def protocol(request: pytest.FixtureRequest) -> str:
    """Both protocols."""
    found: str = request.param
    return found


class Papers:
    """Certificates of an authority, and its file."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        server = authority.issue_cert("localhost")
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        self.open = Tls(server.cert_chain_pems[0].bytes(), server.private_key_pem.bytes())
        self.strict = Tls(self.open.certificate, self.open.key, authority.cert_pem.bytes())


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    """Make certificates."""
    return Papers(tmp_path)


@contextmanager
def hanging_server() -> Iterator[int]:
    """Listen, take connections and never answer; return the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        yield port


def assert_all_wrong(lines: list[str], *words: str) -> None:
    """Each signal has one line that says so."""
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("wrong")
        assert all(word in line for word in words), line


def test_a_collector_that_takes_everything_is_fine(doctor: Doctor, protocol: str) -> None:
    """One span, one metric and one log record arrive, under names that nobody takes for the application's."""
    with otlp_receiver(protocol) as receiver:
        report = doctor("--otlp", receiver.endpoint, "--protocol", protocol)
    assert report.code == 0, report.text
    assert len(report.about("OTLP", "ok")) == 3
    assert receiver.faults == []
    assert [span.name for span in receiver.spans] == [NAME]
    assert [metric.name for metric in receiver.metrics] == [NAME]
    assert [record.body.string_value for record in receiver.logs] == [NAME]
    assert {resource["service.name"] for resource in receiver.resources} == {"pellucid-doctor"}


def test_an_agent_that_is_not_ours_is_fine(doctor: Doctor, tmp_path: Path) -> None:
    """A real OTLP agent takes all three; which protocol each of its ports speaks is tried and said."""
    with agent_before(None, tmp_path) as agent:
        for protocol, endpoint, other in ((HTTP, agent.endpoint, GRPC), (GRPC, agent.grpc_endpoint, HTTP)):
            report = doctor("--otlp", endpoint, "--protocol", protocol)
            assert report.code == 0, report.text
            assert len(report.about("OTLP", "ok")) == 3
            lines = doctor("--otlp", endpoint, "--protocol", other).about("OTLP")
            assert_all_wrong(lines, f"it speaks {protocol}: set OTEL_EXPORTER_OTLP_PROTOCOL={protocol}")
            assert not any("TLS" in line for line in lines)


def test_the_environment_says_where_and_what(doctor: Doctor, protocol: str) -> None:
    """Without `--otlp` the variables decide, with their headers, for the signals that are on; sampling keeps it all."""
    with otlp_receiver(protocol) as receiver:
        report = doctor(
            variables=[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=acme-and-sons"),
                ("OTEL_LOGS_EXPORTER", "none"),
                ("OTEL_TRACES_SAMPLER", "traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0"),
                ("OTEL_RESOURCE_ATTRIBUTES", "team=a"),
            ]
        )
    assert [line.split()[2] for line in report.about("OTLP", "ok")] == ["traces:", "metrics:"]
    assert receiver.headers["x-tenant"] == "acme-and-sons"
    assert "acme-and-sons" not in report.text
    assert receiver.logs == []
    assert {
        attributes_of(part.resource)["team"] for _, one in receiver.requests[:1] for part in one.resource_spans
    } == {"a"}


def test_a_closed_port_is_named(doctor: Doctor, protocol: str) -> None:
    """Nothing listens."""
    port = free_port()
    report = doctor("--otlp", f"http://127.0.0.1:{port}", "--protocol", protocol)
    assert report.code == 1
    assert_all_wrong(report.about("OTLP"), f"127.0.0.1:{port}", "refused", "start the collector")


def test_this_machine_may_be_a_container(doctor: Doctor) -> None:
    """There an address of its own is not that of the host, nor of another container."""
    port = free_port()
    addresses = ("--otlp", f"http://localhost:{port}", "--prometheus", f"http://127.0.0.1:{port}")
    report = doctor(*addresses, variables=[("KUBERNETES_SERVICE_HOST", "10.0.0.1")])
    for line in (*report.about("OTLP"), *report.about("Prometheus")):
        assert "in a container this address is the container itself: name the service or the host" in line


def test_what_answers_nothing_is_not_taken_for_tls(doctor: Doctor, protocol: str) -> None:
    """A server that closes each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_close_each, args=(server,))
        thread.start()
        report = doctor("--otlp", f"http://127.0.0.1:{server.getsockname()[1]}", "--protocol", protocol)
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert_all_wrong(report.about("OTLP"), "neither by gRPC nor by HTTP, with and without TLS")


def _close_each(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            server.accept()[0].close()


def test_an_unknown_host_is_named(doctor: Doctor, protocol: str) -> None:
    """Its name cannot be resolved."""
    report = doctor("--otlp", "http://collector.invalid:4000", "--protocol", protocol)
    assert_all_wrong(report.about("OTLP"), "collector.invalid", "name", "check the host")


def test_a_hanging_collector_is_named(doctor: Doctor, protocol: str) -> None:
    """Whoever takes connections and is silent is given up after the time-out."""
    with hanging_server() as port:
        report = doctor("--otlp", f"http://127.0.0.1:{port}", "--protocol", protocol, timeout=0.3)
    assert_all_wrong(report.about("OTLP"), "did not answer within 0.3 s", "hangs")


def test_the_wrong_protocol_is_named(doctor: Doctor, protocol: str) -> None:
    """A port that speaks the other protocol is told from one that is dead, and the variable to set is named."""
    with otlp_receiver(protocol) as receiver:
        report = doctor("--otlp", receiver.endpoint, "--protocol", OTHER[protocol])
    assert_all_wrong(report.about("OTLP"), f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}")


def test_tls_where_there_is_none_is_named(doctor: Doctor, protocol: str) -> None:
    """A plain port was given as https://."""
    with otlp_receiver(protocol) as receiver:
        report = doctor("--otlp", receiver.endpoint.replace("http:", "https:"), "--protocol", protocol)
    assert_all_wrong(report.about("OTLP"), "does not speak TLS", "write http://")


def test_no_tls_where_there_should_be_is_named(doctor: Doctor, protocol: str, papers: Papers) -> None:
    """A port with TLS was given as http://."""
    with otlp_receiver(protocol, tls=papers.open) as receiver:
        # By gRPC, localhost is ::1 too, where nothing listens.
        address = receiver.endpoint.replace("https://localhost:", "http://127.0.0.1:")
        report = doctor("--otlp", address, "--protocol", protocol)
    assert_all_wrong(report.about("OTLP"), "closed the connection", "it speaks TLS: write https://")


def test_an_untrusted_certificate_is_named(doctor: Doctor, protocol: str, papers: Papers) -> None:
    """And the variable that mends it, which does."""
    with otlp_receiver(protocol, tls=papers.open) as receiver:
        arguments = ("--otlp", receiver.endpoint, "--protocol", protocol)
        report = doctor(*arguments)
        assert_all_wrong(report.about("OTLP"), "not trusted", "OTEL_EXPORTER_OTLP_CERTIFICATE")
        mended = doctor(*arguments, variables=[("OTEL_EXPORTER_OTLP_CERTIFICATE", str(papers.ca))])
        assert mended.code == 0, mended.text


def test_a_certificate_for_another_host_is_named(doctor: Doctor, protocol: str, papers: Papers) -> None:
    """It is trusted, but not for this name."""
    with otlp_receiver(protocol, tls=papers.open) as receiver:
        report = doctor(
            "--otlp",
            receiver.endpoint.replace("localhost", "127.0.0.1"),
            "--protocol",
            protocol,
            variables=[("OTEL_EXPORTER_OTLP_CERTIFICATE", str(papers.ca))],
        )
    assert_all_wrong(report.about("OTLP"), "another host")


def test_a_missing_client_certificate_is_named(doctor: Doctor, protocol: str, papers: Papers) -> None:
    """The collector wants to know who is there."""
    with otlp_receiver(protocol, tls=papers.strict) as receiver:
        report = doctor(
            "--otlp",
            receiver.endpoint,
            "--protocol",
            protocol,
            variables=[("OTEL_EXPORTER_OTLP_CERTIFICATE", str(papers.ca))],
        )
    assert_all_wrong(report.about("OTLP"), "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (301, "redirects"),
        (401, "OTEL_EXPORTER_OTLP_HEADERS"),
        (403, "not allowed"),
        (404, "base URL"),
        (429, "overloaded"),
        (503, "overloaded"),
        (500, "log"),
    ],
)
def test_each_answer_of_http_has_its_remedy(doctor: Doctor, status: int, words: str) -> None:
    """Also those that an exporter would try again, which are asked once."""
    with otlp_receiver(HTTP) as receiver:
        headers = {"Location": "http://elsewhere.example/"} if status == 301 else {}
        receiver.answers.extend([(status, headers)] * 3)
        report = doctor("--otlp", receiver.endpoint)
    assert receiver.asked == 3
    assert_all_wrong(report.about("OTLP"), f"answered {status}", words)
    assert "[redacted]" not in report.text


def test_one_signal_that_is_refused_keeps_no_other_from_being_asked(doctor: Doctor) -> None:
    """A backend for traces only, such as Jaeger, is told from one that is dead."""
    with otlp_receiver(HTTP) as receiver:
        receiver.answers.append((404, {}))
        report = doctor("--otlp", receiver.endpoint)
    line = report.about("OTLP traces", "wrong")[0]
    assert "OTEL_TRACES_EXPORTER=none" in line
    assert "Otlp(traces=False)" in line
    assert len(report.about("OTLP", "ok")) == 2


def test_only_the_signals_that_are_named_are_sent(doctor: Doctor) -> None:
    """A collector is asked for what the application's code sends, which is not seen from outside."""
    with otlp_receiver(HTTP) as receiver:
        report = doctor("--otlp", receiver.endpoint, "--signal", "traces", "--signal", "logs")
    assert report.code == 0, report.text
    assert [signal for signal, _ in receiver.requests] == ["traces", "logs"]


def test_a_refusal_by_grpc_is_shown(doctor: Doctor) -> None:
    """With its code and its words."""
    with otlp_receiver(GRPC) as receiver:
        receiver.refusing = True
        report = doctor("--otlp", receiver.endpoint, "--protocol", GRPC)
    assert_all_wrong(report.about("OTLP"), "INVALID_ARGUMENT: refusing")


def test_a_web_server_is_no_collector(doctor: Doctor) -> None:
    """An answer that is no OTLP is not taken for success."""
    with vendor_server() as server:
        server.always(lambda asked: answer_json({"hello": "world"}))
        report = doctor("--otlp", server.url)
    assert_all_wrong(report.about("OTLP"), "no OTLP receiver")


@pytest.mark.parametrize("address", ["http://[::1", "http://collector:43180000", "collector"])
def test_what_is_no_address_is_refused(doctor: Doctor, address: str, protocol: str) -> None:
    """In the environment it is a finding with how to write it, and never a bug of the command."""
    there = [("OTEL_EXPORTER_OTLP_ENDPOINT", address), ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)]
    report = doctor(variables=there, timeout=1.0)
    assert report.code == 1
    assert "write it as http://host:port" in report.text
    assert "report it as a bug" not in report.text
    assert "see the collector's log" not in report.text
    if address != "collector":  # which may be a host
        assert_all_wrong(report.about("OTLP"), "the endpoint is not a URL")


def test_without_a_collector_it_says_how_to_ask(doctor: Doctor) -> None:
    """That nothing was asked is no failure."""
    report = doctor()
    assert report.code == 0, report.text
    assert "--otlp URL" in report.about("OTLP", "note")[0]


def test_a_broken_collector_leaves_the_other_checks_alone(doctor: Doctor) -> None:
    """All hang at the same time, and each has its line."""
    with ExitStack() as stack:
        urls = [f"http://127.0.0.1:{stack.enter_context(hanging_server())}" for _ in range(3)]
        report = doctor("--otlp", urls[0], "--metrics", urls[1], "--prometheus", urls[2], timeout=0.3)
    assert len(report.about("OTLP", "wrong")) == 3
    assert len(report.about("/metrics", "wrong")) == len(report.about("Prometheus", "wrong")) == 1
    assert "5 problems found" in report.text
