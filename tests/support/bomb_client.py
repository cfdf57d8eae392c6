"""A process that reads one response of a local server and prints how it failed, and the memory that it took.

Arguments: `mcp`, `model` or `stdio`; the URL, or the arguments of the server process. The event loop is asyncio's.
"""

from __future__ import annotations

import json
import resource
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from pellucid import DiscoveryContext, Message, ModelRequest, PellucidError
from pellucid.mcp import MCPProvider
from pellucid.models.openai import OpenAIModel

KIB = 1024


def peak() -> int:
    """Return the most memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def current() -> int:
    """Return the memory now, in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


async def list_tools(provider: MCPProvider) -> None:
    """List the tools of a server."""
    async with provider:
        await provider.list_tools(DiscoveryContext())


async def ask(url: str) -> None:
    """Ask a model."""
    model = OpenAIModel("m", api="chat", api_key="none", base_url=url)
    await model.generate(ModelRequest(messages=[Message("user", "hi")]))


async def main(way: str, *arguments: str) -> None:
    """Print one line of JSON."""
    before = current()
    failure: PellucidError | None = None
    try:
        match way:
            case "mcp":
                await list_tools(MCPProvider.http(arguments[0], id="hub"))
            case "stdio":
                await list_tools(MCPProvider.stdio(*arguments, id="hub"))
            case _:
                await ask(arguments[0])
    except PellucidError as error:
        failure = error  # kept, as a run's result keeps it
    report: dict[str, Any] = {"error": str(failure), "type": failure and failure.error_type}
    print(json.dumps({**report, "before": before, "peak": peak(), "after": current()}))


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[1:]))
