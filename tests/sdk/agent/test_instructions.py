"""Instructions: a text, functions of the context, or both, with the constant text first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from pellucid import (
    Agent,
    ConfigError,
    Identity,
    Limits,
    PellucidError,
    RunTimeout,
    Skill,
    ToolCall,
    ToolContext,
    semconv,
    tool,
)
from pellucid.errors import InstructionsError
from pellucid.testing import ScriptedModel
from support.runs import attributes, within

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@tool
async def noop() -> str:
    """Do nothing."""
    return "ok"


CALL = ToolCall("noop", {})


def today(ctx: ToolContext[Any]) -> str:
    """Return a text with the iteration."""
    return f"Iteration {ctx.iteration}."


async def whoever(ctx: ToolContext[dict[str, str]]) -> str:
    """Return a text with the principal, after a checkpoint."""
    await anyio.lowlevel.checkpoint()
    assert ctx.identity is not None
    return f"{ctx.deps['greeting']}, {ctx.identity.principal}."


def sent(model: ScriptedModel) -> list[str | None]:
    """Return the instructions of the requests."""
    return [request.instructions for request in model.requests]


async def test_functions_are_called_for_each_request() -> None:
    """Functions of instructions are called for each request, with the context of the run."""
    contexts: list[ToolContext[Any]] = []

    def note(ctx: ToolContext[Any]) -> None:
        contexts.append(ctx)

    model = ScriptedModel(CALL, "done")
    agent: Agent[dict[str, str], str] = Agent(
        "a", model=model, tools=[noop], instructions=[today, "Be brief.", whoever, note, "Be kind."]
    )
    result = await within(agent.run("go", deps={"greeting": "Hello"}, identity=Identity(principal="ann")))
    assert sent(model) == [f"Be brief.\n\nBe kind.\n\nIteration {n}.\n\nHello, ann." for n in (1, 2)]
    assert [(ctx.run_id, ctx.iteration, ctx.tool_call_id) for ctx in contexts] == [
        (result.run_id, 1, ""),
        (result.run_id, 2, ""),
    ]


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        (None, None),
        ("Be brief.", "Be brief."),
        (lambda _: "Be brief.", "Be brief."),
        (["Be brief.", "Be kind."], "Be brief.\n\nBe kind."),
        (("Be brief.",), "Be brief."),
        ([], None),
        (["Be brief.", lambda _: None, lambda _: ""], "Be brief."),
        ([lambda _: None], None),
    ],
)
async def test_what_instructions_may_be(instructions: Any, expected: str | None) -> None:
    """Instructions may be texts and functions, and a function may return None."""
    model = ScriptedModel("done", "done")
    agent = Agent("a", model=model, instructions=instructions)
    await within(agent.run("go"))
    with agent.override(limits=Limits(timeout=60)):
        await within(agent.run("go"))
    assert sent(model) == [expected, expected]


async def test_a_closing_answer_has_them_too() -> None:
    """The closing answer has the instructions too."""
    model = ScriptedModel(CALL, "done")
    agent = Agent("a", model=model, tools=[noop], instructions=today, limits=Limits(max_iterations=1))
    await within(agent.run("go"))
    assert sent(model) == ["Iteration 1.", "Iteration 1."]


async def test_a_decorator_adds_a_function() -> None:
    """`agent.instructions` adds a function to a used or overridden agent, and returns it."""
    model, other = ScriptedModel("done", "done", "done"), ScriptedModel("done")
    agent = Agent("a", model=model, instructions="Be brief.", description="Answers.")
    outer = Agent("outer", model=ScriptedModel(ToolCall("a", {"input": "x"}), "done"), tools=[agent.as_tool()])
    await within(agent.run("go"))

    @agent.instructions
    def more(ctx: ToolContext[object]) -> str:
        return f"More {ctx.iteration}."

    assert more(ToolContext(iteration=7)) == "More 7."
    await within(agent.run("go"))
    await within(outer.run("go"))
    with agent.override(model=other):
        await within(agent.run("go"))
    assert sent(model) == ["Be brief.", "Be brief.\n\nMore 1.", "Be brief.\n\nMore 1."]
    assert sent(other) == ["Be brief.\n\nMore 1."]
    with pytest.raises(ConfigError, match=r"instructions\(\) decorates a function, not 'Be kind.'"):
        agent.instructions("Be kind.")  # type: ignore[arg-type]  # what is refused


async def test_skills_and_lazy_tools_go_with_functions() -> None:
    """Loading a skill with lazy tools leaves the instructions unchanged."""
    load = ToolCall("load_skill", {"skill_id": "s"})
    model = ScriptedModel(load, "done")
    skill = Skill("s", "About.", "Do it.")
    agent = Agent(
        "a", model=model, tools=[noop], skills=[skill], registry_mode="lazy", instructions=["Be brief.", today]
    )
    await within(agent.run("go"))
    assert sent(model) == ["Be brief.\n\nIteration 1.", "Be brief.\n\nIteration 2."]
    assert "Do it." in str(model.requests[-1].messages)


class Expected(Exception):
    """A failure of the application."""


def broken(ctx: ToolContext[Any]) -> str:
    """Fail."""
    raise Expected("no such customer")


async def slow(ctx: ToolContext[Any]) -> str:
    """Never end."""
    await anyio.sleep_forever()
    return ""


async def leaving(ctx: ToolContext[Any]) -> str:
    """Exit."""
    raise SystemExit(3)


def number(ctx: ToolContext[Any]) -> Any:
    """Return no text."""
    return 42


@pytest.mark.parametrize(
    ("function", "problem", "cause"),
    [
        (broken, "the function 'broken' of the instructions failed: Expected: no such customer", Expected),
        (slow, "'slow' of the instructions did not return within 0.1 s (Limits.tool_timeout)", TimeoutError),
        (leaving, "'leaving' of the instructions failed", PellucidError),
        (number, "'number' of the instructions returned int instead of a text, or None", type(None)),
    ],
)
async def test_a_function_that_fails_ends_the_run(
    function: Any, problem: str, cause: type[Exception], telemetry: Captured
) -> None:
    """A function that fails ends the run before the model is asked, with an error that names it."""
    model = ScriptedModel()
    agent = Agent("a", model=model, instructions=function, limits=Limits(tool_timeout=0.1))
    with pytest.raises(InstructionsError) as failed:
        await within(agent.run("go"))
    assert problem in str(failed.value)
    assert failed.value.function_name == function.__name__
    assert isinstance(failed.value.__cause__, cause)
    assert [message.text for message in failed.value.messages] == ["go"]
    assert model.requests == []
    assert attributes(telemetry.span("compose_request"))["pellucid.outcome"] in ("failed", "timeout")


async def test_a_function_that_hangs_does_not_hold_a_run_beyond_its_deadline() -> None:
    """A function that hangs ends with the deadline of the run."""
    agent = Agent("a", model=ScriptedModel(), instructions=slow, limits=Limits(timeout=0.1))
    with pytest.raises(RunTimeout):
        await within(agent.run("go"))


async def test_what_varies_is_recorded(telemetry: Captured) -> None:
    """Texts of functions are recorded in the output of `compose_request`, redacted and with a digest."""
    secret = f"sk-ant-{'a1B2' * 20}"
    functions = [lambda ctx: f"Key {secret}.", lambda ctx: f"Round {(ctx.iteration + 1) // 2}."]
    agent = Agent("a", model=ScriptedModel(CALL, CALL, "done"), tools=[noop], instructions=["Be brief.", *functions])
    await within(agent.run("go"))
    spans = [span for span in telemetry.spans if span.name == "compose_request"]
    outputs = [json.loads(attributes(span)[semconv.OUTPUT])["instructions"] for span in spans]
    digests = [attributes(span)["pellucid.instructions.digest"] for span in spans]
    assert [output["digest"] for output in outputs] == digests
    assert digests[0] == digests[1] != digests[2]
    assert outputs[0]["functions"][1] == {"function": "<lambda>", "text": "Round 1."}
    assert secret not in str(outputs)


async def test_a_text_that_does_not_change_is_recorded_as_before(telemetry: Captured) -> None:
    """Constant instructions are not recorded in the output of `compose_request`."""
    await within(Agent("a", model=ScriptedModel("done"), instructions="Be brief.").run("go"))
    span = telemetry.span("compose_request")
    assert "pellucid.instructions.digest" not in attributes(span)
    assert "instructions" not in json.loads(attributes(span)[semconv.OUTPUT])
