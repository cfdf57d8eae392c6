"""Data model of a file of rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pellucid_dashboards.rules.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Severity: TypeAlias = Literal["page", "ticket"]
"""Severity: `page` is urgent; a `ticket` can wait for the next working day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A recording rule.

    Attributes:
        name: Name of the recorded series.
        expression: PromQL.
    """

    name: str
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alerting rule.

    Attributes:
        name: As in `docs/runbooks.md`.
        expression: PromQL; the alert is active for each series that it returns, and the value is in the summary.
        severity: Severity of the notification.
        after: Seconds for which the alert must be active before it fires; 0 is at once.
        keep: Seconds for which it continues to fire when it is no longer active.
        summary: One line with subject, value, and objective or threshold; a template of Prometheus.
        description: Explanation in one or two sentences; a template.
        dashboard: Path below Grafana's address; a template.
        labels: Labels in addition to those of the series.
    """

    name: str
    expression: str
    severity: Severity
    after: float
    summary: str
    description: str
    dashboard: str
    keep: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rules that are evaluated sequentially, so that each reads values recorded by earlier ones."""

    name: str
    rules: Sequence[Record | Alert]


MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Parameters of the rules.

    Attributes:
        thresholds: The numbers.
        scale: Factor of all windows and of `for`; 1 in production, less in drills and tests.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    scale: float = 1.0

    def window(self, seconds: float) -> str:
        """Return a scaled PromQL duration of at least a millisecond."""
        milliseconds = max(1, round(seconds * self.scale * MS))
        for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", MS)):
            if milliseconds % size == 0:
                return f"{milliseconds // size}{unit}"
        return f"{milliseconds}ms"
