"""Parts that the programs of the adapters share: our provider for their agents, and checks of its telemetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pellucid import BlobPart, DiscoveryProvider, TextPart, Tool, ToolCall, ToolContext, ToolResult, observe, tool
from pellucid.standalone import ObservedProvider
from pellucid.testing import FakeHub
from pellucid_exporters.testing import Captured

PNG = BlobPart(content="aGVsbG8=", modality="image", mime_type="image/png")


@tool
def rooms(floor: int) -> dict[str, int]:
    """Count the rooms of a floor."""
    return {"count": floor * 10}


@tool
def picture() -> tuple[TextPart, BlobPart]:
    """Return a picture."""
    return TextPart("a cat"), PNG


@tool
def broken() -> str:
    """Fail."""
    raise OSError("the disk is full")


@tool(needs_approval=True)
def pay(amount: int, ctx: ToolContext[Any]) -> str:
    """Pay."""
    return f"paid {amount}"


TOOLS: Sequence[Tool[Any]] = (rooms, picture, broken, pay)


def shop() -> tuple[FakeHub[Any], ObservedProvider[Any]]:
    """Return a hub, and a provider of its tools that keeps them."""
    hub: FakeHub[Any] = FakeHub(TOOLS)
    return hub, observe(DiscoveryProvider(hub, id="shop", ttl=60, objective=0.5))


def check(telemetry: Captured, hub: FakeHub[Any], calls: Sequence[str], *, listings: int | None = None) -> None:
    """Check that each listing and each call is one span, and that the hub was asked once."""
    assert len(hub.calls) == 1, hub.calls
    found = len(telemetry.find("discover_tools shop"))
    assert found >= 1 if listings is None else found == listings, found
    executed = [span.name for span in telemetry.spans if span.name.startswith("execute_tool")]
    assert sorted(executed) == sorted(f"execute_tool {name}" for name in calls), executed


def answered(parts: Sequence[object]) -> dict[str, ToolResult]:
    """Return the results among the parts of messages, by names of tools."""
    return {part.name: part for part in parts if isinstance(part, ToolResult)}


def calls_of(*names: str) -> list[ToolCall]:
    """Return calls of our agent for tools of theirs, each with the argument `floor`."""
    return [ToolCall(name, {"floor": 2}) for name in names]
