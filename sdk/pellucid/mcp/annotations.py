"""Annotations of tools from a server."""

from __future__ import annotations

from typing import Final

from mcp_types import Tool as ServerTool

from pellucid.text import excerpt
from pellucid.tools.annotations import ToolAnnotations, ToolIcon
from pellucid.tools.hidden import visible

LONGEST_TITLE: Final = 200
"""Most characters of a title, which people read before they approve a call."""


def annotations_of(tool: ServerTool) -> ToolAnnotations | None:
    """Return the annotations of a server's tool, its title and its icons; None if it states nothing."""
    said = tool.annotations
    title = tool.title or (said.title if said is not None else None)
    icons = [
        ToolIcon(src=icon.src, mime_type=icon.mime_type, sizes=tuple(icon.sizes or ()), theme=icon.theme)
        for icon in tool.icons or ()
    ]
    annotations = ToolAnnotations(
        title=excerpt(visible(title), LONGEST_TITLE) if title else None,
        read_only_hint=said.read_only_hint if said is not None else None,
        destructive_hint=said.destructive_hint if said is not None else None,
        idempotent_hint=said.idempotent_hint if said is not None else None,
        open_world_hint=said.open_world_hint if said is not None else None,
        icons=tuple(icons),
    )
    return annotations if annotations != ToolAnnotations() else None
