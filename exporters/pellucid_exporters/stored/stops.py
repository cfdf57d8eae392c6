"""Reasons why runs stop, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pellucid import semconv
from pellucid_exporters.stored import text

_UNITS: Final = {
    "max_iterations": "iteration",
    "max_tool_calls": "tool call",
    "max_model_calls": "model call",
    "max_tokens": "token",
}


def stop_words(attributes: Mapping[str, Any], limits: Mapping[str, Any]) -> str:
    """Return why a run returned its result, such as `limit of 1 iteration reached`; empty if it returned none.

    Args:
        attributes: Those of the run's span.
        limits: Limits of its recorded configuration.
    """
    reason = attributes.get(semconv.STOP_REASON)
    if not isinstance(reason, str):
        return ""
    reached = attributes.get(semconv.ITERATIONS) if reason == "max_iterations" else None
    limit = attributes.get(semconv.LIMIT_VALUE, limits.get(reason, reached))
    if isinstance(limit, int | float) and reason == "max_cost":
        return f"limit of {text.money(limit)} reached"
    if isinstance(limit, int | float) and reason in _UNITS:
        return f"limit of {limit:,.0f} {_UNITS[reason]}{'s' if limit != 1 else ''} reached"
    return reason
