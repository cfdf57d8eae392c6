"""Checks of `Limits`. Imported when some differ from the default ones."""

from __future__ import annotations

from typing import Any, Final

from pellucid.errors import ConfigError

_TIMES: Final = (
    "timeout",
    "discovery_timeout",
    "model_timeout",
    "tool_timeout",
    "policy_timeout",
    "approval_timeout",
)
_NO_BOUND: Final = "must not be negative; use None for no bound"


def check_limits(limits: Any) -> None:
    """Check the values of a `Limits`.

    Raises:
        ConfigError: one has the wrong type, or is out of range.
    """
    for name in ("max_iterations", "parallel_tools", "max_result_bytes"):
        _check(limits, name, 1, "must be at least 1", is_optional=False)
    _check(limits, "max_depth", 0, "must not be negative; 0 allows no nested runs", is_optional=False)
    _check(limits, "max_tool_tokens", 1, "must be at least 1, or None")
    _check(limits, "max_discoveries", 0, "must not be negative; use None for the default")
    for name in ("max_tool_calls", "max_tokens", "max_model_calls"):
        _check(limits, name, 0, _NO_BOUND)
    _check(limits, "max_cost", 0, _NO_BOUND, kind="a number of US dollars")
    for name in _TIMES:
        _check(limits, name, 0, _NO_BOUND, kind="a number of seconds")


def _check(
    limits: Any, name: str, minimum: int, remedy: str, *, kind: str = "a whole number", is_optional: bool = True
) -> None:
    value: Any = getattr(limits, name)
    if value is None and is_optional:
        return
    kinds = int if kind == "a whole number" else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise ConfigError(f"Limits({name}={value!r}): must be {kind}{', or None' if is_optional else ''}")
    if not value >= minimum:  # not `<`, which lets NaN pass
        raise ConfigError(f"Limits({name}={value!r}): {remedy}")
