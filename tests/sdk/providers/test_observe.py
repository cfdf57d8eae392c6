"""`observe`: providers outside of a run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry.trace import format_span_id

from pellucid import (
    Agent,
    DiscoveryError,
    DiscoveryProvider,
    Identity,
    Limits,
    ModelError,
    PermissionRequest,
    Reliability,
    Tool,
    ToolCall,
    ToolContext,
    combined,
    observe,
    semconv,
    static_tools,
    tool,
)
from pellucid.errors import DiscoveryTimeout
from pellucid.events import ToolProgress
from pellucid.reliability import Rule, fail_fast
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import capture
from support.hubs import named, names
from support.runs import attributes, within

if TYPE_CHECKING:
    from pellucid import ToolResult
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@tool
async def rooms(floor: int, ctx: ToolContext) -> list[str]:
    """List the rooms of a floor."""
    ctx.progress({"floor": floor})
    return [f"{ctx.identity.tenant if ctx.identity else '-'}-{floor}-{number}" for number in (1, 2)]


@tool
def long() -> str:
    """Return more than there is room for."""
    return "x" * 1000


@tool(timeout=0.01)
async def hanging() -> None:
    """Hang."""
    await anyio.sleep_forever()


@tool
def broken() -> str:
    """Raise."""
    raise OSError("the disk is full")


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(execution="same-invocation")
async def later() -> str:
    """Work in the background."""
    return "done"


async def test_a_listing_has_what_one_in_a_run_has(telemetry: Captured) -> None:
    """A listing outside of a run has the telemetry of one in a run, below the caller's span."""
    hub = observe(DiscoveryProvider(FakeHub(named("a", "b")), id="hub", objective=0.5))
    events: list[str] = []
    hub.on("*", lambda event: events.append(event.name))
    tracer = telemetry.tracer_provider.get_tracer("of the application")
    with tracer.start_as_current_span("outer") as outer:
        assert names(await within(hub.list_tools())) == ["a", "b"]
    span = telemetry.span("discover_tools hub")
    assert span.parent is not None
    assert format_span_id(span.parent.span_id) == format_span_id(outer.get_span_context().span_id)
    found = attributes(span)
    assert found[semconv.DISCOVERY_TOOL_COUNT] == 2
    assert found[semconv.DISCOVERY_CACHE] == "miss"
    assert {semconv.INPUT, semconv.OUTPUT} <= found.keys()
    assert not {semconv.RUN_ID, semconv.ITERATION, semconv.AGENT_NAME} & found.keys()
    labels = {semconv.PROVIDER_ID: "hub"}
    assert telemetry.histogram(semconv.DISCOVERY_DURATION, **labels).count == 1
    assert telemetry.value(semconv.DISCOVERY_OBJECTIVE, **labels) == 0.5
    assert telemetry.value(semconv.CATALOG_SIZE, **labels) == 2
    assert telemetry.value(semconv.DISCOVERY_LAST_SUCCESS, **labels) > 0
    assert events == ["tools.discovery_started", "tools.discovery_completed"]
    assert [line["event"] for line in telemetry.logs] == ["tools.discovery_completed"]


async def test_a_listing_fails_as_in_a_run(telemetry: Captured) -> None:
    """A listing outside of a run raises the provider's failure, and times out within its limits."""
    failing = observe(DiscoveryProvider(FakeHub(faults=[OSError("no")]), id="failing"))
    with pytest.raises(DiscoveryError, match="failing"):
        await within(failing.list_tools())

    class Hanging:
        id = "hanging"

        async def list_tools(self, ctx: object) -> list[Tool]:
            return await FakeHub([], latency=math.inf).fetch_catalog(ctx)  # type: ignore[arg-type,return-value]

    with pytest.raises(DiscoveryTimeout):
        await within(observe(Hanging(), limits=Limits(discovery_timeout=0.01)).list_tools())
    outcomes = [attributes(span)[semconv.OUTCOME] for span in telemetry.find("discover_tools")]
    assert outcomes == ["failed", "timeout"]


