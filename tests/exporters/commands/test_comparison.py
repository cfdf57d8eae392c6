"""Two runs compared: by what they did, in names of tools and keys of settings, and who called them once."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import (
    Agent,
    DiscoveryError,
    DiscoveryProvider,
    Identity,
    Limits,
    PermissionRequest,
    ToolCall,
    Verdict,
    tool,
)
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_commands.inspection.diff import COMMAND
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.comparison import Comparison, compare
from pellucid_exporters.stored.content import RunContent
from support.local_store import storing

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@tool
async def look(what: str) -> str:
    """Look something up."""
    return f"{what} is fine"


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return "paid"


@tool(name="price")
async def old_price(item: str, currency: str = "EUR") -> str:
    """Return the price."""
    return "3"


@tool(name="price")
async def new_price(item: str, currency: str = "USD", *, gross: bool = True) -> str:
    """Return the gross price."""
    return "3"


LOOK, PRICE = ToolCall("look", {"what": "a"}), ToolCall("price", {"item": "b"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a store."""
    return tmp_path / "store.db"


async def run(path: Path, *answers: Any, tools: Any = (look, old_price), tenant: str = "acme", **options: Any) -> str:
    """Record a run with a hub's tools; return its id."""
    hub = DiscoveryProvider(FakeHub(list(tools)), id="hub", ttl=0)
    with storing(path) as telemetry:
        agent = Agent("shop", model=ScriptedModel(*answers), providers=[hub], telemetry=telemetry, **options)
        return (await agent.run("question", identity=Identity(tenant=tenant))).run_id


def compared(path: Path, first: str, second: str) -> Comparison:
    """Compare two runs."""
    reader = StoreReader(path)
    contents = [RunContent(reader, reader.spans(run_id)) for run_id in (first, second)]
    return compare(*contents)


def shown(path: Path, first: str, second: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `pellucid diff` prints."""
    parser = ArgumentParser()
    COMMAND.add_arguments(parser)
    COMMAND.run(parser.parse_args([first, second, "--store", str(path)]))
    return capsys.readouterr().out


async def test_changed_tools_are_named(path: Path) -> None:
    """Added, removed and redefined tools of a hub, with the lines that changed; later boundaries refer to that."""
    first = await run(path, LOOK, "done", tools=(look, old_price))
    second = await run(path, LOOK, "done", tools=(new_price, look, pay))
    third = await run(path, LOOK, "done", tools=(old_price, look))
    found = compared(path, first, second).differing
    assert [pair.name for pair in found][:3] == ["discover_tools hub", "compose_request", "chat scripted"]
    [catalogue] = found[0].differences
    assert catalogue.what == "catalogue"
    assert catalogue.lines == [
        ("more", "pay: Pay."),
        ("same", "price:"),
        ("less", "  description: Return the price."),
        ("more", "  description: Return the gross price."),
        ("less", "  parameters.properties.currency.default: EUR"),
        ("more", "  parameters.properties.currency.default: USD"),
        ("more", '  parameters.properties.gross: {"default": true, "type": "boolean"}'),
    ]
    again = [("skip", "as at [1] discover_tools hub: catalogue")]
    assert [list(each.lines) for pair in found for each in pair.differences if each.what in {"tools", "catalogue"}] == [
        list(catalogue.lines), again, again, again,
    ]  # fmt: skip
    assert ("less", "pay: Pay.") in compared(path, second, first).differing[0].differences[0].lines
    [order, *_] = compared(path, first, third).differing
    assert order.differences[0].lines == [("less", "order: look, price"), ("more", "order: price, look")]


async def test_settings_and_limits_are_compared_by_key(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings of the model, the configuration of the agent, and the limit that a run has reached, in words."""
    first = await run(path, LOOK, "done", settings={"temperature": 0.0, "max_tokens": 10})
    limited: dict[str, Any] = {"settings": {"temperature": 0.5}, "limits": Limits(max_iterations=1)}
    second = await run(path, LOOK, "done", **limited)
    found = compared(path, first, second)
    assert found.stops == ("stop", "limit of 1 iteration reached")
    root = found.differing[0]
    assert [(each.what, list(each.lines)) for each in root.differences] == [
        ("settings", [("more", "limits.max_iterations: 1")])
    ]
    [settings] = [each for pair in found.differing for each in pair.differences if pair.name == "chat scripted"][:1]
    assert settings.what == "settings"
    assert sorted(settings.lines) == sorted(
        [("less", "temperature: 0.0"), ("more", "temperature: 0.5"), ("less", "max_tokens: 10")]
    )
    assert "Stopped: stop → limit of 1 iteration reached" in shown(path, first, second, capsys)


async def test_what_the_policy_denies_is_named(path: Path) -> None:
    """A tool that only one run may call, with the reason."""

    def policy(request: PermissionRequest) -> Verdict:
        return Verdict("deny", "too dear") if request.tool.name == "price" else Verdict("allow")

    first = await run(path, LOOK, "done")
    second = await run(path, LOOK, "done", policy=policy)
    denied = [
        each
        for pair in compared(path, first, second).differing
        for each in pair.differences
        if each.what == "tools denied"
    ]
    assert "price: the policy says deny: too dear" in str(denied[0].lines)


async def test_who_called_is_said_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of two tenants that did the same differ in nothing else."""
    first, second = [await run(path, LOOK, "done", tenant=tenant) for tenant in ("acme", "umbrella")]
    found = compared(path, first, second)
    assert found.caller == {"tenant": ("acme", "umbrella")}
    assert found.differing == []
    text = shown(path, first, second, capsys)
    assert "Called: tenant acme → umbrella, B " in text
    assert text.count("umbrella") == 1
    assert "No difference in 7 boundaries." in text


async def test_runs_are_aligned_by_what_they_did(path: Path) -> None:
    """An iteration more is alone, and what follows is compared with its twin; a call that moved is the same call."""
    first = await run(path, PRICE, LOOK, "done")
    second = await run(path, PRICE, ToolCall("look", {"what": "other"}), LOOK, "done")
    found = compared(path, first, second)
    alone = [(pair.name, pair.place) for pair in found.pairs if pair.first is None]
    assert alone == [
        ("discover_tools hub", "2"), ("compose_request", "2"), ("chat scripted", "2"), ("execute_tool look", "2"),
    ]  # fmt: skip
    assert [pair.iterations for pair in found.pairs if pair.name == "execute_tool look"] == [(None, 2), (2, 3)]
    assert {pair.place for pair in found.pairs if pair.name == "compose_request"} == {"1", "2", "2|3", "3|4"}
    third = await run(path, [LOOK, PRICE], "done")
    calls = [pair for pair in compared(path, third, first).pairs if pair.name.startswith("execute_tool")]
    assert sorted((pair.name, pair.place, pair.is_different) for pair in calls) == [
        ("execute_tool look", "1|2", False), ("execute_tool price", "1", False),
    ]  # fmt: skip


async def test_a_discovery_without_a_catalogue_has_none(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A discovery that failed is compared with one that did not by its outcome, and has no empty digest."""
    good = await run(path, LOOK, "done")
    with storing(path) as telemetry:
        hub = DiscoveryProvider(FakeHub([look], faults=[ValueError("down")]), id="hub", ttl=0)
        agent = Agent("shop", model=ScriptedModel("done"), providers=[hub], telemetry=telemetry)
        with pytest.raises(DiscoveryError):
            await agent.run("question", identity=Identity(tenant="acme"))
    bad = StoreReader(path).runs(limit=1)[0].run_id
    text = shown(path, bad, good, capsys)
    assert "discover_tools hub" in text
    assert "digest" not in text
