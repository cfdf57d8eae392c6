"""`docs/telemetry.md` says what the code emits: nothing is missing in it, and nothing in it is made up."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pellucid import semconv
from pellucid.events import EVENTS, Event
from pellucid.semconv import budgets, durable, elicitation, experiments, newest, resources, servers, tool_locks
from pellucid.semconv.servers import ALL_METRICS
from pellucid.telemetry import phases

PAGE = (Path(__file__).parent.parent / "docs" / "telemetry.md").read_text()
METRICS = PAGE.split("\n## Metrics\n")[1]
KINDS = {"histogram": "histogram", "counter": "counter", "updown": "up-down counter", "gauge": "gauge"}
MODULES = (semconv, newest, servers, budgets, durable, elicitation, experiments, resources, tool_locks)
NO_ATTRIBUTES = ("EXCEPTION_EVENT", "HUB_LISTING", "ELICITATION_ANSWERED")
EMITTED = {
    value
    for module in MODULES
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str) and "." in value and name not in NO_ATTRIBUTES
}
"""Names of attributes."""

ENVELOPE = {field.name for field in fields(Event)}
PHASES = tuple(phases.PHASES.values())


def rows(section: str) -> dict[str, list[str]]:
    """Return the rows of the tables below a heading, by what stands in their first column."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[1:] for row in cells}


@pytest.mark.parametrize("name", sorted(EMITTED))
def test_each_attribute_is_described(name: str) -> None:
    """Each attribute that is emitted is described with a type, a meaning and an example."""
    assert all(rows("Spans")[name])


def test_no_attribute_is_made_up() -> None:
    """Each attribute that is described is emitted, and each that a phase notes is described."""
    assert set(rows("Spans")) == EMITTED
    assert {name for phase in PHASES for name in (*phase.names.values(), *phase.attributes)} <= EMITTED


@pytest.mark.parametrize("metric", ALL_METRICS, ids=lambda metric: metric.name)
def test_each_metric_is_described(metric: semconv.Metric) -> None:
    """Each metric is described with its type, unit, labels, meaning and buckets."""
    found = re.search(rf"^\| `{re.escape(metric.name)}` \|(.*)\|(.*)\|(.*)\|$", METRICS, re.MULTILINE)
    assert found is not None
    kind, labels, meaning = (cell.strip() for cell in found.groups())
    assert kind == f"{KINDS[metric.kind]}, {metric.unit}"
    assert tuple(re.findall(r"`([^`]+)`", labels)) == metric.attributes
    assert meaning == metric.description
    if metric.buckets:
        bounds = ", ".join(f"{bound:g}" for bound in metric.buckets)
        assert f"| `{metric.name}` | {bounds} |" in PAGE


def test_no_metric_is_made_up() -> None:
    """Each metric that is described exists."""
    assert set(rows("Metrics")) == {metric.name for metric in ALL_METRICS}


def test_each_event_is_described() -> None:
    """Each event is described with its fields."""
    described = {name: re.findall(r"`([^`]+)`", row[0]) for name, row in rows("Events").items()}
    assert described == {
        name: [field.name for field in fields(event) if field.name not in ENVELOPE] for name, event in EVENTS.items()
    }


def test_each_field_of_log_lines_is_described() -> None:
    """Each field of log lines is described."""
    common = {"event", "level", "timestamp", "agent", "run_id", "iteration", "trace_id", "span_id"}
    ended = {"outcome", "duration_ms", "error", "error_type"}
    assert set(rows("Logs")) == common | ended | {name for phase in PHASES for name in phase.logged}
