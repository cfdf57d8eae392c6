"""A hub that answers late, and an agent that may have patience with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
from anyio.lowlevel import checkpoint
from opentelemetry.sdk.trace import ReadableSpan

from pellucid import Agent, DiscoveryContext, DiscoveryProvider, Tool, ToolCall, ToolProvider, semconv
from pellucid.testing import FakeHub, FunctionModel
from pellucid_exporters.testing import Captured
from support.hubs import named
from support.runs import attributes

LATE = "discover_tools late"


class Late:
    """A hub that answers when the test lets it."""

    def __init__(self, *names: str) -> None:
        self.tools = named(*names or ("slow",))
        self.release = anyio.Event()
        self.fault: Exception | None = None
        self.calls = 0
        self.cancelled = anyio.Event()

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Return the tools, or fail, after the release."""
        self.calls += 1
        try:
            await self.release.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise
        if self.fault is not None:
            raise self.fault
        return self.tools


class Talk:
    """An agent beside a fast hub: its model calls a tool once, when `between` has ended, and then answers."""

    def __init__(self, provider: ToolProvider, between: Any = None, **options: Any) -> None:
        self.offered: list[list[str]] = []
        self.instructions: list[str | None] = []
        self.between = between
        fast = DiscoveryProvider(FakeHub(named("fast")), id="fast")
        self.agent = Agent("a", model=FunctionModel(self._answer), providers=[fast, provider], **options)

    async def _answer(self, request: Any) -> Any:
        self.offered.append([definition.name for definition in request.tools])
        self.instructions.append(request.instructions)
        if self.between is None or any(message.tool_calls for message in request.messages):
            return "done"
        await self.between()
        return ToolCall("fast", {}, "call_1")


def late(hub: Any, patience: float | None = 0.05, **options: Any) -> DiscoveryProvider:
    """Return a provider of a late hub."""
    return DiscoveryProvider(hub, id="late", patience=patience, **options)


def in_runs(telemetry: Captured) -> list[ReadableSpan]:
    """Return the discoveries of the late hub that belong to runs."""
    return [span for span in telemetry.find(LATE) if semconv.RUN_ID in attributes(span)]


def caches_in_runs(telemetry: Captured) -> list[str]:
    """Return their cache outcomes."""
    return [attributes(span)[semconv.DISCOVERY_CACHE] for span in in_runs(telemetry)]


async def background(telemetry: Captured) -> list[ReadableSpan]:
    """Return the round trips in the background, once there are any; a warm-up has no links."""

    def found() -> list[ReadableSpan]:
        return [span for span in telemetry.find(LATE) if span.links and semconv.RUN_ID not in attributes(span)]

    while not found():
        await checkpoint()
    return found()
