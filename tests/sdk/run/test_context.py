"""Requests that are cut to fit the model's window: the cuts, the parts that stay, and the records of both."""

from __future__ import annotations

import json
import os
import re
import sys
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import (
    Agent,
    ConfigError,
    Context,
    Decision,
    Limits,
    Message,
    ModelError,
    ModelResponse,
    ReasoningPart,
    Skill,
    TextPart,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    dump_messages,
    load_messages,
    semconv,
)
from pellucid.compaction import DropReasoning, DropResults, Summarize
from pellucid.models import FallbackModel, Price, PriceTable
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid.testing.request_rules import check_request
from support.fitted import Fitted, fit
from support.request_rules import broken_rules
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from pellucid import ModelRequest
    from pellucid.events import ContextCompacted
    from pellucid.events import InferenceStarted as RunEvent
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

LOOK = "look"
ENDLESS = Limits(max_iterations=5_000)

CONVERSATIONS = int(os.environ.get("PELLUCID_CONVERSATIONS", "200"))
"""Conversations by chance; `make bench WHAT=context` plays 10,000."""


def look(size: int = 4_000) -> Tool:
    """Return a tool with results of that many bytes."""

    async def run(arguments: Any, ctx: Any) -> str:
        return f"{arguments.get('number')}:".ljust(size, "x")

    return Tool(name=LOOK, description="Look.", run=run)


_COUNTED: dict[int, tuple[Message, int, int]] = {}


