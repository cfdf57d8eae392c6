"""A hub that failed is left alone for a moment: who is refused meanwhile, and for how long."""

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest

from pellucid import Agent, DiscoveryContext, DiscoveryError, DiscoveryProvider, Reliability, combined
from pellucid.errors import DiscoveryBackoff, DiscoveryTimeout
from pellucid.providers.hub import FIRST_BACKOFF, LONGEST_BACKOFF, backoff
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import Captured
from support.clock import SOON, Clock
from support.discovery import AGAIN, CAUSE, CTX, Answering, HangingHub, add, agent_of, ask, failed, outcomes
from support.hubs import named, names
from support.runs import within

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def test_a_failure_is_not_cached_but_backed_off_from() -> None:
    """The next callers are told when to come again; then the hub is asked, and the wait doubles if it fails again."""
    clock = Clock()
    fault = ConnectionError("refused")
    hub = FakeHub(named("a"), faults=[fault, fault])
    provider = DiscoveryProvider(hub, id="hub", clock=clock)
    with anyio.fail_after(60):
        with pytest.raises(DiscoveryError, match="'hub' failed: ConnectionError: refused") as failed:
            await provider.list_tools(CTX)
        assert failed.value.__cause__ is fault
        with pytest.raises(DiscoveryBackoff) as refused:
            await provider.list_tools(CTX)
        assert refused.value.__cause__ is fault
        assert refused.value.retry_after == pytest.approx(0.5)
        clock.now += 0.5
        with pytest.raises(DiscoveryError, match="refused"):
            await provider.list_tools(CTX)
        with pytest.raises(DiscoveryBackoff) as again:
            await provider.list_tools(CTX)
        assert again.value.retry_after == pytest.approx(1.0)
        clock.now += 1
        assert names(await provider.list_tools(CTX)) == ["a"]
    assert len(hub.calls) == 3


async def test_a_hub_that_is_down_for_long_is_asked_every_now_and_then() -> None:
    """The back-off grows to its bound, and no number overflows however often it failed."""
    clock = Clock()
    hub = FakeHub(lambda _: None)
    provider = DiscoveryProvider(hub, id="hub", clock=clock)
    with anyio.fail_after(60):
        for _ in range(1100):
            with pytest.raises(DiscoveryError):
                await provider.list_tools(CTX)
            clock.now += LONGEST_BACKOFF
        hub.tools = named("a")
        assert names(await provider.list_tools(CTX)) == ["a"]
    assert [backoff(count) for count in (1, 2, 3, 100, 10**6)] == [
        FIRST_BACKOFF,
        1.0,
        2.0,
        LONGEST_BACKOFF,
        LONGEST_BACKOFF,
    ]


async def test_a_failing_hub_is_left_alone_for_a_moment(telemetry: Captured) -> None:
    """The next run fails at once, with what failed before as the cause."""
    hub = FakeHub(faults=[CAUSE])
    agent = agent_of(DiscoveryProvider(hub, id="odd"))
    await failed(agent, telemetry, "ConnectionError")
    with pytest.raises(DiscoveryBackoff, match="will be called again in") as caught:
        await within(agent.run("x"))
    assert caught.value.__cause__ is CAUSE
    assert len(hub.calls) == 1


async def test_a_hub_that_hangs_is_left_alone_for_a_moment(telemetry: Captured) -> None:
    """A timeout opens the back-off like any failure."""
    hub = HangingHub(latency=math.inf)
    provider = DiscoveryProvider(hub, id="hub", timeout=SOON, clock=lambda: 0.0)
    with pytest.raises(DiscoveryTimeout, match=r"'hub' failed: the hub did not answer within 20 s"):
        await ask(telemetry, provider)
    with pytest.raises(DiscoveryBackoff) as caught:
        await ask(telemetry, provider)
    assert caught.value.retry_after == 0.5
    assert len(hub.calls) == 1


async def test_a_hub_that_raises_at_once_poisons_nothing() -> None:
    """After a synchronous exception the next fetch is a fresh one."""
    clock = Clock()

    class Throwing:
        def __init__(self) -> None:
            self.calls = 0

        def fetch_catalog(self, ctx: DiscoveryContext) -> Any:
            self.calls += 1
            raise RuntimeError("no")

    hub = Throwing()
    provider = DiscoveryProvider(hub, id="hub", clock=clock)
    with anyio.fail_after(60):
        for call in range(3):
            clock.now += 60
            with pytest.raises(DiscoveryError, match="RuntimeError: no"):
                await provider.list_tools(CTX)
            assert hub.calls == call + 1


async def test_a_failure_poisons_nothing(telemetry: Captured) -> None:
    """Once the moment has passed, the hub is asked again and its answer is used."""
    now = 0.0
    provider = DiscoveryProvider(FakeHub([add], faults=[CAUSE]), id="odd", clock=lambda: now)
    agent = Agent("a", model=ScriptedModel("x"), providers=[provider])
    await failed(agent, telemetry, "ConnectionError")
    now = 60.0
    assert (await within(agent.run("x"))).output == "x"


async def test_others_are_refused_while_a_rule_tries_again(telemetry: Captured) -> None:
    """The back-off holds for whoever has not been told to try again; refusals are no requests."""
    hub = FakeHub(faults=[CAUSE] * 9)
    provider = DiscoveryProvider(hub, id="hub", clock=Clock())
    with pytest.raises(DiscoveryError):
        await within(agent_of(provider, reliability=Reliability(post_decide=[AGAIN])).run("x"))
    for runner in (agent_of(provider), agent_of(provider, reliability=Reliability(post_decide=[AGAIN]))):
        with pytest.raises(DiscoveryError):
            await within(runner.run("x"))
    assert len(hub.calls) == 3
    assert outcomes(telemetry) == [("failed", "ConnectionError")] * 3


async def test_a_rule_tries_again_through_a_combination(telemetry: Captured) -> None:
    """The back-off of a part does not refuse what the rule of the whole asks for."""
    hub = FakeHub(named("b"), faults=[CAUSE, CAUSE])
    parts = combined(DiscoveryProvider(hub, id="hub", clock=Clock()), Answering(lambda: named("other")))
    assert (await within(agent_of(parts, reliability=Reliability(post_decide=[AGAIN])).run("x"))).output == "hi"
    assert outcomes(telemetry) == [("completed", None), *[("failed", "ConnectionError")] * 2]
