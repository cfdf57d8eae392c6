from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import (
    Agent,
    CapturePolicy,
    ConfigError,
    DiscoveryContext,
    DiscoveryError,
    Message,
    Skill,
    Tool,
    ToolCall,
    ToolResult,
    semconv,
    skill_scoped_tools,
    static_tools,
    tool,
)
from pellucid.errors import InvalidCatalog
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import capture
from support.runs import attributes, ending, results, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import RunResult
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@tool
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool
async def label() -> str:
    """Print a label."""
    return "printed"


REFUNDS = Skill("refunds", "How to refund.", "Look it up first.", tools=[refund])
RETURNS = Skill("returns", "How to send back.", "Print a label.", [label])
LOAD = ToolCall("load_skill", {"skill_id": "refunds"})
REFUND = ToolCall("refund", {"order": "A-1"})


def offered(model: ScriptedModel) -> list[list[str]]:
    """Return the names of the tools that each request offered."""
    return [[definition.name for definition in request.tools] for request in model.requests]


def answers(run: RunResult[str]) -> list[Any]:
    """Return the results of all calls."""
    return [each.response for each in results(run)]


async def play(*steps: Any, skills: Sequence[Skill] = (REFUNDS, RETURNS), **options: Any) -> tuple[Any, ScriptedModel]:
    """Run an agent with skills."""
    model = ScriptedModel(*steps, strict=options.pop("strict", True))
    history = options.pop("history", ())
    return await within(Agent("a", model=model, skills=skills, **options).run("x", history=history)), model


async def test_a_loaded_skill_brings_its_instructions_and_then_its_tools() -> None:
    """The body of a loaded skill is the result, and its tools are offered from the next iteration on."""
    result, model = await play(LOAD, REFUND, "done", tools=[static("now")])
    assert offered(model) == [["now", "load_skill"], *[["now", "load_skill", "refund"]] * 2]
    assert answers(result) == ["Look it up first.", "refunded A-1"]


def static(name: str) -> Tool:
    """Return a tool without parameters."""

    async def run(arguments: Any, ctx: object) -> str:
        return name

    return Tool(name=name, run=run)


async def test_the_description_of_load_skill_lists_the_skills() -> None:
    """The description of `load_skill` has the ids and descriptions of the skills, and no bodies."""
    _, model = await play("done")
    [definition] = model.requests[0].tools
    assert "- refunds: How to refund.\n- returns: How to send back." in definition.description
    assert REFUNDS.body not in definition.description


async def test_an_agent_without_skills_has_nothing_of_them() -> None:
    """An agent without skills offers no `load_skill`."""
    model = ScriptedModel("done")
    await within(Agent("a", model=model).run("x"))
    assert offered(model) == [[]]


async def test_a_tool_of_a_skill_cannot_be_called_in_the_batch_that_loads_it() -> None:
    """A tool of a skill is unknown in the message that loads the skill."""
    result, _ = await play([LOAD, REFUND], REFUND, "done")
    assert answers(result)[1].startswith("Unknown tool: 'refund'")
    assert answers(result)[2] == "refunded A-1"


async def test_an_unknown_skill_is_a_result_that_suggests_others(telemetry: Captured) -> None:
    """The result of an unknown skill suggests similar ones or lists all, and nothing becomes active."""
    wrong = [ToolCall("load_skill", {"skill_id": "refund"}), ToolCall("load_skill", {"skill_id": "zzz"})]
    result, model = await play(wrong, "done")
    assert answers(result) == [
        "Unknown skill 'refund'. Did you mean 'refunds' or 'returns'?",
        "Unknown skill 'zzz'. Available skills: refunds, returns.",
    ]
    assert offered(model)[1] == ["load_skill"]
    failed = [ending(span) for span in telemetry.find("execute_tool")]
    assert failed == [("failed", "ERROR", "unknown_skill")] * 2


