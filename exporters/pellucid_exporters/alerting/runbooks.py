"""Runbooks: what to do about an alert, with the labels of the alert filled in."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from pellucid import semconv
from pellucid.errors import ConfigError
from pellucid.semconv.budgets import BUDGET_NAME
from pellucid.semconv.scores import EVALUATION_NAME

PLACEHOLDERS: Final = {
    "job": "job",
    "hub": semconv.PROVIDER_ID.replace(".", "_"),
    "tool": semconv.TOOL_NAME.replace(".", "_"),
    "model": semconv.REQUEST_MODEL.replace(".", "_"),
    "agent": semconv.AGENT_NAME.replace(".", "_"),
    "score": EVALUATION_NAME.replace(".", "_"),
    "budget": BUDGET_NAME.replace(".", "_"),
}
"""Placeholders of the runbooks, such as `$hub`, and the labels of alerts that replace them."""

_PLACES: Final = (Path(__file__).with_name("runbooks.md"), Path(__file__).parents[3] / "docs" / "runbooks.md")
"""The file in an installed package, and in a clone of the repository."""

_PLACEHOLDER: Final = re.compile(rf'"\$({"|".join(PLACEHOLDERS)})"|\$({"|".join(PLACEHOLDERS)})\b')


def runbook_names() -> tuple[str, ...]:
    """Return the names of all alerts that have a runbook, in the order of the file."""
    return tuple(_sections())


def runbook(name: str, labels: Mapping[str, str]) -> str:
    """Return the runbook of an alert as Markdown.

    Args:
        name: Name of the alert, in any case.
        labels: Labels of the alert, for the queries; placeholders of those that are missing stay.

    Raises:
        ConfigError: there is no such runbook.
    """
    return filled(section(name), labels)


def section(name: str) -> str:
    """Return the runbook of an alert as Markdown, with its placeholders.

    Raises:
        ConfigError: there is no such runbook.
    """
    by_name = {known.lower(): text for known, text in _sections().items()}
    if (found := by_name.get(name.lower())) is not None:
        return found
    close = get_close_matches(name, runbook_names(), 1)
    raise ConfigError(
        f"there is no runbook {name[:80]!r}; {f'did you mean {close[0]}? ' if close else ''}"
        f"there are {', '.join(runbook_names())}"
    )


def filled(text: str, labels: Mapping[str, str]) -> str:
    """Return a text with its placeholders replaced; in quotation marks as a string of PromQL."""

    def value(found: re.Match[str]) -> str:
        quoted, plain = found.groups()
        label = labels.get(PLACEHOLDERS[quoted or plain])
        if not label:
            return found[0]
        return json.dumps(label, ensure_ascii=False) if quoted else label

    return _PLACEHOLDER.sub(value, text)


@functools.cache
def _sections() -> Mapping[str, str]:
    path = next((place for place in _PLACES if place.is_file()), None)
    if path is None:
        raise ConfigError(
            f"the runbooks are missing from this installation: there is no {_PLACES[0]}; install it again"
        )
    parts = re.split(r"^## (\w+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {name: f"# {name}\n{text}".strip() + "\n" for name, text in sections.items() if name != "Thresholds"}
