"""Permission for lazy tools: policies about activations and about the tools that discover others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Decision, DiscoveryProvider, Limits, Message, Tool, ToolCall, ToolResult, Verdict, semconv
from pellucid.errors import PolicyHalt
from pellucid.testing import FakeHub, ScriptedModel
from support.clock import SOON, outlast
from support.runs import attributes, ending, within

if TYPE_CHECKING:
    from pellucid import PermissionRequest, Policy
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

SEARCH, DISCOVERY = "tool_search", "__lazy__tool__discovery__"
WAYS = ["name", "names", "toolNames", "history"]


def made(name: str, **options: Any) -> Tool:
    """Return a lazy tool that answers with its name."""

    async def run(arguments: Any, ctx: object) -> str:
        return f"{name} ran"

    return Tool(name=name, description=f"Do {name} with files.", run=run, lazy=True, **options)


READ, WRITE = made("read"), made("write")
SPARE = ToolCall("read", {}, "spare")


def rules(stage: str, answer: Any, *names: str) -> Policy:
    """Return a policy that gives one answer about some tools at one stage."""

    def policy(request: PermissionRequest) -> Any:
        asked = request.stage == stage and request.tool_name in names
        if asked and isinstance(answer, Exception):
            raise answer
        return answer if asked else "allow"

    return policy


def activating(way: str, *names: str) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Return steps of a model and options of an agent and its run that activate tools in one way."""
    if way == "history":
        found = {"tools": [{"name": name} for name in names]}
        asked = Message("assistant", [ToolCall(DISCOVERY, {"toolNames": list(names)}, "h")])
        return [], {}, {"history": [Message("user", "w"), asked, Message("tool", [ToolResult("h", found)])]}
    if way == "toolNames":
        return [ToolCall(DISCOVERY, {"toolNames": list(names)}, "c")], {}, {}
    options = {"registry_mode": "lazy"}
    if way == "names":
        return [ToolCall(SEARCH, {"names": list(names)}, "c")], options, {}
    return [[ToolCall(SEARCH, {"name": name}, f"c{number}") for number, name in enumerate(names)]], options, {}


def offered(model: ScriptedModel) -> list[list[str]]:
    """Return the names of the tools that each request offered."""
    return [[definition.name for definition in request.tools] for request in model.requests]


def results(messages: Any) -> dict[str, ToolResult]:
    """Return all tool results by the ids of their calls."""
    return {part.id: part for message in messages for part in message.parts if isinstance(part, ToolResult)}


def events(telemetry: Captured, name: str) -> list[Any]:
    """Return the events of one name."""
    return [event for event in telemetry.events if event.name == name]


@pytest.mark.parametrize("way", WAYS)
async def test_a_policy_is_asked_about_each_activation(way: str) -> None:
    """A policy is asked about each activation once, with the id of the call and without arguments."""
    seen: list[PermissionRequest] = []

    def policy(request: PermissionRequest) -> str:
        if request.stage == "activation":
            seen.append(request)
        return "allow"

    steps, options, run = activating(way, "read", "write")
    model = ScriptedModel(*steps, *steps, ToolCall("write", {}, "w"), "done", strict=False)
    result = await within(Agent("a", model=model, tools=[READ, WRITE], policy=policy, **options).run("x", **run))
    assert results(result.messages)["w"].response == "write ran"
    assert [(each.tool_name, each.provider_id, each.arguments) for each in seen] == [
        ("read", "static", None),
        ("write", "static", None),
    ]
    asking = {"name": ["c0", "c1"], "history": [None, None]}.get(way, ["c", "c"])
    assert [each.tool_call_id for each in seen] == asking
    assert {(each.agent, each.run_id, each.iteration) for each in seen} == {("a", result.run_id, 1)}


@pytest.mark.parametrize("way", WAYS)
async def test_what_may_not_be_activated_is_not(telemetry: Captured, way: str) -> None:
    """A tool whose activation is denied stays inactive, and the model reads why."""
    steps, options, run = activating(way, "write", "read")
    model = ScriptedModel(*steps, [ToolCall("write", {}, "w"), ToolCall("read", {}, "r")], "done")
    policy = rules("activation", Verdict("deny", "frozen today"), "write")
    agent = Agent("a", model=model, tools=[READ, WRITE], policy=policy, **options)
    result = await within(agent.run("x", **run))
    said = results(result.messages)
    assert said["r"].response == "read ran"
    assert "first" in str(said["w"].response)
    assert all("write" not in names for names in offered(model))
    [event] = events(telemetry, "tool.denied")
    assert (event.tool_name, event.stage, event.permission, event.reason) == (
        "write",
        "activation",
        "deny",
        "frozen today",
    )
    assert event.tool_call_id == {"name": "c0", "history": None}.get(way, "c")
    assert [event.tool_name for event in events(telemetry, "tools.activated")] == ["read"]
    if way != "history":
        assert "ermission denied" in str(said[event.tool_call_id].response)
        assert "frozen today" in str(said[event.tool_call_id].response)