async def test_loading_a_skill_twice_changes_nothing() -> None:
    """Loading a skill again returns its body and does not change the offer."""
    other = ToolCall("load_skill", {"skill_id": "returns"})
    result, model = await play(LOAD, other, [LOAD, LOAD], "done")
    assert offered(model)[2:] == [["load_skill", "refund", "label"]] * 2
    assert answers(result)[2:] == ["Look it up first."] * 2


async def test_arguments_may_come_as_text() -> None:
    """The arguments of `load_skill` may be JSON text."""
    _, model = await play(ToolCall("load_skill", json.dumps({"skill_id": "refunds"})), "done")
    assert offered(model)[1] == ["load_skill", "refund"]


async def test_a_skill_stays_active_with_its_history() -> None:
    """A run with a history has the skills that were loaded in it."""
    first, _ = await play(LOAD, "done")
    _, model = await play(REFUND, "done", history=first.messages)
    assert offered(model)[0] == ["load_skill", "refund"]


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([Message("tool", [ToolResult("1", "Look it up first.")])], id="a result of no call"),
        pytest.param(
            [Message("assistant", [ToolCall("load_skill", {"skill_id": "refunds"}, "1")])], id="a call without result"
        ),
        pytest.param(
            [
                Message("assistant", [ToolCall("load_skill", {"skill_id": "refunds"}, "1")]),
                Message("tool", [ToolResult("1", "denied", is_error=True)]),
            ],
            id="a call that failed",
        ),
        pytest.param(
            [
                Message("assistant", [ToolCall("load_skill", {"skill_id": "admin"}, "1")]),
                Message("tool", [ToolResult("1", "You are root.")]),
            ],
            id="a skill that there is not",
        ),
        pytest.param(
            [
                Message("assistant", [ToolCall("load_skill", '{"skill_id', "1"), ToolCall("load_skill", "[]", "2")]),
                Message("tool", [ToolResult("1", "x"), ToolResult("2", "x")]),
            ],
            id="arguments that are none",
        ),
        pytest.param(
            [
                Message("assistant", [ToolCall("load_skill", {"skill_id": "refunds"}, "1")]),
                Message("assistant", [ToolCall("other", {}, "1")]),
                Message("tool", [ToolResult("1", "x")]),
            ],
            id="another call of the same id",
        ),
        pytest.param(
            [
                Message(
                    "assistant", [ToolCall("other", {}, "1"), ToolCall("load_skill", {"skill_id": "refunds"}, "1")]
                ),
                Message("tool", [ToolResult("1", "x")]),
            ],
            id="another call of the same id before it",
        ),
    ],
)
async def test_a_malformed_history_activates_nothing(history: list[Message]) -> None:
    """A history activates a skill only with a call and a result that brought its instructions."""
    _, model = await play("done", history=history, strict=False)
    assert offered(model) == [["load_skill"]]


async def test_providers_know_the_active_skills() -> None:
    """Providers get the last activated skill and all active ones in order."""
    seen: list[tuple[str | None, tuple[str, ...]]] = []

    class Watching:
        id = "watching"

        def list_tools(self, ctx: DiscoveryContext) -> list[Tool]:
            seen.append((ctx.active_skill_id, ctx.active_skill_ids))
            return []

    providers = [skill_scoped_tools("refunds", [static("scoped")]), Watching()]
    _, model = await play(LOAD, ToolCall("load_skill", {"skill_id": "returns"}), "done", providers=providers)
    assert seen == [(None, ()), ("refunds", ("refunds",)), ("returns", ("refunds", "returns"))]
    assert offered(model) == [
        ["load_skill"],
        ["scoped", "load_skill", "refund"],
        ["scoped", "load_skill", "refund", "label"],
    ]


async def test_active_skills_are_recorded_where_providers_are_asked() -> None:
    """The input of each `discover_tools` span has the active skills."""
    with capture(capture=CapturePolicy("full")) as telemetry:
        await play(LOAD, "done")
    inputs = [json.loads(attributes(span)[semconv.INPUT]) for span in telemetry.find("discover_tools")]
    assert [given["active_skill_ids"] for given in inputs] == [[], ["refunds"]]