async def test_a_call_has_what_one_in_a_run_has(telemetry: Captured) -> None:
    """A call outside of a run has the telemetry of one in a run, and its tool gets the identity."""
    hub = observe(DiscoveryProvider(FakeHub([rooms]), id="hub"), identity=Identity(tenant="t"))
    events: list[Any] = []
    progressed = anyio.Event()
    hub.on("tool.*", events.append)
    hub.on(ToolProgress, lambda event: progressed.set() if event.value == {"floor": 3} else None)
    result = await within(hub.call_tool("rooms", {"floor": 2}, tool_call_id="one"))
    assert (result.id, result.response, result.is_error) == ("one", ["t-2-1", "t-2-2"], False)
    assert (await within(hub.call_tool("rooms", '{"floor": 3}'))).response == ["t-3-1", "t-3-2"]
    assert [name for name, _ in telemetry.tree()] == ["discover_tools hub", "execute_tool rooms", "execute_tool rooms"]
    found = attributes(telemetry.find("execute_tool rooms")[0])
    assert found[semconv.TOOL_CALL_ID] == "one"
    assert found[semconv.PROVIDER_ID] == "hub"
    assert {semconv.TOOL_CALL_ARGUMENTS, semconv.TOOL_CALL_RESULT} <= found.keys()
    assert not {semconv.RUN_ID, semconv.AGENT_NAME} & found.keys()
    await within(progressed.wait())  # progress may come from another thread, and is emitted a turn of the loop later
    assert telemetry.histogram(semconv.TOOL_DURATION, **{semconv.TOOL_NAME: "rooms"}).count == 2
    assert sorted(event.name for event in events) == sorted(2 * ["tool.started", "tool.progress", "tool.completed"])


@pytest.mark.parametrize(
    ("name", "arguments", "error_type", "text"),
    [
        ("room", {}, "unknown_tool", "Did you mean 'rooms'"),
        ("rooms", {"floor": "second"}, "invalid_arguments", "do not fit its schema"),
        ("rooms", "{", "invalid_arguments", "are not JSON"),
        ("rooms", {"floor": {1: 2}}, "invalid_arguments", "are not JSON"),
        ("rooms", {"floor": object()}, "invalid_arguments", "are not JSON"),
        ("hanging", {}, "timeout", "did not finish within 0.01 s"),
        ("broken", {}, "OSError", "the disk is full"),
        ("pay", {"amount": 1}, "approval_required", "a person must approve"),
        ("later", {}, "run_required", "only in a run"),
    ],
)
async def test_failures_are_results(telemetry: Captured, name: str, arguments: Any, error_type: str, text: str) -> None:
    """A failed call is an error result, and its span has the type of the error."""
    hub = observe(static_tools([rooms, hanging, broken, pay, later]))
    result = await within(hub.call_tool(name, arguments))
    assert result.is_error
    assert text in str(result.response)
    found = attributes(telemetry.find("execute_tool")[0])
    assert found[semconv.ERROR_TYPE] == error_type


async def test_an_agent_ended_by_a_rule_is_a_failure(telemetry: Captured) -> None:
    """A sub-agent that a rule ends gives an error result with the kind of the rule."""
    rule = Rule(when=lambda situation: situation.error is not None, then=fail_fast(), kind="given_up")
    model = ScriptedModel(ModelError("scripted", "away"))
    helper = Agent("helper", model=model, description="Helps.", reliability=Reliability([rule])).as_tool()
    result = await within(observe(static_tools([helper])).call_tool("helper", {"input": "x"}))
    assert result.is_error
    assert "given_up" in str(result.response)
    [span] = telemetry.find("execute_tool")
    assert attributes(span)[semconv.ERROR_TYPE] == attributes(telemetry.span("invoke_agent helper"))[semconv.ERROR_TYPE]


async def test_calls_are_not_those_of_a_run() -> None:
    """`max_tool_calls` does not limit calls outside of a run."""
    hub = observe(static_tools([rooms]), limits=Limits(max_tool_calls=0))
    assert not (await within(hub.call_tool("rooms", {"floor": 1}))).is_error


