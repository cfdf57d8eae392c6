"""An alert that fires."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from pellucid_exporters.alerting.definition import Definition, Severity, runbook_address
from pellucid_exporters.alerting.runbooks import PLACEHOLDERS
from pellucid_exporters.alerting.thresholds import Thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert that fires.

    Attributes:
        name: As in `docs/runbooks.md`.
        severity: `page` or `ticket`.
        summary: One line with subject, value, and objective or threshold.
        description: Explanation in one or two sentences.
        runbook: Address of what to do.
        provider_id: The hub it is about.
        run_id, span_id: A boundary that shows the problem.
        value: Measured value: a share, seconds, a number, tokens or US dollars.
        since: Start of the first boundary in the window that counts for the value, in nanoseconds since the epoch; of
            round trips that were too late, the minute of it.
    """

    name: str
    severity: Severity
    summary: str
    description: str
    runbook: str
    provider_id: str | None
    run_id: str | None
    span_id: str | None
    value: float
    since: int


def _query(provider_id: str | None) -> str:
    return urlencode({PLACEHOLDERS["hub"]: provider_id}) if provider_id else ""


def fire(
    definition: Definition,
    thresholds: Thresholds,
    *,
    value: float,
    since: float,
    exemplar: tuple[str, str] | None,
    provider_id: str | None = None,
) -> Alert:
    """Return an alert with the run and span that show the problem."""
    run_id, span_id = exemplar or (None, None)
    return Alert(
        name=definition.name,
        severity=definition.severity,
        summary=definition.summary,
        description=definition.description,
        runbook=runbook_address(definition.name, thresholds, _query(provider_id)),
        provider_id=provider_id,
        run_id=run_id or None,
        span_id=span_id,
        value=value,
        since=round(since),
    )
