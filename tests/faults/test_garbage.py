"""The garbage collector may end what was abandoned wherever a thread happens to be, also within a lock of ours."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from anyio.lowlevel import current_token
from opentelemetry.sdk.trace import Event, ReadableSpan

from pellucid import Agent, semconv
from pellucid.telemetry.hubs import Hubs
from pellucid.testing import ScriptedModel
from pellucid_exporters.console.hub_stats import HubStatsProcessor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.timeout(120)

OFTEN = 500


@contextmanager
def each_collection(leads_to: Callable[[], None]) -> Iterator[None]:
    """Collect as often as can be, and make each collection lead to a call."""
    inside = False

    def collected(phase: str, _: object) -> None:
        nonlocal inside
        if phase == "start" and not inside:
            inside = True
            leads_to()
            inside = False

    before = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collected)


def test_a_discovery_that_is_ended_while_another_one_is_counted() -> None:
    """Both are counted."""
    processor = HubStatsProcessor()
    ended = 0

    def discovery(hub: str) -> ReadableSpan:
        attributes = {
            semconv.PHASE: semconv.DISCOVERY, semconv.PROVIDER_ID: hub, semconv.OUTCOME: semconv.COMPLETED,
        }  # fmt: skip
        request = Event(semconv.HUB_LISTING, {**attributes, semconv.HUB_LISTING_SECONDS: 0.1}, 1)
        return ReadableSpan("discover_tools", attributes=attributes, events=[request])

    abandoned = discovery("abandoned")

    def end() -> None:
        nonlocal ended
        ended += 1
        processor.on_end(abandoned)

    with each_collection(end):
        for number in range(OFTEN):
            processor.on_end(discovery(f"hub {number}"))
    counted = {hub.provider_id: hub.round_trips for hub in processor.stats()}
    assert counted.pop("abandoned") == ended > 0
    assert list(counted.values()) == [1] * OFTEN


@pytest.mark.anyio
async def test_a_fetch_that_is_ended_while_the_gauges_are_read() -> None:
    """It is no longer in flight, and the gauges have been read."""
    hubs = Hubs()
    requests = [hubs.of("hub").sent(current_token()) for _ in range(OFTEN)]

    def end() -> None:
        if requests:
            hubs.of("hub").ended(requests.pop(), is_answered=True)

    with each_collection(end):
        for _ in range(OFTEN):
            assert hubs.ages().keys() == hubs.inflight().keys() == {"hub"}
    assert requests == []
    assert hubs.inflight() == {"hub": 0}


def test_an_agent_that_nobody_uses_is_released_at_once() -> None:
    """Applications that make an agent for each request do not wait for the garbage collector."""
    agent = Agent("a", model=ScriptedModel("x"), warm=True)
    agent.run_sync("hi")
    released = weakref.ref(agent)
    gc.disable()
    try:
        del agent
        assert released() is None
    finally:
        gc.enable()
