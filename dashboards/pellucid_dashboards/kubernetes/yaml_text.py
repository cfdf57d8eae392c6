"""Writer of YAML, for manifests: mappings, lists and texts; PyYAML is no dependency of the package."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN: Final = re.compile(r"[A-Za-z][\w./-]*")
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
"""Texts that YAML takes for other values, unless they are quoted."""


@dataclass(frozen=True, slots=True)
class Raw:
    """YAML that is nested as it is, with its comments."""

    text: str


def to_yaml(value: Any) -> str:
    """Return JSON-like data as YAML, in which texts of several lines are blocks."""
    return "".join(f"{line}\n" if line else "\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Raw):
        yield from value.text.strip("\n").splitlines()
    elif isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _entry(f"{_scalar(key)}:", each)
    elif isinstance(value, list) and value:
        for each in value:
            first, *rest = _lines(each)
            yield f"- {first}"
            yield from _indented(rest)
    else:
        yield _scalar(value)


def _entry(start: str, value: Any) -> Iterator[str]:
    if isinstance(value, Raw) or (isinstance(value, dict | list) and value):
        yield start
        yield from _indented(_lines(value))
    elif isinstance(value, str) and value.endswith("\n"):
        yield f"{start} |"
        yield from _indented(value.rstrip("\n").splitlines())
    else:
        yield f"{start} {_scalar(value)}"


def _indented(lines: Any) -> Iterator[str]:
    yield from (f"  {line}" if line else "" for line in lines)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
