"""Errors about the arguments of a run. Imported when one is of another type."""

from __future__ import annotations

from typing import Any

from pellucid.errors import ConfigError
from pellucid.text import excerpt


def check_identity(identity: Any) -> None:
    """Check the fields of an `Identity`.

    Raises:
        ConfigError: one is not a text.
    """
    for name in ("tenant", "principal", "conversation_id"):
        value = getattr(identity, name)
        if not (value is None or isinstance(value, str)):
            raise ConfigError(f"Identity({name}={excerpt(repr(value))}): must be a text, or None")


def not_an_identity(value: object, whose: str) -> ConfigError:
    """Return the error about an identity of a run or a session."""
    remedy = f"Identity(principal={value!r})" if isinstance(value, str) else "Identity(principal=...)"
    return ConfigError(f"identity={excerpt(repr(value))} of a {whose} is not an Identity; give {remedy}")


def not_a_signal(value: object) -> ConfigError:
    """Return the error about the signal of a run."""
    return ConfigError(f"signal={excerpt(repr(value))} of a run is not a CancelToken; give CancelToken()")
