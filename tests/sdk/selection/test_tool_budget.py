"""`Limits(max_tool_tokens=)`: the tokens that definitions of tools may take in a request."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid import Agent, ConfigError, Decision, Limits, Message, Tool, ToolCall, ToolRegistry, ToolResult, semconv
from pellucid.testing import FunctionModel, ScriptedModel
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import ModelRequest
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

DISCOVERY = "__lazy__tool__discovery__"
SIZE = 1_000
"""Tokens of a big tool, more or less."""


def big(name: str, **options: Any) -> Tool:
    """Return a tool whose definition takes some 1,000 tokens."""

    async def run(arguments: Any, ctx: object) -> str:
        return f"{name} ran"

    return Tool(name=name, description="x" * 4 * (SIZE - 20), run=run, **options)


def lazy(names: str) -> list[Tool]:
    """Return lazy tools of one letter each."""
    return [big(name, lazy=True) for name in names]


def discover(names: str) -> ToolCall:
    """Return a call that discovers tools of one letter each."""
    return ToolCall(DISCOVERY, {"toolNames": list(names)})


def room(tools: float) -> Limits:
    """Return limits with room for a number of big tools beside the discovery tools."""
    return Limits(max_tool_tokens=round((tools + 0.5) * SIZE))


def offers(model: FunctionModel) -> list[str]:
    """Return the names of one letter that each request offers."""
    return ["".join(tool.name for tool in request.tools if len(tool.name) == 1) for request in model.requests]


def told(telemetry: Captured, name: str) -> list[Any]:
    """Return the events of one name."""
    return [event for event in telemetry.events if event.name == name]


def evicted(telemetry: Captured) -> list[tuple[str, str]]:
    """Return the tools that were deactivated, and why."""
    return [(event.tool_name, event.reason) for event in told(telemetry, "tools.deactivated")]


def size_of(request: ModelRequest) -> int:
    """Return the estimate for a request: the bytes of each definition's JSON divided by four, rounded up."""
    sizes = (
        len(json.dumps(tool.to_dict(), separators=(",", ":"), ensure_ascii=False).encode()) for tool in request.tools
    )
    return sum(-(-size // 4) for size in sizes)


async def test_each_request_says_what_its_tools_take(telemetry: Captured) -> None:
    """The span of each request has the tokens of its tools, which are zero without tools."""
    model = ScriptedModel(ToolCall("a"), discover("b"), "done")
    limits = Limits(max_iterations=1)
    tools = [Tool(name="a", description="Größe", run=lambda arguments, ctx: ""), *lazy("b")]
    await within(Agent("a", model=model, tools=tools, limits=limits).run("x"))
    said = [attributes(span)[semconv.COMPOSE_TOOL_TOKENS] for span in telemetry.find("compose_request")]
    assert said == [size_of(request) for request in model.requests]
    assert said[0] > 0
    assert said[-1] == 0


async def test_what_was_used_longest_ago_is_deactivated(telemetry: Captured) -> None:
    """The tool whose last use is the longest ago is deactivated when another one is activated without room."""
    model = ScriptedModel(discover("a"), discover("b"), ToolCall("a"), discover("c"), ToolCall("c"), "done")
    await within(Agent("a", model=model, tools=lazy("abc"), limits=room(2)).run("x"))
    assert offers(model) == ["", "a", "ab", "ab", "ac", "ac"]
    assert evicted(telemetry) == [("b", "budget")]
    assert told(telemetry, "tools.budget_exceeded") == []
    tokens = [attributes(span)[semconv.COMPOSE_TOOL_TOKENS] for span in telemetry.find("compose_request")]
    assert max(tokens) <= (room(2).max_tool_tokens or 0)


async def test_a_tool_that_was_deactivated_can_be_activated_again(telemetry: Captured) -> None:
    """A tool that was deactivated for room can be activated again, and comes back at the end of the offer."""
    registry = ToolRegistry([big("a"), big("b"), big("c")], registry_mode="lazy")

    def search(name: str) -> ToolCall:
        return ToolCall("tool_search", {"name": name})

    model = ScriptedModel(search("a"), search("b"), search("c"), ToolCall("a"), search("a"), ToolCall("a"), "done")
    result = await within(Agent("a", model=model, providers=[registry], limits=room(2)).run("x"))
    assert offers(model) == ["", "a", "ab", "bc", "bc", "ca", "ca"]
    assert evicted(telemetry) == [("a", "budget"), ("b", "budget")]
    assert [event.tool_name for event in told(telemetry, "tools.activated")] == ["a", "b", "c", "a"]
    responses = [part.response for m in result.messages for part in m.parts if isinstance(part, ToolResult)]
    assert "must be activated first" in str(responses[3])
    assert responses[-1] == "a ran"


async def test_what_was_just_activated_or_called_stays(telemetry: Captured) -> None:
    """Tools that were just activated or called stay for one request beyond the budget, which is an event."""
    model = ScriptedModel(discover("abc"), ToolCall("a"), ToolCall("a"), ToolCall("a"), "done")
    await within(Agent("a", model=model, tools=lazy("abc"), limits=room(1)).run("x"))
    tokens = [attributes(span)[semconv.COMPOSE_TOOL_TOKENS] for span in telemetry.find("compose_request")]
    assert [each // SIZE for each in tokens] == [0, 3, 1, 1, 1]
    assert evicted(telemetry) == [("b", "budget"), ("c", "budget")]
    [event] = told(telemetry, "tools.budget_exceeded")
    assert (event.iteration, event.tokens, event.max_tokens, event.eager_tokens) == (2, tokens[1], 1500, 0)


async def test_tools_that_are_not_lazy_are_never_taken_away(telemetry: Captured) -> None:
    """Tools that are not lazy are never deactivated, and one event says that they exceed the budget."""
    model = ScriptedModel(ToolCall("a"), ToolCall("b"), "done")
    await within(Agent("a", model=model, tools=[big("a"), big("b")], limits=room(1)).run("x"))
    assert offers(model) == ["ab", "ab", "ab"]
    [event] = told(telemetry, "tools.budget_exceeded")
    assert event.iteration == 1
    assert event.tokens == event.eager_tokens == size_of(model.requests[0])


async def test_lazy_tools_make_room_for_those_that_are_not(telemetry: Captured) -> None:
    """A lazy tool that was not used in the last iteration is deactivated if tools that are not lazy need the room."""
    tools = [big("x"), big("y"), *lazy("a")]
    model = ScriptedModel(discover("a"), ToolCall("a"), ToolCall("x"), ToolCall("x"), "done")
    await within(Agent("a", model=model, tools=tools, limits=room(2)).run("x"))
    assert offers(model) == ["xy", "xya", "xya", "xy", "xy"]
    assert evicted(telemetry) == [("a", "budget")]


async def test_of_a_history_what_was_called_last_is_kept(telemetry: Captured) -> None:
    """Of the tools in a history, those called last stay active, as far as there is room."""

    def turn(call: ToolCall, response: Any) -> Sequence[Message]:
        return Message("assistant", [call]), Message("tool", [ToolResult(call.id or "", response)])

    found = {"tools": [{"name": name} for name in "abcd"]}
    history = [
        Message("user", "x"),
        *turn(ToolCall(DISCOVERY, {"toolNames": list("abcd")}, "1"), found),
        *turn(ToolCall("c", {}, "2"), "c ran"),
        *turn(ToolCall("a", {}, "3"), "a ran"),
    ]
    model = ScriptedModel("done")
    await within(Agent("a", model=model, tools=lazy("abcd"), limits=room(2)).run("y", history=history))
    assert offers(model) == ["ac"]
    assert evicted(telemetry) == [("b", "budget"), ("d", "budget")]


async def test_what_a_history_ends_with_was_just_called() -> None:
    """A run that continues from results of calls keeps the tools of those calls beyond the budget."""
    history = [
        Message("user", "x"),
        Message("assistant", [ToolCall(DISCOVERY, {"toolNames": list("abc")}, "1")]),
        Message("tool", [ToolResult("1", {"tools": [{"name": name} for name in "abc"]})]),
        Message("assistant", [ToolCall("a", {}, "2"), ToolCall("b", {}, "3")]),
    ]
    results = Message("tool", [ToolResult("2", "a ran"), ToolResult("3", "not today", is_error=True)])
    model = ScriptedModel("done")
    await within(Agent("a", model=model, tools=lazy("abc"), limits=room(1)).run(results, history=history))
    assert offers(model) == ["ab"]


async def test_a_tool_whose_call_waits_for_a_person_stays(telemetry: Captured) -> None:
    """A tool whose call waits for a person stays active in the resumed run."""
    tools = [*lazy("bc"), big("a", lazy=True, needs_approval=True)]
    waits = await within(
        Agent("a", model=ScriptedModel(discover("abc"), ToolCall("a")), tools=tools, limits=room(3)).run("x")
    )
    assert waits.checkpoint is not None
    decisions = [Decision(each.approval_id, True) for each in waits.approvals]
    model = ScriptedModel("done")
    later = Agent("a", model=model, tools=tools, limits=room(1))
    result = await within(later.resume(waits.checkpoint, decisions=decisions))
    assert offers(model) == ["a"]
    assert [part.response for part in result.messages[-2].parts if isinstance(part, ToolResult)] == ["a ran"]
    assert evicted(telemetry) == [("b", "budget"), ("c", "budget")]


async def test_an_offer_within_its_budget_does_not_change() -> None:
    """An offer within the budget keeps its tools and their order, whichever of them are called."""
    model = ScriptedModel(discover("ba"), ToolCall("a"), ToolCall("b"), ToolCall("a"), "done")
    await within(Agent("a", model=model, tools=lazy("ab"), limits=room(2)).run("x"))
    assert offers(model)[1:] == ["ba"] * 4
    assert all(request.tools is model.requests[1].tools for request in model.requests[1:])


@pytest.mark.parametrize("most", [0, -1])
def test_a_budget_of_nothing_is_refused(most: int) -> None:
    """A budget of zero or less is refused."""
    with pytest.raises(ConfigError, match="max_tool_tokens"):
        Limits(max_tool_tokens=most)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcde")), max_size=12), st.integers(0, 4))
def test_no_request_takes_more_than_it_may(steps: list[tuple[bool, str]], fits: int) -> None:
    """No request exceeds the budget except by the tool that was asked for last, and offers keep their order."""
    model = ScriptedModel(*[discover(name) if finds else ToolCall(name) for finds, name in steps], "done")
    limits = replace(room(fits), max_iterations=20)
    Agent("a", model=model, tools=lazy("abcde"), limits=limits).run_sync("x")
    offered = offers(model)
    assert all(len(offer) <= max(fits, 1) for offer in offered)
    for before, after in pairwise(offered):
        stays = "".join(name for name in before if name in after)
        assert after.startswith(stays)
        assert len(after) <= len(stays) + 1
