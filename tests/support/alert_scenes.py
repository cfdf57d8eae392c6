"""Applications that behave until they are told to `break` on standard input, and recover when they are told to `heal`.

`python alert_scenes.py SCENE PORT OTLP_ENDPOINT` prints the address of its metrics, and each order once it is obeyed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
from mcp.server.mcpserver import MCPServer

from pellucid import (
    Agent,
    Budget,
    Decision,
    DiscoveryContext,
    DiscoveryProvider,
    Identity,
    Message,
    ModelError,
    ModelRequest,
    ModelResponse,
    PellucidError,
    Reliability,
    Tool,
    ToolCall,
    ToolError,
    Usage,
    tool,
)
from pellucid.budgets.accounts import MemoryAccounts
from pellucid.durable import DurableRuns, RetryPolicy, RunStore, open_store
from pellucid.mcp import MCPProvider
from pellucid.models import Price, PriceTable
from pellucid.reliability import CircuitBreaker
from pellucid.scores import score
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid.tools.lock import ToolLock
from pellucid_exporters import MetricLimits, Otlp, Prometheus, configure
from pellucid_instrumentation import instrument_server

OBJECTIVE: Final = 0.2
SLOW: Final = 0.4
SLOW_MODEL: Final = 0.6
BLOCKED: Final = 0.2
PAUSE: Final = 0.8
"""Seconds between two runs of an agent: what users do."""

FEW: Final = 20
"""Series of a metric, of which there are more hubs."""


@dataclass
class World:
    """State of all applications. Attributes: broken: things go wrong; changed: replaced whenever that changes."""

    broken: bool = False
    changed: anyio.Event = field(default_factory=anyio.Event)

    def turn(self, *, broken: bool) -> None:
        """Let things go wrong, or well."""
        self.broken = broken
        self.changed.set()
        self.changed = anyio.Event()

    async def until(self, *, broken: bool) -> None:
        """Wait until things go wrong, or well."""
        while self.broken is not broken:
            await self.changed.wait()


Behaviour = Callable[[World, int], Any]


class Hub:
    """A hub, and with a cache a `DiscoveryProvider` in front of it; what it does is a function of the world."""

    objective = OBJECTIVE
    timeout = 60.0

    def __init__(self, world: World, id: str, behave: Behaviour) -> None:  # noqa: A002  (as providers name it)
        self.id = id
        self._world = world
        self._behave = behave
        self._calls = 0

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Be asked as a provider."""
        return await self.fetch_catalog(ctx)

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Be asked as a hub."""
        self._calls += 1
        names: Sequence[str] = await self._behave(self._world, self._calls) or ["search"]
        return [Tool(name=name, run=nothing) for name in names]


async def nothing(arguments: dict[str, Any], ctx: object) -> str:
    """Find nothing."""
    return "nothing"


async def behave(world: World, call: int) -> None:
    """Do as promised."""


async def be_slow(world: World, call: int) -> None:
    """Take longer than promised."""
    await anyio.sleep(SLOW if world.broken else 0)


async def be_nearly_slow(world: World, call: int) -> None:
    """Take nearly as long as promised by a hub of twice the objective."""
    await anyio.sleep(OBJECTIVE * 1.8 if world.broken else 0)


async def hang(world: World, call: int) -> None:
    """Do not answer as long as things are broken."""
    await world.until(broken=False)


async def be_flaky(world: World, call: int) -> None:
    """Fail four times of five."""
    if world.broken and call % 5:
        raise ConnectionError("the hub is not quite there")


async def be_down(world: World, call: int) -> None:
    """Fail always."""
    if world.broken:
        raise ConnectionError("the hub is not there")


async def flap(world: World, call: int) -> list[str]:
    """List other tools each time."""
    return ["search", f"search_{call % 2}"] if world.broken else ["search"]


async def add(world: World, call: int) -> list[str]:
    """List a tool that nobody has reviewed."""
    return ["search", "send"] if world.broken else ["search"]


def answer(request: ModelRequest) -> str:
    """Answer."""
    return "done"


def agent(name: str, **options: Any) -> Agent:
    """Return an agent that is content with one answer."""
    return Agent(name, **{"model": FunctionModel(answer, name="good-model"), **options})


async def run_again(world: World, agent: Agent, **options: Any) -> None:
    """Run an agent for one user after the other; failures are ignored."""
    while True:
        with suppress(PellucidError):  # telemetry has it
            await agent.run("go", **options)
        await anyio.sleep(PAUSE)


async def serve_normal(world: World, tasks: Any) -> None:
    """Use a hub with a cache, tools and a model, all of which do as promised."""
    hub = DiscoveryProvider(Hub(world, "search", behave), id="search", objective=OBJECTIVE)
    model = FunctionModel(lambda request: "done" if request.messages[-1].role == "tool" else ToolCall("search", {}))
    tasks.start_soon(run_again, world, agent("normal", model=model, providers=[hub]))


async def serve_hubs(world: World, tasks: Any) -> None:
    """Use hubs of which each has its own way to break."""
    behaviours = {"slow": be_slow, "flaky": be_flaky, "down": be_down, "flapping": flap}
    for name, each in behaviours.items():
        hub = Hub(world, name, each)
        if name == "slow":
            vars(hub).update(slo=0.99, owner="payments")
        one = agent(name, providers=[hub])
        for _ in range(3 if name == "slow" else 1):
            tasks.start_soon(run_again, world, one)
    with TemporaryDirectory() as folder:
        ToolLock.of({"rewritten": [Tool(name="search", run=nothing)]}).write(Path(folder) / "pellucid.lock")
        hubs = [Hub(world, "rewritten", add)]
        tasks.start_soon(run_again, world, agent("rewritten", providers=hubs, lock=Path(folder) / "pellucid.lock"))
    cached = DiscoveryProvider(Hub(world, "hanging", hang), id="hanging", ttl=0.5, timeout=60.0, objective=OBJECTIVE)
    tasks.start_soon(run_again, world, agent("hanging", providers=[cached]))
    tasks.start_soon(run_breaker, world)
    tasks.start_soon(run_storm, world)


async def run_breaker(world: World) -> None:
    """Ask a hub until its breaker is open, and again when it is well."""
    reliability = Reliability(breaker=CircuitBreaker(failures=3, cooldown=1.0))
    one = agent("breaker", providers=[Hub(world, "breaker", be_down)], reliability=reliability)
    while True:
        is_broken = world.broken  # not read at the end: what breaks within the round has not failed often enough
        for _ in range(4):
            with suppress(PellucidError):  # telemetry has it
                await one.run("go")
        if is_broken:
            await world.until(broken=False)
        await anyio.sleep(PAUSE)


async def run_storm(world: World) -> None:
    """Use a cache with more keys than it has room for, of a hub that is nearly slow."""
    hub = DiscoveryProvider(Hub(world, "storm", be_nearly_slow), id="storm", objective=OBJECTIVE * 2, max_entries=2)
    one = agent("storm", providers=[hub])
    count = 0
    while True:
        count += 1
        who = f"tenant-{count % 10}" if world.broken else "tenant"
        await one.run("go", identity=Identity(tenant=who))
        await anyio.sleep(PAUSE / 4)


async def serve_work(world: World, tasks: Any) -> None:
    """Use tools and models of which each has its own way to break."""
    tasks.start_soon(run_again, world, tool_agent(world))
    tasks.start_soon(run_again, world, agent("failing", model=FunctionModel(partial(fail, world), name="bad-model")))
    tasks.start_soon(run_again, world, agent("waiting", model=FunctionModel(partial(think, world), name="slow-model")))
    prices = PriceTable({"dear-model": Price(input=10.0, output=10.0)})
    spender = agent("spender", model=FunctionModel(partial(spend, world), name="dear-model"), prices=prices)
    tasks.start_soon(run_again, world, spender)
    few = partial(Budget, "scene", store=MemoryAccounts())
    frugal = agent("frugal", budget=lambda ctx: few(model_calls=10 if world.broken else 10**9))
    tasks.start_soon(run_again, world, frugal)
    tasks.start_soon(run_approvals, world)
    tasks.start_soon(run_judged, world)


class NoCatalogue(Exception):
    """A scorer cannot look at what it needs."""


async def run_judged(world: World) -> None:
    """Run an agent with good scores, and worse ones while things are broken; then a scorer fails, too."""

    def sick(output: str) -> bool:
        if world.broken:
            raise NoCatalogue
        return True

    one = agent("judged", version="7", scorers=[sick])
    while True:
        score(await one.run("go"), "correct", value=0.2 if world.broken else 1)
        await anyio.sleep(PAUSE)


def tool_agent(world: World) -> Agent:
    """Return an agent whose tool fails while things are broken."""

    @tool
    async def lookup() -> str:
        """Look something up."""
        if world.broken:
            raise ToolError("there is no index")
        return "found"

    model = FunctionModel(lambda request: "done" if request.messages[-1].role == "tool" else ToolCall("lookup", {}))
    return agent("tooled", model=model, tools=[lookup])


def fail(world: World, request: ModelRequest) -> str:
    """Refuse, while things are broken."""
    if world.broken:
        raise ModelError("bad-model", "overloaded", error_kind="unavailable")
    return "done"


async def think(world: World, request: ModelRequest) -> str:
    """Think for long, while things are broken."""
    await anyio.sleep(SLOW_MODEL if world.broken else 0)
    return "done"


def spend(world: World, request: ModelRequest) -> ModelResponse:
    """Use many tokens, while things are broken."""
    usage = Usage(input_tokens=200_000 if world.broken else 10, output_tokens=1)
    return ModelResponse(message=Message("assistant", "done"), usage=usage)


async def run_approvals(world: World) -> None:
    """Have a call wait for a person who looks at it when things are well again."""

    @tool(needs_approval=True)
    async def refund() -> str:
        """Refund an order."""
        return "refunded"

    model = FunctionModel(lambda request: "done" if request.messages[-1].role == "tool" else ToolCall("refund", {}))
    one = agent("refunds", model=model, tools=[refund])
    while True:
        await world.until(broken=True)
        waits = await one.run("go")
        await world.until(broken=False)
        decisions = [Decision(request.approval_id, True) for request in waits.approvals]
        await one.resume(waits.checkpoint or {}, decisions=decisions)


async def serve_durable(world: World, tasks: Any) -> None:
    """Work on durable runs whose calls, workers and results break."""
    tasks.start_soon(run_durable, world)
    tasks.start_soon(run_failing_service, world)
    tasks.start_soon(run_busy_worker, world)
    tasks.start_soon(run_again, world, agent("durable"))


async def run_durable(world: World) -> None:
    """Owe a result, differ about another, and leave runs to workers that are not there or die, while broken."""
    with TemporaryDirectory() as folder:
        async with open_store(f"sqlite:///{folder}/runs.db") as store, anyio.create_task_group() as tasks:
            owed = [Tool(name=name, run=nothing, execution="external-dispatch") for name in ("survey", "count")]
            calls = [ToolCall(each.name, {}) for each in owed]
            model = FunctionModel(lambda request: "done" if request.messages[-1].role == "tool" else calls)
            clerk, mortal = agent("clerk", model=model, tools=owed), agent("mortal")
            patient = agent("patient", model=FunctionModel(partial(fail, world)))
            often = RetryPolicy(max_attempts=10_000, backoff=0.5, factor=1.0)
            runs = DurableRuns(store, [clerk, patient], poll=0.2, retry=often)
            others = DurableRuns(store, [mortal])
            tasks.start_soon(runs.work)
            while True:
                await world.until(broken=True)
                run_id, orphan = await runs.submit(clerk, "go"), await _submit_to_nobody(store)
                await runs.submit(patient, "go")
                while len(found := (await runs.status(run_id)).external) < len(owed):  # noqa: ASYNC110  (no event)
                    await anyio.sleep(PAUSE)
                external = {call.tool: call.id for call in found}
                answers = 0
                while world.broken:
                    answers += 1
                    await runs.settle(external["count"], output=answers)
                    await others.submit(mortal, "go")
                    await store.claim("dead", ["mortal"], 0.0)  # its lease is over at once
                    await others.work_until_idle()
                    await anyio.sleep(PAUSE)
                await runs.settle(external["survey"], output="done")
                await runs.cancel(orphan, "nobody has the agent")


async def run_failing_service(world: World) -> None:
    """Have a service fail at each call, while broken."""
    audit = Tool(name="audit", run=nothing, execution="external-dispatch", pending="wait")
    model = FunctionModel(lambda request: "done" if request.messages[-1].role == "tool" else ToolCall("audit", {}))
    one = agent("auditor", model=model, tools=[audit])
    with TemporaryDirectory() as folder:
        async with open_store(f"sqlite:///{folder}/runs.db") as store:
            runs = DurableRuns(store, [one])
            while True:
                run_id = await runs.submit(one, "go")
                await runs.work_until_idle()
                [call] = (await runs.status(run_id)).external
                if world.broken:
                    await runs.settle(call.id, error="there are no books")
                else:
                    await runs.settle(call.id, output="all is well")
                await runs.work_until_idle()
                await anyio.sleep(PAUSE)


async def run_busy_worker(world: World) -> None:
    """Have five runs at a time for a worker with one slot, while broken."""
    one = agent("busy", model=FunctionModel(think_a_little))
    with TemporaryDirectory() as folder:
        async with open_store(f"sqlite:///{folder}/runs.db") as store, anyio.create_task_group() as tasks:
            runs = DurableRuns(store, [one], poll=0.2)
            tasks.start_soon(partial(runs.work, concurrency=1))
            for place in range(5):
                tasks.start_soon(run_in_turns, world, runs, place == 0)


async def think_a_little(request: ModelRequest) -> str:
    """Take a tenth of a second."""
    await anyio.sleep(PAUSE / 4)
    return "done"


async def run_in_turns(world: World, runs: DurableRuns, is_alone: bool) -> None:
    """Submit a run when the one before has ended; while things are well, only if it is alone."""
    while True:
        if not is_alone:
            await world.until(broken=True)
        async for _ in runs.events(await runs.submit("busy", "go"), after=0):
            pass  # until it has ended


async def _submit_to_nobody(store: RunStore) -> str:
    run = await store.submit(uuid4().hex, "orphan", None)
    return run.run.id


async def serve_blocked(world: World, tasks: Any) -> None:
    """Use a hub that does as promised, in a process with code that computes for long without `await`."""
    hub = DiscoveryProvider(Hub(world, "quick", behave), id="quick", ttl=0, objective=OBJECTIVE)
    for _ in range(10):
        tasks.start_soon(run_again, world, agent("blocked", providers=[hub]))
    while True:
        await world.until(broken=True)
        time.sleep(BLOCKED)  # noqa: ASYNC251  (that is the fault)
        await anyio.lowlevel.checkpoint()


async def serve_crowd(world: World, tasks: Any) -> None:
    """Use more hubs than there may be series, while broken."""
    await agent("crowded", providers=[Hub(world, "first", behave)]).run("go")
    await world.until(broken=True)
    for number in range(FEW):
        await agent("crowded", providers=[Hub(world, f"hub-{number}", behave)]).run("go")


async def serve_tools(world: World, tasks: Any) -> None:
    """Be an MCP server and its clients: while broken, one tool is slow, one fails, and one does not answer."""

    async def stock() -> str:
        await anyio.sleep(SLOW if world.broken else 0)
        return "12"

    def order() -> str:
        if world.broken:
            raise ConnectionError("sold out")
        return "done"

    async def survey() -> str:
        await world.until(broken=False)
        return "fine"

    server = MCPServer("shop-tools")
    for function in (stock, order, survey):
        server.add_tool(function, structured_output=False)
    instrument_server(server, objective=OBJECTIVE)
    for names in (["stock"], ["stock"], ["order"] * 6, ["survey"]):
        tasks.start_soon(call_again, server, names)


async def call_again(server: MCPServer, names: Sequence[str]) -> None:
    """Call tools one after the other; what fails has failed."""
    while True:
        provider = MCPProvider.connect(server, id="tools")
        calls = [ToolCall(name, {}, f"{name}-{number}") for number, name in enumerate(names)]
        await agent("buyer", model=ScriptedModel(calls, "done"), providers=[provider]).run("go")
        await provider.aclose()
        await anyio.sleep(PAUSE / 4)


SCENES: Final = {
    "normal": serve_normal,
    "served": serve_tools,
    "crowded": serve_crowd,
    "blocked": serve_blocked,
    "hubs": serve_hubs,
    "work": serve_work,
    "durable": serve_durable,
    "loser": serve_normal,  # the test breaks its collector
    "leaver": serve_normal,  # the test kills it
}


async def serve(scene: str) -> None:
    """Play a scene until standard input ends."""
    world = World()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(SCENES[scene], world, tasks)
        await anyio.to_thread.run_sync(obey, world)
        tasks.cancel_scope.cancel()


def obey(world: World) -> None:
    """Follow orders."""
    for order in sys.stdin:
        anyio.from_thread.run_sync(partial(world.turn, broken=order.strip() == "break"))
        print(order.strip(), flush=True)


def main(scene: str, port: str, endpoint: str) -> None:
    """Be an application."""
    otlp = Otlp(endpoint=endpoint, metrics=False, logs=False)
    limits = MetricLimits(series=FEW) if scene == "crowded" else None
    telemetry = configure(scene, prometheus=Prometheus(port=int(port)), otlp=otlp, metric_limits=limits)
    print(telemetry.prometheus_url, flush=True)
    anyio.run(serve, scene)
    telemetry.shutdown(1.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
