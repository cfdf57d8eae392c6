"""The three hubs of the demo: two MCP servers, each a process, and a catalogue that is slow and down at first."""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from pellucid import DiscoveryProvider, tool
from pellucid.mcp import MCPProvider
from pellucid.testing import FakeHub

if TYPE_CHECKING:
    from pellucid_commands.demo.repository import Repository

OBJECTIVE: Final = 0.2
"""Objective of each hub for listing its tools, in seconds."""
LATENCY: Final = 0.4
"""Seconds that the catalogue takes to list its tools."""
RETRY_AFTER: Final = 3
"""Seconds for which the catalogue asks to be left alone when it is down."""

SHORTEST_TOP_WORD: Final = 4


def git_hub(repository: Repository) -> MCPProvider:
    """Return the tools of the server of one repository."""
    return MCPProvider.stdio(sys.executable, *repository.command, id="git", objective=OBJECTIVE)


def time_hub() -> MCPProvider:
    """Return the tools of `mcp-server-time`."""
    return MCPProvider.stdio(
        sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC", id="time", objective=OBJECTIVE
    )


def catalogue_hub() -> DiscoveryProvider:
    """Return the tools of a hub that takes its time, and fails the first request."""
    hub = FakeHub([count_words, top_words], latency=LATENCY, faults=[CatalogueError("the index is being rebuilt")])
    return DiscoveryProvider(hub, id="catalogue", ttl=60.0, objective=OBJECTIVE)


class CatalogueError(OSError):
    """The catalogue is down.

    Attributes:
        retry_after: Seconds for which it asks to be left alone; Pellucid's back-off takes as long.
    """

    retry_after = RETRY_AFTER


@tool
async def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(_words(text))


@tool
async def top_words(text: str, count: int = 3) -> list[dict[str, Any]]:
    """Find a text's most frequent words of 4 letters or more."""
    long_words = (word for word in _words(text) if len(word) >= SHORTEST_TOP_WORD)
    return [{"word": word, "count": number} for word, number in Counter(long_words).most_common(count)]


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+(?:['-][^\W\d_]+)*", text.lower())
