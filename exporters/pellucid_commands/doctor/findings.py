"""Findings of checks, and removal of secrets from their text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from opentelemetry.util.re import parse_env_headers

from pellucid.telemetry.capture import mask_secret_shapes
from pellucid.telemetry.secrets.masking import MASK
from pellucid.text import clean

Level: TypeAlias = Literal["ok", "note", "wrong"]

SHORTEST: Final = 4
"""Minimum length of masked texts: masking each `a` of a line hides nothing and makes it unreadable."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a check.

    Attributes:
        about: Subject of the check.
        remedy: Remedy for the problem.
    """

    level: Level
    about: str
    text: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """The finding in one line."""
        return f"{self.level:<5}  {self.about}: {self.text}{f'; {self.remedy}' if self.remedy else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Options of the command, each as the attribute of its name; `None` or empty if not given."""

    otlp: str | None = None
    protocol: str | None = None
    signals: Sequence[str] = ()
    metrics: str | None = None
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    prometheus: str | None = None
    timeout: float = 5.0


Check: TypeAlias = Callable[[Setup], Iterable[Finding]]
"""Check that yields findings, including one if there is nothing to check."""


def hide_secrets(text: str, setup: Setup) -> str:
    """Return a line without secrets and terminal control characters: parts of it come from servers."""
    for secret in sorted(_secrets(setup), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return clean(mask_secret_shapes((), text))


def _secrets(setup: Setup) -> set[str]:
    secrets = {setup.token or ""}
    for name, value in os.environ.items():
        if name.startswith("OTEL_") and name.endswith("HEADERS"):
            secrets.update(_header_values(value))
    for text in [*os.environ.values(), setup.otlp or "", setup.metrics or "", setup.prometheus or ""]:
        if "://" in text:
            secrets.update(_url_secrets(text))
    return {secret for secret in secrets if len(secret) >= SHORTEST}


def _header_values(text: str) -> Iterator[str]:
    yield text
    for value in parse_env_headers(text, liberal=True).values():
        yield value
        yield from value.split()[1:]  # the credentials behind `Bearer` or `Basic`
    for pair in text.split(","):
        yield pair.partition("=")[2].strip()


def _url_secrets(text: str) -> Iterator[str]:
    try:
        parts: SplitResult = urlsplit(text)
    except ValueError:
        return
    user, separator, _ = parts.netloc.rpartition("@")
    if separator:
        yield user
        yield from (unquote(part) for part in (user, *user.split(":", 1)[1:]))
        yield from user.split(":", 1)[1:]
    yield from (value for _, value in parse_qsl(parts.query))
