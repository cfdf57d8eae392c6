"""Names of the recorders, and of the instrumentation scopes that the own one records."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from pellucid import semconv
from pellucid.errors import ConfigError

Recorder: TypeAlias = Literal["fast", "sdk"]
"""Recorder of spans and measurements: Pellucid's own, or that of the OpenTelemetry SDK."""


def resolve_recorder(given: Recorder | None) -> Recorder | None:
    """Return the recorder if it is known; `None` leaves it to the environment.

    Raises:
        ConfigError: it is unknown.
    """
    if given is not None and given not in get_args(Recorder):
        raise ConfigError(f"recorder={given!r}: use one of {', '.join(get_args(Recorder))}, or None")
    return given


def is_own(scope: str) -> bool:
    """Return whether an instrumentation scope is Pellucid's: `pellucid`, and names that begin with `pellucid.`."""
    return scope == semconv.SCOPE or scope.startswith(f"{semconv.SCOPE}.")
