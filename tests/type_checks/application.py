"""A program with most of the API, as users write it: it needs neither `Any` nor casts. Checked, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import anyio

from pellucid import (
    Agent,
    AgentOptions,
    Budget,
    CancelToken,
    CapturePolicy,
    Decision,
    DiscoveryProvider,
    Identity,
    Limits,
    Message,
    ModelDelta,
    ModelRequest,
    ModelResponse,
    PermissionRequest,
    Reliability,
    RunOptions,
    RunResult,
    Skill,
    TelemetryOptions,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolRegistry,
    Usage,
    Verdict,
    combined,
    configured_tools,
    gated_tools,
    static_tools,
    tool,
)
from pellucid.durable import RunStore
from pellucid.events import Event, InferenceDelta, RunCompleted, ToolStarted
from pellucid.mcp import MCPProvider
from pellucid.models import FallbackModel, OpenAIModel, Price, PriceTable, StreamItem
from pellucid.reliability import Rule, fail_fast, fallback, last_known_catalog, retry, retry_other
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.testing import Captured


@dataclass
class Deps:
    """Dependencies of tools."""

    orders: dict[str, float]


class OwnModel:
    """A model that is written in the application."""

    name = "own"
    provider_name = "mine"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Answer."""
        return ModelResponse(message=Message("assistant", "hi"), usage=Usage())

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Answer in pieces."""
        yield ModelDelta("text", "hi")
        yield await self.generate(request)


def is_unknown(arguments: dict[str, object], ctx: ToolContext[Deps]) -> bool:
    """Return whether a person must decide."""
    return str(arguments["order"]) not in ctx.deps.orders


@tool(needs_approval=lambda arguments, ctx: arguments["amount"] > 100)
async def refund(ctx: ToolContext[Deps], order: str, amount: float) -> str:
    """Refund an order."""
    ctx.progress({"order": order})
    if order not in ctx.deps.orders:
        raise ToolError("There is no such order.")
    return f"{min(ctx.deps.orders[order], amount)} EUR"


@tool(needs_approval=is_unknown, name="cancel", tags=["stop"])
def cancel(ctx: ToolContext[Deps], order: str) -> str:
    """Cancel an order."""
    return order


async def look_up(arguments: dict[str, object], ctx: ToolContext[Deps]) -> float:
    """Be the function of a tool with its own schema."""
    return ctx.deps.orders[str(arguments["order"])]


async def policy(request: PermissionRequest) -> str:
    return "allow" if request.tool_name == "refund" else "deny"


def careful_policy(request: PermissionRequest) -> Verdict:
    return Verdict("deny", reason=request.stage)


registry = ToolRegistry[Deps]([refund])


@registry.register
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"


rules = Reliability(
    pre_check=[Rule(when=lambda s: (s.usage.cost or 0) > 2, then=fail_fast(), kind="budget")],
    post_decide=[
        Rule(when=lambda s: s.operation == "discovery" and s.attempt < 3, then=retry(backoff=0.2), kind="again"),
        Rule(when=lambda s: s.operation == "inference", then=retry_other(), kind="next-model"),
        Rule(when=lambda s: s.operation == "discovery", then=fallback(last_known_catalog), kind="degraded"),
    ],
)

support = Agent[Deps](
    "support",
    model=OwnModel(),
    tools=[cancel, Tool(name="look_up", run=look_up)],
    providers=[
        registry,
        MCPProvider.http("http://localhost", id="mcp"),
        configured_tools({}),
        combined(DiscoveryProvider(FakeHub(), id="hub"), static_tools([refund]), on_error="skip"),
        gated_tools(registry, lambda tool, ctx: ctx.identity is not None and tool.name != "greet"),
    ],
    skills=[Skill("refunds", "How to refund.", "Look up the order first.", tools=[refund])],
    policy=policy,
    reliability=rules,
    limits=Limits(timeout=3),
    settings={"temperature": 0.1},
    prices=PriceTable({"mine:own": Price(input=1, output=2)}),
    telemetry=TelemetryOptions(capture=CapturePolicy("full"), listeners=[("*", print)]),
)
plain = Agent("plain", model=FallbackModel(OwnModel(), OpenAIModel("gpt-6-sol")), policy=careful_policy)


def of_tenant(ctx: ToolContext[Deps]) -> Budget | None:
    tenant = ctx.identity.tenant if ctx.identity is not None else None
    return Budget(tenant, cost=sum(ctx.deps.orders.values()), per="day") if tenant is not None else None


frugal = Agent("frugal", model=OwnModel(), tools=[refund], budget=of_tenant)
shared = Agent("shared", model=OwnModel(), budget=[Budget("team", tokens=10**6, per="month"), Budget("all", cost=5)])
mixed = Agent("mixed", model=OwnModel(), budget=lambda ctx: Budget(f"run:{ctx.run_id}", model_calls=3))


async def converse(store: RunStore) -> str:
    session = shared.session("customer-7", store=store, window=50)
    result = await session.run("hi", budget=Budget("session", cost=1))
    async with session.stream("more") as events:
        async for text in events.text():
            print(text.upper())
    state = await Budget("all", cost=5).read()
    print(state.spent.cost + state.reserved.tokens, [message.text for message in await session.messages()])
    return result.output.upper() + (result.budget or "")


async def resume(result: RunResult, deps: Deps) -> RunResult:
    if result.checkpoint is None:
        return result
    decisions = [Decision(request.approval_id, approved=True) for request in result.approvals]
    return await support.resume(result.checkpoint, decisions=decisions, deps=deps)


async def read_stream(deps: Deps) -> str:
    async with support.stream("hi", deps=deps) as events:
        async for event in events:
            if isinstance(event, InferenceDelta):
                print(event.content.upper())
            match event:
                case ToolStarted():
                    print(event.tool_name.upper())
                case RunCompleted(duration_ms=duration):
                    print(duration + 1)
                case _:
                    pass
    return events.result.output.upper()


async def run_in_many_ways() -> None:
    deps = Deps({"1": 9.5})
    result = await support.run("hi", deps=deps, signal=CancelToken(), identity=Identity(tenant="acme"))
    result = await resume(result, deps)
    kept: RunOptions = {"history": result.messages}
    await support.run("more", deps=deps, **kept)
    options: AgentOptions[Deps] = {"model": OwnModel(), "tools": [refund]}
    await Agent("again", **options).run("x", deps=deps)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(support.run, "x", deps=deps))
        tasks.start_soon(plain.run, "x")
    in_thread = await anyio.to_thread.run_sync(partial(support.run_sync, "x", deps=deps))
    print(in_thread.output.upper(), greet("Ann").upper())


async def answer(request: ModelRequest) -> list[ToolCall] | str:
    return "done" if len(request.messages) > 1 else [ToolCall("greet", {"name": "Ann"})]


def ask(agent: Agent, question: str) -> RunResult:
    return agent.run_sync(question)


def build(tools: Sequence[Tool], by_name: Mapping[str, Tool]) -> Agent:
    return Agent("built", model="openai:gpt-6-sol", tools=[*tools, *by_name.values()])


async def listen(event: Event) -> None:
    print(event.run_id.upper())


def test_an_answer(telemetry: Captured) -> None:
    with support.override(model=ScriptedModel(ToolCall("a"), "x", lambda request: "y", ConnectionError("refused"))):
        assert support.run_sync("hi", deps=Deps({})).output == "x"
    assert telemetry.span("invoke_agent").attributes["pellucid.outcome"] == "completed"


support.on("*", listen)
ask(plain, "x")
ask(Agent("function", model=FunctionModel(answer)), "x")
configure("support", console=True).shutdown()
