"""Replays of runs whose requests were fitted into the window."""

from __future__ import annotations

import pytest

from pellucid import Agent, Context, Limits, Tool, ToolCall, semconv
from pellucid.compaction import DropResults, Strategy, Summarize
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_replay import replay
from support.runs import within
from support.tapes import recording, tapes_of

pytestmark = pytest.mark.anyio


async def look(arguments: object, ctx: object) -> str:
    """Return much."""
    return "x" * 4_000


def agent(model: ScriptedModel, summaries: FunctionModel, *first: Strategy) -> Agent:
    """Return an agent that looks again and again."""
    tools = [Tool(name="look", description="Look.", run=look)]
    context = Context(window=9_000, strategies=[*first, Summarize(summaries)])
    return Agent("a", model=model, tools=tools, limits=Limits(max_iterations=99), context=context)


@pytest.mark.parametrize("first", [(), (DropResults(),)], ids=["summaries", "stubs"])
async def test_a_replay_cuts_as_the_recorded_run_did(first: tuple[Strategy, ...]) -> None:
    """Its summaries are those of the tape: no model is called, and each request is the recorded one."""
    calls = [ToolCall("look", {"n": number}, f"call_{number}") for number in range(25)]
    made = FunctionModel(lambda _: f"summary {len(made.requests)}", name="small")
    with recording() as (captured, listings):
        await within(agent(ScriptedModel(*calls, "Seen."), made, *first).run("go"))
    [tape] = tapes_of(captured, listings)
    assert any(span.attributes.get(semconv.COMPOSE_LEFT_OUT) for span in tape.spans)
    assert len(made.requests) > 1 or first
    unused = FunctionModel(lambda _: "another", name="small")
    outcome = (await within(replay(agent(ScriptedModel(), unused, *first), tape))).check()
    assert outcome.result is not None
    assert outcome.result.output == "Seen."
    assert unused.requests == []
