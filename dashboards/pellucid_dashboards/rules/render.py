"""Renderer of the rules file of Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid_dashboards.rules.groups import all_groups
from pellucid_dashboards.rules.model import Alert, Group, Record
from pellucid_dashboards.rules.words import LABELS
from pellucid_exporters.alerting.definition import Context, runbook_address
from pellucid_exporters.alerting.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RULES_FILE: Final = Path(__file__).parent.parent / "files" / "prometheus" / "pellucid_rules.yml"
"""Path of the shipped rules."""

_HEADER: Final = """\
# Recording and alerting rules for Pellucid, made by `pellucid rules export`{how}.
# What each alert means and what to do: docs/runbooks.md. Do not edit: change thresholds by `--set`, and export again.
"""


def render(
    thresholds: Thresholds | None = None, *, scale: float = 1.0, labels: Mapping[str, str] | None = None, how: str = ""
) -> str:
    """Render the file of rules in YAML.

    Args:
        thresholds: Thresholds of the alerts; by default `Thresholds()`.
        scale: Factor of all windows and of `for`, for drills and tests.
        labels: Labels of all alerts in addition to their own, as `fixed_labels` returns them.
        how: Arguments that produced the file, quoted in its header.
    """
    context = Context(thresholds=thresholds or Thresholds(), scale=scale)
    lines = [line for group in all_groups(context) for line in _group(group, context, labels or {})]
    return _HEADER.format(how=how) + "\n".join(["groups:", *lines]) + "\n"


def write_rules() -> None:
    """Regenerate the shipped file."""
    RULES_FILE.parent.mkdir(parents=True, exist_ok=True)
    RULES_FILE.write_text(render(), encoding="utf-8")


def _group(group: Group, context: Context, labels: Mapping[str, str]) -> Iterator[str]:
    yield f"  - name: {group.name}"
    if group.interval is not None:
        yield f"    interval: {group.interval}"
    yield "    rules:"
    for rule in group.rules:
        yield from _record(rule) if isinstance(rule, Record) else _alert(rule, context, labels)


def _record(record: Record) -> Iterator[str]:
    yield f"      - record: {json.dumps(record.name)}"
    yield from _expression(record.expression)


def _alert(alert: Alert, context: Context, labels: Mapping[str, str]) -> Iterator[str]:
    thresholds = context.thresholds
    annotations = {
        "summary": alert.summary,
        "description": alert.description,
        "runbook_url": runbook_address(alert.name, thresholds, f"severity={alert.severity}{LABELS}"),
        "dashboard_url": f"{thresholds.dashboard_base.rstrip('/')}{alert.dashboard}",
        **alert.annotations,
    }
    yield f"      - alert: {alert.name}"
    yield from _expression(alert.expression)
    if alert.after:
        yield f"        for: {context.window(alert.after)}"
    if alert.keep:
        yield f"        keep_firing_for: {context.window(alert.keep)}"
    yield from _mapping("labels", {"severity": alert.severity, **alert.labels, **labels})
    yield from _mapping("annotations", annotations)


def _expression(text: str) -> Iterator[str]:
    yield "        expr: |"
    yield from (f"          {line}" for line in text.strip().splitlines())


def _mapping(name: str, values: Mapping[str, str]) -> Iterator[str]:
    yield f"        {name}:"
    for key, value in values.items():
        yield f"          {key}: {json.dumps(value, ensure_ascii=False)}"  # a JSON string is a valid YAML string
