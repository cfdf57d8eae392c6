from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, ConfigError, Tool, ToolCall, semconv, static_tools
from pellucid.errors import InvalidCatalog, ToolNameCollision
from pellucid.testing import ScriptedModel
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import DiscoveryContext
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


def saying(name: str, answer: str, **options: Any) -> Tool:
    """Return a tool that answers with the name of its provider."""

    async def run(arguments: Any, ctx: object) -> str:
        return answer

    return Tool(name=name, run=run, **options)


class Listing:
    """A provider with an id of its own."""

    def __init__(self, provider_id: str, *tools: Tool) -> None:
        self.id = provider_id
        self.tools: Sequence[Tool] = tools

    def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Return the current list of tools."""
        return self.tools


def two() -> list[Listing]:
    """Return two providers that both have a tool `find`."""
    return [
        Listing("wiki", saying("read", "wiki reads"), saying("find", "wiki finds")),
        Listing("tickets", saying("find", "tickets finds"), saying("close", "tickets closes")),
    ]


def offers(model: ScriptedModel, request: int = 0) -> list[str]:
    """Return the names that a request offers."""
    return [tool.name for tool in model.requests[request].tools]


@pytest.mark.parametrize(
    ("policy", "offered", "answer", "offered_as"),
    [
        ("first", ["read", "find", "close"], "wiki finds", None),
        ("last", ["read", "find", "close"], "tickets finds", None),
        ("prefix", ["read", "find", "close", "tickets__find"], "wiki finds", "tickets__find"),
    ],
)
async def test_a_policy_decides_which_tool_has_the_name(
    telemetry: Captured, policy: Any, offered: list[str], answer: str, offered_as: str | None
) -> None:
    """The policy decides which tool is offered and called under a name, and one event names both sides."""
    model = ScriptedModel(ToolCall("find"), ToolCall("read"), "done")
    result = await within(Agent("a", model=model, providers=two(), collisions=policy).run("x"))
    assert offers(model) == offered
    [said] = result.messages[2].parts
    assert said.to_dict()["response"] == answer
    [event] = [event for event in telemetry.events if event.name == "tools.shadowed"]
    told: Any = event
    winner, loser = ("tickets", "wiki") if policy == "last" else ("wiki", "tickets")
    assert (told.tool_name, told.provider_id, told.shadowed_provider_id) == ("find", winner, loser)
    assert (told.source, told.shadowed_source, told.offered_as) == ("builtin", "builtin", offered_as)
    shadowed = [attributes(span)[semconv.COMPOSE_SHADOWED] for span in telemetry.find("compose_request")]
    assert shadowed == [1, 1, 1]


async def test_a_tool_under_another_name_can_be_called() -> None:
    """With the policy `prefix` both tools can be called, each under its own name."""
    model = ScriptedModel([ToolCall("find", id="1"), ToolCall("tickets__find", id="2")], "done")
    result = await within(Agent("a", model=model, providers=two(), collisions="prefix").run("x"))
    assert [part.to_dict()["response"] for part in result.messages[2].parts] == ["wiki finds", "tickets finds"]


async def test_a_name_made_of_a_place_fits_models() -> None:
    """A provider's id of any kind gives a prefixed name of 64 characters, the same each time."""
    odd = "gated(discovery:" + "ö" + "o" * 80 + ")"
    names = []
    for _ in range(2):
        model = ScriptedModel("done")
        providers = [Listing("wiki", saying("find", "x")), Listing(odd, saying("find", "y"))]
        await within(Agent("a", model=model, providers=providers, collisions="prefix").run("x"))
        names.append(offers(model)[1])
    assert names[0] == names[1]
    assert len(names[0]) == 64


async def test_a_collision_that_comes_later_is_told_when_it_comes(telemetry: Captured) -> None:
    """A collision that begins later is an event when it begins, and not again in each iteration."""
    wiki, tickets = Listing("wiki", saying("find", "x")), Listing("tickets")

    def collide(request: object) -> ToolCall:
        tickets.tools = [saying("find", "y")]
        return ToolCall("find")

    model = ScriptedModel(ToolCall("find"), collide, ToolCall("find"), "done")
    await within(Agent("a", model=model, providers=[wiki, tickets], collisions="first").run("x"))
    assert [event.iteration for event in telemetry.events if event.name == "tools.shadowed"] == [3]


async def test_two_names_that_are_one_are_refused_by_default() -> None:
    """A collision is refused by default, and the error names both sides and the options."""
    with pytest.raises(ToolNameCollision, match=r"offered by both 'wiki' and 'tickets'.*collisions='first'"):
        await within(Agent("a", model=ScriptedModel(), providers=two()).run("x"))


def test_a_policy_that_there_is_not_is_refused() -> None:
    """An unknown collision policy is refused when the agent is made."""
    policy: Any = "whatever"
    with pytest.raises(
        ConfigError, match="unknown collision policy collisions='whatever'; use one of 'error', 'first'"
    ):
        Agent("a", model=ScriptedModel(), collisions=policy)


@pytest.mark.parametrize("name", ["tool_search", "__lazy__tool__discovery__", "load_skill"])
async def test_reserved_names_are_refused(name: str) -> None:
    """A tool with a reserved name is refused, from the application and from a provider."""
    with pytest.raises(InvalidCatalog, match=f"'{name}' is reserved for"):
        Agent("a", model=ScriptedModel(), tools=[saying(name, "x")])
    agent = Agent("a", model=ScriptedModel(), providers=[static_tools([saying(name, "x")])])
    with pytest.raises(InvalidCatalog, match="give the tool another name"):
        await within(agent.run("x"))
