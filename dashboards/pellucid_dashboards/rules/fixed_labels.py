"""Labels of a user's own, such as a team, that all alerts get."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pellucid.errors import ConfigError
from pellucid_dashboards.rules.groups import all_groups
from pellucid_dashboards.rules.model import Alert
from pellucid_exporters.alerting.definition import Context

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterable

_GROUPING: Final = re.compile(r"\b(?:by|on|group_left)\s*\(([\w, ]*)\)")
_SHOWN: Final = re.compile(r"\$labels\.(\w+)")


def add_label_option(parser: ArgumentParser) -> None:
    """Declare `--label`."""
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="label of all alerts, such as team=payments, to route them by; may be given several times",
    )


def fixed_labels(assignments: Iterable[str]) -> dict[str, str]:
    """Return labels by name.

    Args:
        assignments: Each is `name=value`.

    Raises:
        ConfigError: it is not; alerts have a label of this name already; or the value is a template.
    """
    found: dict[str, str] = {}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        if not re.fullmatch(r"(?!__)[a-zA-Z_]\w*", name, re.ASCII):
            raise ConfigError(f"--label {assignment!r}: write NAME=VALUE, with letters, digits and _ in the name")
        if not value or "{{" in value:
            raise ConfigError(f"--label {assignment!r}: the value is text that is not empty, and no template")
        if name in found:
            raise ConfigError(f"--label {assignment!r}: {name} has the value {found[name]!r} already; give it once")
        if name in (taken := _taken()):
            theirs = ", ".join(taken)
            raise ConfigError(f"--label {assignment!r}: alerts have a label {name}; all of theirs are {theirs}")
        found[name] = value
    return found


def _taken() -> list[str]:
    """Return the names of the labels that the alerts have, or that tell them apart."""
    names = {"alertname", "alertstate", "severity"}
    for alert in (rule for group in all_groups(Context()) for rule in group.rules if isinstance(rule, Alert)):
        names |= {*alert.labels, *_SHOWN.findall(f"{alert.summary} {alert.dashboard}")}
        names.update(name for group in _GROUPING.findall(alert.expression) for name in re.findall(r"\w+", group))
    return sorted(names)