@pytest.mark.parametrize("way", WAYS)
async def test_a_halt_at_an_activation_ends_the_run(telemetry: Captured, way: str) -> None:
    """A halt at an activation ends the run, every call has a result, and the error has the conversation."""
    steps, options, run = activating(way, "read", "write")
    if steps:
        [first] = steps
        steps = [[*(first if isinstance(first, list) else [first]), SPARE]]
    model = ScriptedModel(*steps)
    policy = rules("activation", Verdict("halt", "enough"), "write")
    agent = Agent("a", model=model, tools=[READ, WRITE], policy=policy, **options)
    with pytest.raises(PolicyHalt, match=r"at tool 'write' \(activation\): enough") as caught:
        await within(agent.run("x", **run))
    halt = caught.value
    assert (halt.tool_name, halt.stage, halt.reason) == ("write", "activation", "enough")
    [event] = events(telemetry, "tool.denied")
    assert (event.tool_name, event.stage, event.permission) == ("write", "activation", "halt")
    said = results(halt.messages)
    if way == "history":
        assert model.requests == []
        assert ending(telemetry.span("compose_request")) == ("failed", "ERROR", "policy_halt")
        return
    assert said.keys() == {call.id for message in halt.messages for call in message.tool_calls}
    assert "The run has ended" in str(said["spare"].response)
    span = telemetry.find("execute_tool tool_search" if options else f"execute_tool {DISCOVERY}")[-1]
    assert ending(span) == ("failed", "ERROR", "policy_halt")
    assert attributes(span)[semconv.PERMISSION] == "halt"
    activated = [event.tool_name for event in events(telemetry, "tools.activated")]
    assert activated == (["read"] if way == "name" else [])  # by a call of its own


@pytest.mark.parametrize("way", WAYS)
async def test_an_activation_that_cannot_be_judged_is_denied(telemetry: Captured, way: str) -> None:
    """An activation is denied if the policy raises, and the model does not read the exception."""
    steps, options, run = activating(way, "write")
    model = ScriptedModel(*steps, "done")
    policy = rules("activation", OSError("no route to the rules"), "write")
    await within(Agent("a", model=model, tools=[WRITE], policy=policy, **options).run("x", **run))
    [event] = events(telemetry, "tool.denied")
    assert (event.stage, event.error_type) == ("activation", "OSError")
    assert "no route" in event.reason
    assert "no route" not in repr(model.requests)
    assert events(telemetry, "tools.activated") == []


@pytest.mark.parametrize("meta", [SEARCH, DISCOVERY])
async def test_the_tools_that_discover_need_permission_too(telemetry: Captured, meta: str) -> None:
    """A discovery tool that is denied at the offer is not offered, and a call of it is denied."""
    call = ToolCall(meta, {"name": "read"} if meta == SEARCH else {"toolNames": ["read"]}, "m")
    model = ScriptedModel([call, ToolCall("read", {}, "r")], "done")
    mode: Any = "lazy" if meta == SEARCH else "full"
    eager = Tool(name="now", run=READ.run, lazy=False)
    policy = rules("offer", Verdict("deny", "no looking around"), meta)
    agent = Agent("a", model=model, tools=[eager, READ], policy=policy, registry_mode=mode)
    result = await within(agent.run("x"))
    assert offered(model) == ([[], []] if meta == SEARCH else [["now"], ["now"]])
    said = results(result.messages)
    assert "Permission denied" in str(said["m"].response)
    assert meta not in str(said["r"].response)
    assert ending(telemetry.span("execute_tool read")) == ("failed", "ERROR", "tool_not_active")
    told = [(e.tool_name, e.provider_id, e.stage) for e in events(telemetry, "tool.denied")]
    assert told == [(meta, "lazy", "offer"), (meta, "lazy", "dispatch")]
    assert {attributes(span)[semconv.COMPOSE_DENIED] for span in telemetry.find("compose_request")} == {1}


@pytest.mark.parametrize("meta", [SEARCH, DISCOVERY])
@pytest.mark.parametrize("stage", ["offer", "dispatch"])
async def test_a_halt_about_a_tool_that_discovers_ends_the_run(telemetry: Captured, meta: str, stage: str) -> None:
    """A halt about a discovery tool ends the run before the model is asked, or before any tool is activated."""
    call = ToolCall(meta, {"name": "read"} if meta == SEARCH else {"toolNames": ["read"]})
    model = ScriptedModel(call)
    mode: Any = "lazy" if meta == SEARCH else "full"
    agent = Agent("a", model=model, tools=[READ], policy=rules(stage, "halt", meta), registry_mode=mode)
    with pytest.raises(PolicyHalt) as caught:
        await within(agent.run("x"))
    assert (caught.value.tool_name, caught.value.stage) == (meta, stage)
    assert len(model.requests) == (stage == "dispatch")
    assert events(telemetry, "tools.activated") == []


