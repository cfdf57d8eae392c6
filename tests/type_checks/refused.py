"""Wrong uses, each with the error of mypy and the rule of pyright that refuse it. Checked, never run."""

from __future__ import annotations

from pellucid import (
    Agent,
    DiscoveryContext,
    DiscoveryProvider,
    RunResult,
    Skill,
    Tool,
    ToolContext,
    ToolRegistry,
    combined,
    static_tools,
    tool,
)
from pellucid.events import RunCompleted, ToolProgress
from pellucid.testing import FakeHub, ScriptedModel


class Shop:
    """Dependencies of some tools."""


class Library:
    """Dependencies of other tools."""


@tool
async def price(ctx: ToolContext[Shop], item: str, count: int = 1) -> float:
    """Return the price of an item."""
    return 1.0


@tool(name="lend")
def lend(ctx: ToolContext[Library], book: str) -> bool:
    """Lend a book."""
    return True


@tool
def reads_untyped_deps(ctx: ToolContext) -> str:
    """Read deps of an unknown type."""
    return str(ctx.deps.prices)  # refused: attr-defined, reportAttributeAccessIssue


class PerTenant:
    """A provider of tools that need a shop."""

    id = "per-tenant"

    def list_tools(self, ctx: DiscoveryContext) -> list[Tool[Shop]]:
        """List."""
        return [lend]  # refused: list-item, reportReturnType


MODEL = ScriptedModel("text")
SHOP = Agent("a", model=MODEL, tools=[price])


async def calls_of_decorated_tools(ctx: ToolContext[Shop]) -> None:
    await price(ctx, item=7)  # refused: arg-type, reportArgumentType
    await price(ctx, "pen", amount=2)  # refused: call-arg, reportCallIssue
    await price(ctx)  # refused: call-arg, reportCallIssue
    lend(ctx, "Emma")  # refused: arg-type, reportArgumentType
    text: str = await price(ctx, "pen")  # refused: assignment, reportAssignmentType
    print(text)


async def tools_with_other_deps() -> None:
    Agent[Shop]("a", model=MODEL, tools=[lend])  # refused: list-item, reportArgumentType
    Agent("a", model=MODEL, tools=[price, lend])  # refused: list-item, reportArgumentType
    Agent[Library]("a", model=MODEL, tools=[SHOP.as_tool()])  # refused: list-item, reportArgumentType
    Agent[Library]("a", model=MODEL, providers=[PerTenant()])  # refused: list-item, reportArgumentType
    Agent[Library]("a", model=MODEL, providers=[combined(PerTenant())])  # refused: arg-type, reportArgumentType
    Agent[Library]("a", model=MODEL, providers=[static_tools([price])])  # refused: list-item, reportArgumentType
    skill = Skill("a", "b", "c", tools=[price])
    Agent[Library]("a", model=MODEL, skills=[skill])  # refused: list-item, reportArgumentType
    hub = DiscoveryProvider(FakeHub([price]), id="hub")
    Agent[Library]("a", model=MODEL, providers=[hub])  # refused: list-item, reportArgumentType
    with SHOP.override(tools=[lend]):  # refused: list-item, reportArgumentType
        pass
    ToolRegistry().register(price)  # refused: arg-type, reportCallIssue
    other: Agent[Library] = SHOP  # refused: assignment, reportAssignmentType
    needless: Agent = SHOP  # refused: assignment, reportAssignmentType
    print(other, needless)


async def deps_of_runs() -> None:
    await SHOP.run("x")  # refused: call-arg, reportCallIssue
    SHOP.run_sync("x")  # refused: call-arg, reportCallIssue
    SHOP.stream("x")  # refused: call-arg, reportCallIssue
    await SHOP.resume({})  # refused: call-arg, reportCallIssue
    SHOP.resume_sync({})  # refused: call-arg, reportCallIssue
    SHOP.resume_stream({})  # refused: call-arg, reportCallIssue
    await SHOP.run("x", deps=Library())  # refused: arg-type, reportArgumentType
    await SHOP.run("x", deps=None)  # refused: arg-type, reportArgumentType


async def options_and_outputs() -> None:
    Agent("a", model=MODEL, tool=[price])  # refused: call-overload, reportCallIssue
    await SHOP.run("x", deps=Shop(), historie=())  # refused: call-arg, reportCallIssue
    number: int = SHOP.run_sync("x", deps=Shop()).output  # refused: assignment, reportAssignmentType
    numbers: RunResult[int] = SHOP.run_sync("x", deps=Shop())  # refused: assignment, reportAssignmentType
    Agent[object, int]("a", model=MODEL, output=str)  # refused: arg-type, reportCallIssue
    print(number, numbers)


async def end(event: RunCompleted) -> None:
    """Receive the ends of runs."""


async def listeners_of_other_events() -> None:
    SHOP.on("run.completed", end)
    SHOP.on("run.failed", end)  # refused: arg-type, reportArgumentType
    SHOP.on("run.*", end)  # refused: arg-type, reportArgumentType
    SHOP.on(ToolProgress, end)  # refused: arg-type, reportArgumentType
    SHOP.on("run.completed", lambda event: print(event.tool_name))  # refused: attr-defined, reportAttributeAccessIssue
    SHOP.on("tools.*", lambda event: print(event.provider_id))  # refused: attr-defined, reportAttributeAccessIssue
    SHOP.on(int, print)  # refused: type-var, reportArgumentType