def _counted(message: Message) -> tuple[Message, int, int]:
    if id(message) not in _COUNTED:
        estimate = sum(-(-len(json.dumps(part.to_dict())) // 4) for part in message.parts)
        _COUNTED[id(message)] = message, len(json.dumps(message.to_dict())) // 3, estimate
    return _COUNTED[id(message)]


def tokens_of(messages: Sequence[Message]) -> int:
    """Return the tokens of messages as the models of these tests count them, which is more than the estimate."""
    return sum(_counted(message)[1] for message in messages)


def estimated(messages: Sequence[Message]) -> int:
    """Return the estimated tokens of messages, at four bytes each."""
    return sum(_counted(message)[2] for message in messages)


def looking(times: int, others: Mapping[int, ToolCall] | None = None) -> FunctionModel:
    """Return a model that calls `look` a number of times, or makes the calls in `others`, and counts tokens."""

    def answer(request: ModelRequest) -> ModelResponse:
        number = len(model.requests)
        call = (others or {}).get(number, ToolCall(LOOK, {"number": number}, f"call_{number}"))
        message = Message("assistant", [call] if number <= times else "Seen.")
        usage = Usage(input_tokens=tokens_of(request.messages), output_tokens=tokens_of([message]))
        return ModelResponse(message=message, usage=usage, finish_reason="tool_call" if number <= times else "stop")

    model = FunctionModel(answer)
    return model


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    """Forget the counted messages of the test before."""
    yield
    _COUNTED.clear()


def compactions(agent: Agent[Any, Any]) -> list[ContextCompacted]:
    """Return a list to which each cut of an agent's runs is appended."""
    cuts: list[ContextCompacted] = []
    agent.on("context.compacted", cuts.append)
    return cuts


def texts(request: ModelRequest) -> str:
    """Return all text of a request."""
    return json.dumps([message.to_dict() for message in request.messages])


def turns(number: int, size: int = 2_000) -> list[Message]:
    """Return a conversation of so many turns."""
    return [
        message
        for turn in range(number)
        for message in (Message("user", f"question {turn}"), Message("assistant", f"answer {turn} ".ljust(size, "y")))
    ]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_long_run_stays_within_the_window() -> None:
    """Each request of 800 iterations fits the window, obeys the vendors' rules and costs no more at the end."""
    model, executed, started = looking(800), dict.fromkeys((400, 720), 0), -100
    agent = Agent("a", model=model, tools=[look(20_000)], limits=ENDLESS, context=Context(window=100_000))
    cuts = compactions(agent)

    def count(frame: FrameType, event: str, _: object) -> None:
        executed[started] += event == "call" and "/sdk/pellucid/" in frame.f_code.co_filename

    def observe(event: RunEvent) -> None:
        nonlocal started
        if event.iteration in executed:
            started = event.iteration
            sys.setprofile(count)
        elif event.iteration == started + 70:
            sys.setprofile(None)

    agent.on("inference.started", observe)
    result = await within(agent.run("go"), 300)
    assert (result.output, len(result.messages)) == ("Seen.", 1_602)
    assert all(len(str(part.response)) == 20_000 for message in result.messages for part in message.tool_results)
    assert max(tokens_of(request.messages) for request in model.requests) < 100_000
    assert 40 < len(cuts) < 200
    assert executed[720] < 1.1 * executed[400]
    some = cuts[::5]  # as vendors' formats; the rules that they share are those of all requests
    assert [problem for cut in some for problem in broken_rules(model.requests[cut.iteration - 1])] == []
    for request in model.requests:
        check_request("vendor", request)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_vendors_accept_what_is_left() -> None:
    """A conversation that vendors accept is still valid for them after a cut."""
    found = Fitted()
    for seed in range(CONVERSATIONS):
        await within(fit(seed, found))
    assert found.problems == []
    assert found.requests > 4 * CONVERSATIONS
    assert found.cuts > CONVERSATIONS
    assert found.repeated > CONVERSATIONS // 20


async def test_requests_between_cuts_share_their_prefix() -> None:
    """A request is cut seldom and far, so that the requests between two cuts share their prefix."""
    model = looking(60)
    agent = Agent("a", model=model, tools=[look()], limits=ENDLESS, context=Context(window=30_000))
    cuts = compactions(agent)
    await within(agent.run("go"))
    pairs = zip(model.requests, model.requests[1:], strict=False)
    changed = sum(later.messages[: len(earlier.messages)] != earlier.messages for earlier, later in pairs)
    assert changed == len(cuts)
    assert 0 < len(cuts) < 10
    assert all(cut.tokens_after <= 15_000 for cut in cuts)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("window", "least"), [(50_000, 0.77), (60_000, 0.8)])
async def test_long_results_leave_prompt_caches_their_share(window: int, least: float) -> None:
    """Results that fill a tenth of the window still leave most of each request in the vendor's cache."""
    model = FunctionModel(
        lambda _: (
            ToolCall(LOOK, {"number": len(model.requests)}, f"call_{len(model.requests)}")
            if len(model.requests) <= 500
            else "Seen."
        )
    )
    agent = Agent("a", model=model, tools=[look(20_000)], limits=ENDLESS, context=Context(window=window))
    cuts = compactions(agent)
    await within(agent.run("go"), 60)
    sent = sum(tokens_of(request.messages) for request in model.requests)
    cached = 0
    for earlier, later in pairwise(model.requests):
        pairs = zip(earlier.messages, later.messages, strict=False)
        cached += tokens_of([new for _, new in takewhile(lambda pair: pair[0] is pair[1], pairs)])
    assert cached > least * sent
    assert 0 < sum("DropTurns" in cut.strategies for cut in cuts) < 0.1 * len(cuts)


async def test_a_cut_is_recorded(telemetry: Captured) -> None:
    """The span of a cut request has the messages, the strategy and the tokens, and metrics count them."""
    agent = Agent("a", model=looking(12), tools=[look()], limits=ENDLESS, context=Context(window=12_000))
    cuts = compactions(agent)
    await within(agent.run("go"))
    spans = telemetry.find("compose_request")
    first = next(span for span in spans if attributes(span)[semconv.COMPOSE_LEFT_OUT])
    output = json.loads(attributes(first)[semconv.OUTPUT])["context"]
    cut = output["cut"]
    assert (output["window"], output["tokens"]) == (12_000, attributes(first)[semconv.COMPOSE_TOKENS])
    assert (cut["tokens_before"], cut["tokens_after"]) == (cuts[0].tokens_before, cuts[0].tokens_after)
    assert [each["strategy"] for each in cut["strategies"]] == list(cuts[0].strategies) == ["DropResults"]
    [[begin, end]] = cut["strategies"][0]["messages"]
    assert (begin, end - begin + 1) == (1, cuts[0].messages)
    assert attributes(spans[0])[semconv.COMPOSE_LEFT_OUT] == 0
    dropped = [point.value for point in telemetry.metrics if point.name == semconv.DROPPED_MESSAGES.name]
    assert sum(dropped) == sum(cut.messages for cut in cuts)
    points = [point for point in telemetry.metrics if point.name == semconv.REQUEST_TOKENS.name]
    parts = {point.attributes[semconv.COMPOSE_PART] for point in points}
    assert parts == {"instructions", "tools", "results", "summary", "messages"}


async def test_results_become_stubs() -> None:
    """An old result becomes a stub with the tool and the size; the last result and the conversation stay whole."""
    model = looking(12)
    agent = Agent("a", model=model, tools=[look()], limits=ENDLESS, context=Context(window=12_000))
    result = await within(agent.run("go"))
    stub = '[left out: the result of look, 4,000 bytes; read_result has it, with id "call_1"]'
    said = [part.response for message in model.requests[-1].messages for part in message.tool_results]
    assert said[0] == stub
    assert said[-1] == "12:".ljust(4_000, "x")
    assert [part.response for part in result.messages[2].tool_results] == ["1:".ljust(4_000, "x")]


async def test_the_model_reads_what_was_cut_or_left_out() -> None:
    """The model reads a long result in parts with `read_result`, which is offered only once a result was cut."""
    text = "".join(f"line {number}: Grüße, 世界\n" for number in range(400))
    calls: list[ToolCall | str] = []

    async def page(arguments: Any, ctx: Any) -> str:
        return text

    read = ""

    def answer(request: ModelRequest) -> ToolCall | str:
        nonlocal read
        said = str(request.messages[-1].tool_results[-1].response) if len(request.messages) > 1 else ""
        if not said:
            return ToolCall("page", {}, "long one")
        part, _, notice = said.partition("\n[cut: ")
        read += part
        found = re.search(r"read_result with id (.*) and offset (\d+)", notice)
        calls.append(notice)
        return ToolCall("read_result", {"id": json.loads(found[1]), "offset": int(found[2])}) if found else "Read."

    model = FunctionModel(answer)
    limits = Limits(max_result_bytes=2_000, max_iterations=50)
    tools = [Tool(name="page", description="A page.", run=page)]
    agent = Agent("a", model=model, tools=tools, limits=limits, context=Context(window=90_000))
    result = await within(agent.run("go"))
    assert (result.output, read) == ("Read.", text)
    assert [tool.name for tool in model.requests[0].tools] == ["page"]
    assert [tool.name for tool in model.requests[1].tools] == ["page", "read_result"]
    sizes = [len(str(part.response).encode()) for message in result.messages for part in message.tool_results]
    assert len(sizes) > 5
    assert max(sizes) <= 2_000


async def test_the_model_reads_a_result_that_is_left_out() -> None:
    """`read_result` returns a left out result from the conversation, and an unknown id is an error with a remedy."""
    others = {20: ToolCall("read_result", {"id": "call_2"}, "r1"), 21: ToolCall("read_result", {"id": "none"}, "r2")}
    agent = Agent("a", model=looking(21, others), tools=[look()], limits=ENDLESS, context=Context(window=12_000))
    result = await within(agent.run("go"))
    found, unknown = [part for message in result.messages for part in message.tool_results][-2:]
    assert found.response == "2:".ljust(4_000, "x")
    assert unknown.is_error
    assert "Use the id that a notice names" in str(unknown.response)


async def test_the_model_reads_on_after_a_pause_and_in_the_next_run() -> None:
    """`read_result` returns a result from a checkpoint in JSON, and in the next run from its history."""
    line = "".join(f"line {number}, " for number in range(500))

    async def page(arguments: Any, ctx: Any) -> str:
        return line

    def made(*answers: ToolCall | str) -> tuple[Agent[Any, Any], ScriptedModel]:
        model = ScriptedModel(*answers)
        pay = Tool(name="pay", description="Pay.", run=look().run, needs_approval=True)
        tools = [Tool(name="page", description="A page.", run=page), pay]
        limits = Limits(max_result_bytes=3_000)
        return Agent("a", model=model, tools=tools, limits=limits, context=Context(window=90_000)), model

    def reading(call_id: str) -> ToolCall:
        return ToolCall("read_result", {"id": "long", "offset": 4_000}, call_id)

    agent, _ = made(ToolCall("page", {}, "long"), ToolCall("pay", {}, "pay"))
    paused = await within(agent.run("go"))
    checkpoint = json.loads(json.dumps(paused.checkpoint))
    agent, model = made(reading("r1"), "Read.")
    resumed = await within(agent.resume(checkpoint, decisions=[Decision(paused.approvals[0].approval_id, True)]))
    assert "read_result" in [tool.name for tool in model.requests[0].tools]
    assert resumed.messages[-2].tool_results[0].response == line[4_000:]
    agent, model = made(reading("r2"), "Read.")
    later = await within(agent.run("again", history=load_messages(dump_messages(resumed.messages))))
    assert "read_result" in [tool.name for tool in model.requests[0].tools]
    assert later.messages[-2].tool_results[0].response == line[4_000:]
    assert line not in texts(model.requests[0])


async def test_reasoning_is_left_out() -> None:
    """`DropReasoning` leaves the reasoning out of old answers only."""
    history = [
        message
        for number in range(10)
        for message in (
            Message("user", f"question {number}"),
            Message("assistant", [ReasoningPart("z" * 4_000), TextPart(f"answer {number}")]),
        )
    ]
    model = ScriptedModel("ok")
    await within(
        Agent("a", model=model, context=Context(window=8_000, strategies=[DropReasoning()])).run("go", history=history)
    )
    [request] = model.requests
    assert [len(message.parts) for message in request.messages if message.role == "assistant"][0] == 1  # noqa: RUF015
    assert [message.text for message in request.messages] == [*(message.text for message in history), "go"]
    assert "zzz" in texts(request)


async def test_turns_are_left_out_as_a_whole() -> None:
    """Whole turns are left out with a note to the model, while the first user message and the last turns stay."""
    model, history = ScriptedModel("ok"), turns(20)
    await within(Agent("a", model=model, context=Context(window=8_000)).run("last", history=history))
    said = [message.text.strip("y ") for message in model.requests[0].messages]
    gone = 2 * 20 + 1 - (len(said) - 1)
    assert said[:2] == ["question 0", f"[{gone} earlier messages are left out here.]"]
    assert said[2].startswith("question ")
    assert said[-3:] == ["question 19", "answer 19", "last"]


async def test_what_earlier_runs_left_out_is_not_left_out_anew(telemetry: Captured) -> None:
    """A run with a history leaves out again what earlier runs left out, and reports only its own cuts."""
    agent = Agent("a", model=FunctionModel(lambda _: "y" * 2_000), context=Context(window=8_000))
    cuts = compactions(agent)
    history: list[Message] = []
    reported = []
    for number in range(40):
        before = len(cuts)
        history = list((await within(agent.run(f"question {number}", history=history))).messages)
        reported.append(len(cuts) - before)
    assert 1 < sum(reported) < 10
    assert set(reported) == {0, 1}
    assert all(cut.tokens_after < cut.tokens_before for cut in cuts)
    spans = [attributes(span) for span in telemetry.find("compose_request")]
    outputs = [json.loads(span[semconv.OUTPUT])["context"] for span in spans]
    assert ["cut" in output for output in outputs] == [number > 0 for number in reported]
    left_out = [span[semconv.COMPOSE_LEFT_OUT] for span in spans]
    grown = [after - before for before, after in zip([0, *left_out], left_out, strict=False)]
    assert grown == [cuts.pop(0).messages if number else 0 for number in reported]
    dropped = [point.value for point in telemetry.metrics if point.name == semconv.DROPPED_MESSAGES.name]
    assert sum(dropped) == left_out[-1]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.11, 1.23, 1.5])
