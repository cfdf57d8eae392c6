"""Tools and permissions that change during a run, and runs that end half way."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from pellucid import (
    Agent,
    CancelToken,
    DiscoveryError,
    Identity,
    Limits,
    RunCancelled,
    Tool,
    ToolCall,
    ToolRegistry,
    ToolResult,
    Verdict,
    combined,
    gated_tools,
    semconv,
    static_tools,
)
from pellucid.telemetry.hubs import MAX_PROVIDERS, Hubs
from pellucid.testing import FunctionModel, ScriptedModel
from support.runs import CANCELLED, COMPLETED, ending, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import DiscoveryContext, Message, ModelRequest, PermissionRequest
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

SEARCH, DISCOVERY = "tool_search", "__lazy__tool__discovery__"


def saying(name: str, answer: str, **options: Any) -> Tool:
    """Return a tool with an answer."""

    async def run(arguments: Any, ctx: object) -> str:
        return answer

    return Tool(name=name, description=f"Say {name}.", run=run, **options)


def said(messages: Sequence[Message]) -> list[Any]:
    """Return what all tool calls came to, in their order."""
    return [part.response for message in messages for part in message.parts if isinstance(part, ToolResult)]


@pytest.mark.parametrize("mode", ["full", "lazy"])
async def test_a_call_means_the_tool_that_was_offered(telemetry: Captured, mode: Any) -> None:
    """A tool that is replaced or removed while the model answers is called as it was offered; the next call is told."""
    registry = ToolRegistry([saying("look", "old")], registry_mode=mode)

    def replace(request: object) -> ToolCall:
        registry.unregister("look")
        registry.register(saying("look", "new"))
        return ToolCall("look")

    def remove(request: object) -> ToolCall:
        registry.unregister("look")
        return ToolCall("look")

    activate = [ToolCall(SEARCH, {"name": "look"})] if mode == "lazy" else []
    model = ScriptedModel(*activate, replace, remove, ToolCall("look"), "done")
    result = await within(Agent("a", model=model, providers=[registry]).run("x"))
    first, second, third = said(result.messages)[len(activate) :]
    assert (first, second) == ("old", "new")
    assert "was removed since it was offered" in third
    assert ending(telemetry.find("execute_tool look")[-1]) == ("failed", "ERROR", "tool_removed")


@pytest.mark.parametrize("parallel", [1, 8])
async def test_tools_may_be_searched_activated_and_called_in_one_message(parallel: int) -> None:
    """One message may search, activate and call tools in any order, and the results are in the order of the calls."""
    calls = [
        ToolCall("look", {}, "1"),
        ToolCall(SEARCH, {"query": "say"}, "2"),
        ToolCall(SEARCH, {"names": ["look", "nothing"]}, "3"),
        ToolCall("listen", {}, "4"),
        ToolCall("look", {}, "5"),
    ]
    tools = [saying("look", "seen"), saying("listen", "heard")]
    agent = Agent(
        "a",
        model=ScriptedModel(calls, "done"),
        tools=tools,
        registry_mode="lazy",
        limits=Limits(parallel_tools=parallel),
    )
    result = await within(agent.run("x"))
    one, two, three, four, five = said(result.messages)
    assert (one, five) == ("seen", "seen")
    assert two["total"] == 2
    assert [each["activated"] for each in three["tools"]] == [True, False]
    assert "must be activated first" in four


@pytest.mark.parametrize("mode", ["full", "lazy"])
async def test_runs_of_one_agent_are_held_to_the_policy_of_their_own_person(mode: Any) -> None:
    """Each of many runs at a time sees, finds and calls only the tools that its own identity may use."""
    people = [f"p{number}" for number in range(300)]
    owners = people[:6]
    tools = [saying("common", "for all"), *(saying(f"of_{person}", f"secret of {person}") for person in owners)]

    async def policy(request: PermissionRequest) -> Verdict:
        await anyio.lowlevel.checkpoint()
        assert request.identity is not None
        person = request.identity.principal
        is_own = request.tool_name in ("common", SEARCH, f"of_{person}")
        return Verdict("allow" if is_own else "deny", f"not for {person}")

    def answer(request: ModelRequest) -> Any:
        person = request.messages[0].text
        if mode == "lazy" and len(request.messages) == 1:
            search = ToolCall(SEARCH, {"query": "say of secret"}, "s")
            return [search, ToolCall(SEARCH, {"names": ["common", *(f"of_{each}" for each in owners)]}, "n")]
        mine = {"common", f"of_{person}"} if person in owners else {"common"}
        assert {tool.name for tool in request.tools} == ({SEARCH, *mine} if mode == "lazy" else mine)
        if any(call.name == "common" for message in request.messages for call in message.tool_calls):
            return "done"
        return [ToolCall("common"), *(ToolCall(f"of_{each}", {}, each) for each in owners)]

    agent = Agent("a", model=FunctionModel(answer), tools=tools, policy=policy, registry_mode=mode)
    found: dict[str, Sequence[Message]] = {}

    async def one(person: str) -> None:
        result = await agent.run(person, identity=Identity(principal=person))
        found[person] = result.messages

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for person in people:
                tasks.start_soon(one, person)
    for person, messages in found.items():
        everything = repr(messages)
        assert everything.count("for all") == 1
        others = [each for each in owners if each != person]
        assert not any(f"secret of {each}" in everything for each in others)
        assert ("secret of " in everything) is (person in owners)
        assert everything.count(f"not for {person}.") == len(others)
        assert everything.count("not for ") == len(others)


@pytest.mark.parametrize("by", ["token", "scope"])
@pytest.mark.parametrize("shielded", [False, True])
async def test_a_tool_that_hangs_while_its_siblings_finish(telemetry: Captured, by: str, *, shielded: bool) -> None:
    """Cancelling a run cancels the tool that hangs, and its siblings that have ended keep their results."""
    token, scope, release = CancelToken(), anyio.CancelScope(), anyio.Event()
    finished: list[str] = []

    async def hang(arguments: Any, ctx: object) -> str:
        with anyio.CancelScope(shield=shielded):
            await release.wait()
        return "late"

    def in_a_thread(arguments: Any, ctx: object) -> str:
        return threading.current_thread().name

    def cancel(event: Any) -> None:
        finished.append(event.tool_name)
        if len(finished) == 2:
            token.cancel("the user left") if by == "token" else scope.cancel()

    tools = [saying("quick", "done"), Tool(name="hang", run=hang), Tool(name="threaded", run=in_a_thread)]
    model = ScriptedModel([ToolCall("hang"), ToolCall("quick"), ToolCall("threaded")])
    agent = Agent("a", model=model, tools=tools)
    agent.on("tool.completed", cancel)
    with anyio.fail_after(60):
        if by == "token":
            with pytest.raises(RunCancelled, match="the user left"):
                await agent.run("x", signal=token)
        else:
            with scope:
                await agent.run("x")
    release.set()
    assert sorted(finished) == ["quick", "threaded"]
    endings = {span.name: ending(span) for span in telemetry.find("execute_tool")}
    assert endings == {
        "execute_tool hang": CANCELLED,
        "execute_tool quick": COMPLETED,
        "execute_tool threaded": COMPLETED,
    }
    assert ending(telemetry.span("invoke_agent")) == CANCELLED
    failed: list[Any] = [event for event in telemetry.events if event.name == "tool.failed"]
    assert [(event.tool_name, event.outcome) for event in failed] == [("hang", "cancelled")]


@pytest.mark.parametrize("meta", [SEARCH, DISCOVERY])
async def test_a_model_that_discovers_for_ever_is_stopped(telemetry: Captured, meta: str) -> None:
    """A model that always discovers is stopped: after the limit each discovery fails, and iterations count again."""

    def answer(request: ModelRequest) -> Any:
        arguments = {"names": ["lok"]} if meta == SEARCH else {"toolNames": ["lok"]}
        return ToolCall(meta, arguments) if request.tools else "gave up"

    agent = Agent(
        "a",
        model=FunctionModel(answer),
        tools=[saying("look", "seen", lazy=True)],
        registry_mode="lazy" if meta == SEARCH else "full",
        limits=Limits(max_iterations=2, max_discoveries=3),
    )
    result = await within(agent.run("x"))
    assert (result.status, result.stop_reason, result.iterations) == ("limit_reached", "max_iterations", 5)
    ends = [ending(span) for span in telemetry.find("execute_tool")]
    assert ends == [COMPLETED] * 3 + [("failed", "ERROR", "max_discoveries")] * 2
    told: list[Any] = [event for event in telemetry.events if event.name == "tool.failed"]
    assert [event.error_type for event in told] == ["max_discoveries"] * 2


@pytest.mark.parametrize("skipped", [False, True])
async def test_a_gate_that_breaks_in_the_middle_of_a_run_stays_shut(telemetry: Captured, *, skipped: bool) -> None:
    """A tool behind a gate that breaks is not offered again; the run fails, or goes on without it with `skip`."""
    is_broken = False

    def predicate(tool: Tool, ctx: DiscoveryContext) -> bool:
        if is_broken:
            raise LookupError("who may what?")
        return True

    def breaks(request: object) -> ToolCall:
        nonlocal is_broken
        is_broken = True
        return ToolCall("look")

    gate: Any = gated_tools(static_tools([saying("look", "seen", lazy=True)]), predicate)
    providers = [combined(gate, static_tools([saying("now", "now")]), on_error="skip")] if skipped else [gate]
    model = ScriptedModel(ToolCall(DISCOVERY, {"toolNames": ["look"]}), breaks, ToolCall("look"), "done")
    agent = Agent("a", model=model, providers=providers)
    if not skipped:
        with pytest.raises(DiscoveryError, match="who may what"):
            await within(agent.run("x"))
        assert len(model.requests) == 2
        return
    result = await within(agent.run("x"))
    _, seen, gone = said(result.messages)
    assert seen == "seen"  # it was offered before
    assert "was removed since it was offered" in gone
    assert set(result.degraded) == {"gated(static)"}
    assert [event.name for event in telemetry.events].count("tools.deactivated") == 1


def test_gauges_of_more_providers_than_are_kept_are_written_by_many_threads() -> None:
    """Gauges written by many threads at a time never keep more than `MAX_PROVIDERS` providers."""
    hubs = Hubs()
    gauges = semconv.DISCOVERY_OBJECTIVE, semconv.DISCOVERY_LAST_SUCCESS, semconv.CATALOG_SIZE

    def note(thread: int) -> None:
        for number in range(MAX_PROVIDERS):
            name = f"{thread}-{number}"
            for gauge in gauges:
                hubs.set(gauge, name, 1.0)
            if number % 512 == 0:
                assert len(hubs.latest(gauges[-1])) <= MAX_PROVIDERS

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(note, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert {len(hubs.latest(gauge)) for gauge in gauges} == {MAX_PROVIDERS}
