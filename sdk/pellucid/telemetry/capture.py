"""Capture policy of a run's content, and the redactors that mask secrets in it.

The search for secrets is loaded when a redactor is called, because runs without telemetry record nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from pellucid.errors import ConfigError
from pellucid.types import JSONValue

CaptureMode: TypeAlias = Literal["full", "redacted", "metadata", "off"]

Redactor: TypeAlias = Callable[[Sequence[str], JSONValue], JSONValue]
"""Takes the path of keys to a value, and the value (text, number, boolean or null); returns the value to record."""

LEAST_BYTES: Final = 256
"""Minimum of `max_bytes`; less has no room for a message."""

_LENGTH_LIMITS: Final = ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")
"""Environment variables of the limit; the one for spans takes precedence."""


def mask_secret_keys(path: Sequence[str], value: JSONValue) -> JSONValue:
    """Mask every value under a key that names a secret: `password`, `api_key`, `accessToken` and others."""
    from pellucid.telemetry.secrets.masking import MASK
    from pellucid.telemetry.secrets.names import hides, names_secret

    for key in path:
        if names_secret(key):
            return MASK
    return MASK if path and hides(path[-1], value) else value


def mask_secret_shapes(path: Sequence[str], value: JSONValue) -> JSONValue:
    """Mask text that looks like a secret: bearer tokens, JWTs, keys, card numbers, passwords in addresses."""
    from pellucid.telemetry.secrets.masking import mask_text

    return mask_text(value)[0] if isinstance(value, str) else value


DEFAULT_REDACTORS: Final[tuple[Redactor, ...]] = (mask_secret_keys, mask_secret_shapes)
"""Mask values under names of secrets, and text that looks like one."""


@dataclass(frozen=True, slots=True)
class CapturePolicy:
    """Policy for recording a run's content. The policy is read once, when the run starts.

    Attributes:
        mode: `full`: content as it is. `redacted`: content with secrets masked. `metadata`: digests, sizes, counts and
            names, but no content and no error messages. `off`: nothing of the input and output.
        redactors: Sequence of callables, applied in order to every value in mode `redacted`; extend with
            `(*DEFAULT_REDACTORS, mine)`. Stored as a tuple.
        max_bytes: Maximum bytes of one recorded value, which stays valid JSON.
        max_span_bytes: Maximum bytes of all recorded values of one span; later values get the remaining bytes.

    Raises:
        ConfigError: the mode is unknown, a limit is too low, or `redactors` is not a sequence of callables.
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
        # Without the redactors, which need not be hashable.
        return hash((self.mode, self.max_bytes, self.max_span_bytes))

    @property
    def content(self) -> bool:
        """True if content itself is recorded."""
        return self.mode in ("full", "redacted")

    def within_attribute_limit(self) -> CapturePolicy:
        """Return the policy limited to the attribute length of OpenTelemetry's environment variables.

        Longer attributes would be truncated to invalid JSON. With a length too short for any JSON, the mode is
        `metadata`.
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
            ConfigError: the value of a variable is unknown.
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
    """Return the length to which OpenTelemetry's SDK truncates span attributes; an empty variable is no limit."""
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