async def test_runs_of_a_conversation_share_their_prefix(ratio: float) -> None:
    """A run leaves out what the runs before it left out, and fills the window however its vendor counts."""

    def answer(request: ModelRequest) -> ModelResponse:
        calls = len(model.requests)
        message = Message("assistant", "Seen." if calls % 2 == 0 else [ToolCall(LOOK, {"number": calls}, f"c{calls}")])
        asked, answered = (int(ratio * estimated(messages)) for messages in (request.messages, [message]))
        usage = Usage(input_tokens=asked, output_tokens=answered)
        return ModelResponse(message=message, usage=usage, finish_reason="stop" if calls % 2 == 0 else "tool_call")

    model = FunctionModel(answer)
    agent = Agent("a", model=model, tools=[look(20_000)], context=Context(window=50_000))
    history: list[Message] = []
    for number in range(150):
        history = list((await within(agent.run(f"question {number}", history=history))).messages)
    sizes = [estimated(request.messages) for request in model.requests]
    cached = 0
    for earlier, later in pairwise(model.requests):
        pairs = zip(earlier.messages, later.messages, strict=False)
        cached += estimated([new for _, new in takewhile(lambda pair: pair[0] == pair[1], pairs)])
    assert cached > 0.8 * sum(sizes)
    assert 30_000 < ratio * max(sizes) < 45_000


