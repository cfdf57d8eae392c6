"""Evidence of recorded runs: that of the result, from the store; what was not recorded is said to be missing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Context, Decision, DiscoveryProvider, Limits, ModelError, ToolCall, ToolError, Usage, tool
from pellucid.messages import Message
from pellucid.models import ModelResponse
from pellucid.scores import Evidence, Score, hub_objectives_met, no_secret, scores_of
from pellucid.scores.evidence import evidence_of
from pellucid.telemetry import CapturePolicy
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.evidence import evidence_of_run
from support.hubs import named
from support.local_store import storing

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid import RunResult

pytestmark = pytest.mark.anyio

LAMP = ToolCall("price", {"item": "lamp"})


@tool
def price(item: str) -> object:
    """Return the price of an item."""
    if item == "ghost":
        raise ToolError("there is no ghost")
    return {"item": item, "euros": 12} if item == "lamp" else f"{item}: " + "very dear " * 400


@tool(needs_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


async def both(path: Path, *steps: Any, question: str = "How much?", **options: Any) -> tuple[Evidence, Evidence]:
    """Return the evidence of a result, and that of its recording."""
    capture = options.pop("capture", CapturePolicy())
    given = {"tools": [price], "version": "3", **options}
    with storing(path, capture=capture) as telemetry:
        result = await Agent("shop", model=ScriptedModel(*steps), telemetry=telemetry, **given).run(question)
    return evidence_of(result, model="scripted"), recorded(path, result)


def recorded(path: Path, result: RunResult[Any]) -> Evidence:
    """Return the evidence of a run of a store."""
    return evidence_of_run(StoreReader(path), result.run_id)


def same(evidence: Evidence) -> Evidence:
    """Return the facts that a result has."""
    return replace(evidence, spans=(), seconds=None)


async def test_the_evidence_of_a_recording_is_that_of_the_result(tmp_path: Path) -> None:
    """Messages, calls with results and errors, tokens and cost; the spans and their durations besides."""
    usage = Usage(input_tokens=10, output_tokens=5, cost=0.25)
    calls = ModelResponse(message=Message("assistant", (LAMP, ToolCall("price", {"item": "ghost"}))), usage=usage)
    live, stored = await both(tmp_path / "t.db", calls, "12 euros")
    assert same(stored) == live
    assert [(use.name, use.result, use.is_error) for use in stored.tools] == [
        ("price", {"item": "lamp", "euros": 12}, False),
        ("price", "there is no ghost", True),
    ]
    assert (stored.usage.cost, stored.seconds is not None) == (live.usage.cost, True)
    phases = [span.attributes.get("pellucid.phase") for span in stored.spans]
    assert phases.count("inference") == 2
    assert [span.error_type for span in stored.spans if span.error_type] == ["tool_error"]


@pytest.mark.parametrize(
    ("output", "answer", "value"), [(dict[str, int], '```json\n{"euros": 12}\n```', {"euros": 12}), (int, "12", 12)]
)
async def test_an_output_type_gives_the_value(tmp_path: Path, output: Any, answer: str, value: Any) -> None:
    """Also in a fence, or of a type that is no object; the request to repair an answer is no question of the user."""
    live, stored = await both(tmp_path / "t.db", LAMP, "twelve", answer, output=output)
    assert same(stored) == live
    assert (stored.output, stored.input, len(stored.tools)) == (value, "How much?", 1)
    wrapped, again = await both(tmp_path / "u.db", '{"result": {"result": 1}}', output=dict[str, int])
    assert again.output == wrapped.output == {"result": 1}


async def test_what_a_smaller_window_left_out_is_there(tmp_path: Path) -> None:
    """Every call with its result, although later requests have only a part."""
    steps = [ToolCall("price", {"item": f"item {number}"}) for number in range(8)]
    limits = Limits(max_iterations=20)
    live, stored = await both(tmp_path / "t.db", *steps, "dear", context=Context(window=8_000), limits=limits)
    assert any(span.attributes.get("pellucid.compose.left_out") for span in stored.spans)
    assert stored.tools == live.tools
    assert len(stored.tools) == 8


async def test_calls_of_earlier_turns_are_not_those_of_the_run(tmp_path: Path) -> None:
    """They are in the messages only."""
    with storing(tmp_path / "t.db") as telemetry:
        agent = Agent(
            "shop", model=ScriptedModel(LAMP, "12 euros", "You are welcome."), tools=[price], telemetry=telemetry
        )
        first = await agent.run("How much?")
        second = await agent.run("Thanks!", history=first.messages)
    stored = recorded(tmp_path / "t.db", second)
    assert (stored.input, stored.tools, stored.messages) == ("Thanks!", (), second.messages)
    assert evidence_of(second).tools == ()


@pytest.mark.parametrize(
    ("capture", "missing"),
    [
        (CapturePolicy("metadata"), {"input", "output", "messages", "tools"}),
        (CapturePolicy("redacted", max_bytes=300), {"messages", "tools"}),
    ],
)
async def test_what_was_not_recorded_is_an_error_of_the_scorers_that_need_it(
    tmp_path: Path, capture: CapturePolicy, missing: set[str]
) -> None:
    """Never a value; the names of the tools are known, and scorers without need of content are not disturbed."""
    _, stored = await both(tmp_path / "t.db", ToolCall("price", {"item": "yacht"}), "dear", capture=capture)
    assert stored.missing == missing
    assert [use.name for use in stored.tools] == ["price"]

    def asked(tools: Any) -> bool:
        return bool(tools)

    def quick(iterations: int) -> bool:
        return iterations < 3

    def named(tools: Any, missing: frozenset[str]) -> bool:
        return tools[0].name == "price" and "tools" in missing

    first, *others = await scores_of([asked, quick, named], stored)
    assert (first.value, first.error_type) == (None, "content_not_recorded")
    assert "tools" in (first.explanation or "")
    assert [score.value for score in others] == [1.0, 1.0]
    assert isinstance(first, Score)


async def test_a_failed_run_has_what_it_came_to(tmp_path: Path) -> None:
    """Its status is `failed`, and it has no answer."""
    with storing(tmp_path / "t.db") as telemetry:
        model = ScriptedModel(LAMP, ModelError("scripted", "overloaded"))
        with pytest.raises(ModelError):
            await Agent("shop", model=model, tools=[price], telemetry=telemetry).run("How much?")
    reader = StoreReader(tmp_path / "t.db")
    [row] = reader.runs()
    stored = evidence_of_run(reader, row)
    assert (stored.status, stored.output, stored.input, stored.missing) == ("failed", None, "How much?", frozenset())
    assert [use.result for use in stored.tools] == [{"item": "lamp", "euros": 12}]


async def test_a_limit_has_the_status_of_the_result(tmp_path: Path) -> None:
    """And the results of the last calls."""
    live, stored = await both(tmp_path / "t.db", LAMP, "closing", limits=Limits(max_iterations=1))
    assert same(stored) == live
    assert stored.status == "limit_reached"


async def test_a_run_that_goes_on_after_an_approval_has_the_whole_conversation(tmp_path: Path) -> None:
    """Paused, it has its status and the call without a result."""
    with storing(tmp_path / "t.db") as telemetry:
        usage = Usage(input_tokens=10, output_tokens=5, cost=0.25)
        ask = ModelResponse(message=Message("assistant", (ToolCall("refund", {"order": 7}),)), usage=usage)
        agent = Agent("shop", model=ScriptedModel(ask, "done"), tools=[refund], telemetry=telemetry)
        paused = await agent.run("Refund order 7.")
        assert paused.checkpoint is not None
        decision = Decision(approval_id=paused.approvals[0].approval_id, approved=True)
        result = await agent.resume(paused.checkpoint, decisions=[decision])
    waiting, done = recorded(tmp_path / "t.db", paused), recorded(tmp_path / "t.db", result)
    assert (waiting.status, waiting.tools[0].is_answered) == ("awaiting_approval", False)
    assert same(done) == replace(evidence_of(result), scored=done.scored)
    assert (done.tools[0].result, done.usage) == ("refunded 7", result.usage)


async def test_tokens_of_runs_in_a_call_count(tmp_path: Path) -> None:
    """As in the usage of the result."""
    usage = Usage(input_tokens=10, output_tokens=5, cost=0.25)
    inner = Agent("inner", model=ScriptedModel(ModelResponse(message=Message("assistant", "hi"), usage=usage)))
    live, stored = await both(
        tmp_path / "t.db", ToolCall("inner", {"input": "hello"}), "done", tools=[inner.as_tool(description="Helps.")]
    )
    assert stored.usage == live.usage == replace(usage, cost=stored.usage.cost)


@pytest.mark.parametrize(("objective", "value"), [(60.0, 1.0), (1e-9, 0.0), (None, None)])
async def test_objectives_of_hubs_are_judged_from_the_recording(
    tmp_path: Path, objective: float | None, value: float | None
) -> None:
    """The requests to them are events of the spans."""
    hub = DiscoveryProvider(FakeHub(named("price")), id="shop_hub", objective=objective)
    _, stored = await both(tmp_path / "t.db", "done", tools=[], providers=[hub])
    assert [score.value for score in await scores_of([hub_objectives_met], stored)] == (
        [] if value is None else [value]
    )


async def test_a_secret_that_was_masked_is_found(tmp_path: Path) -> None:
    """In the recording of a run, as in its result."""
    live, stored = await both(tmp_path / "t.db", "the key is sk-proj-abcdefghijklmnopqrstuvwxyz0123456789")
    assert stored.output == "the key is [redacted]"
    assert [score.value for evidence in (live, stored) for score in await scores_of([no_secret], evidence)] == [0, 0]
