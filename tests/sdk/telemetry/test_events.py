from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import pellucid
from pellucid import (
    Agent,
    Budget,
    ConfigError,
    Context,
    Decision,
    DiscoveryError,
    DiscoveryProvider,
    Identity,
    Limits,
    Message,
    ModelError,
    Reliability,
    Tool,
    ToolCall,
    ToolContext,
    ToolRegistry,
    static_tools,
    tool,
)
from pellucid.errors import ReliabilityFailFast
from pellucid.events import EVENTS, Event, RunCompleted
from pellucid.reliability import CircuitBreaker, Rule, fail_fast, fallback, retry
from pellucid.scores import Scored, score
from pellucid.telemetry import subscriptions
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from support.clock import SOON, pass_time
from support.runs import span_id, within

if TYPE_CHECKING:
    from pellucid import ModelRequest
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = ToolCall("add", {"a": 1, "b": 2})


async def test_listeners_hear_what_they_asked_for() -> None:
    """By name, by group and once; no longer after they left."""
    heard: list[str] = []
    agent = Agent("a", model=FunctionModel(lambda request: "x"))
    agent.on("run.started", lambda event: heard.append("once"), once=True)
    leave = agent.on("tools.*", lambda event: heard.append(event.name))
    await within(agent.run("y"))
    await within(agent.run("y"))
    leave()
    await within(agent.run("y"))
    discovery = ["tools.discovery_started", "tools.discovery_completed"]
    assert heard == ["once", *discovery, *discovery]
    with pytest.raises(ConfigError, match=re.escape("no event matches 'tool.disco*'")):
        agent.on("tool.disco*", print)


def test_a_class_subscribes_to_its_events() -> None:
    """The class of an event is as good as its name, and that of all events as `*`; other classes are refused."""
    agent = Agent("a", model=ScriptedModel("done"))
    received: list[Event] = []
    agent.on(RunCompleted, received.append)
    agent.on(Event, received.append, once=True)
    agent.run_sync("x")
    assert [event.name for event in received] == ["run.started", "run.completed"]
    others: list[Any] = [int, 7]
    for other in others:
        with pytest.raises(ConfigError, match=f"{other!r} is not an event; give its name"):
            agent.on(other, received.append)


def test_type_checkers_know_the_class_of_every_name() -> None:
    """There is one signature of `Agent.on` for each event, in their order."""
    written = re.findall(
        r'event: Literal\["(.+?)"\], listener: ListenerOf\[events\.(\w+)\]', inspect.getsource(subscriptions)
    )
    assert written == [(name, kind.__name__) for name, kind in EVENTS.items()]


async def test_async_listeners_have_heard_everything_when_a_run_is_over() -> None:
    """The result comes after they heard of it."""
    heard: list[str] = []

    async def listen(event: Event) -> None:
        await anyio.lowlevel.checkpoint()
        heard.append(event.name)

    agent = Agent("a", model=ScriptedModel("x"))
    agent.on("*", listen)
    await within(agent.run("y"))
    assert heard[0] == "run.started"
    assert heard[-1] == "run.completed"


async def test_an_event_is_an_envelope_and_a_payload(telemetry: Captured) -> None:
    """Discovery events say who, when, how long and how many, as plain attributes."""
    who = Identity(tenant="t1")
    result = await within(Agent("a", model=ScriptedModel("x"), tools=[add]).run("y", identity=who))
    [event] = [event for event in telemetry.events if event.name == "tools.discovery_completed"]
    given: Any = event
    assert (given.provider_id, given.iteration, given.tool_count, given.cache) == ("static", 1, 1, "none")
    assert (given.run_id, given.agent, given.identity) == (result.run_id, "a", who)
    assert given.span_id == span_id(telemetry.span("discover_tools"))
    assert given.duration_ms > 0


def declared() -> set[type[Event]]:
    """Return the events that any module of Pellucid declares, however they are registered."""
    for module in pkgutil.walk_packages(pellucid.__path__, "pellucid."):
        if not module.name.startswith("pellucid.adapters."):  # these need their frameworks
            importlib.import_module(module.name)
    found: set[type[Event]] = set()
    left: list[type[Event]] = [Event]
    while left:
        for event in left.pop().__subclasses__():
            # A dataclass with slots is made twice; the first of the two is nowhere to be found.
            if vars(sys.modules[event.__module__]).get(event.__name__) is event:
                found.add(event)
                left.append(event)
    return {event for event in found if event.__module__.startswith("pellucid.")}


def test_every_event_is_registered_under_a_name_of_its_own() -> None:
    """None that is declared elsewhere, that has the name of another, or that inherits one, escapes the other tests."""
    assert set(EVENTS.values()) == declared()
    assert {event.__dict__["name"]: event for event in declared()} == EVENTS


async def reliably(telemetry: Captured) -> None:
    """Run what reliability rules and circuit breakers tell of."""
    now = 0.0
    works = False

    def answer(request: ModelRequest) -> str:
        if not works:
            raise OSError("down")
        return "hi"

    rules = [
        Rule(when=lambda s: s.error_kind == "circuit_open", then=fallback(lambda s: "later"), kind="open"),
        Rule(when=lambda s: s.error is not None and s.attempt == 1, then=retry(backoff=0.0), kind="again"),
        Rule(when=lambda s: s.error is not None and s.attempt == 2, then=fail_fast(), kind="enough"),
    ]
    reliability = Reliability(rules, breaker=CircuitBreaker(failures=2, cooldown=10.0), clock=lambda: now)
    agent = Agent("c", model=FunctionModel(answer), telemetry=telemetry, reliability=reliability)
    with pytest.raises(ReliabilityFailFast):
        await within(agent.run("x"))
    assert (await within(agent.run("x"))).output == "later"
    works, now = True, 10.0
    assert (await within(agent.run("x"))).output == "hi"
    model = ScriptedModel(OSError("down"), "hi")
    await within(Agent("d", model=model, telemetry=telemetry, reliability=Reliability(rules)).run("x"))