async def test_what_is_kept_stays() -> None:
    """Messages that `keep` selects stay with their calls and results, and so do loaded skills."""
    refunds = Skill("refunds", "Refunds.", "Look up the order first. " * 40)
    model = looking(30, {2: ToolCall("load_skill", {"skill_id": "refunds"}, "load")})
    context = Context(window=9_000, keep=lambda message: any(part.id == "call_3" for part in message.tool_results))
    agent = Agent("a", model=model, tools=[look()], skills=[refunds], limits=ENDLESS, context=context)
    await within(agent.run("go"))
    request = model.requests[-1]
    assert refunds.body in texts(request)
    assert "3:xxx" in texts(request)
    assert "4:xxx" not in texts(request)
    assert broken_rules(request) == []


async def test_a_summary_is_extended(telemetry: Captured) -> None:
    """A summary extends the one before, is a `chat` span within `compose_request`, and counts in the run's usage."""
    summaries: list[ModelRequest] = []

    def summarize(request: ModelRequest) -> ModelResponse:
        summaries.append(request)
        usage = Usage(input_tokens=7, output_tokens=3)
        return ModelResponse(message=Message("assistant", f"summary {len(summaries)}"), usage=usage)

    strategy = Summarize(FunctionModel(summarize, name="small"))
    model = looking(30)
    context = Context(window=9_000, strategies=[strategy])
    agent = Agent("a", model=model, tools=[look()], limits=ENDLESS, context=context)
    cuts = compactions(agent)
    async with agent.stream("go") as events:
        streamed = [str(getattr(event, "content", "")) async for event in events]
    assert len(summaries) == len(cuts) >= 2
    assert "<summary_so_far>\nsummary 1\n" in summaries[1].messages[0].text
    assert f"]\nsummary {len(summaries)}" in texts(model.requests[-1]).replace("\\n", "\n")
    assert broken_rules(model.requests[-1]) == []
    composed = {span.context.span_id for span in telemetry.find("compose_request")}
    chats = [span for span in telemetry.find("chat") if span.parent is not None and span.parent.span_id in composed]
    assert [attributes(span)[semconv.REQUEST_MODEL] for span in chats] == ["small"] * len(summaries)
    expected = sum(tokens_of(request.messages) for request in model.requests) + 7 * len(summaries)
    assert events.result.usage.input_tokens == expected
    assert all(cut.summary_digest for cut in cuts)
    assert "Seen." in "".join(streamed)
    assert "summary" not in "".join(streamed)


