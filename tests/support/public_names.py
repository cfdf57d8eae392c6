"""Public names that users write into programs, queries, alerts and scripts, as `docs/versions.md` promises them.

`python -m support.public_names` records them in `tests/public_names.json`.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, _SubParsersAction
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid.cli import GROUP
from pellucid.events import EVENTS
from pellucid.semconv import durable, elicitation, experiments, newest, resources, servers
from pellucid.server.openapi import document, document_without_store
from pellucid.telemetry import phases
from pellucid_dashboards.rules import Alert, all_groups
from pellucid_exporters.alerting.definition import Context
from support.python_api import parameters, public_objects

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED: Final = Path(__file__).parents[1] / "public_names.json"


def collect() -> dict[str, list[str]]:
    """Return all names, by section. A name and what belongs to it, such as a unit, are one line."""
    rules = [rule for group in all_groups(Context()) for rule in group.rules]
    metrics = [*servers.ALL_METRICS, *semconv.USAGE_COUNTERS.values(), *semconv.CALL_TOKENS.values()]
    served = [document(has_calls=True, has_metrics=True), document_without_store(has_metrics=True)]
    objects = public_objects()
    parts = {
        "names of Python": objects,
        "parameters": parameters(objects),
        "spans, attributes and their values": (
            value
            for module in (semconv, newest, servers, elicitation, resources, durable, experiments)
            for name, value in vars(module).items()
            if name.isupper() and isinstance(value, str)
        ),
        "metrics": (f"{metric.name} {metric.kind} {metric.unit}" for metric in metrics),
        "buckets": (
            f"{metric.name} {' '.join(f'{b:g}' for b in metric.buckets)}" for metric in metrics if metric.buckets
        ),
        "labels": (f"{metric.name} {label}" for metric in metrics for label in metric.attributes),
        "events": EVENTS,
        "fields of events": (f"{name} {field.name}" for name, event in EVENTS.items() for field in fields(event)),
        "log lines": (f"{phase.operation} {field}" for phase in phases.PHASES.values() for field in phase.logged),
        "alerts": (rule.name for rule in rules if isinstance(rule, Alert)),
        "recorded series": (rule.name for rule in rules if not isinstance(rule, Alert)),
        "commands": _commands(),
        "HTTP": (
            f"{method.upper()} {path}" for api in served for path, methods in api["paths"].items() for method in methods
        ),
        "members of bodies": (
            f"{name} {member}"
            for api in served
            for name, schema in api["components"]["schemas"].items()
            for member in schema.get("properties", ())
        ),
    }
    return {section: sorted(set(names)) for section, names in parts.items()}


def _commands() -> Iterator[str]:
    """Yield the subcommands of this distribution, and each of their options."""
    for point in entry_points(group=GROUP):
        if point.value.startswith("pellucid_"):
            parser = ArgumentParser(prog=f"pellucid {point.name}")
            point.load().add_arguments(parser)
            yield from _options(parser)


def _options(parser: ArgumentParser) -> Iterator[str]:
    yield parser.prog
    for action in parser._actions:
        yield from (f"{parser.prog.split(' [')[0]} {option}" for option in action.option_strings)
        if isinstance(action, _SubParsersAction):
            for nested in action.choices.values():
                yield from _options(nested)


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(collect(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
