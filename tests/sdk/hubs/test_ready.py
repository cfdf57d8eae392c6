"""Readiness of an agent, and warming up in the background."""

from __future__ import annotations

import gc
import json
import math
import time
import warnings
from typing import TYPE_CHECKING

import anyio
import pytest

from pellucid import Agent, DiscoveryProvider, combined, gated_tools, semconv, static_tools
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import Captured
from support.discovery import until
from support.hubs import named
from support.runs import attributes, within

if TYPE_CHECKING:
    pass

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


def states(agent: Agent) -> dict[str, str]:
    """Return the state of each provider by its id."""
    return {hub.provider_id: hub.state for hub in agent.ready().hubs}


async def test_hubs_are_ready_once_they_have_answered() -> None:
    """Before the first run nothing is known; afterwards each hub has its state, also in `combined`."""
    fine, broken = FakeHub(named("a", "b")), FakeHub(faults=[OSError("secret-host")])
    optional = combined(DiscoveryProvider(broken, id="broken"), static_tools(named("c")), on_error="skip")
    agent = Agent("a", model=ScriptedModel("x"), providers=[DiscoveryProvider(fine, id="fine"), optional])
    assert not agent.ready()
    assert states(agent) == {"fine": "unknown", "broken": "unknown", "static": "unknown"}
    await within(agent.run("hi"))
    readiness = agent.ready()
    assert readiness
    assert states(agent) == {"fine": "ready", "broken": "failed", "static": "ready"}
    first, second, _ = readiness.hubs
    assert (first.tool_count, first.is_required, second.is_required, second.error_type) == (2, True, False, "OSError")
    assert first.age is not None
    shown = json.dumps(readiness.to_dict())
    assert "secret-host" not in shown
    assert json.loads(shown)["hubs"][1]["state"] == "failed"


async def test_a_gate_does_not_make_runs_need_a_hub() -> None:
    """Gates are as optional as the providers behind them."""

    def hub(hub_id: str, patience: float | None = None) -> DiscoveryProvider:
        return DiscoveryProvider(FakeHub(), id=hub_id, patience=patience)

    patient, skipped = hub("patient", patience=1), combined(hub("skipped"), on_error="skip")
    gates = [gated_tools(each, lambda _tool, _ctx: True) for each in (patient, skipped, hub("needed"))]
    states = Agent("a", model=ScriptedModel("x"), providers=gates).ready().hubs
    assert [hub.is_required for hub in states] == [False, False, True]


async def test_a_hub_that_fails_later_leaves_the_agent_ready() -> None:
    """Its state says so, and the next answer is again one."""
    hub = FakeHub(named("a"), faults=[None, OSError("down")])
    agent = Agent("a", model=ScriptedModel("x"), providers=[DiscoveryProvider(hub, id="hub", ttl=0)])
    await within(agent.warm_up())
    with pytest.raises(Exception, match="down"):
        await within(agent.warm_up())
    with pytest.raises(Exception, match="down"):  # the back-off
        await within(agent.warm_up())
    assert agent.ready()
    assert [(hub.state, hub.error_type) for hub in agent.ready().hubs] == [("failed", "OSError")]


async def test_a_hub_that_hangs_is_pending() -> None:
    """Runs go on without one that has patience; one without it keeps the agent from being ready."""
    needed = DiscoveryProvider(FakeHub(latency=math.inf), id="needed")
    patient = DiscoveryProvider(FakeHub(latency=math.inf), id="patient", patience=1)
    agent = Agent("a", model=ScriptedModel("x"), providers=[needed, patient], warm=True)
    relaxed = Agent("b", model=ScriptedModel("x"), providers=[patient], warm=True)
    await until(lambda: set(states(agent).values()) == {"pending"})
    assert not agent.ready()
    assert relaxed.ready()
    for provider in (needed, patient):
        await provider.aclose()


async def test_a_hub_that_a_run_went_on_without_is_pending() -> None:
    """It was asked, and has not answered."""
    provider = DiscoveryProvider(FakeHub(latency=math.inf), id="hub", patience=0)
    agent = Agent("a", model=ScriptedModel("x"), providers=[provider])
    await within(agent.run("hi"))
    assert states(agent) == {"hub": "pending"}
    await provider.aclose()


async def test_an_agent_warms_up_in_the_background(telemetry: Captured) -> None:
    """It begins as the agent is made in an event loop; the first run finds the catalogue."""
    hub = FakeHub(named("a"))
    agent = Agent("a", model=ScriptedModel("x"), providers=[DiscoveryProvider(hub, id="hub")], warm=True)
    await until(lambda: bool(agent.ready()))
    await within(agent.run("hi"))
    assert len(hub.calls) == 1
    caches = [attributes(span)[semconv.DISCOVERY_CACHE] for span in telemetry.find("discover_tools")]
    assert caches == ["miss", "hit"]


async def test_a_probe_tries_again() -> None:
    """A hub that was down at the start is asked again while nobody sends requests; the others were asked meanwhile."""
    now = [0.0]
    down, fine = FakeHub(named("a"), faults=[OSError("down")]), FakeHub(named("b"))
    providers = [
        DiscoveryProvider(down, id="down", clock=lambda: now[0]),
        DiscoveryProvider(fine, id="fine", clock=lambda: now[0]),
    ]
    agent = Agent("a", model=ScriptedModel("x"), providers=providers, warm=True)
    await until(lambda: states(agent) == {"down": "failed", "fine": "ready"})
    now[0] += 60  # after the back-off
    await until(lambda: bool(agent.ready()))
    assert (len(down.calls), len(fine.calls)) == (2, 2)


def test_a_loop_that_ends_as_a_warm_up_begins(anyio_backend_name: str) -> None:
    """The process ends without a warning about coroutines that were never awaited."""

    async def main() -> None:
        providers = [DiscoveryProvider(FakeHub(), id="a"), DiscoveryProvider(FakeHub(), id="b")]
        Agent("a", model=ScriptedModel("x"), providers=providers, warm=True)

    with warnings.catch_warnings(record=True, action="always") as warned:
        anyio.run(main, backend=anyio_backend_name)
        gc.collect()
    assert warned == []


def test_a_sync_application_warms_up() -> None:
    """The first probe begins it, in the event loop of `run_sync`; an agent made at import asks nobody."""
    hub = FakeHub(named("a"))
    agent = Agent("a", model=ScriptedModel("x"), providers=[DiscoveryProvider(hub, id="hub")], warm=True)
    assert hub.calls == []
    deadline = time.monotonic() + 60
    while not agent.ready():
        assert time.monotonic() < deadline
    assert agent.run_sync("hi").output == "x"
    assert len(hub.calls) == 1


async def test_a_model_that_cannot_be_warmed_up(caplog: pytest.LogCaptureFixture) -> None:
    """In the background that is a warning; the run will say what is wrong."""

    class Broken(ScriptedModel):
        async def warm_up(self) -> None:
            raise OSError("no")

    agent = Agent("a", model=Broken("x"), providers=[DiscoveryProvider(FakeHub(), id="hub")], warm=True)
    await until(lambda: bool(caplog.messages))
    assert caplog.messages == ["warm-up of agent 'a' failed: OSError: no"]
    assert agent.ready()
