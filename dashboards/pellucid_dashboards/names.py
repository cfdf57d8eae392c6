"""Names of `pellucid.semconv` as Prometheus has them."""

from __future__ import annotations

from typing import Final

from pellucid.semconv import Metric
from pellucid_exporters.naming import to_labels, to_name

REFUSALS: Final = (
    "approval",
    "approval_denied",
    "approval_expired",
    "max_discoveries",
    "max_tool_calls",
    "permission_denied",
    "policy_halt",
    "repeated_call_id",
    "tool_not_active",
    "tool_redefined",
    "tool_removed",
    "unknown_tool",
)
"""Values of `error.type` of tool calls that were not made, because a person, a policy or a limit did not let them, or
because there is no such tool: they are neither failures nor calls."""


def series(metric: Metric, suffix: str = "") -> str:
    """Return the name of a metric's series: with `_total` if it counts, with a `suffix` (`_bucket`) of a histogram."""
    family, _ = to_name(metric.name, metric.unit, metric.kind)
    return f"{family}_total" if metric.kind == "counter" else f"{family}{suffix}"


def label(attribute: str) -> str:
    """Return the label of an attribute."""
    [(name, _)] = to_labels({attribute: ""})
    return name
