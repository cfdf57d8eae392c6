"""Tools of a recorded catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pellucid.tools import Tool, ToolAnnotations
from pellucid.tools.eliciting import ElicitingTool
from pellucid.tools.provider_tool import ProviderTool
from pellucid.tools.tool import Builtin, Hub, Mcp, ToolSource

_OPTIONS: Final = ("serial", "idempotent", "lazy", "tags", "execution", "pending", "attributes", "output_schema")


def tools_of(catalog: Mapping[str, Any], stand_in: Callable[[Tool], Tool]) -> Iterator[Tool]:
    """Yield the tools of a recorded catalogue, without bounds of time, each replaced by `stand_in`."""
    for item in catalog["tools"]:
        options = {name: item[name] for name in _OPTIONS if name in item}
        known = {
            "name": item["name"],
            "description": item["description"],
            "input_schema": item["parameters"],
            "source": _source_of(item.get("source") or {}),
            "needs_approval": bool(item.get("needs_approval")),
            "annotations": ToolAnnotations.from_dict(item["annotations"]) if "annotations" in item else None,
            **options,
        }
        if "vendor" in item:
            yield ProviderTool(vendor=item["vendor"], type=item["type"], options=item.get("options", {}), **known)
        else:
            yield stand_in(ElicitingTool(run=_unused, **known))


async def _unused(arguments: Any, ctx: Any) -> None:
    """Stand for the function until `stand_in` replaces it."""


def _source_of(source: Mapping[str, Any]) -> ToolSource:
    kind, place = source.get("kind"), source.get("place")
    return Mcp(place) if kind == Mcp.kind and place else Hub(place) if kind == Hub.kind and place else Builtin()
