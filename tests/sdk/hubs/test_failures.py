"""Discoveries that fail or are cancelled: the error, its cause, and the other discoveries of the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from pellucid import CancelToken, DiscoveryContext, DiscoveryError, DiscoveryProvider, RunCancelled, Tool, gated_tools
from pellucid.errors import DiscoveryBackoff
from pellucid.testing import FakeHub
from pellucid_exporters.testing import Captured, check_telemetry
from support.discovery import CAUSE, Answering, Later, add, agent_of, ask, failed
from support.runs import CANCELLED, cancel_itself, ending, within

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


def throw() -> Any:
    """Raise at once, before there is anything to wait for."""
    raise CAUSE


async def throw_later() -> Any:
    """Raise when awaited."""
    await anyio.lowlevel.checkpoint()
    raise CAUSE


@pytest.mark.parametrize("answer", [throw, throw_later, lambda: Later(CAUSE)])
async def test_a_hub_that_raises_fails_the_discovery(telemetry: Captured, make: Any, answer: Callable[[], Any]) -> None:
    """At once or later: the error names the provider, and its cause is the hub's exception itself."""
    error = await failed(agent_of(make(answer)), telemetry, "ConnectionError")
    assert error.__cause__ is CAUSE
    assert "hub is down" in str(error)
    [event] = [event for event in telemetry.events if event.name == "tools.discovery_failed"]
    told: Any = event
    assert (told.provider_id, told.outcome, told.error_type) == ("odd", "failed", "ConnectionError")
    assert "hub is down" in told.error
    assert told.duration_ms > 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_hub_whose_own_task_was_cancelled_fails_the_discovery(telemetry: Captured, make: Any) -> None:
    """A cancellation that nobody asked the run for is the hub's fault."""
    from asyncio import CancelledError

    async def cancelled() -> Sequence[Tool]:
        raise CancelledError

    with pytest.raises(DiscoveryError, match="provider 'odd'"):
        await within(agent_of(make(cancelled)).run("x"))
    assert ending(telemetry.span("discover_tools"))[0] == "failed"
    check_telemetry(telemetry)


async def test_a_hub_that_cancels_itself_fails(telemetry: Captured, anyio_backend: str) -> None:
    """Neither the caller nor the event loop is cancelled, and the hub is left alone for a moment."""

    class Cancelling:
        async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            await cancel_itself(anyio_backend)

    provider = DiscoveryProvider(Cancelling(), id="hub")
    with pytest.raises(DiscoveryError, match="'hub' failed: ForeignCancellation"):
        await ask(telemetry, provider)
    with pytest.raises(DiscoveryBackoff):
        await ask(telemetry, provider)
    assert [ending(span)[0] for span in telemetry.spans] == ["failed", "failed"]


async def test_a_cancelled_discovery_is_no_failure(telemetry: Captured, make: Any) -> None:
    """It is paired like others, with the outcome `cancelled` and no error type."""
    token = CancelToken()

    async def hang() -> Sequence[Tool]:
        token.cancel("enough")
        await anyio.sleep_forever()
        return []

    with pytest.raises(RunCancelled):
        await within(agent_of(make(hang)).run("x", signal=token))
    assert ending(telemetry.span("discover_tools")) == CANCELLED
    [event] = [event for event in telemetry.events if event.name == "tools.discovery_failed"]
    told: Any = event
    assert (told.outcome, told.error, told.error_type) == ("cancelled", None, None)
    check_telemetry(telemetry)


async def test_a_gate_that_raises_stays_shut(telemetry: Captured) -> None:
    """A predicate that cannot decide fails the discovery."""

    def gate(offered: Tool, ctx: DiscoveryContext) -> bool:
        raise CAUSE

    with pytest.raises(DiscoveryError, match=r"gated\(odd\)") as caught:
        await within(agent_of(gated_tools(Answering(lambda: [add]), gate)).run("x"))
    assert caught.value.__cause__ is CAUSE
    check_telemetry(telemetry)


async def test_one_failing_provider_cancels_the_others(telemetry: Captured) -> None:
    """The run fails with the failure, not with a group; every discovery is paired."""
    slow = DiscoveryProvider(FakeHub([add], latency=math.inf), id="slow")

    async def fail_when_both_are_asked() -> Sequence[Tool]:
        while "discover_tools slow" not in telemetry.unended:
            await anyio.lowlevel.checkpoint()
        raise CAUSE

    with pytest.raises(DiscoveryError) as caught:
        await within(agent_of(slow, Answering(fail_when_both_are_asked)).run("x"))
    assert caught.value.__cause__ is CAUSE
    assert ending(telemetry.span("discover_tools slow")) == CANCELLED
    assert ending(telemetry.span("discover_tools odd")) == ("failed", "ERROR", "ConnectionError")
    check_telemetry(telemetry)
