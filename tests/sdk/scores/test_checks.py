"""Scorers without a model: what they pass, what they fail and why, and what they do not judge."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import ConfigError, Usage
from pellucid.scores import (
    Evidence,
    Scored,
    SpanFacts,
    ToolUse,
    answer_matches,
    hub_objectives_met,
    no_secret,
    no_tool_errors,
    scores_of,
    tool_called,
    tools_in_order,
    valid_json,
    within,
)

if TYPE_CHECKING:
    from pellucid.scores import Score, Scorer

pytestmark = pytest.mark.anyio

PRICE = ToolUse(name="price", arguments={"item": "lamp", "currency": "EUR"}, result=12)
REFUND = ToolUse(name="refund", arguments={"order": 7}, result="no such order", is_error=True)
KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"


async def judged(scorer: Scorer, **facts: Any) -> Score:
    """Return the only score of a scorer."""
    [score] = await scores_of([scorer], Evidence(scored=Scored(run_id="r"), **facts))
    return score


async def test_a_tool_was_called() -> None:
    """With arguments that are among those of a call; a fail tells what was called."""
    tools = (PRICE, REFUND)
    assert (await judged(tool_called("price"), tools=tools)).value == 1
    assert (await judged(tool_called("price", {"item": "lamp"}), tools=tools)).value == 1
    other = await judged(tool_called("price", {"item": "sofa"}), tools=tools)
    assert (other.name, other.value, other.label) == ("tool_called.price", 0, "fail")
    assert other.explanation == 'price was not called with {"item":"sofa"}, but with {"item":"lamp","currency":"EUR"}'
    none = await judged(tool_called("search", score="searched"), tools=tools)
    assert (none.name, none.explanation) == ("searched", "search was not called; the calls: price, refund")


async def test_names_of_tools_are_known_where_arguments_are_not() -> None:
    """Only what needs the arguments is an error."""
    facts = {"tools": (ToolUse(name="price", arguments=""),), "missing": frozenset({"tools", "messages"})}
    assert (await judged(tool_called("price"), **facts)).value == 1
    assert (await judged(tool_called("search", {"item": "lamp"}), **facts)).value == 0
    assert (await judged(tool_called("price", {"item": "lamp"}), **facts)).error_type == "content_not_recorded"
    assert (await judged(tools_in_order("price"), **facts)).value == 1
    assert (await judged(no_tool_errors, **facts)).value == 1
    assert (await judged(no_secret, **facts)).error_type == "content_not_recorded"


async def test_tools_were_called_in_order() -> None:
    """Others may be between them; each counts once."""
    tools = (PRICE, REFUND, PRICE)
    assert (await judged(tools_in_order("price", "price"), tools=tools)).value == 1
    assert (await judged(tools_in_order("price", "refund"), tools=tools)).value == 1
    late = await judged(tools_in_order("refund", "refund"), tools=tools)
    assert late.value == 0
    assert late.explanation == "refund was not called at its place in refund, refund; the calls: price, refund, price"
    with pytest.raises(ConfigError, match="names must not be empty"):
        tools_in_order()


async def test_no_call_failed() -> None:
    """A fail names the tools."""
    assert (await judged(no_tool_errors, tools=(PRICE,))).value == 1
    failed = await judged(no_tool_errors, tools=(PRICE, REFUND))
    assert (failed.value, failed.explanation) == (0, "failed: refund")


@pytest.mark.parametrize(
    ("scorer", "output", "value"),
    [
        (answer_matches("12 euros"), " 12\n euros ", 1),
        (answer_matches("12 euros", whitespace=True), " 12\n euros ", 0),
        (answer_matches("12 Euros"), "12 euros", 0),
        (answer_matches("12 Euros", casefold=True), "12 euros", 1),
        (answer_matches("12 euros", "contains"), "It costs 12 euros.", 1),
        (answer_matches("13 euros", "contains"), "It costs 12 euros.", 0),
        (answer_matches(r"\d+ euros", "regex"), "It costs 12 euros.", 1),
        (answer_matches(r"^\d+ euros", "regex"), "It costs 12 euros.", 0),
        (answer_matches(re.compile("EUROS"), casefold=True), "12 euros", 1),
        (answer_matches({"euros": 12}), {"euros": 12}, 1),
        (answer_matches({"euros": 12}), {"euros": 13}, 0),
        (answer_matches('"euros":12', "contains"), {"euros": 12}, 1),
        (answer_matches("12"), 12, 0),
    ],
)
async def test_the_answer_matches(scorer: Scorer, output: Any, value: float) -> None:
    """As a text, a part, a pattern, or a value; a fail has both."""
    score = await judged(scorer, output=output)
    assert score.value == value
    assert (score.explanation is None) == bool(value)


async def test_the_answer_is_that_of_the_case() -> None:
    """Without one there is no score; a run that failed has no answer, and fails."""
    assert (await judged(answer_matches(), output="12", expected="12")).value == 1
    wrong = await judged(answer_matches(), output="13", expected="12")
    assert wrong.explanation == "expected '12', got '13'"
    assert (await judged(answer_matches(how="regex"), output="13", expected="1[23]")).value == 1
    assert await scores_of([answer_matches()], Evidence(scored=Scored(run_id="r"), output="12")) == []
    failed = await judged(answer_matches(), expected="12", status="failed")
    assert (failed.value, failed.explanation) == (0, "there is no answer: the run has failed")
    with pytest.raises(ConfigError, match="is no pattern"):
        answer_matches("(", "regex")
    with pytest.raises(ConfigError, match="use one of exact, contains, regex"):
        answer_matches("x", "like")  # type: ignore[arg-type]


async def test_the_answer_is_json() -> None:
    """Also that of an agent with an output type; a schema names what does not fit."""
    schema = {"type": "object", "properties": {"euros": {"type": "integer"}}, "required": ["euros"]}
    assert (await judged(valid_json(), output='{"a": [1]}')).value == 1
    assert (await judged(valid_json(schema), output={"euros": 1})).value == 1
    assert (
        await judged(valid_json(), output="12 euros")
    ).explanation == "no JSON: Extra data: line 1 column 4 (char 3)"
    wrong = await judged(valid_json(schema), output='{"euros": "12"}')
    assert (wrong.value, (wrong.explanation or "")[:6]) == (0, "euros:")
    assert (await judged(valid_json(), status="failed")).value == 0
    with pytest.raises(ConfigError, match="the schema is invalid"):
        valid_json({"type": "thing"})


async def test_a_run_is_within_its_limits() -> None:
    """Each limit is a score; what is not known is an error, and no pass."""
    scorer = within(cost=0.1, seconds=2, iterations=3, tokens=100)
    usage = Usage(input_tokens=90, output_tokens=20, cost=0.05)
    evidence = Evidence(scored=Scored(run_id="r"), usage=usage, seconds=1.5, iterations=3)
    found = {score.name: score for score in await scores_of([scorer], evidence)}
    assert {name: score.value for name, score in found.items()} == {
        "within_cost": 1,
        "within_seconds": 1,
        "within_iterations": 1,
        "within_tokens": 0,
    }
    assert found["within_tokens"].explanation == "tokens: 110 of 100"
    unknown = await scores_of([scorer], Evidence(scored=Scored(run_id="r")))
    assert [(score.value, score.error_type) for score in unknown] == [
        (None, "unknown_cost"),
        (None, "unknown_seconds"),
        (None, "unknown_iterations"),
        (None, "unknown_tokens"),
    ]
    with pytest.raises(ConfigError, match="give at least one of cost"):
        within()


async def test_a_cost_of_which_a_part_is_unknown_is_unknown() -> None:
    """As where one of two models has no price."""
    facts = {"pellucid.phase": "inference", "pellucid.outcome": "completed"}
    priced, other = [
        SpanFacts(name="chat", span_id=f"{number}", parent_id="", attributes={**facts, **more}, seconds=1)
        for number, more in enumerate([{"pellucid.cost.usd": 0.01}, {}])
    ]
    scores = [
        await judged(within(cost=1), usage=Usage(cost=0.01), spans=spans) for spans in ((priced,), (priced, other))
    ]
    assert [score.error_type for score in scores] == [None, "unknown_cost"]


@pytest.mark.parametrize(
    ("output", "tools", "place"),
    [
        ("12 euros", (PRICE,), None),
        (f"use {KEY}", (), "the answer"),
        ({"password": "hunter2"}, (), "the answer"),
        ("the key is [redacted]", (), "the answer"),
        ("ok", (ToolUse(name="send", arguments={"text": f"key: {KEY}"}),), "the arguments of send"),
        ("ok", (ToolUse(name="send", arguments=f"{{broken {KEY}"),), "the arguments of send"),
        ("word " * 50_000 + KEY, (), "the answer"),
    ],
)
async def test_no_secret_is_in_the_answer_or_the_arguments(output: Any, tools: Any, place: str | None) -> None:
    """A fail says where, and never the secret."""
    score = await judged(no_secret, output=output, tools=tools)
    assert (score.value, score.error_type) == (0 if place else 1, None)
    assert score.explanation == (f"a secret is in {place}" if place else None)


async def test_what_cannot_be_searched_for_secrets_is_no_pass() -> None:
    """Such as a value that is nested too deeply."""
    deep: Any = KEY
    for _ in range(60):
        deep = [deep]
    assert (await judged(no_secret, output=deep)).error_type == "ValueError"


async def test_hubs_met_their_objectives() -> None:
    """A hub that was late or failed did not; without spans or objectives there is no score."""

    def listing(hub: str, **facts: Any) -> SpanFacts:
        attributes = {
            "pellucid.provider.id": hub,
            "pellucid.hub.listing.duration": 0.25,
            "pellucid.outcome": "completed",
        }
        event = {"name": "pellucid.hub.listing", "time": 0, "attributes": {**attributes, **facts}}
        phase = {"pellucid.phase": "discovery"}
        return SpanFacts(name="x", span_id=hub, parent_id="", attributes=phase, seconds=1, events=(event,))

    late, on_time = {"pellucid.hub.over_objective": True}, {"pellucid.hub.over_objective": False}
    assert (await judged(hub_objectives_met, spans=(listing("a", **on_time), listing("b")))).value == 1
    missed = await judged(hub_objectives_met, spans=(listing("a", **on_time), listing("b", **late)))
    assert (missed.value, missed.explanation) == (0, "b took 0.25 s")
    failed = await judged(hub_objectives_met, spans=(listing("a", **on_time, **{"pellucid.outcome": "failed"}),))
    assert failed.value == 0
    evidence = Evidence(scored=Scored(run_id="r"), spans=(listing("b"),))
    assert await scores_of([hub_objectives_met], evidence) == []