async def test_other_runs_with_the_same_history_use_the_same_summary() -> None:
    """Runs that continue one history use the same summary and share the prefix of its first request."""
    small = FunctionModel(lambda _: "what was said")
    model = FunctionModel(lambda _: "ok")
    agent = Agent("a", model=model, context=Context(window=8_000, strategies=[Summarize(small)]))
    history, made = turns(20), []
    for number in range(4):
        result = await within(agent.run(f"more {number}", history=history))
        history = list(result.messages)
        made.append(len(small.requests))
    assert made == made[:1] * 4
    first, *others = (request.messages for request in model.requests)
    assert all(other[: len(first)] == first for other in others)


async def test_a_failed_summary_does_not_fail_the_run() -> None:
    """A run goes on if its summary fails, and the messages are left out all the same."""
    failing = ScriptedModel(*[ModelError("small", "no", error_kind="unavailable")] * 9, name="small")
    model = ScriptedModel("ok")
    agent = Agent("a", model=model, context=Context(window=8_000, strategies=[Summarize(failing)]))
    assert (await within(agent.run("go", history=turns(20)))).output == "ok"
    assert "earlier messages are left out here.]" in texts(model.requests[0])


def too_long() -> ModelError:
    """Return the error of an adapter."""
    return ModelError(
        "scripted", "too long", error_type="context_length_exceeded", error_kind="invalid_request", status=400
    )