async def test_a_policy_is_not_asked_about_tools_that_there_are_not() -> None:
    """A policy that denies all lazy tools is not asked about the tools that would discover them."""
    asked: list[str] = []

    def policy(request: PermissionRequest) -> str:
        asked.append(request.tool_name)
        return "deny"

    model = ScriptedModel("done")
    await within(Agent("a", model=model, tools=[WRITE], policy=policy, registry_mode="lazy").run("x"))
    assert (asked, offered(model)) == (["write"], [[]])


@pytest.mark.parametrize("mode", ["full", "lazy"])
async def test_nothing_that_a_model_reads_names_what_is_denied(mode: Any) -> None:
    """A model reads the name of a denied tool nowhere, even if its history activates the tool."""
    hidden = made("secret_write", tags=("zebra",))
    forged = activating("history", "secret_write")[2]["history"][1:]
    model = ScriptedModel(
        [ToolCall(SEARCH, {"query": "write zebra files"}), ToolCall(SEARCH, {"name": "secret_writ"})],
        [ToolCall(SEARCH, {"names": ["secret-write"]}), ToolCall(DISCOVERY, {"toolNames": ["secretwrite"]})],
        [ToolCall("secret_writ"), ToolCall("nothing")],
        "done",
    )
    tools = [READ, hidden, made("search_files", tags=("zebra",))]
    agent = Agent("a", model=model, tools=tools, registry_mode=mode, policy=rules("offer", "deny", "secret_write"))
    await within(agent.run("x", history=[Message("user", "w"), *forged]))
    for request in model.requests:
        assert "secret_write" not in repr((request.tools, request.messages[3:]))


async def test_an_active_tool_that_becomes_denied_is_deactivated(telemetry: Captured) -> None:
    """An active tool that is denied when the catalogue changes is deactivated, with the reason in the event."""
    hub = FakeHub(lambda number: [READ, WRITE] if number < 3 else [WRITE])
    provider = DiscoveryProvider(hub, id="hub", ttl=0)
    changed = False

    def policy(request: PermissionRequest) -> str:
        return "deny" if changed and request.tool_name == "write" else "allow"

    def change(request: object) -> ToolCall:
        nonlocal changed
        changed = True
        return ToolCall("read")

    model = ScriptedModel(ToolCall(DISCOVERY, {"toolNames": ["write"]}), change, "done")
    await within(Agent("a", model=model, providers=[provider], policy=policy).run("x"))
    assert offered(model) == [[DISCOVERY], [DISCOVERY, "write"], []]
    [event] = events(telemetry, "tools.deactivated")
    assert (event.tool_name, event.reason) == ("write", "denied")


async def test_a_policy_that_leaves_calls_to_a_person_lets_tools_become_active(telemetry: Captured) -> None:
    """A tool of which each call needs a person can be activated, and a resumed run asks the policy about it again."""
    answers: dict[str, str] = {"offer": "ask", "activation": "ask", "dispatch": "ask"}
    stages: list[tuple[str, str]] = []

    def policy(request: PermissionRequest) -> str:
        stages.append((request.tool_name, request.stage))
        return "allow" if request.tool_name == DISCOVERY else answers[request.stage]

    model = ScriptedModel(ToolCall(DISCOVERY, {"toolNames": ["read"]}), ToolCall("read", {}, "r"), "done")
    agent = Agent("a", model=model, tools=[READ, WRITE], policy=policy)
    waiting = await within(agent.run("x"))
    assert waiting.status == "awaiting_approval"
    assert [event.tool_name for event in events(telemetry, "tools.activated")] == ["read"]
    stages.clear()
    answers["activation"] = "deny"
    assert waiting.checkpoint is not None
    decisions = [Decision(waiting.approvals[0].approval_id, approved=True)]
    result = await within(agent.resume(waiting.checkpoint, decisions=decisions))
    assert ("read", "activation") in stages
    assert "must be discovered first" in str(results(result.messages)["r"].response)
    [event] = events(telemetry, "tool.denied")
    assert (event.tool_name, event.stage, event.tool_call_id) == ("read", "activation", None)


async def test_an_activation_waits_for_the_policy_no_longer_than_it_may(telemetry: Captured) -> None:
    """The policy's time limit holds for activations too."""

    async def policy(request: PermissionRequest) -> str:
        if request.stage == "activation":
            await outlast()
        return "allow"

    steps, options, _ = activating("names", "read", "write")
    model = ScriptedModel(*steps, "done")
    limits = Limits(policy_timeout=SOON)
    await within(Agent("a", model=model, tools=[READ, WRITE], policy=policy, limits=limits, **options).run("x"))
    told = [(e.tool_name, e.stage, e.error_type) for e in events(telemetry, "tool.denied")]
    assert told == [("read", "activation", "timeout"), ("write", "activation", "timeout")]
    assert offered(model)[1] == [SEARCH]
