"""Tools that Pellucid brings along, and the names that are theirs."""

from __future__ import annotations

from typing import Final

from pellucid.tools.tool import Tool

LOAD_SKILL: Final = "load_skill"
RESERVED: Final = frozenset({LOAD_SKILL})
"""Names that no tool of an application, hub or server may have."""


class MetaTool(Tool):
    """A tool of Pellucid's own, which a model uses to change what it is offered."""
