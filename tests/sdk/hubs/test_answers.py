"""Answers of hubs: valid catalogues, and answers that fail a discovery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from pellucid import Agent, DiscoveryContext, DiscoveryProvider, Tool, semconv
from pellucid.errors import InvalidCatalog
from pellucid.events import ToolsQuarantined
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import Captured, capture
from support.discovery import CTX, Later, add, agent_of, ask, failed
from support.hubs import named, names, nothing
from support.runs import attributes, within

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def give(value: Any) -> Any:
    """Return a value from a coroutine."""
    return value


@pytest.mark.parametrize("answer", [lambda: [add], lambda: (add,), lambda: give([add]), lambda: Later([add])])
async def test_any_list_and_any_awaitable_of_one_is_a_catalogue(make: Any, answer: Callable[[], Any]) -> None:
    """A hub may return any list, and any awaitable of one."""
    model = ScriptedModel("x")
    await within(Agent("a", model=model, providers=[make(answer)]).run("y"))
    assert [definition.name for definition in model.requests[0].tools] == ["add"]


async def test_hubs_may_answer_at_once_or_with_any_awaitable() -> None:
    """A list, a coroutine and an object with `__await__` are all understood."""

    class Plain:
        def __init__(self, answer: Sequence[Tool] | Awaitable[Sequence[Tool]]) -> None:
            self.answer = answer

        def fetch_catalog(self, ctx: DiscoveryContext) -> Any:
            return self.answer

    for answer in (named("a"), Later(named("a"))):
        with anyio.fail_after(60):
            assert names(await DiscoveryProvider(Plain(answer), id="hub").list_tools(CTX)) == ["a"]


async def test_an_empty_list_is_a_catalogue(telemetry: Captured, make: Any) -> None:
    """An empty list is a valid catalogue."""
    await within(Agent("a", model=ScriptedModel("x"), providers=[make(list)]).run("y"))
    assert attributes(telemetry.span("discover_tools"))[semconv.DISCOVERY_TOOL_COUNT] == 0


def broken() -> list[Tool]:
    """Return a list with one tool whose schema is broken."""
    return [Tool(name="broken", run=add.run, input_schema={"type": "object", "properties": {"a": {"type": "strnig"}}})]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda: None, "returned None instead of a list of tools"),
        (lambda: give(None), "returned None instead of a list of tools"),
        (lambda: give({"tools": []}), "returned an object of type dict instead of a list of tools"),
        (lambda: give("tools"), "returned an object of type str instead of a list of tools"),
        (lambda: (one for one in [add]), "returned an object of type generator instead of a list of tools"),
        (lambda: give([add, "add"]), "its list holds an object of type str instead of a Tool"),
        (lambda: [None], "its list holds None instead of a Tool"),
        (lambda: [add, add], "two tools are called 'add'"),
        (lambda: give([add, add]), "two tools are called 'add'"),
        (broken, "the input schema of tool 'broken' is broken"),
        (lambda: [Tool(name="bad name", run=add.run)], "tool name 'bad name' is not 1 to 64 characters"),
    ],
)
async def test_what_is_no_catalogue_fails_the_discovery(
    telemetry: Captured, make: Any, answer: Callable[[], Any], problem: str
) -> None:
    """An answer that is no list of tools fails the discovery with `InvalidCatalog`."""
    error = await failed(agent_of(make(answer)), telemetry, "invalid_catalog")
    assert isinstance(error, InvalidCatalog)
    assert problem in str(error)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "returned None instead of a list"),
        ("a", "an object of type str"),
        ({"a": 1}, "an object of type dict"),
        (["a"], "an object of type str instead of a Tool"),
        (named("a", "a"), "two tools are called 'a'"),
        (named("not a name"), "tool name 'not a name'"),
        ([Tool(name="a", run=nothing, input_schema={"type": "objekt"})], "schema of tool 'a' is broken"),
        ([Tool(name="a", run=nothing, input_schema={"type": "object", "$ref": "http://x/y"})], "is broken"),
    ],
)
async def test_garbage_is_an_error_and_never_an_empty_list(answer: object, problem: str) -> None:
    """An invalid catalogue raises `InvalidCatalog` in a cached provider."""
    hub = FakeHub(lambda _: answer)
    with anyio.fail_after(60), pytest.raises(InvalidCatalog, match=problem):
        await DiscoveryProvider(hub, id="hub").list_tools(CTX)


async def test_quarantine_leaves_only_what_is_broken_out() -> None:
    """`on_invalid="quarantine"` keeps the good tools and emits an event for each broken one."""
    broken = Tool(name="b", run=nothing, input_schema={"type": "objekt"})
    provider = DiscoveryProvider(FakeHub([*named("a"), broken]), id="hub", on_invalid="quarantine")
    with capture() as telemetry, anyio.fail_after(60):
        assert await ask(telemetry, provider) == ["a"]
    assert [event.tool_name for event in telemetry.events if isinstance(event, ToolsQuarantined)] == ["b"]
