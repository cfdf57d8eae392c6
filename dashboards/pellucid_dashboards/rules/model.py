"""What a file of rules consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pellucid_dashboards.rules.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Severity: TypeAlias = Literal["page", "ticket"]
"""`page` wakes somebody; a `ticket` is for the next working day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A recording rule.

    Attributes:
        name: Of the series that it makes.
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
        severity: Who is told.
        after: Seconds for which that must be so; 0 is at once.
        keep: Seconds for which it goes on firing when that is no longer so.
        summary: One line with who, how much, and which objective or threshold; a template of Prometheus.
        description: What it means, in a sentence or two; a template.
        dashboard: Path below Grafana's address; a template.
        labels: Further labels, beside those of the series.
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
    """Rules that are evaluated one after the other, so that each sees what those before it recorded."""

    name: str
    rules: Sequence[Record | Alert]


MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What rules are made with.

    Attributes:
        thresholds: The numbers.
        scale: Factor of all windows and of `for`; 1 in earnest, less in drills and tests.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    scale: float = 1.0

    def window(self, seconds: float) -> str:
        """Return a scaled duration as PromQL writes it, of a millisecond at least."""
        milliseconds = max(1, round(seconds * self.scale * MS))
        for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", MS)):
            if milliseconds % size == 0:
                return f"{milliseconds // size}{unit}"
        return f"{milliseconds}ms"
