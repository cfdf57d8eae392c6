"""Checks of the types of arguments of `configure`."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.resources import Resource

from pellucid.errors import ConfigError
from pellucid.module_names import load
from pellucid.text import excerpt


class _Values(NamedTuple):
    """Values of an argument.

    Attributes:
        remedy: Description of the values.
        plain: Their types.
        options: Module and name of the class of full options, which is loaded only for values of other types.
    """

    remedy: str
    plain: tuple[type[Any], ...] = ()
    options: tuple[str, str] | None = None


_VALUES: Final[Mapping[str, _Values]] = {
    "otlp": _Values(
        "a URL, such as 'http://localhost:4318', True or False, or Otlp(...)",
        (str, bool),
        ("pellucid_exporters.options", "Otlp"),
    ),
    "prometheus": _Values(
        "a port, 'host:port', True or False, or Prometheus(...)",
        (str, int),
        ("pellucid_exporters.options", "Prometheus"),
    ),
    "console": _Values("True or False, or Console(...)", (bool,), ("pellucid_exporters.console", "Console")),
    "file": _Values("a path, or File(...)", (str, PathLike), ("pellucid_exporters.file.options", "File")),
    "local": _Values(
        "a path, True or False, or Local(...)", (str, PathLike, bool), ("pellucid_exporters.local.options", "Local")
    ),
    "tail_sampling": _Values("TailSampling(...)", (), ("pellucid_exporters.sampling.rules", "TailSampling")),
    "metric_limits": _Values("MetricLimits(...)", (), ("pellucid_exporters.metric_limits", "MetricLimits")),
    "capture": _Values("CapturePolicy(...)", (), ("pellucid.telemetry.capture", "CapturePolicy")),
    "resource": _Values("a dictionary of attributes, or a Resource", (Mapping, Resource)),
}


def check_arguments(service_name: object, **arguments: object) -> None:
    """Check the types of arguments of `configure`.

    Raises:
        ConfigError: one has another type, or the name is empty.
    """
    if not isinstance(service_name, str) or not service_name.strip():
        raise _refusal("service_name", service_name, "a name, such as 'support'")
    for name, value in arguments.items():
        remedy, plain, options = _VALUES[name]
        if value is None or isinstance(value, plain) or (options is not None and isinstance(value, load(*options))):
            continue
        if name == "capture" and isinstance(value, str):
            remedy = f"CapturePolicy({value!r})"
        raise _refusal(name, value, remedy)


def _refusal(name: str, value: object, remedy: str) -> ConfigError:
    # A collection may have secrets, such as headers.
    shown = excerpt(repr(value)) if isinstance(value, str | int | float) else f"<{type(value).__name__}>"
    return ConfigError(f"configure({name}={shown}): give {remedy}")
