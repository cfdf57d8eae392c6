"""Prometheus names, units and labels."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Labels: TypeAlias = tuple[tuple[str, str], ...]

_UNITS: Final[Mapping[str, str]] = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds",
    "ns": "nanoseconds", "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes",
    "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "m": "meters", "V": "volts", "A": "amperes",
    "J": "joules", "W": "watts", "g": "grams", "Cel": "celsius", "Hz": "hertz", "%": "percent",
}  # fmt: skip
_PER: Final[Mapping[str, str]] = {"s": "second", "min": "minute", "h": "hour", "d": "day", "m": "meter"}


def to_name(name: str, unit: str, kind: str) -> tuple[str, str]:
    """Return the Prometheus name of a family and its unit.

    `pellucid.tool.discovery.duration` in `s` is `pellucid_tool_discovery_duration_seconds`; units such as `{token}`
    only annotate and add nothing. The samples of a counter end in `_total` on top of that.
    See "Prometheus and OpenMetrics Compatibility" in the OpenTelemetry specification.
    """
    text = _sanitise(name, "a-zA-Z0-9_:")
    if kind == "counter":
        text = text.removesuffix("_total")
    words = _unit_words(re.sub(r"\{[^}]*\}", "", unit), kind)
    if words and not text.endswith(f"_{words}"):
        text = f"{text}_{words}"
    return text, words


def to_labels(attributes: Mapping[str, Any]) -> Labels:
    """Return attributes as sorted labels; values of names that collide are joined by `;`."""
    labels: dict[str, str] = {}
    for key, value in sorted(attributes.items()):
        name = _sanitise(key, "a-zA-Z0-9_")
        labels[name] = f"{labels[name]};{_label_value(value)}" if name in labels else _label_value(value)
    return tuple(sorted(labels.items()))


@lru_cache(maxsize=4096)
def _sanitise(text: str, allowed: str) -> str:
    found = re.sub("__+", "_", re.sub(f"[^{allowed}]", "_", text))
    return f"_{found}" if not found or found[0].isdigit() else found


def _unit_words(unit: str, kind: str) -> str:
    if unit == "1":
        return "ratio" if kind == "gauge" else ""
    of, _, per = unit.partition("/")
    words = [_UNITS.get(of, of)] if of and of != "1" else []
    if per:
        words.append(f"per_{_PER.get(per, per)}")
    return _sanitise("_".join(words), "a-zA-Z0-9_").strip("_") if words else ""


def _label_value(value: Any) -> str:
    return encodable(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))


def encodable(text: str) -> str:
    """Replace lone surrogates, which would fail the encoding of the whole response."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
