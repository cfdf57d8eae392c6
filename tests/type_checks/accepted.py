"""Programs that type checkers accept, and the types that they infer. Checked, never run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

from pydantic import BaseModel

from pellucid import (
    Agent,
    DiscoveryContext,
    DiscoveryProvider,
    RunResult,
    Skill,
    Tool,
    ToolContext,
    ToolRegistry,
    ToolResult,
    combined,
    gated_tools,
    observe,
    skill_scoped_tools,
    static_tools,
    tool,
)
from pellucid.events import Event, ToolProgress
from pellucid.standalone import ObservedProvider
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_replay import Tape, replay_sync


class Shop:
    """Dependencies of the tools of a shop."""

    prices: dict[str, float]


class Bookshop(Shop):
    """A shop."""


class Answer(BaseModel):
    """A structured answer."""

    price: float


@tool
async def price(ctx: ToolContext[Shop], item: str, count: int = 1) -> float:
    """Return the price of an item."""
    return ctx.deps.prices[item] * count


@tool(idempotent=True)
def weather(city: str) -> str:
    """Return the weather."""
    return city


@tool
def now(ctx: ToolContext) -> str:
    """Return the time."""
    return ctx.run_id


class Clock:
    """An object with methods."""

    def tick(self, times: int) -> int:
        """Tick."""
        return times


def plain(city: str) -> str:
    """Be a function without a decorator."""
    return city


async def decorated_tools_are_called_as_their_functions() -> None:
    assert_type(await price(ToolContext(deps=Shop()), item="pen", count=2), float)
    assert_type(await price(ctx=ToolContext(deps=Bookshop()), item="pen"), float)
    assert_type(weather("Bergen"), str)
    assert_type(tool(Clock().tick)(3), int)
    assert_type(tool(name="other")(plain)("Bergen"), str)
    assert_type(list(map(weather, ["Bergen"])), list[str])
    assert_type(weather.name, str)


class PerTenant:
    """A provider of tools that need a shop."""

    id = "per-tenant"

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool[Shop]]:
        """List."""
        return [price, weather]


class Hub:
    """A hub of tools that need nothing."""

    async def fetch_catalog(self, ctx: DiscoveryContext) -> list[Tool]:
        """Fetch."""
        return [weather, now]


MODEL = ScriptedModel("text")


async def agents_without_deps() -> None:
    agent = Agent("a", model=MODEL)
    assert_type(agent, Agent)
    assert_type(agent, Agent[object, str])
    assert_type(Agent("a", model=MODEL, tools=[weather, now, plain, Clock().tick]), Agent)
    tools = [weather, now]
    agents = [agent, Agent("b", model=MODEL, tools=tools)]
    assert_type(agents, list[Agent])
    of_none: Agent[None, str] = agent
    await of_none.run("x")
    await agent.run("x", deps=Shop())  # any deps fit
    assert_type(await agent.run("x"), RunResult)
    assert_type(agent.run_sync("x").output, str)
    typed = Agent("a", model=MODEL, output=Answer)
    assert_type(typed, Agent[object, Answer])
    assert_type(typed.run_sync("x").output, Answer)
    assert_type(await typed.resume({}), RunResult[Answer])
    async with typed.stream("x") as events:
        assert_type(events.result.output, Answer)
        async for partial in events.partial():
            assert_type(partial, Answer)
    async with agent.stream("x") as events_of_text:
        assert_type([text async for text in events_of_text.partial()], list[str])
    optional = Agent("a", model=MODEL, output=Answer | None)
    assert_type(optional.run_sync("x").output, Answer | None)
    assert_type(replay_sync(typed, Tape.load("run.jsonl")).result, RunResult[Answer] | None)


async def agents_with_deps() -> None:
    agent = Agent("a", model=MODEL, tools=[price])
    assert_type(agent, Agent[Shop])
    assert_type(Agent("a", model=MODEL, tools=[price], output=Answer), Agent[Shop, Answer])
    mixed = Agent[Shop, Answer]("a", model=MODEL, tools=[price, weather, plain], output=Answer)
    assert_type((await mixed.run("x", deps=Bookshop())).output, Answer)
    assert_type(mixed.run_sync("x", deps=Shop()).output, Answer)
    assert_type(mixed.resume_sync({}, deps=Shop()).output, Answer)
    assert_type(mixed.stream("x", deps=Shop()).result.output, Answer)
    with mixed.override(model=ScriptedModel("{}"), tools=[price], providers=[static_tools([weather])]):
        pass
    of_books: Agent[Bookshop, Answer] = mixed  # what works with any shop works with this one
    Agent[Bookshop]("a", model=MODEL, tools=[of_books.as_tool(), Agent("b", model=MODEL).as_tool(), price])


async def providers_of_tools_with_deps() -> None:
    hub = DiscoveryProvider(FakeHub([price]), id="hub")
    assert_type(hub, DiscoveryProvider[Shop])
    registry = ToolRegistry[Shop]([price, plain])
    registry.register(price)

    @registry.register
    def rebate(percent: int) -> str:
        """Give a rebate."""
        return f"{percent} %"

    assert_type(rebate(3), str)
    gate = gated_tools(static_tools([price]), lambda listed, ctx: listed.name != "price" or ctx.iteration > 1)
    observed = observe(hub)
    assert_type(observed, ObservedProvider[Shop])
    assert_type(await observed.list_tools(), Sequence[Tool[Shop]])
    assert_type(await observed.call_tool("price", {"title": "x"}, deps=Bookshop()), ToolResult)
    assert_type(await observe(static_tools([weather])).call_tool("weather", {"city": "x"}), ToolResult)
    agent = Agent[Shop](
        "a",
        model=MODEL,
        providers=[
            hub,
            observed,
            registry,
            gate,
            skill_scoped_tools("sales", [price]),
            combined(PerTenant(), DiscoveryProvider(Hub(), id="mine")),
        ],
        skills=[Skill("sales", "How to sell.", "Sell.", tools=[price]), Skill("other", "How to.", "Do.")],
    )
    assert_type(agent, Agent[Shop])


async def listeners() -> None:
    agent = Agent("a", model=MODEL)
    agent.on("tools.discovery_completed", lambda event: print(event.tool_count + 1))
    agent.on(ToolProgress, lambda event: print(event.tool_name.upper(), event.value))
    agent.on("tool.*", lambda event: print(event.name.upper(), event.iteration + 1))

    async def listen(event: ToolProgress) -> None:
        assert_type(event.tool_name, str)

    def listen_to_all(event: Event) -> str:
        return event.name

    assert_type(agent.on("tool.progress", listen, once=True)(), None)
    agent.on("tool.failed", listen_to_all)
    agent.on(Event, listen_to_all)
