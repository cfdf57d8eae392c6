"""Names for what differs between a recording and its replay: tools in place of digests, settings by key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pellucid import semconv

SETTING: Final = "gen_ai.request."
_NO_SETTINGS: Final = frozenset({semconv.REQUEST_MODEL, semconv.REQUEST_STREAM})
_COMPARED: Final = ("registry_mode", "collisions", "limits", "output_schema")
_LIMITS: Final = frozenset({"max_iterations", "max_tool_calls", "max_model_calls", "max_tokens", "max_cost"})
"""Limits that hold in a replay, too."""


def settings(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a model call, or of a run those that its other boundaries do not show."""
    if attributes.get(semconv.PHASE) == semconv.RUN:
        found = parsed(attributes, semconv.AGENT_CONFIGURATION)
        known = {name: found[name] for name in _COMPARED if name in found} if isinstance(found, dict) else {}
        limits = known.get("limits") or {}
        return {**known, "limits": {name: limits[name] for name in limits if name in _LIMITS}} if known else {}
    return {
        name.removeprefix(SETTING): value
        for name, value in attributes.items()
        if name.startswith(SETTING) and name not in _NO_SETTINGS
    }


class Tools:
    """Tools of the catalogues of one side.

    Args:
        spans: Attributes of its spans.
        catalogs: Catalogues of its providers by digest.
    """

    def __init__(self, spans: Iterable[Mapping[str, Any]], catalogs: Mapping[str, Mapping[str, Any]]) -> None:
        self._known: dict[Any, list[Any]] = {
            digest: [{name: tool[name] for name in tool if name != "source"} for tool in item["tools"]]
            for digest, item in catalogs.items()
        }
        for attributes in spans:
            definitions = parsed(attributes, semconv.TOOL_DEFINITIONS)
            if isinstance(definitions, list):
                self._known.setdefault(attributes.get(semconv.CATALOG_DIGEST), definitions)

    def of(self, attributes: Mapping[str, Any]) -> list[Any] | None:
        """Return the tools of a boundary: with definitions, or the names that a request offered; `None` if unknown."""
        if attributes.get(semconv.PHASE) == semconv.COMPOSE:
            output = parsed(attributes, semconv.OUTPUT)
            names = output.get("tools") if isinstance(output, dict) else None
            return [{"name": name} for name in names] if isinstance(names, list) else None
        return self._known.get(attributes.get(semconv.CATALOG_DIGEST))


def parsed(attributes: Mapping[str, Any], name: str) -> Any:
    """Return recorded JSON; `None` if it is missing, or was cut."""
    text = attributes.get(name)
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