async def test_progress_of_a_predicate() -> None:
    """The predicate for approval may report progress of its call."""

    def is_large(arguments: Any, ctx: ToolContext) -> bool:
        ctx.progress("thinking")
        return False

    hub = observe(static_tools([replace(pay, needs_approval=is_large)]))
    events: list[Any] = []
    hub.on(ToolProgress.name, events.append)
    assert not (await within(hub.call_tool("pay", {"amount": 1}))).is_error
    await anyio.wait_all_tasks_blocked()
    assert [event.value for event in events] == ["thinking"]


async def test_results_are_bounded() -> None:
    """A result is cut to `max_result_bytes`, as in a run."""
    result = await within(observe(static_tools([long]), limits=Limits(max_result_bytes=10)).call_tool("long"))
    assert str(result.response).startswith("xxxxxxxxxx\n[cut")


async def test_approved_calls_are_made(telemetry: Captured) -> None:
    """A call with `approved=True` of a tool that needs approval is made."""
    hub = observe(static_tools([pay]))
    assert (await within(hub.call_tool("pay", {"amount": 3}, approved=True))).response == "paid 3"


async def test_a_policy_decides(telemetry: Captured) -> None:
    """The policy decides about listed tools and calls, and a call with the answer `ask` needs an approval."""
    rulings = {("offer", "broken"): "deny", ("dispatch", "pay"): "ask", ("dispatch", "long"): "halt"}

    def policy(request: PermissionRequest) -> str:
        if request.arguments == {"floor": 13}:
            return "deny"
        return rulings.get((request.stage, request.tool_name), "allow")

    payment = Tool(name="pay", run=lambda arguments, ctx: "paid")
    hub = observe(static_tools([rooms, broken, payment, long]), policy=policy)
    assert names(await within(hub.list_tools())) == ["rooms", "pay", "long"]

    async def call(name: str, arguments: Any = "", *, approved: bool = False) -> ToolResult:
        return await within(hub.call_tool(name, arguments, approved=approved))

    denied = [await call("broken"), await call("rooms", {"floor": 13}), await call("pay"), await call("long")]
    assert [result.is_error for result in denied] == [True] * 4
    assert not (await call("rooms", {"floor": 1})).is_error
    assert (await call("pay", approved=True)).response == "paid"
    permissions = [attributes(span)[semconv.PERMISSION] for span in telemetry.find("execute_tool")]
    assert permissions == ["deny", "deny", "ask", "halt", "allow", "ask"]


@pytest.mark.parametrize("is_combined", [False, True])
async def test_a_run_observes_once(telemetry: Captured, *, is_combined: bool) -> None:
    """An observed provider in an agent makes only the spans of the run."""
    hub = observe(DiscoveryProvider(FakeHub([rooms]), id="hub"))
    provider = combined(hub, patience=30) if is_combined else hub
    agent = Agent("a", model=ScriptedModel(ToolCall("rooms", {"floor": 1}), "done"), providers=[provider])
    await within(agent.run("x"))
    spans = telemetry.find("discover_tools hub")
    assert len(spans) == 2
    assert all(semconv.RUN_ID in attributes(span) for span in spans)
    assert len(telemetry.find("execute_tool rooms")) == 1


async def test_its_own_telemetry() -> None:
    """The telemetry of an observed provider goes where its option says."""
    with capture() as other:
        pass
    hub = observe(static_tools([rooms]), telemetry=other)
    await within(hub.list_tools())
    assert len(other.find("discover_tools static")) == 1


async def test_limits_that_are_set_later_bound_calls() -> None:
    """Calls obey the `limits` that the observed provider has when they are made."""

    async def speak(arguments: Any, ctx: Any) -> str:
        return "x" * 1_000

    hub = observe(static_tools([Tool(name="speak", run=speak)]))
    assert len(str((await within(hub.call_tool("speak"))).response)) == 1_000
    hub.limits = Limits(max_result_bytes=10)
    assert len(str((await within(hub.call_tool("speak"))).response)) < 200