async def test_a_request_that_is_too_long_is_cut_and_repeated(telemetry: Captured) -> None:
    """A request that is too long for the model is cut once more and repeated, with a `compose_request` of its own."""
    model = ScriptedModel(too_long(), "ok")
    agent = Agent("a", model=model, context=Context(window=20_000))
    cuts = compactions(agent)
    assert (await within(agent.run("go", history=turns(20)))).output == "ok"
    first, second = model.requests
    assert len(second.messages) < len(first.messages)
    assert len(cuts) == 1
    assert len(telemetry.find("compose_request")) == 2
    assert broken_rules(second) == []


@pytest.mark.parametrize("history", [0, 20])
async def test_a_request_that_stays_too_long_fails_with_a_remedy(history: int) -> None:
    """A request that stays too long fails with the sizes and a remedy, after one repetition if anything can be cut."""
    model = ScriptedModel(*[too_long()] * 2)
    agent = Agent("a", model=model, context=Context(window=20_000))
    with pytest.raises(ModelError, match=r"too long for the window of 20,000 tokens.* lower Limits") as caught:
        await within(agent.run("go", history=turns(history)))
    assert caught.value.error_type == "context_length_exceeded"
    assert len(model.requests) == (2 if history else 1)


async def test_a_resumed_run_leaves_out_the_same() -> None:
    """A resumed run leaves out the same messages as before the pause, and its checkpoint has the whole conversation."""
    pay = Tool(name="pay", description="Pay.", run=look().run, needs_approval=True)
    model = looking(18, {17: ToolCall("pay", {"number": 1}, "pay")})
    agent = Agent("a", model=model, tools=[look(), pay], limits=ENDLESS, context=Context(window=12_000))
    paused = await within(agent.run("go"))
    assert paused.status == "awaiting_approval"
    assert paused.checkpoint is not None
    checkpoint = json.loads(json.dumps(paused.checkpoint))
    resumed = await within(agent.resume(checkpoint, decisions=[Decision(paused.approvals[0].approval_id, True)]))
    assert resumed.output == "Seen."
    before, after = model.requests[16:18]
    assert after.messages[: len(before.messages)] == before.messages
    assert len(before.messages) < len(resumed.messages)
    assert texts(before).count("left out") > 3


