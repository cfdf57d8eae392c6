"""Helpers for tests of discovery: agents that ask, hubs that answer as a test says, and readers of measurements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pellucid import Agent, DiscoveryContext, DiscoveryError, Identity, ModelError, Tool, ToolProvider, semconv, tool
from pellucid.providers import Lister
from pellucid.reliability import Rule, retry
from pellucid.telemetry import Scope, enter_scope, leave_scope
from pellucid.testing import FakeHub, FunctionModel
from pellucid_exporters.testing import Captured, check_telemetry
from support.clock import pass_time
from support.hubs import names
from support.runs import ending, within

CTX = DiscoveryContext()
CAUSE = ConnectionError("hub is down")
AGAIN = Rule(when=lambda s: s.operation == "discovery" and s.attempt < 3, then=retry(backoff=0.0), kind="again")


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Answering:
    """A provider that answers whatever a function answers."""

    id = "odd"

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer
        self.asked = 0

    def list_tools(self, ctx: DiscoveryContext) -> Any:
        """Answer."""
        self.asked += 1
        return self._answer()


class AnsweringHub:
    """Hub whose answers come from a function, behind a `DiscoveryProvider`, to try each fault with a cache, too."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def fetch_catalog(self, ctx: DiscoveryContext) -> Any:
        """Answer."""
        return self._answer()


class HangingHub(FakeHub):
    """A hub that hangs, once its latency is infinite, for longer than `SOON`."""

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Return the catalogue, or hang."""
        if self.latency == math.inf:
            pass_time()
        return await super().fetch_catalog(ctx)


class Later:
    """An awaitable that is no coroutine."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, Any]:
        yield from anyio.lowlevel.checkpoint().__await__()
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


def agent_of(*providers: Any, **options: Any) -> Agent:
    """Return an agent that answers at once."""
    return Agent("a", model=FunctionModel(lambda request: "hi"), providers=list(providers), **options)


def of(tenant: str) -> DiscoveryContext:
    """Return the context of a tenant."""
    return DiscoveryContext(identity=Identity(tenant=tenant))


async def ask(
    telemetry: Captured, provider: ToolProvider, ctx: DiscoveryContext = CTX, within: float | None = 30
) -> list[str]:
    """Ask within a boundary, as a run does, and return names."""
    scope = Scope(run_id="r1", pipeline=telemetry)
    token = enter_scope(scope)
    try:
        with anyio.fail_after(60):
            return names((await Lister(provider).list(scope, ctx, within)).tools)
    finally:
        leave_scope(token)


async def failed(agent: Agent, telemetry: Captured, error_type: str) -> DiscoveryError:
    """Run an agent whose discovery fails; check what is always so, and return the error."""
    with pytest.raises(DiscoveryError) as caught:
        await within(agent.run("x"))
    assert caught.value.provider_id == "odd"
    assert "provider 'odd'" in str(caught.value)
    assert not isinstance(caught.value, ModelError)
    assert "model" not in str(caught.value)
    names = [event.name for event in telemetry.events]
    assert names == ["run.started", "tools.discovery_started", "tools.discovery_failed", "run.failed"]
    for span in telemetry.spans:
        assert ending(span) == ("timeout" if error_type == "timeout" else "failed", "ERROR", error_type)
    assert telemetry.tree() == [("invoke_agent a", [("discover_tools odd", [])])]
    assert telemetry.histogram(semconv.DISCOVERY_DURATION, error_type=error_type).count == 1
    check_telemetry(telemetry)
    return caught.value


async def until(condition: Any) -> None:
    """Wait until something holds."""
    with anyio.fail_after(60):
        while not condition():
            await checkpoint()


def caches(telemetry: Captured) -> Counter[str]:
    """Count discoveries by where their list came from."""
    spans = [span for span in telemetry.spans if span.name.startswith("discover_tools")]
    return Counter(str((span.attributes or {})[semconv.DISCOVERY_CACHE]) for span in spans)


def outcomes(telemetry: Captured, provider_id: str = "hub") -> list[tuple[str, str | None]]:
    """Return outcome and error type of all requests to a hub, as measured."""
    found: list[tuple[str, str | None]] = []
    for point in telemetry.metrics:
        if point.name == semconv.HUB_LISTING_DURATION.name and point.attributes[semconv.PROVIDER_ID] == provider_id:
            labels: Any = point.attributes
            found += [(labels[semconv.OUTCOME], labels.get(semconv.ERROR_TYPE))] * (point.count or 0)
    return sorted(found, key=str)


def gauge(telemetry: Captured, metric: semconv.Metric) -> float:
    """Return a gauge of the hub."""
    return telemetry.value(metric, pellucid_provider_id="hub")
