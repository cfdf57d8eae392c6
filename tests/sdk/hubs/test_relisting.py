"""Hubs that cannot be listed again during a run: their last tools serve the rest of the pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import (
    Agent,
    ConfigError,
    Decision,
    DiscoveryError,
    DiscoveryProvider,
    Reliability,
    ToolCall,
    gated_tools,
    tool,
)
from pellucid.errors import ReliabilityFailFast
from pellucid.events import ToolsCatalogStale
from pellucid.reliability import Rule, fail_fast
from pellucid.testing import FakeHub, ScriptedModel

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = pytest.mark.anyio


@tool
def look_up() -> str:
    """Look it up."""
    return "found"


@tool(needs_approval=True)
def refund() -> str:
    """Pay it back."""
    return "paid"


def flaky(*faults: BaseException | None) -> tuple[FakeHub, DiscoveryProvider]:
    """Return a hub that fails in the given order, and its provider without a cache."""
    hub = FakeHub([look_up, refund], faults=faults)
    return hub, DiscoveryProvider(hub, id="crm", ttl=0)


def agent_of(provider: Any, *steps: Any, **options: Any) -> Agent:
    """Return an agent that calls a tool twice, and so lists three times."""
    steps = steps or (ToolCall("look_up", {}), ToolCall("look_up", {}), "done")
    return Agent("a", model=ScriptedModel(*steps), providers=[provider], **options)


async def test_the_last_tools_serve_the_rest(telemetry: Captured) -> None:
    """The last tools of a hub serve the rest of a run, which is degraded and emits `tools.catalog_stale`."""
    hub, provider = flaky(None, OSError("down"))
    agent = agent_of(provider)
    stale: list[ToolsCatalogStale] = []
    agent.on("tools.catalog_stale", stale.append)
    result = await agent.run("go")
    assert (result.output, result.degraded, len(hub.calls)) == ("done", ("crm",), 2)
    assert [event.provider_id for event in stale] == ["crm", "crm"]
    assert "down" in str(stale[0].error)
    listings = [span for span in telemetry.spans if span.name == "discover_tools crm"]
    assert [span.attributes["pellucid.discovery.cache"] for span in listings] == ["miss", "stale", "stale"]
    [shown] = [event for event in listings[1].events if event.name == "tools.catalog_stale"]
    assert "down" in str((shown.attributes or {})["exception.message"])


async def test_a_first_listing_is_loud() -> None:
    """A run ends if a hub that it has not listed yet fails, even if an earlier run has listed it."""
    _, provider = flaky(None, None, None, OSError("down"))
    agent = agent_of(provider, ToolCall("look_up", {}), ToolCall("look_up", {}), "done", "never")
    await agent.run("go")
    with pytest.raises(DiscoveryError, match="down"):
        await agent.run("again")


async def test_on_stale_fail() -> None:
    """A failed listing ends the run with `on_stale="fail"`."""
    _, provider = flaky(None, OSError("down"))
    with pytest.raises(DiscoveryError, match="down"):
        await agent_of(provider, on_stale="fail").run("go")


async def test_a_revoked_identity() -> None:
    """A run ends if its hub refuses the identity."""
    _, provider = flaky(None, DiscoveryError("crm", "no longer allowed", error_kind="auth"))
    with pytest.raises(DiscoveryError, match="no longer allowed"):
        await agent_of(provider).run("go")
    _, provider = flaky(None, PermissionError("revoked"))
    with pytest.raises(DiscoveryError, match="revoked"):
        await agent_of(provider).run("go")


async def test_gates_are_asked_again() -> None:
    """The last tools of a hub behind a gate are not served."""
    _, provider = flaky(None, OSError("down"))
    with pytest.raises(DiscoveryError, match="down"):
        await agent_of(gated_tools(provider, lambda _tool, _ctx: True)).run("go")


async def test_rules_decide_first() -> None:
    """A reliability rule may end the run at a failed listing."""
    _, provider = flaky(None, OSError("down"))
    rules = Reliability([Rule(when=lambda s: s.operation == "discovery", then=fail_fast(), kind="strict")])
    with pytest.raises(ReliabilityFailFast):
        await agent_of(provider, reliability=rules).run("go")


async def test_a_resumed_pass_lists_anew() -> None:
    """A resumed run does not use the lists of an earlier pass."""
    hub, provider = flaky()
    agent = agent_of(provider, ToolCall("refund", {}), "done")
    paused = await agent.run("go")
    hub.faults = [None] * len(hub.calls) + [OSError("down")]
    with pytest.raises(DiscoveryError, match="down"):
        await agent.resume(
            paused.checkpoint or {}, decisions=[Decision(paused.approvals[0].approval_id, approved=True)]
        )


def test_an_unknown_value() -> None:
    """A value of `on_stale` other than `serve` or `fail` is refused."""
    with pytest.raises(ConfigError, match="on_stale='quietly'"):
        agent_of(flaky()[1], on_stale="quietly")