async def test_a_budget_counts_what_is_sent() -> None:
    """A token limit counts the tokens of the requests as sent, not those of the whole conversation."""
    model = looking(40)
    prices = PriceTable({"function": Price(input=1.0, output=8.0)})
    limits = Limits(max_iterations=5_000, max_tokens=2_000_000, max_cost=9.0)
    agent = Agent("a", model=model, tools=[look()], limits=limits, prices=prices, context=Context(window=12_000))
    result = await within(agent.run("go"))
    assert (result.status, len(model.requests)) == ("completed", 41)


async def test_the_smallest_window_counts() -> None:
    """A request to several models is cut to the smallest of their windows."""
    names = {"pellucid.testing:one": 50_000, "two": 9_000}
    model = FallbackModel(FunctionModel(lambda _: "ok", name="one"), FunctionModel(lambda _: "ok", name="two"))
    agent = Agent("a", model=model, context=Context(window=names))
    cuts = compactions(agent)
    await within(agent.run("go", history=turns(20)))
    assert cuts[0].tokens_after <= 4_500


class Torn:
    """A strategy that leaves out calls and not their results."""

    def narrow(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the results."""
        return [message for message in messages if message.role == "tool"]


async def test_calls_and_results_stay_together() -> None:
    """A strategy that separates calls from their results ends the run with an error that names it."""
    agent = Agent(
        "a",
        model=looking(20),
        tools=[look()],
        limits=ENDLESS,
        context=Context(window=9_000, strategies=[Torn()]),
    )
    with pytest.raises(ConfigError, match="Torn of Context separates calls"):
        await within(agent.run("go"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"window": 0}, "give tokens"),
        ({"window": {"a": "big"}}, "give tokens"),
        ({"keep": 3}, "give a function of a Message"),
        ({"strategies": []}, r"such as \[DropResults"),
        ({"strategies": [DropResults]}, "not a strategy"),
        ({"strategies": [lambda messages: messages]}, "not a strategy"),
    ],
)
def test_options_are_checked(options: dict[str, Any], problem: str) -> None:
    """Wrong options of `Context` are refused when it is made."""
    with pytest.raises(ConfigError, match=problem):
        Context(**options)


@pytest.mark.parametrize(
    ("context", "problem"),
    [
        (100_000, r"give Context\(window=...\)"),
        (Context(), "the window of model 'scripted' of pellucid.testing is unknown"),
        (Context(window={"other": 9_000}), "is unknown"),
        (Context(window=1_000), "leaves no room"),
    ],
)
def test_an_agent_checks_its_window(context: Any, problem: str) -> None:
    """An agent is refused when it is made if its context has no known window or leaves no room."""
    with pytest.raises(ConfigError, match=problem):
        Agent("a", model=ScriptedModel("ok"), context=context, settings={"max_tokens": 2_000})


def test_rules_of_vendors_are_held() -> None:
    """The rules of vendors in these tests find a call without its result and a result without its call."""
    call, result = ToolCall(LOOK, {}, "c"), ToolResult("c", "r", name=LOOK)
    asked, said = Message("user", "go"), Message("assistant", [call])

    def problems(*messages: Message) -> set[str]:
        from pellucid import ModelRequest

        return {problem.partition(":")[0] for problem in broken_rules(ModelRequest(messages=messages))}

    assert problems(asked, said, Message("tool", [result])) == set()
    assert problems(asked, said, asked) == {"anthropic", "openai", "gemini"}
    assert problems(asked, Message("tool", [result])) >= {"anthropic", "openai"}
    assert problems(said, Message("tool", [result])) >= {"anthropic", "gemini"}
