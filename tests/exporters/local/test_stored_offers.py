"""Tools in a store: why they were offered or not, and how catalogues changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pellucid import Agent, CapturePolicy, DiscoveryProvider, Tool, ToolCall, semconv
from pellucid.testing import FakeHub, ScriptedModel
from pellucid.tools.lock import ToolLock
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.catalogues import catalogue_changes, hidden_texts, latest_catalogue
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.offers import ToolOffer, tool_offers
from support.local_store import storing

pytestmark = pytest.mark.anyio


def named(name: str, description: str = "Read.") -> Tool:
    """Return a tool."""
    return Tool(name=name, description=description, run=lambda arguments, ctx: "content")


def hub(name: str, tools: Sequence[Tool] | Callable[[int], Any], **options: Any) -> DiscoveryProvider:
    """Return a hub whose catalogue is listed anew each time."""
    return DiscoveryProvider(FakeHub(tools), id=name, ttl=0, **options)


async def offers_of(path: Path, *steps: Any, **options: Any) -> list[list[ToolOffer]]:
    """Run an agent; return the tools of each model call as its store tells them."""
    with storing(path) as telemetry:
        await Agent("a", model=ScriptedModel(*steps), telemetry=telemetry, **options).run("x")
    reader = StoreReader(path)
    (run,) = reader.runs()
    spans, events = reader.spans(run.run_id), reader.events(run.run_id)
    content = RunContent(reader, spans)
    return [tool_offers(content, events, span) for span in spans if span.phase == semconv.INFERENCE]


def reasons(offers: Sequence[ToolOffer]) -> dict[str, tuple[bool | None, str]]:
    """Return whether each tool was offered, and the reason."""
    return {offer.name: (offer.is_offered, offer.reason) for offer in offers}


async def test_lazy_tools(tmp_path: Path) -> None:
    """A lazy tool is withheld until the model activates it, and then says through what."""
    call = ToolCall("tool_search", {"name": "read"})
    first, second = await offers_of(
        tmp_path / "s.db", call, "done", providers=[hub("files", [named("read"), named("write")])], registry_mode="lazy"
    )
    assert reasons(first)["read"] == (False, "lazy: the model had not activated it")
    assert reasons(second)["read"] == (True, "lazy, activated via tool_search")
    assert reasons(second)["write"] == (False, "lazy: the model had not activated it")
    assert reasons(second)["tool_search"][0]


@pytest.mark.parametrize(("on_change", "told"), [("refuse", ", withheld"), ("report", "")])
async def test_a_lock_file(tmp_path: Path, on_change: Any, told: str) -> None:
    """The store names a tool that differs from the lock file or is not in it, although the run's catalogue lacks it."""
    lock = tmp_path / "pellucid.lock"
    ToolLock.of({"files": [named("read"), named("same")]}).write(lock)
    now = [named("read", "Read, and send it."), named("same"), named("new")]
    (offers,) = await offers_of(
        tmp_path / "s.db", "done", providers=[hub("files", now)], lock=lock, on_change=on_change
    )
    is_offered = on_change == "report"
    assert reasons(offers) == {
        "read": (is_offered, f"differs from the lock file{told}"),
        "new": (is_offered, f"not in the lock file{told}"),
        "same": (True, ""),
    }


async def test_collisions(tmp_path: Path) -> None:
    """A tool that is withheld because another has its name says which provider has the name."""
    (offers,) = await offers_of(
        tmp_path / "s.db", "done", providers=[hub("a", [named("read")]), hub("b", [named("read")])], collisions="first"
    )
    assert [(offer.provider_id, offer.is_offered, offer.reason) for offer in offers] == [
        ("b", False, "'a' has the name"),
        ("a", True, ""),
    ]


async def test_quarantine(tmp_path: Path) -> None:
    """An invalid tool is withheld, with the problem as its reason."""
    broken = Tool(name="broken", description="x", input_schema={"type": 7}, run=lambda arguments, ctx: "")
    provider = hub("files", [named("read"), broken], on_invalid="quarantine")
    (offers,) = await offers_of(tmp_path / "s.db", "done", providers=[provider])
    assert reasons(offers)["read"] == (True, "")
    assert reasons(offers)["broken"][1].startswith("quarantined: ")


