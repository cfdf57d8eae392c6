"""An alert in words, and what these words are filled with: templates in a rule, values in an alert that fires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pellucid_exporters.alerting.thresholds import Thresholds

Severity: TypeAlias = Literal["page", "ticket", "none"]
"""Severity: `page` is urgent; a `ticket` can wait for the next working day; `none` is for no person."""

MINUTE: Final = 60.0
FIVE_MINUTES: Final = 5 * MINUTE
TEN_MINUTES: Final = 10 * MINUTE
HALF_HOUR: Final = 30 * MINUTE
HOUR: Final = 60 * MINUTE
SIX_HOURS: Final = 6 * HOUR
DAY: Final = 24 * HOUR

_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Parameters of the alerts.

    Attributes:
        thresholds: The numbers.
        scale: Factor of all windows and of `for`; 1 in production, less in drills and tests.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    scale: float = 1.0

    def window(self, seconds: float) -> str:
        """Return a scaled PromQL duration of at least a millisecond."""
        milliseconds = max(1, round(seconds * self.scale * _MS))
        for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", _MS)):
            if milliseconds % size == 0:
                return f"{milliseconds // size}{unit}"
        return f"{milliseconds}ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Words that differ between the summaries of a rule and of an alert that fires.

    Attributes:
        subject: Subject of the alert, such as `Tool hub github (support)`.
        value: The measured value with its unit.
        objective: Latency objective of the hub.
        budget: Share of the hub's requests that may take longer.
        p95: 95th percentile of the hub's requests.
        last_success: Clause about the hub's last success.
        since: Time of the first request after the hub's last answer.
        requests: Number of requests without an answer.
    """

    subject: str
    value: str
    objective: str = ""
    budget: str = ""
    p95: str = ""
    last_success: str = ""
    since: str = ""
    requests: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """An alert in words.

    Attributes:
        name: As in `docs/runbooks.md`.
        severity: Severity of the notification.
        summary: One line with subject, value, and objective or threshold.
        description: Explanation in one or two sentences.
        after: Seconds for which a rule must be active before it fires; 0 is at once.
        keep: Seconds for which a rule continues to fire when it is no longer active.
        labels: Labels in addition to those of the series.
    """

    name: str
    severity: Severity
    summary: str
    description: str
    after: float = 0.0
    keep: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)


def runbook_address(name: str, thresholds: Thresholds, query: str = "") -> str:
    """Return the address of an alert's runbook: a page with the alert's labels as a query, or a section of one page."""
    base = thresholds.runbook_base
    return f"{base}{name}{'?' if query else ''}{query}" if base.endswith("/") else f"{base}#{name.lower()}"


def share(value: float) -> str:
    """Format a share as a percentage."""
    return f"{value * 100:g}%"


def seconds(value: float) -> str:
    """Format seconds for people."""
    for unit, size in (("h", HOUR), ("min", MINUTE)):
        if value >= size and (value / size).is_integer():
            return f"{value / size:g} {unit}"
    return f"{value:g} s"
