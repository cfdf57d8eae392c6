"""Checks of variables in combination: contradictions, active exporters, and exported content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from pellucid.errors import ConfigError
from pellucid.telemetry.capture import CapturePolicy
from pellucid_commands.doctor.addresses import is_far, is_outside
from pellucid_commands.doctor.findings import Finding, Level, Setup
from pellucid_exporters.options import SIGNALS, Otlp, Signal, exporters_of, resolve_otlp, resolve_prometheus
from pellucid_exporters.urls import shown

About: Final = "configuration"
_OTLP: Final = "OTEL_EXPORTER_OTLP_"
GRPC_PORT: Final = 4317
_LEAVES: Final = {
    "full": "messages, arguments and results leave as they are",
    "redacted": "messages, arguments and results leave with secrets masked",
    "metadata": "no content leaves; digests, sizes, counts and names do",
    "off": "nothing of inputs and outputs leaves",
}


def check_switches(setup: Setup) -> Iterator[Finding]:
    """Report variables that disable telemetry or a part of it although other variables enable it."""
    if _is_true("OTEL_SDK_DISABLED"):
        yield Finding("wrong", About, "OTEL_SDK_DISABLED=true turns all telemetry off", "unset it")
    for signal in SIGNALS:
        named = exporters_of(signal) - {""}
        variable, endpoint = f"OTEL_{signal.upper()}_EXPORTER", f"{_OTLP}{signal.upper()}_ENDPOINT"
        if "none" in named and len(named) > 1:
            yield Finding("wrong", About, f"{variable} says none and more", "say one or the other")
        if named and "otlp" not in named and os.environ.get(endpoint):
            yield Finding("wrong", About, f"{endpoint} is set, but {variable} does not name otlp", f"unset {variable}")
    if os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() in ("always_off", "parentbased_always_off"):
        text = "OTEL_TRACES_SAMPLER records no spans, so there are no exemplars either"
        yield Finding("wrong", About, text, "use parentbased_always_on")
    if os.environ.get("OTEL_METRICS_EXEMPLAR_FILTER", "").strip().lower() == "always_off":
        yield Finding("wrong", About, "OTEL_METRICS_EXEMPLAR_FILTER=always_off: no exemplars", "use trace_based")
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        yield Finding("note", About, "PROMETHEUS_MULTIPROC_DIR is not for Pellucid's metrics: see docs on gunicorn")


def check_otlp_variables(setup: Setup) -> Iterator[Finding]:
    """Report OTLP variables that contradict each other."""
    for part in ("", *(f"{signal.upper()}_" for signal in SIGNALS)):
        yield from _protocol(part)
        yield from _encryption(part)
    delta = os.environ.get(f"{_OTLP}METRICS_TEMPORALITY_PREFERENCE", "").strip().lower()
    if delta in ("delta", "lowmemory"):
        yield Finding("note", About, f"metrics are sent with {delta} temporality, which Prometheus does not take")


def check_exporters(setup: Setup) -> Iterator[Finding]:
    """Report the exporters that the environment enables. Arguments of `configure()` in code are not visible here."""
    on = []
    try:
        otlp, prometheus = resolve_otlp(None), resolve_prometheus(None)
        if otlp is not None:
            on.append(_describe_otlp(otlp))
        if prometheus is not None:
            on.append(f"/metrics on {prometheus.host}:{prometheus.port}")
    except ConfigError as error:
        yield Finding("wrong", About, str(error))
        return
    if "console" in exporters_of("traces"):
        on.append("console")
    text = "; ".join(on) or "nothing"
    yield Finding("ok" if on else "note", "exporters", f"on by the environment: {text} (configure() may add to it)")


def check_capture(setup: Setup) -> Iterator[Finding]:
    """Report which content of runs leaves the process, and whether it is encrypted."""
    try:
        configured = CapturePolicy.from_environment()
    except ConfigError as error:
        yield Finding("wrong", "capture", str(error))
        return
    policy = configured.within_attribute_limit()
    level: Level = "note" if policy.mode == "full" else "ok"
    yield Finding(
        level, "capture", f"mode {policy.mode} unless configure(capture=) says otherwise: {_LEAVES[policy.mode]}"
    )
    if policy != configured:
        text = "a limit on the length of attributes cuts content down to "
        yield Finding("note", "capture", text + ("nothing" if not policy.content else f"{policy.max_bytes} bytes"))
    if os.environ.get("PELLUCID_CAPTURE") and os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"):
        yield Finding(
            "note", "capture", "PELLUCID_CAPTURE wins over OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
        )
    yield from _in_the_clear(setup)


def _in_the_clear(setup: Setup) -> Iterator[Finding]:
    """Report what is sent unencrypted: credentials, and beyond the private network anything but gRPC.

    A gRPC port without TLS is usual, as that of an agent or collector beside the application.
    """
    names = [f"{_OTLP}ENDPOINT", *(f"{_OTLP}{signal.upper()}_ENDPOINT" for signal in SIGNALS)]
    protocol = setup.protocol or os.environ.get(f"{_OTLP}PROTOCOL")
    for url in {url for url in (setup.otlp, *(os.environ.get(name) for name in names)) if url}:
        if not url.lower().startswith("http://") or not is_far(url):
            continue
        if _has_headers():
            level: Level = "wrong" if is_outside(url) else "note"
            text = f"telemetry and its headers go unencrypted to {shown(url)}"
            yield Finding(level, "capture", text, "use https:// outside of your network")
        elif is_outside(url) and _port(url) != GRPC_PORT and protocol != "grpc":
            text = f"telemetry goes unencrypted to {shown(url)}"
            yield Finding("note", "capture", text, "use https:// outside of your network")


def _protocol(part: str) -> Iterator[Finding]:
    protocol = (
        os.environ.get(f"{_OTLP}{part}PROTOCOL") or os.environ.get(f"{_OTLP}PROTOCOL") or "http/protobuf"
    ).strip()
    endpoint = os.environ.get(f"{_OTLP}{part}ENDPOINT", "")
    port = _port(endpoint)
    if (protocol, port) in (("grpc", 4318), ("http/protobuf", GRPC_PORT)):
        other = "http/protobuf" if protocol == "grpc" else "grpc"
        text = f"{_OTLP}{part}ENDPOINT names port {port}, the usual one of {other}, but the protocol is {protocol}"
        yield Finding("note", About, text, f"set {_OTLP}{part}PROTOCOL={other}, or use the other port")
    if protocol == "grpc" and os.environ.get(f"{_OTLP}{part}COMPRESSION", "").strip() == "deflate":
        yield Finding("wrong", About, f"{_OTLP}{part}COMPRESSION=deflate: gRPC has no such compression", "use gzip")


def _encryption(part: str) -> Iterator[Finding]:
    certificate, key = f"{_OTLP}{part}CLIENT_CERTIFICATE", f"{_OTLP}{part}CLIENT_KEY"
    if bool(os.environ.get(certificate)) is not bool(os.environ.get(key)):
        yield Finding("wrong", About, f"only one of {certificate} and {key} is set", "set both, or none")
    endpoint, insecure = os.environ.get(f"{_OTLP}{part}ENDPOINT", ""), f"{_OTLP}{part}INSECURE"
    if endpoint.startswith("https://") and _is_true(insecure):
        yield Finding("wrong", About, f"{insecure}=true contradicts an endpoint with https://", "unset it")
    trusted = f"{_OTLP}{part}CERTIFICATE"
    if endpoint.startswith("http://") and os.environ.get(trusted):
        yield Finding("wrong", About, f"{trusted} is set, but the endpoint has http://, without TLS", "write https://")


def _describe_otlp(otlp: Otlp) -> str:
    signals = [signal for signal in SIGNALS if getattr(otlp, signal)]
    return ", ".join(
        f"{signal} by OTLP ({otlp.protocol_of(signal)}) to {_endpoint(otlp, signal)}" for signal in signals
    )


def _endpoint(otlp: Otlp, signal: Signal) -> str:
    named = os.environ.get(f"{_OTLP}{signal.upper()}_ENDPOINT") or os.environ.get(f"{_OTLP}ENDPOINT")
    return shown(named) if named else f"localhost:{GRPC_PORT if otlp.protocol_of(signal) == 'grpc' else 4318}"


def _is_true(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() == "true"


def _has_headers() -> bool:
    return any(name.startswith(_OTLP) and name.endswith("HEADERS") and value for name, value in os.environ.items())


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None
