"""Checks of events of tools that were searched, activated, shadowed and redefined, by `check_telemetry`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from fidelity.scripts import make_tool, quick
from pellucid import Agent, Limits, ToolCall, ToolRegistry, semconv, static_tools
from pellucid.semconv.tool_locks import CATALOG_REDEFINED
from pellucid.testing import ScriptedModel
from pellucid.tools.lock import ToolLock
from pellucid_exporters.testing import Captured, capture, check_telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def told() -> Iterator[Captured]:
    """Telemetry of a run that searches, activates, loses a tool, has two of one name, and one that changes.

    It is right until a test changes it.
    """
    lazy = ToolRegistry([make_tool("find", quick)], registry_mode="lazy")
    other = ToolRegistry([make_tool("same", quick), make_tool("mine", quick)], id="other")

    def leave(request: object) -> ToolCall:
        lazy.unregister("find")
        other.unregister("mine")
        other.register(replace(make_tool("mine", quick), description="another"))
        return ToolCall("same", {})

    async def go() -> None:
        steps: list[Any] = [
            ToolCall("tool_search", {"query": "find"}),
            ToolCall("tool_search", {"name": "find"}),
            leave,
            "done",
        ]
        twice = [static_tools([make_tool("same", quick)]), other]
        model = ScriptedModel(*steps)
        await Agent("a", model=model, providers=[lazy, *twice], collisions="first", pin=True).run("go")

    with capture() as telemetry:
        anyio.run(go)
        check_telemetry(telemetry)
        telemetry.is_checked = False
        yield telemetry


CASES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "other hits": ("tools.searched", {"hits": 7}, "", "of a search, but its event"),
    "another query": ("tools.searched", {"query": "x"}, "", "of a search, but its event"),
    "other names": ("tools.searched", {"names": ()}, "", "of a search, but its event"),
    "another way": ("tools.activated", {"via": "history"}, "", "a tool that was activated via 'history'"),
    "another tool": ("tools.activated", {"via": "find"}, "", "a tool that was activated via 'find'"),
    "another span": ("tools.deactivated", {}, "chat", "has an event of a tool that was deactivated"),
    "yet another span": ("tools.redefined", {}, "chat", "has an event of a tool that was redefined"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_event_of_a_tool_that_lies_is_found(told: Captured, case: str) -> None:
    """`check_telemetry` finds an event of a tool that its span contradicts, or that belongs to another span."""
    name, changes, moved, complaint = CASES[case]
    [index] = [index for index, event in enumerate(told.events) if event.name == name]
    if moved:
        [span, *_] = told.find(moved)
        context = span.get_span_context()
        assert context is not None
        changes = {"span_id": f"{context.span_id:016x}"}
    told.events[index] = replace(told.events[index], **changes)
    with pytest.raises(AssertionError, match=complaint):
        check_telemetry(told)


def test_a_collision_that_is_not_counted_is_found(told: Captured) -> None:
    """`check_telemetry` finds an event of a collision that its span does not count."""
    [span, *_] = told.find("compose_request")
    attributes = dict(span.attributes or {})
    del attributes[semconv.COMPOSE_SHADOWED]
    bent: Any = span
    bent._attributes = attributes
    with pytest.raises(AssertionError, match="has more events of collisions than it counts: 1"):
        check_telemetry(told)


def test_a_budget_of_which_the_span_says_something_else_is_found() -> None:
    """`check_telemetry` finds an event of the tool budget whose span has another figure."""
    with capture() as telemetry:
        agent = Agent("a", model=ScriptedModel("x"), tools=[make_tool("find", quick)], limits=Limits(max_tool_tokens=1))
        anyio.run(agent.run, "go")
        check_telemetry(telemetry)
        telemetry.is_checked = False
        [index] = [index for index, event in enumerate(telemetry.events) if event.name == "tools.budget_exceeded"]
        bent: Any = telemetry.events[index]
        telemetry.events[index] = replace(bent, tokens=bent.tokens + 1)
        with pytest.raises(AssertionError, match="has an event of tools that take"):
            check_telemetry(telemetry)


def test_a_refusal_that_is_not_counted_is_found(told: Captured) -> None:
    """`check_telemetry` finds an event of a redefined tool that its span does not count."""
    [span] = [span for span in told.find("compose_request") if semconv.COMPOSE_REDEFINED in (span.attributes or {})]
    bent: Any = span
    bent._attributes = {name: value for name, value in bent.attributes.items() if name != semconv.COMPOSE_REDEFINED}
    with pytest.raises(AssertionError, match="than it counts redefined ones: 1"):
        check_telemetry(told)


@pytest.fixture
def unlocked(tmp_path: Path) -> Iterator[Captured]:
    """Telemetry of a run whose hub lists a tool that is not in the lock file; right until a test changes it."""
    ToolLock.of({}).write(tmp_path / "pellucid.lock")
    registry = ToolRegistry([make_tool("new", quick)])
    with capture() as telemetry:
        agent = Agent("a", model=ScriptedModel("x"), providers=[registry], lock=tmp_path / "pellucid.lock")
        anyio.run(agent.run, "go")
        check_telemetry(telemetry)
        telemetry.is_checked = False
        yield telemetry


def test_a_tool_that_the_lock_does_not_have_is_told_where_it_is_listed(unlocked: Captured) -> None:
    """`check_telemetry` finds the event of a tool missing in the lock file on another span than that of the listing."""
    [span] = unlocked.find("compose_request")
    [index] = [index for index, event in enumerate(unlocked.events) if event.name == "tools.redefined"]
    unlocked.events[index] = replace(unlocked.events[index], span_id=f"{span.context.span_id:016x}")
    with pytest.raises(AssertionError, match="has an event of a tool that was redefined"):
        check_telemetry(unlocked)


def test_a_difference_from_the_lock_that_is_not_counted_is_found(unlocked: Captured) -> None:
    """`check_telemetry` finds a difference from the lock file that the span of the listing does not count."""
    [span] = unlocked.find("discover_tools")
    bent: Any = span
    bent._attributes = {name: value for name, value in bent.attributes.items() if name != CATALOG_REDEFINED}
    with pytest.raises(AssertionError, match="that differ from the lock file than it counts: 1"):
        check_telemetry(unlocked)
