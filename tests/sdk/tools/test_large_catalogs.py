"""Catalogues of very many tools, which are checked and merged outside of the event loop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, DiscoveryProvider, Tool, ToolCall, ToolProvider, static_tools
from pellucid.errors import InvalidCatalog
from pellucid.testing import FakeHub, ScriptedModel
from pellucid.tools.catalog import LARGE_CATALOG
from support.hubs import nothing
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry", "telemetry")]


class Watched(dict[str, Any]):
    """A schema that notes the threads that look at it."""

    def __init__(self) -> None:
        super().__init__(type="object", properties={})
        self.threads: set[threading.Thread] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Note the thread."""
        self.threads.add(threading.current_thread())
        return super().get(key, default)


def many(count: int, schema: dict[str, Any]) -> list[Tool]:
    """Return tools of which the last one has this schema."""
    tools = [Tool(name=f"tool_{number}", run=nothing) for number in range(count - 1)]
    return [*tools, Tool(name="last", run=nothing, input_schema=schema)]


PROVIDERS: dict[str, Callable[[Sequence[Tool]], ToolProvider]] = {
    "hub": lambda tools: DiscoveryProvider(FakeHub(tools), id="hub"),
    "static": static_tools,
}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("is_large", [False, True])
async def test_many_tools_are_checked_in_another_thread(provider: str, *, is_large: bool) -> None:
    """The schemas of a large catalogue are checked outside of the event loop, those of a small one inside."""
    schema = Watched()
    tools = many(LARGE_CATALOG if is_large else 3, schema)
    model = ScriptedModel(ToolCall("last", {}, "c"), "done")
    with anyio.fail_after(PATIENCE):
        result = await Agent("a", model=model, providers=[PROVIDERS[provider](tools)]).run("x")
    assert result.output == "done"
    assert len(model.requests[0].tools) == len(tools)
    assert (threading.current_thread() in schema.threads) is not is_large
    assert schema.threads


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_broken_tool_among_many_is_refused(provider: str) -> None:
    """The error is that of a small catalogue."""
    tools = many(LARGE_CATALOG, {"type": "object", "properties": 3})
    agent = Agent("a", model=ScriptedModel(), providers=[PROVIDERS[provider](tools)])
    with anyio.fail_after(PATIENCE), pytest.raises(InvalidCatalog, match="the input schema of tool 'last' is broken"):
        await agent.run("x")


async def test_runs_share_a_large_catalogue() -> None:
    """Runs that start together merge it once."""
    model = ScriptedModel("one", "two", "three")
    tools = static_tools(many(LARGE_CATALOG, {"type": "object"}))
    agent = Agent("a", model=model, providers=[tools])
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(agent.run, "x")
    first, *others = [request.tools for request in model.requests]
    assert len(first) == LARGE_CATALOG
    assert all(each is first for each in others)