async def test_pinned_tools(tmp_path: Path) -> None:
    """A tool that changed under its name is withheld from a run with pins, and says so."""
    provider = hub("files", lambda call: [named("read", f"Read {call}.")])
    first, second = await offers_of(tmp_path / "s.db", ToolCall("read", {}), "done", providers=[provider], pin=True)
    assert reasons(first)["read"] == (True, "")
    assert reasons(second)["read"] == (False, "redefined under its name, withheld because tools are pinned")


async def test_a_catalogue_that_comes_back(tmp_path: Path) -> None:
    """Each request has the tools that it offered, although a catalogue is recorded once in a run."""
    provider = hub("files", lambda call: [[named("read")], [named("write")], [named("read")], []][call - 1])
    steps = [ToolCall("read", {}), ToolCall("write", {}), ToolCall("read", {}), "done"]
    calls = await offers_of(tmp_path / "s.db", *steps, providers=[provider])
    assert [[offer.name for offer in offers] for offers in calls] == [["read"], ["write"], ["read"], []]


@pytest.mark.parametrize("mode", ["redacted", "metadata"])
async def test_catalogue_changes(tmp_path: Path, mode: Any) -> None:
    """A change of a catalogue names tools that were added, removed and redefined; without content only digests."""
    catalogues = [[named("read"), named("write")], [named("read", "Read it."), named("list")]]
    provider = hub("files", lambda call: catalogues[min(call, 2) - 1])
    path = tmp_path / "s.db"
    with storing(path, capture=CapturePolicy(mode)) as telemetry:
        agent = Agent("a", model=ScriptedModel("done", "done"), providers=[provider], telemetry=telemetry)
        for _ in range(2):
            await agent.run("x")
    reader = StoreReader(path)
    now = time.time_ns()
    (change,) = catalogue_changes(reader, "files", 0, now)
    assert change.tool_count == 2
    assert catalogue_changes(reader, "other", 0, now) == []
    if mode == "metadata":
        assert not change.is_known
        assert latest_catalogue(reader, "files", now) is None
        return
    assert (change.added, change.removed) == (("list",), ("write",))
    [changed] = change.changed
    assert changed.what == "read"
    assert changed.lines == [("less", "description: Read."), ("more", "description: Read it.")]
    latest = latest_catalogue(reader, "files", now)
    assert latest is not None
    assert [tool["name"] for tool in latest[1]] == ["read", "list"]
    assert latest[1][0]["parameters"]["type"] == "object"


@pytest.mark.parametrize("mode", ["redacted", "metadata"])
@pytest.mark.parametrize("rest", ["", "x" * 1000], ids=["short", "long"])
async def test_hidden_texts(tmp_path: Path, mode: Any, rest: str) -> None:
    """A hidden text is listed once, with its first discovery; a text that gets one is a change without a diff."""
    path = tmp_path / "s.db"
    provider = hub("files", lambda call: [named("read", f"Read.\u200b{rest}" if call > 1 else f"Read.{rest}")])
    with storing(path, capture=CapturePolicy(mode)) as telemetry:
        agent = Agent("a", model=ScriptedModel("done", "done", "done"), providers=[provider], telemetry=telemetry)
        for _ in range(3):
            await agent.run("x")
    reader = StoreReader(path)
    now = time.time_ns()
    (change,) = catalogue_changes(reader, "files", 0, now)
    assert change.digest == change.previous_digest
    assert (change.added, change.removed, change.changed) == ((), (), ())
    (found,) = hidden_texts(reader, "files", 0, now)
    assert (found.run_id, found.span_id) == (change.run_id, change.span_id)
    assert (found.tool_name, found.place, found.is_removed) == ("read", "description", True)
    assert found.text == (rf"Read.\u200b{rest}"[:300] if mode == "redacted" else None)
    assert hidden_texts(reader, "other", 0, now) == []
