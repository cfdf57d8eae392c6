"""Supported `OTEL_*` and `PELLUCID_*` variables, and validation of their values."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from opentelemetry import environment_variables as api_variables
from opentelemetry.sdk import environment_variables as sdk_variables

from pellucid_exporters.urls import is_url

Rule: TypeAlias = Callable[[str], str | None]
"""Validator that returns the problem with a value; it never repeats a value that may be a secret."""

OWN: Final = frozenset({"PELLUCID_CAPTURE", "PELLUCID_HUBS", "PELLUCID_RECORDER"})
_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
KNOWN: Final = OWN | {
    value
    for module in (api_variables, sdk_variables)
    for name, value in vars(module).items()
    if isinstance(value, str) and value.startswith("OTEL_") and name.lstrip("_") == value
} | {_CONTENT}  # fmt: skip


def wrong_values() -> Iterator[tuple[str, str]]:
    """Yield each variable with an invalid value, and the problem."""
    for name in sorted(KNOWN & set(os.environ)):
        value = os.environ[name].strip()
        rule = next((rule for pattern, rule in _RULES if re.fullmatch(pattern, name)), None)
        problem = rule(value) if rule is not None and value else None
        if problem is not None:
            yield name, problem


def _one_of(*allowed: str) -> Rule:
    def check(value: str) -> str | None:
        return None if value.lower() in allowed else f"is none of {', '.join(allowed)}"

    return check


def _some_of(*allowed: str) -> Rule:
    def check(value: str) -> str | None:
        unknown = [part for part in value.lower().split(",") if part.strip() and part.strip() not in allowed]
        return f"names what Pellucid does not have; use {', '.join(allowed)}" if unknown else None

    return check


def _number(least: float, most: float = float("inf"), *, unit: str = "", whole: bool = True) -> Rule:
    def check(value: str) -> str | None:
        try:
            fits = least <= (int(value) if whole else float(value)) <= most
        except ValueError:
            fits = False
        kind = "a whole number" if whole else "a number"
        span = f"from {least:g}" if most == float("inf") else f"from {least:g} to {most:g}"
        return None if fits else f"is not {kind}{f' of {unit}' if unit else ''} {span}"

    return check


def _endpoint(value: str) -> str | None:
    if not is_url(value):
        return "is not a URL; write it as http://host:port or https://host:port"
    return None


def _base_endpoint(value: str) -> str | None:
    if is_url(value) and urlsplit(value).path.rstrip("/").endswith(("/v1/traces", "/v1/metrics", "/v1/logs")):
        return "names one signal, whose path would be appended again; give the base URL, without /v1/..."
    return _endpoint(value)


def _pairs(value: str) -> str | None:
    if all("=" in pair and pair.partition("=")[0].strip() for pair in value.split(",") if pair.strip()):
        return None
    return "is not a list of name=value, separated by commas"


def _headers(value: str) -> str | None:
    return _pairs(value) or ("has line breaks" if re.search(r"[\r\n]", value) else None)


def _hubs(value: str) -> str | None:
    try:
        is_object = isinstance(json.loads(value), dict)
    except ValueError:
        is_object = False
    return None if is_object else 'is not a JSON object of hubs, such as {"mcp.example.com/*": {"objective": 0.5}}'


def _file(value: str) -> str | None:
    try:
        return None if Path(value).is_file() else f"names no file: {value}"
    except OSError:
        return "is not the path of a file"


_SAMPLERS: Final = (
    "always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off",
    "parentbased_traceidratio",
)  # fmt: skip
_S: Final = "(TRACES_|METRICS_|LOGS_)?"

_RULES: Final[tuple[tuple[str, Rule], ...]] = (
    ("PELLUCID_CAPTURE", _one_of("full", "redacted", "metadata", "off")),
    ("PELLUCID_HUBS", _hubs),
    ("PELLUCID_RECORDER", _one_of("fast", "sdk")),
    (_CONTENT, _one_of("true", "false", "no_content", "span_only", "event_only", "span_and_event")),
    ("OTEL_SDK_DISABLED", _one_of("true", "false")),
    ("OTEL_TRACES_EXPORTER", _some_of("otlp", "console", "none")),
    ("OTEL_METRICS_EXPORTER", _some_of("otlp", "prometheus", "none")),
    ("OTEL_LOGS_EXPORTER", _some_of("otlp", "none")),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", _base_endpoint),
    (f"OTEL_EXPORTER_OTLP_{_S}ENDPOINT", _endpoint),
    (f"OTEL_EXPORTER_OTLP_{_S}PROTOCOL", _one_of("http/protobuf", "grpc")),
    (f"OTEL_EXPORTER_OTLP_{_S}COMPRESSION", _one_of("none", "gzip", "deflate")),
    (f"OTEL_EXPORTER_OTLP_{_S}HEADERS", _headers),
    (f"OTEL_EXPORTER_OTLP_{_S}TIMEOUT", _number(0.001, unit="seconds", whole=False)),
    (f"OTEL_EXPORTER_OTLP_{_S}INSECURE", _one_of("true", "false")),
    (f"OTEL_EXPORTER_OTLP_{_S}(CERTIFICATE|CLIENT_CERTIFICATE|CLIENT_KEY)", _file),
    ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", _one_of("cumulative", "delta", "lowmemory")),
    (
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
        _one_of("explicit_bucket_histogram", "base2_exponential_bucket_histogram"),
    ),
    ("OTEL_EXPORTER_PROMETHEUS_PORT", _number(0, 65535)),
    ("OTEL_METRIC_EXPORT_(INTERVAL|TIMEOUT)", _number(1, unit="milliseconds", whole=False)),
    ("OTEL_METRICS_EXEMPLAR_FILTER", _one_of("always_on", "always_off", "trace_based")),
    ("OTEL_B(SP|LRP)_(SCHEDULE_DELAY|EXPORT_TIMEOUT)", _number(1, unit="milliseconds")),
    ("OTEL_B(SP|LRP)_(MAX_QUEUE_SIZE|MAX_EXPORT_BATCH_SIZE)", _number(1)),
    ("OTEL_.*_(LENGTH|COUNT)_LIMIT", _number(0)),
    ("OTEL_RESOURCE_ATTRIBUTES", _pairs),
    ("OTEL_TRACES_SAMPLER", _one_of(*_SAMPLERS)),
    ("OTEL_TRACES_SAMPLER_ARG", _number(0, 1, whole=False)),
)
"""Patterns of names and the validators of their values; the first match applies."""
