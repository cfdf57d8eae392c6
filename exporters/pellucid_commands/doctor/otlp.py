"""Check that the collector accepts the application's telemetry, with remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from pellucid.errors import ConfigError
from pellucid.text import excerpt
from pellucid_commands.doctor.findings import Finding, Setup
from pellucid_commands.doctor.samples import NAME, WORDS
from pellucid_commands.doctor.sending import Sent, send
from pellucid_commands.doctor.web import Kind, Trouble, container_hint
from pellucid_exporters.options import SIGNALS, Otlp, OtlpProtocol, Signal, resolve_otlp
from pellucid_exporters.urls import shown

_USUAL: Final[Mapping[OtlpProtocol, int]] = {"http/protobuf": 4318, "grpc": 4317}
_OTHER: Final[Mapping[OtlpProtocol, OtlpProtocol]] = {"http/protobuf": "grpc", "grpc": "http/protobuf"}
_ANSWERED: Final[frozenset[Kind]] = frozenset({"credentials", "not_allowed", "overloaded"})
"""Troubles that show that a server understood the request."""
_TLS: Final[frozenset[Kind]] = frozenset({"untrusted", "other_host", "certificate_wanted"})
"""Troubles that show that a server speaks TLS."""

_REMEDIES: Final[Mapping[Kind, str]] = {
    "address": "write it as http://host:port or https://host:port",
    "refused": "start the collector, or set OTEL_EXPORTER_OTLP_ENDPOINT to where it listens",
    "name": "check the host in OTEL_EXPORTER_OTLP_ENDPOINT",
    "untrusted": "name the authority of its certificate in OTEL_EXPORTER_OTLP_CERTIFICATE",
    "other_host": "use the name that is in its certificate",
    "certificate_wanted": (
        "it may want a client certificate: set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY"
    ),
    "no_tls": "write http:// instead of https://",
    "not_http": "",  # see _protocol_remedy
    "closed": "it answers neither by gRPC nor by HTTP, with and without TLS: check what listens there, and its log",
    "timeout": "check whether the collector hangs or a firewall drops packets; --timeout sets a longer wait",
    "credentials": "set OTEL_EXPORTER_OTLP_HEADERS to the credentials: name=value, with %20 for a blank after Bearer",
    "not_allowed": "the credentials in OTEL_EXPORTER_OTLP_HEADERS are not allowed to send this",
    "path": (
        "give the base URL of an OTLP receiver; if it takes no {signal}, send it none: Otlp({signal}=False) in code, "
        "or OTEL_{upper}_EXPORTER=none where code does not say where to send"
    ),
    "overloaded": "it is overloaded or a quota is used up: see its log",
    "redirect": "give the URL that it redirects to",
    "page": "give the port of the collector's OTLP receiver",
    "other": "see the collector's log",
}


def check_otlp(setup: Setup) -> Iterator[Finding]:
    """Send one item of each enabled signal."""
    try:
        options = _options(setup)
    except ConfigError as error:
        yield Finding("wrong", "OTLP", str(error))
        return
    if options is None:
        yield Finding(
            "note", "OTLP", "not checked: the environment configures no collector", "--otlp URL checks a collector"
        )
        return
    signals: dict[Signal, bool] = {"traces": options.traces, "metrics": options.metrics, "logs": options.logs}
    for signal, is_on in signals.items():
        if is_on:
            yield _check(replace(options, timeout=setup.timeout), signal)


def _options(setup: Setup) -> Otlp | None:
    if setup.otlp is None:
        return resolve_otlp(None)
    switches = {signal: signal in setup.signals for signal in SIGNALS} if setup.signals else {}
    return Otlp(endpoint=setup.otlp, protocol=setup.protocol, **switches)  # type: ignore[arg-type]  # checked there


def _check(options: Otlp, signal: Signal) -> Finding:
    about = f"OTLP {signal}"
    try:
        sent = send(options, signal)
    except ConfigError as error:
        return Finding("wrong", about, str(error))
    where = shown(sent.to)
    if isinstance(sent.got, Trouble):
        return Finding("wrong", about, f"{where} {sent.got.text}".lstrip(), _remedy(options, sent, sent.got.kind))
    partial = sent.got.partial_success
    if any(value for field, value in partial.ListFields() if field.name.startswith("rejected")):
        text = f"{where} accepted the request and rejected its content: {excerpt(partial.error_message)}"
        return Finding("wrong", about, text, "see the collector's log")
    return Finding("ok", about, f"{where} took the {WORDS[signal]} {NAME!r} by {sent.protocol}")


def _remedy(options: Otlp, sent: Sent, kind: Kind) -> str:
    spoken = _spoken(options, sent) if _is_misunderstood(sent, kind) else ""
    if spoken:
        return spoken
    if kind == "not_http" or (kind in ("timeout", "other") and _port(sent) == _USUAL[_OTHER[sent.protocol]]):
        other = _OTHER[sent.protocol]
        return (
            f"if this is the port for {other}, set OTEL_EXPORTER_OTLP_PROTOCOL={other}; "
            f"the usual one for {sent.protocol} is {_USUAL[sent.protocol]}"
        )
    if kind == "closed" and sent.to.startswith("https://"):
        kind = "certificate_wanted"  # how servers reject a missing certificate, with TLS 1.3 and with gRPC
    remedy = _REMEDIES[kind].format(signal=sent.signal, upper=sent.signal.upper())
    return f"{remedy}{container_hint(sent.to)}" if kind == "refused" else remedy


def _is_misunderstood(sent: Sent, kind: Kind) -> bool:
    """Return whether the answer may be one to another protocol, or to a request with or without TLS."""
    return kind in ("closed", "not_http") or (sent.protocol == "grpc" and kind in ("path", "other"))


def _spoken(options: Otlp, sent: Sent) -> str:
    """Ask by the other protocol, then with or without TLS; return what is to be changed, or nothing."""
    scheme, _, rest = sent.to.removesuffix(f"/v1/{sent.signal}").partition("://")
    other, other_scheme = _OTHER[sent.protocol], "http" if scheme == "https" else "https"
    if _answers(replace(options, endpoint=f"{scheme}://{rest}", protocol=other), sent.signal, _ANSWERED):
        return (
            f"it speaks {other}: set OTEL_EXPORTER_OTLP_PROTOCOL={other} (here --protocol {other}), "
            f"or give the port for {sent.protocol}, which is usually {_USUAL[sent.protocol]}"
        )
    known = _ANSWERED | _TLS if other_scheme == "https" else _ANSWERED
    if _answers(replace(options, endpoint=f"{other_scheme}://{rest}", protocol=sent.protocol), sent.signal, known):
        return f"it {'speaks' if other_scheme == 'https' else 'does not speak'} TLS: write {other_scheme}://"
    return ""


def _answers(options: Otlp, signal: Signal, known: frozenset[Kind]) -> bool:
    got = send(options, signal).got
    return not isinstance(got, Trouble) or got.kind in known


def _port(sent: Sent) -> int | None:
    return urlsplit(sent.to).port
