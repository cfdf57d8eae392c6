"""Check of other frameworks: which are installed, with which MCP SDK, and what shows their hubs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from pellucid_commands.doctor.findings import Finding, Setup

FRAMEWORKS: Final = (
    "agent-framework-core",
    "fastmcp",
    "google-adk",
    "langchain-mcp-adapters",
    "openai-agents",
    "pydantic-ai-slim",
    "smolagents",
    "strands-agents",
)
"""Distributions of frameworks with MCP clients."""

_DISABLED: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
_ABOUT: Final = "frameworks"


def check_frameworks(setup: Setup) -> Iterator[Finding]:
    """Report frameworks and the MCP SDK, and whether `opentelemetry-instrument` instruments them."""
    found = [f"{name} {version}" for name in FRAMEWORKS if (version := _version(name)) is not None]
    sdk = _version("mcp")
    mcp = f"mcp {sdk}" if sdk is not None else "no mcp"
    if not found:
        yield Finding("ok", _ABOUT, f"none but Pellucid, {mcp}")
        return
    text = f"{', '.join(found)}, {mcp}"
    if _version("opentelemetry-instrumentation") is None:
        remedy = "pip install 'pellucid[instrumentation]' and call instrument() to see their hubs"
        yield Finding("note", _ABOUT, f"{text}: not instrumented", remedy)
    elif {"pellucid", "*"} & {name.strip() for name in os.environ.get(_DISABLED, "").split(",")}:
        yield Finding("note", _ABOUT, f"{text}: {_DISABLED} turns their instrumentation off", "call instrument()")
    else:
        yield Finding("ok", _ABOUT, f"{text}: instrumented by opentelemetry-instrument, or by instrument() in code")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