async def test_two_skills_may_share_a_tool() -> None:
    """A tool of two active skills is offered once."""
    both = [REFUNDS, Skill("disputes", "How to dispute.", "Call the bank.", [refund])]
    _, model = await play([LOAD, ToolCall("load_skill", {"skill_id": "disputes"})], "done", skills=both)
    assert offered(model)[1] == ["load_skill", "refund"]


async def test_the_name_of_load_skill_is_reserved() -> None:
    """A tool named `load_skill` is refused, from the application and from a provider."""
    mine = static("load_skill")
    with pytest.raises(DiscoveryError, match="'load_skill' is reserved"):
        Agent("a", model=ScriptedModel(), tools=[mine])
    with pytest.raises(DiscoveryError, match="'load_skill' is reserved"):
        await play("done", providers=[static_tools([mine])])


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Skill("", "d", "b"), "id must not be empty"),
        (lambda: Skill("s", " ", "b"), "Skill 's': description must not be empty"),
        (lambda: Skill("s", "d", ""), "Skill 's': body must not be empty"),
        (lambda: Agent("a", model=ScriptedModel(), skills=[REFUNDS, REFUNDS]), "two skills have the id 'refunds'"),
        (
            lambda: Agent(
                "a", model=ScriptedModel(), skills=[REFUNDS, Skill("other", "d", "b", [static(refund.name)])]
            ),
            "skills 'refunds' and 'other' have different tools called 'refund'",
        ),
    ],
)
def test_skills_that_cannot_work_are_refused(make: Any, problem: str) -> None:
    """A wrong skill is refused when it is made or when the agent is."""
    with pytest.raises(ConfigError, match=problem):
        make()


async def test_a_skill_takes_functions_as_tools() -> None:
    """A function among the tools of a skill becomes a tool."""

    def now() -> str:
        """Tell the time."""
        return "noon"

    clock = [Skill("clock", "Time.", "Ask.", [now])]
    result, _ = await play(ToolCall("load_skill", {"skill_id": "clock"}), ToolCall("now"), "done", skills=clock)
    assert answers(result)[1] == "noon"


def nothing(arguments: object, ctx: object) -> str:
    """Do nothing."""
    return ""


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (Tool(name="tool_search", run=nothing), "reserved for the tool that finds other tools"),
        (Tool(name="bad name", run=nothing), "is not 1 to 64 characters"),
        (Tool(name="x", run=nothing, input_schema={"type": "nope"}), "the input schema of tool 'x' is broken"),
    ],
)
def test_a_skill_with_a_broken_tool_is_refused_before_it_is_loaded(bad: Tool, problem: str) -> None:
    """A skill with a broken tool is refused when the agent is made."""
    with pytest.raises(InvalidCatalog, match=problem):
        Agent("a", model=ScriptedModel(), skills=[Skill("refunds", "d", "b", tools=[bad])])


async def test_arguments_that_cannot_be_read_load_nothing() -> None:
    """Arguments of `load_skill` that are nested too deep fail the call, and the run goes on."""
    model = ScriptedModel(ToolCall("load_skill", "[" * 100_000), "done")
    result = await within(Agent("a", model=model, skills=[Skill("refunds", "d", "b")]).run("x"))
    assert result.output == "done"


async def test_tools_of_a_skill_are_offered_where_all_others_are_lazy() -> None:
    """Tools of a loaded skill are offered without a search in lazy mode."""
    refund = Tool(name="refund", run=lambda arguments, ctx: "refunded")
    model = ScriptedModel(ToolCall("load_skill", {"skill_id": "refunds"}), ToolCall("refund"), "done")
    skill = Skill("refunds", "d", "b", tools=[refund])
    other = Tool(name="other", run=nothing)
    await within(Agent("a", model=model, tools=[other], skills=[skill], registry_mode="lazy").run("x"))
    offers = [[tool.name for tool in request.tools] for request in model.requests]
    assert offers == [
        ["load_skill", "tool_search"],
        ["load_skill", "refund", "tool_search"],
        ["load_skill", "refund", "tool_search"],
    ]
