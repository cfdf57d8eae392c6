"""Preparation of an agent before its first run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from pellucid import (
    Agent,
    DiscoveryError,
    DiscoveryProvider,
    Identity,
    combined,
    gated_tools,
    semconv,
    static_tools,
)
from pellucid.mcp import MCPProvider
from pellucid.models import FallbackModel, OpenAIModel
from pellucid.testing import FakeHub, ScriptedModel
from support.hubs import named
from support.mcp_servers import modern_server
from support.processes import run_python
from support.runs import attributes

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

FIRST_RUN = """
import sys
sys.path.insert(0, sys.argv[1])
import anyio
from pellucid import Agent
from support.openai_wire import completion
from support.vendor_server import answer_json, vendor_server

assert "genai_prices" not in sys.modules
with vendor_server() as server:
    server.answers(answer_json(completion({"role": "assistant", "content": "hello"})))
    import os
    os.environ.update(OPENAI_BASE_URL=f"{server.url}/v1", OPENAI_API_KEY="sk-of-a-test")
    agent = Agent("a", model="openai-chat:gpt-5")
    before = set(sys.modules)
    assert anyio.run(agent.run, "x").output == "hello"
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(loaded & {"genai_prices", "httpcore2", "httpx2", "openai", "trio", "truststore"}))
"""


def test_the_first_run_loads_no_package() -> None:
    """The first run imports no package of the model's client or of the prices."""
    assert run_python(FIRST_RUN, Path(__file__).parents[2]).stdout.strip() == "[]"


async def test_providers_are_asked(telemetry: Captured) -> None:
    """Warming up an agent fetches from all its hubs for the given identity, and the first run uses their lists."""
    hubs = [FakeHub(named(name)) for name in "abc"]
    one, two, three = (DiscoveryProvider(hub, id=f"hub{number}") for number, hub in enumerate(hubs))
    gated = gated_tools(two, lambda tool, ctx: True)
    agent = Agent("a", model=ScriptedModel("done"), providers=[one, gated, combined(three, static_tools([]))])
    with anyio.fail_after(60):
        await agent.warm_up(identity=Identity(tenant="t"))
        assert [[ctx.identity for ctx in hub.calls] for hub in hubs] == [[Identity(tenant="t")]] * 3
        assert all(semconv.RUN_ID not in attributes(span) for span in telemetry.spans)
        telemetry.spans.clear()
        await agent.run("x", identity=Identity(tenant="t"))
    assert [len(hub.calls) for hub in hubs] == [1, 1, 1]
    telemetry.is_checked = False  # the spans of the warming are gone


class Warmed(ScriptedModel):
    """A model that counts how often it is warmed up."""

    times = 0

    async def warm_up(self) -> None:
        """Count."""
        self.times += 1


async def test_models_are_warmed_up() -> None:
    """Warming up an agent warms up all models of a `FallbackModel`."""
    first, second = Warmed(), Warmed()
    vendor = OpenAIModel("gpt-x", api_key="sk-of-a-test", base_url="http://localhost:1/v1")
    with anyio.fail_after(60):
        await Agent("a", model=FallbackModel(first, vendor, second)).warm_up()
        await vendor.aclose()
    assert (first.times, second.times) == (1, 1)


async def test_servers_are_connected_to(telemetry: Captured) -> None:
    """Warming up an agent connects to its servers, and the first run uses the connection."""
    provider = MCPProvider.connect(modern_server(), id="mcp", ttl=60)
    agent = Agent("a", model=ScriptedModel("done"), providers=[provider])
    with anyio.fail_after(60):
        await agent.warm_up()
        await agent.run("x")
        await provider.aclose()
    caches = [attributes(span)[semconv.DISCOVERY_CACHE] for span in telemetry.find("discover_tools mcp")]
    assert caches == ["miss", "hit"]


async def test_a_provider_that_cannot_be_warmed_up_says_so(telemetry: Captured) -> None:
    """Warming up raises `DiscoveryError` if a provider fails."""
    agent = Agent("a", model=ScriptedModel(), providers=[DiscoveryProvider(FakeHub(faults=[OSError("no")]), id="hub")])
    with anyio.fail_after(60), pytest.raises(DiscoveryError, match="'hub' failed: OSError: no"):
        await agent.warm_up()
