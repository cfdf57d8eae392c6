"""What of a run's content is recorded, and what is masked in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, TypeAlias, get_args

from pellucid.errors import ConfigError
from pellucid.telemetry.secrets.names import names_secret
from pellucid.telemetry.secrets.search import find_secrets
from pellucid.types import JSONValue

CaptureMode: TypeAlias = Literal["full", "redacted", "metadata", "off"]

Redactor: TypeAlias = Callable[[Sequence[str], JSONValue], JSONValue]
"""Takes the keys that lead to a value and the value (text, number, boolean or null); returns what to record instead."""

MASK: Final = "[redacted]"

LEAST_BYTES: Final = 256
"""Less than this has no room for a message."""

_LENGTH_LIMITS: Final = ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")
"""The limit of spans comes before the general one."""


def mask_secret_keys(path: Sequence[str], value: JSONValue) -> JSONValue:
    """Mask whatever lies under a key that names a secret: `password`, `api_key`, `accessToken`, ...."""
    for key in path:
        if names_secret(key):
            return MASK
    return value


def mask_secret_shapes(path: Sequence[str], value: JSONValue) -> JSONValue:
    """Mask text that looks like a secret: bearer tokens, JWTs, keys, card numbers, passwords in addresses."""
    return mask_text(value)[0] if isinstance(value, str) else value


@lru_cache(maxsize=4096)
def mask_key(key: str) -> tuple[str, int]:
    """Mask a key that is itself a secret, as in a table by token; return it and the work that this was."""
    return mask_text(key)


def mask_text(text: str, most: int | None = None) -> tuple[str, int]:
    """Mask the secrets in a text; return it and the work that this was.

    If this is more than `most`, the text was not examined to its end, and must not be recorded.
    """
    found, work = find_secrets(text, most)
    if not found:
        return text, work
    pieces: list[str] = []
    end = 0
    for start, stop in found:
        pieces += text[end:start], MASK
        end = stop
    return "".join([*pieces, text[end:]]), work


DEFAULT_REDACTORS: Final[tuple[Redactor, ...]] = (mask_secret_keys, mask_secret_shapes)


@dataclass(frozen=True, slots=True)
class CapturePolicy:
    """What a run records of its content. It is read once, when the run starts.

    Attributes:
        mode: `full`: content as it is. `redacted`: content with secrets masked. `metadata`: digests, sizes, counts and
            names, no content and no texts of errors. `off`: nothing of the input and output.
        redactors: Applied in order to every value in mode `redacted`; extend with `(*DEFAULT_REDACTORS, mine)`. Any
            sequence of callables, kept as a tuple.
        max_bytes: Bound of one recorded value; what is recorded stays valid JSON.
        max_span_bytes: Bound of all recorded values of one span; what comes later in a span gets what is left.
    """

    mode: CaptureMode = "redacted"
    redactors: Sequence[Redactor] = DEFAULT_REDACTORS
    max_bytes: int = 32 * 1024
    max_span_bytes: int = 128 * 1024

    def __post_init__(self) -> None:
        if self.mode not in get_args(CaptureMode):
            raise ConfigError(f"capture mode {self.mode!r} is unknown; use one of {', '.join(get_args(CaptureMode))}")
        if self.max_bytes < LEAST_BYTES:
            raise ConfigError(f"CapturePolicy(max_bytes={self.max_bytes}): must be at least {LEAST_BYTES}")
        if self.max_span_bytes < self.max_bytes:
            raise ConfigError(
                f"CapturePolicy(max_span_bytes={self.max_span_bytes}): must be at least max_bytes, {self.max_bytes}"
            )
        object.__setattr__(self, "redactors", _checked(self.redactors))

    def __hash__(self) -> int:
        # Without the redactors: those with state need not be hashable.
        return hash((self.mode, self.max_bytes, self.max_span_bytes))

    @property
    def content(self) -> bool:
        """Whether content itself is recorded."""
        return self.mode in ("full", "redacted")

    def within_attribute_limit(self) -> CapturePolicy:
        """Return this for the length that OpenTelemetry's variables allow an attribute, past which it would be cut.

        Too short a length for any JSON leaves only metadata.
        """
        limit = _attribute_limit()
        if limit is None or limit >= self.max_bytes or not self.content:
            return self
        if limit < LEAST_BYTES:
            return replace(self, mode="metadata")
        return replace(self, max_bytes=limit)

    @classmethod
    def from_environment(cls) -> CapturePolicy:
        """Read `PELLUCID_CAPTURE`, else `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`, else the default.

        Raises:
            ConfigError: a variable has a value that is not known.
        """
        if own := os.environ.get("PELLUCID_CAPTURE"):
            return cls(own.strip().lower())  # type: ignore[arg-type]  # checked in __post_init__
        name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
        standard = os.environ.get(name, "").strip().lower()
        if not standard:
            return cls()
        if standard in ("true", "span_only", "span_and_event"):
            return cls("full")
        if standard in ("false", "no_content", "event_only"):
            return cls("metadata")
        raise ConfigError(f"{name}={standard!r} is unknown; use NO_CONTENT, SPAN_ONLY or SPAN_AND_EVENT")


def _attribute_limit() -> int | None:
    """Return the length to which OpenTelemetry's SDK cuts attributes of spans; a variable that is empty is no limit."""
    value = next((os.environ[name] for name in _LENGTH_LIMITS if name in os.environ), "").strip()
    return int(value) if value.isdecimal() else None


def _checked(redactors: object) -> tuple[Redactor, ...]:
    hint = "use (*DEFAULT_REDACTORS, mine)"
    if not isinstance(redactors, Sequence) or isinstance(redactors, str):
        raise ConfigError(f"CapturePolicy(redactors={redactors!r}): must be a sequence of callables; {hint}")
    for number, redactor in enumerate(redactors, start=1):
        if not callable(redactor):
            raise ConfigError(f"CapturePolicy(redactors=...): number {number} is not callable: {redactor!r}; {hint}")
    return tuple(redactors)