async def waiting(telemetry: Captured, run: Any) -> None:
    """Run what waits for a person, who approves; and before, a tool that changes under its name."""
    changing = FakeHub(lambda number: [Tool(name="step", run=run, description=str(number))])
    provider = DiscoveryProvider(changing, id="hub", ttl=0.0)
    model = ScriptedModel(ToolCall("step"), "x")
    await within(Agent("e", model=model, providers=[provider], telemetry=telemetry).run("x"))
    asking = Tool(name="step", run=run, needs_approval=True)
    waits = await within(
        Agent("e", model=ScriptedModel(ToolCall("step")), tools=[asking], telemetry=telemetry).run("x")
    )
    decisions = [Decision(request.approval_id, True) for request in waits.approvals]
    assert waits.checkpoint is not None
    resumed = Agent("e", model=ScriptedModel("x"), tools=[asking], telemetry=telemetry)
    await within(resumed.resume(waits.checkpoint, decisions=decisions))


async def test_every_event_is_emitted_by_some_run(telemetry: Captured) -> None:
    """No event is declared that nothing tells."""

    async def step(arguments: Any, ctx: ToolContext) -> str:
        ctx.progress("half")
        await anyio.lowlevel.checkpoint()
        return "ok"

    good, broken = (
        Tool(name="step", description="Step.\u200b", run=step),
        Tool(name="broken", run=step, input_schema={"type": "array"}),
    )
    now = 0.0
    hub = FakeHub(lambda number: [good, broken] if number == 1 else [good, add], faults=[None, None, OSError("down")])
    provider = DiscoveryProvider(
        hub, id="hub", ttl=1.0, stale_if_error=100.0, on_invalid="quarantine", clock=lambda: now
    )
    agent = Agent(
        "a", model=ScriptedModel(ToolCall("step"), ToolCall("gone"), "x", "y", OSError("down")), providers=[provider]
    )
    agent.on("run.started", lambda event: 1 / 0)

    def expire(event: Event) -> None:
        nonlocal now
        now += 2.0

    agent.on("tool.completed", expire)
    agent.on("run.completed", expire, once=True)
    with anyio.fail_after(60):
        async with agent.stream("x") as events:
            assert [event async for event in events]
    await within(agent.run("x"))
    with pytest.raises(ModelError):
        await within(agent.run("x"))
    hub.tools, now = [], now + 1000.0
    hub.faults = [OSError("down")] * 10
    with pytest.raises(DiscoveryError):
        await within(agent.run("x"))
    await within(Agent("b", model=ScriptedModel("one", '{"result": 1}'), output=int, telemetry=telemetry).run("x"))
    await reliably(telemetry)
    await waiting(telemetry, step)
    providers = [
        static_tools([replace(good, output_schema={"type": "object"}, on_invalid_output="report")]),
        ToolRegistry([good]),
        DiscoveryProvider(FakeHub(), id="slow", patience=0.0),
    ]
    await within(
        Agent("c", model=ScriptedModel(ToolCall("step"), "x"), providers=providers, collisions="first").run("x")
    )
    await within(Agent("c", model=ScriptedModel("x"), tools=[add], limits=Limits(max_tool_tokens=1)).run("x"))
    lazy = ToolRegistry([good], registry_mode="lazy")
    steps = [ToolCall("tool_search", {"query": "step"}), ToolCall("tool_search", {"name": "step"})]

    def leave(request: object) -> str:
        lazy.unregister("step")
        return "x"

    model = ScriptedModel(*steps, lambda request: ToolCall(leave(request)), "y")
    await within(Agent("d", model=model, providers=[lazy]).run("x"))
    await within(Agent("c", model=ScriptedModel("x"), tools=[add], policy=lambda request: "deny").run("x"))
    await asynchronously(telemetry)
    assert {type(event) for event in telemetry.events} == declared()


async def spending() -> None:
    """Reach a budget, and the window of a model; score a run."""
    score(Scored(run_id="r"), "correct", value=1)
    await within(Agent("c", model=ScriptedModel("x"), budget=Budget("spent", model_calls=0)).run("x"))
    history = [Message(role, "word " * 1_000) for role in ("user", "assistant") * 2]
    fitted = Agent("c", model=ScriptedModel("x"), context=Context(window=9_000))
    await within(fitted.run("word " * 2_000, history=history))


async def asynchronously(telemetry: Captured) -> None:
    """Run a call in the background that expires, and ends nevertheless."""
    await spending()
    release, late = anyio.Event(), anyio.Event()

    async def stubborn(arguments: Any, ctx: ToolContext) -> None:
        while not release.is_set():
            with anyio.CancelScope(shield=True), suppress(anyio.get_cancelled_exc_class()):
                await release.wait()

    def waits_long(request: ModelRequest) -> str:
        pass_time()
        return "x"

    async def wait(arguments: Any, ctx: ToolContext) -> str:
        release.set()
        await late.wait()
        return "ok"

    tools = [
        Tool(name="stubborn", run=stubborn, execution="same-invocation", expires_in=SOON),
        Tool(name="wait", run=wait),
    ]
    agent = Agent("e", model=ScriptedModel(ToolCall("stubborn"), waits_long, ToolCall("wait"), "y"), tools=tools)
    agent.on("async_tool.late", lambda event: late.set())
    await within(agent.run("x"))
