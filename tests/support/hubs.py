"""What tests of hubs share: tools that do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pellucid import Tool


async def nothing(arguments: dict[str, Any], ctx: object) -> None:
    """Do nothing."""


def named(*names: str) -> list[Tool]:
    """Return tools of these names."""
    return [Tool(name=name, run=nothing) for name in names]


def names(tools: Sequence[Tool]) -> list[str]:
    """Return the names of tools."""
    return [tool.name for tool in tools]
