"""Data model of a file of rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pellucid_exporters.alerting.definition import Definition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
class Alert(Definition):
    """An alerting rule; its summary and description are templates of Prometheus.

    Attributes:
        expression: PromQL; the alert is active for each series that it returns, and the value is in the summary.
        dashboard: Path below Grafana's address; a template.
        annotations: Annotations in addition to those of every alert.
    """

    expression: str
    dashboard: str
    annotations: Mapping[str, str] = field(default_factory=dict)


def alert(definition: Definition, *, expression: str, dashboard: str) -> Alert:
    """Return the rule of an alert that is defined in words."""
    return Alert(
        name=definition.name,
        severity=definition.severity,
        summary=definition.summary,
        description=definition.description,
        after=definition.after,
        keep=definition.keep,
        labels=definition.labels,
        expression=expression,
        dashboard=dashboard,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rules that are evaluated sequentially, so that each reads values recorded by earlier ones.

    Attributes:
        interval: PromQL duration between two evaluations; that of the server unless given.
    """

    name: str
    rules: Sequence[Record | Alert]
    interval: str | None = None
