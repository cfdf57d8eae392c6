"""PromQL that rules, dashboards and the relay share: labels, selectors, and matchers of round trips and failures."""

from __future__ import annotations

from typing import Final

from pellucid import semconv
from pellucid_dashboards.names import label, series
from pellucid_exporters.alerting.outcomes import BROKEN, HALTED, NOT_SERVED, OPEN_BY_DESIGN, UNANSWERED

JOB: Final = "job"
INSTANCE: Final = "instance"
LE: Final = "le"
UP: Final = "up"
ALERTS: Final = "ALERTS"
BUDGET_SPENT: Final = "pellucid:hub_error_budget:spent7d"
"""Series of the share of its budget of slow requests that a hub has spent in 7 days; 1 is all of it."""

DECLARED: Final = "pellucid:hub_info:max"
"""Series of what processes declare about a hub, as labels."""


def by(*attributes: str) -> str:
    """Return the labels that rules group by: the job, and the labels of attributes."""
    return ", ".join((JOB, *(label(attribute) for attribute in attributes)))


def selector(name: str, *matchers: str) -> str:
    """Return a selector of the series of a name, such as that of a recording rule."""
    return f"{name}{{{', '.join(matchers)}}}" if matchers else name


def number(value: float) -> str:
    """Format a number for PromQL, without an exponent if it has up to 15 digits."""
    return f"{value:.15g}"


def where(attribute: str, operator: str, *values: str) -> str:
    """Return a matcher, such as `error_type!~"backoff|circuit_open"`."""
    return f'{label(attribute)}{operator}"{"|".join(values)}"'


def approvals_pending(labels: str, *matchers: str) -> str:
    """Return the number of calls that wait for a person, by labels that contain the job and the tool.

    The store of durable runs knows it exactly. Services without one count in each process.
    """
    where_approval = selector(series(semconv.DURABLE_PENDING), *matchers, where(semconv.DURABLE_KIND, "=", "approval"))
    counted = f"sum by ({labels}) ({selector(series(semconv.APPROVAL_PENDING), *matchers)})"
    return f"max by ({labels}) ({where_approval})\nor ({counted} unless on ({JOB}) {series(semconv.DURABLE_RUNS)})"


FAILED: Final = where(semconv.ERROR_TYPE, "!=")
SUCCEEDED: Final = where(semconv.ERROR_TYPE, "=")
NOT_HALTED: Final = where(semconv.ERROR_TYPE, "!=", HALTED)
"""Runs that the permission policy did not halt; a halted run is not a failed one."""

BROKEN_REQUESTS: Final = where(semconv.OUTCOME, "=~", *BROKEN)
ANSWERED_REQUESTS: Final = where(semconv.OUTCOME, "=", semconv.COMPLETED)
UNANSWERED_REQUESTS: Final = where(semconv.OUTCOME, "=~", *UNANSWERED)

REQUESTS: Final = where(semconv.MCP_METHOD_NAME, "!~", *OPEN_BY_DESIGN)
"""Messages to a server that it answers at once: no notifications, and no requests that stay open by design."""
OWN_FAILURES: Final = where(semconv.ERROR_TYPE, "!~", "", *NOT_SERVED)
"""Failures of a server, as opposed to cancellations and wrong requests."""
