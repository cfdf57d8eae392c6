"""Reliability rules: the situations that they see and the effects of their decisions."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    CancelToken,
    ConfigError,
    DiscoveryContext,
    DiscoveryError,
    DiscoveryProvider,
    FallbackModel,
    Identity,
    Limits,
    Message,
    ModelDelta,
    ModelError,
    ModelResponse,
    Reliability,
    RunCancelled,
    Tool,
    ToolCall,
    ToolError,
    Usage,
    semconv,
    static_tools,
    tool,
)
from pellucid.errors import CircuitOpen, ReliabilityFailFast
from pellucid.reliability import (
    Reaction,
    Rule,
    Situation,
    continue_,
    fail_fast,
    fallback,
    last_known_catalog,
    ok,
    retry,
    retry_other,
)
from pellucid.testing import FakeHub, ScriptedModel
from support.clock import Clock
from support.reliability import decisions, down, rules, told
from support.runs import attributes, ending, within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid import ModelRequest
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


def always(situation: Situation) -> bool:
    """Match."""
    return True


TWICE = Rule(when=lambda s: s.error is not None and s.attempt < 3, then=retry(), kind="transient")


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_model_is_asked_again(telemetry: Captured) -> None:
    """A rule repeats a model call, with a span for each attempt and events of the retries and the recovery."""
    model = ScriptedModel(down(), down(), "hi")
    result = await within(Agent("a", model=model, reliability=rules(TWICE)).run("go"))
    assert result.output == "hi"
    chats = telemetry.find("chat")
    assert [(ending(span)[0], attributes(span)["pellucid.attempt"]) for span in chats] == [
        ("failed", 1),
        ("failed", 2),
        ("completed", 3),
    ]
    assert [[event.name for event in span.events if event.name.startswith("rel")] for span in chats] == [
        ["reliability.retried"],
        ["reliability.retried"],
        ["reliability.recovered"],
    ]
    assert told(telemetry) == [("retried", "transient", 1), ("retried", "transient", 2), ("recovered", None, 3)]
    assert decisions(telemetry) == {
        ("inference", "retry", "transient"): 2,
        ("inference", "recovered", "transient"): 1,
    }


async def test_without_a_rule_that_matches_nothing_is_tried_again(telemetry: Captured) -> None:
    """An operation that no rule matches any longer fails with its own error."""
    model = ScriptedModel(down(), down(), down())
    with pytest.raises(ModelError, match="down"):
        await within(Agent("a", model=model, reliability=rules(TWICE)).run("go"))
    assert len(model.requests) == 3
    other = ScriptedModel(down("auth"))
    never = Rule(when=lambda s: s.error_kind == "timeout", then=retry(), kind="x")
    with pytest.raises(ModelError):
        await within(Agent("a", model=other, reliability=rules(never)).run("go"))
    assert len(other.requests) == 1


async def test_the_first_rule_that_matches_decides() -> None:
    """The first rule that matches decides, and later rules are not asked."""
    asked: list[str] = []

    def note(name: str, *, answer: bool) -> Any:
        def when(situation: Situation) -> bool:
            asked.append(name)
            return answer

        return when

    given = [
        Rule(when=note("a", answer=False), then=fail_fast(), kind="a"),
        Rule(when=note("b", answer=True), then=ok(), kind="b"),
        Rule(when=note("c", answer=True), then=retry(), kind="c"),
    ]
    only = static_tools([])
    await within(Agent("a", model=ScriptedModel("hi"), providers=[only], reliability=rules(*given)).run("go"))
    assert asked == ["a", "b"] * 2  # discovery and inference


async def test_what_a_rule_gets_to_know() -> None:
    """A rule gets the operation, attempt, error and its kind, elapsed time, usage, iteration, identity and response."""
    seen: list[Situation] = []

    def look(situation: Situation) -> bool:
        seen.append(situation)
        return situation.operation == "inference" and situation.error is not None

    time = Clock()
    answer = ModelResponse(message=Message("assistant", [ToolCall("add", {"a": 1, "b": 2})]), finish_reason="tool_call")
    used = ModelResponse(message=answer.message, usage=Usage(input_tokens=10), finish_reason="tool_call")
    model = ScriptedModel(down("rate_limited"), used, "3")
    who = Identity(tenant="acme")
    check = Rule(when=look, then=retry(backoff=2.0), kind="x", on="any")
    pre = Rule(when=look, then=continue_(), kind="y")
    agent = Agent("a", model=model, tools=[add], reliability=rules(check, time=time, pre_check=[pre]))
    await within(agent.run("go", identity=who))
    first = [each for each in seen if each.operation == "inference" and each.iteration == 1]
    assert [(each.attempt, each.error_kind, each.elapsed) for each in first] == [
        (0, None, 0.0),
        (1, "rate_limited", 0.0),
        (2, None, 2.0),
    ]
    assert isinstance(first[1].error, ModelError)
    assert isinstance(first[2].response, ModelResponse)
    assert {each.model for each in first} == {"scripted"}
    assert {each.identity for each in seen} == {who}
    assert [each.usage.input_tokens for each in first] == [0, 0, 10]
    assert first[0].usage.cost == 0.0
    called = [each for each in seen if each.operation == "tool"]
    assert [(each.tool_name, each.attempt, each.response) for each in called] == [("add", 0, None), ("add", 1, 3)]
    asked = [each for each in seen if each.operation == "discovery"]
    assert [(each.provider_id, each.attempt, each.iteration) for each in asked] == [
        ("static", 0, 1),
        ("static", 1, 1),
        ("static", 0, 2),
        ("static", 1, 2),
    ]


async def test_waits_grow_and_are_jittered() -> None:
    """Waits double up to `max_backoff` and are multiplied by the jitter."""
    time = Clock()
    model = ScriptedModel(*[down()] * 5, "hi")
    patient = Rule(when=lambda s: s.error is not None, then=retry(backoff=1.0, max_backoff=5.0), kind="x")
    await within(Agent("a", model=model, reliability=rules(patient, time=time)).run("go"))
    assert time.slept == [1.0, 2.0, 4.0, 5.0, 5.0]
    half = Clock()
    options: Any = {"clock": half, "sleep": half.sleep, "jitter": lambda: 0.5}
    again = ScriptedModel(down(), down(), "hi")
    await within(Agent("a", model=again, reliability=Reliability([patient], **options)).run("go"))
    assert half.slept == [0.5, 1.0]


async def test_retry_after_is_honoured(telemetry: Captured) -> None:
    """`retry_after` of the vendor is the wait, and a longer one than the rule allows ends the attempts."""
    time = Clock()
    model = ScriptedModel(down("rate_limited", retry_after=7.0), "hi")
    rule = Rule(when=lambda s: s.error is not None, then=retry(max_backoff=10.0), kind="x")
    await within(Agent("a", model=model, reliability=rules(rule, time=time)).run("go"))
    assert time.slept == [7.0]
    late = ScriptedModel(down("rate_limited", retry_after=3600.0))
    with pytest.raises(ModelError) as caught:
        await within(Agent("a", model=late, reliability=rules(rule, time=time)).run("go"))
    assert caught.value.retry_after == 3600.0
    assert caught.value.__notes__ == ["the rule 'x' could not try again: retry_after"]
    [barred] = [event for event in telemetry.find("chat")[-1].events if event.name.startswith("reliability.")]
    assert (barred.name, dict(barred.attributes or {})) == (
        "reliability.not_retried",
        {
            "pellucid.reliability.then": "retry",
            "pellucid.reliability.kind": "retry_after",
            "pellucid.attempt": 1,
        },
    )
    own = Rule(when=lambda s: s.error is not None, then=retry(backoff=0.5, honour_retry_after=False), kind="x")
    mine = ScriptedModel(down("rate_limited", retry_after=3600.0), "hi")
    await within(Agent("a", model=mine, reliability=rules(own, time=time)).run("go"))
    assert time.slept == [7.0, 0.5]


async def test_a_wait_is_not_begun_that_the_deadline_would_end(telemetry: Captured) -> None:
    """A wait beyond the deadline is not begun, and the run fails with the error of the model."""
    rule = Rule(when=lambda s: s.error is not None, then=retry(max_backoff=7200.0), kind="x")
    model = ScriptedModel(down(retry_after=3600.0))
    agent = Agent("a", model=model, limits=Limits(timeout=60.0), reliability=Reliability([rule]))
    with pytest.raises(ModelError, match="down"):
        await within(agent.run("go"))


class Lists:
    """A provider that fails in a given order. Attributes: faults: exceptions of its next calls; None lets one pass."""

    id = "hub"

    def __init__(self, *faults: Exception | None) -> None:
        self.faults = list(faults)

    async def list_tools(self, ctx: DiscoveryContext) -> list[Tool]:
        """Answer or fail."""
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        return [add]


class Busy(Exception):
    """A client library's own error that says when to ask again."""

    def __init__(self, retry_after: Any) -> None:
        self.retry_after = retry_after


async def test_retry_after_of_a_provider_s_own_exception_is_honoured() -> None:
    """`retry_after` of a provider's own exception is the wait if it is a number of seconds."""
    rule = Rule(when=lambda s: s.error is not None and s.attempt < 2, then=retry(backoff=1.0), kind="x")
    for said, slept in ((7, 7.0), (0.25, 0.25), (True, 1.0), ("7", 1.0), (float("nan"), 1.0), (-1, None)):
        time = Clock()
        hub = DiscoveryProvider(FakeHub([add], faults=[Busy(said)]), id="hub", clock=time)
        for provider in (Lists(Busy(said)), hub):
            time.slept.clear()
            agent = Agent("a", model=ScriptedModel("hi"), providers=[provider], reliability=rules(rule, time=time))
            assert (await within(agent.run("go"))).output == "hi"
            assert time.slept == ([] if slept is None else [slept])


def failed_discovery(situation: Situation) -> bool:
    """Match a discovery that failed."""
    return situation.operation == "discovery" and situation.error is not None


async def test_the_next_model_is_asked(telemetry: Captured) -> None:
    """`retry_other` asks the next model of a `FallbackModel`, and without one the failure has notes."""
    first, second = ScriptedModel(down("invalid_request"), name="one"), ScriptedModel("hi", name="two")
    rule = Rule(when=lambda s: s.operation == "inference" and s.error is not None, then=retry_other(), kind="next")
    agent = Agent("a", model=FallbackModel(first, second), reliability=rules(rule))
    assert (await within(agent.run("go"))).output == "hi"
    assert [(span.name, attributes(span)["pellucid.attempt"]) for span in telemetry.find("chat")] == [
        ("chat one", 1),
        ("chat two", 2),
    ]
    both = FallbackModel(ScriptedModel(down(), name="one"), ScriptedModel(down(), name="two"))
    with pytest.raises(ModelError) as caught:
        await within(Agent("a", model=both, reliability=rules(rule)).run("go"))
    assert caught.value.__notes__ == [
        "the rule 'next' could not try another model: no_other",
        "earlier failure: call of model 'm' failed: down",
    ]


async def test_where_rules_say_nothing_a_fallback_model_does_as_without_them(telemetry: Captured) -> None:
    """A `FallbackModel` falls back as usual if no rule matches."""
    model = FallbackModel(ScriptedModel(down(), name="one"), ScriptedModel("hi", name="two"))
    rule = Rule(when=lambda s: False, then=retry(), kind="x")
    assert (await within(Agent("a", model=model, reliability=rules(rule)).run("go"))).output == "hi"


async def test_a_stream_that_was_read_is_not_tried_again(telemetry: Captured) -> None:
    """A stream that was read in part is not repeated, and its span has a `not_retried` event."""

    class Breaking(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            """Yield a piece, then fail."""
            yield ModelDelta("text", "Once")
            raise down()

    agent = Agent("a", model=Breaking("x", "y"), reliability=rules(TWICE))

    async def read() -> None:
        async with agent.stream("go") as events:
            async for _ in events:
                pass

    with pytest.raises(ModelError, match="down"):
        await within(read())
    [chat] = telemetry.find("chat")
    assert [event.name for event in chat.events if event.name.startswith("rel")] == ["reliability.not_retried"]


async def test_a_response_can_be_refused() -> None:
    """A rule with `on="success"` may refuse a response and have the call repeated."""
    model = ScriptedModel("", "better")
    empty = Rule(
        when=lambda s: s.operation == "inference" and not s.response.message.text,
        then=retry(),
        kind="empty",
        on="success",
    )
    assert (await within(Agent("a", model=model, reliability=rules(empty)).run("go"))).output == "better"


async def test_a_rule_that_reads_a_response_without_on_is_deprecated() -> None:
    """A rule that reads a response without `on` still decides, and warns with what to write."""
    model = ScriptedModel("", "better")
    empty = Rule(
        when=lambda s: s.operation == "inference" and s.error is None and not s.response.message.text,
        then=retry(),
        kind="empty",
    )
    agent = Agent("a", model=model, reliability=rules(empty))
    with pytest.warns(DeprecationWarning, match="on='success'") as caught:
        assert (await within(agent.run("go"))).output == "better"
    assert {Path(warning.filename) for warning in caught} == {Path(__file__)}


@pytest.mark.parametrize(
    ("on", "then", "outcomes"),
    [
        (None, retry(), ["failure"]),
        (None, fallback(lambda s: "x"), ["failure"]),
        (None, fail_fast(), ["failure", "success"]),
        ("failure", fail_fast(), ["failure"]),
        ("success", retry(), ["success"]),
        ("success", fail_fast(), ["success"]),
        ("any", retry(), ["failure", "success"]),
    ],
)
async def test_a_rule_says_which_outcomes_it_is_for(
    telemetry: Captured, on: Any, then: Any, outcomes: list[str]
) -> None:
    """`on` chooses the outcomes of a rule; by default retries and fallbacks are for failures, `fail_fast` for all."""
    rule = Rule(when=lambda s: s.operation == "inference" and s.attempt == 1, then=then, kind="x", on=on)
    matched = []
    for outcome, step in (("failure", down()), ("success", "hi")):
        before = len(told(telemetry))
        with suppress(ModelError, ReliabilityFailFast):
            await within(Agent("a", model=ScriptedModel(step, "end"), reliability=rules(rule)).run("go"))
        if "x" in [kind for _, kind, _ in told(telemetry)[before:]]:
            matched.append(outcome)
    assert matched == outcomes


@pytest.mark.parametrize(
    "value", ["sorry", Message("assistant", "sorry"), ModelResponse(message=Message("assistant", "sorry"))]
)
async def test_another_answer_stands_in_for_a_model(telemetry: Captured, value: Any) -> None:
    """A fallback for a model may be a text, a message or a response, and the failed call stays in the trace."""
    rule = Rule(when=lambda s: s.error is not None, then=fallback(lambda s: value), kind="canned")
    result = await within(Agent("a", model=ScriptedModel(down()), reliability=rules(rule)).run("go"))
    assert result.output == "sorry"
    assert ending(telemetry.span("chat"))[0] == "failed"
    assert told(telemetry) == [("fell_back", "canned", 1)]


async def test_a_run_is_ended_by_a_rule(telemetry: Captured) -> None:
    """`fail_fast` ends the run with the kind of the rule and the failure as the cause."""
    rule = Rule(when=lambda s: s.error_kind == "auth", then=fail_fast(), kind="no-key")
    with pytest.raises(ReliabilityFailFast, match="the rule 'no-key' ended inference of 'scripted'") as caught:
        await within(Agent("a", model=ScriptedModel(down("auth")), reliability=rules(rule)).run("go"))
    assert isinstance(caught.value.cause, ModelError)
    assert caught.value.__cause__ is caught.value.cause
    assert attributes(telemetry.span("invoke_agent"))["error.type"] == "ModelError"


async def test_a_budget_is_checked_before_a_call(telemetry: Captured) -> None:
    """A `pre_check` rule prevents a model call once the cost is above its limit."""
    costly = ModelResponse(
        message=Message("assistant", [ToolCall("add", {"a": 1, "b": 2})]),
        usage=Usage(cost=3.0),
        finish_reason="tool_call",
    )
    model = ScriptedModel(costly, "never")
    over = Rule(when=lambda s: s.operation == "inference" and s.usage.cost > 2, then=fail_fast(), kind="budget")
    with pytest.raises(ReliabilityFailFast, match="did not allow inference of 'scripted' to start"):
        await within(Agent("a", model=model, tools=[add], reliability=rules(pre_check=[over])).run("go"))
    assert len(model.requests) == 1
    assert attributes(telemetry.span("invoke_agent"))["error.type"] == "reliability"


async def test_a_provider_is_asked_again(telemetry: Captured) -> None:
    """A rule repeats a listing within one span, which counts the attempts."""
    provider = Lists(OSError("down"), OSError("down"))
    result = await within(
        Agent("a", model=ScriptedModel("hi"), providers=[provider], reliability=rules(TWICE)).run("go")
    )
    assert result.output == "hi"
    span = telemetry.span("discover_tools hub")
    assert (ending(span)[0], attributes(span)["pellucid.discovery.attempts"]) == ("completed", 3)
    names = [event.name for event in telemetry.events if event.name.startswith("tools.")]
    assert names == [
        "tools.discovery_started",
        "tools.discovery_failed",
        "tools.discovery_failed",
        "tools.discovery_completed",
    ]
    assert decisions(telemetry)["discovery", "recovered", "transient"] == 1


@pytest.mark.parametrize(
    ("operation", "then", "expected"),
    [
        ("discovery", retry(), "failed retried recovered completed"),
        ("discovery", fallback(lambda s: [add]), "failed fell_back completed"),
        ("discovery", fail_fast(), "failed failed_fast"),
        ("inference", retry(), "failed retried started recovered completed"),
        ("inference", fallback(lambda s: ModelResponse(message=Message("assistant", "hi"))), "failed fell_back"),
        ("inference", fail_fast(), "failed failed_fast"),
        ("tool", retry(), "failed retried recovered completed"),
        ("tool", fallback(lambda s: "none"), "failed fell_back completed"),
        ("tool", fail_fast(), "failed failed_fast"),
    ],
)
async def test_a_decision_is_told_after_the_failure_that_it_follows(
    telemetry: Captured, operation: str, then: Reaction, expected: str
) -> None:
    """The event of a decision comes after that of the failure."""
    faults: list[Any] = [down()]

    @tool(idempotent=True)
    async def flaky() -> str:
        """Fail once."""
        if operation == "tool" and faults:
            raise faults.pop()
        return "fine"

    provider = Lists(*(faults if operation == "discovery" else ()))
    answers = faults if operation == "inference" else [ToolCall("flaky")] if operation == "tool" else []
    rule = Rule(when=lambda s: s.error is not None and s.operation == operation, then=then, kind="k")
    model = ScriptedModel(*answers, "hi")
    tools = [flaky] if operation == "tool" else []
    agent = Agent("a", model=model, tools=tools, providers=[provider], reliability=rules(rule))
    with suppress(ReliabilityFailFast):
        await within(agent.run("go"))
    prefixes = {"discovery": "tools.discovery_", "tool": "tool.", "inference": "inference."}[operation], "reliability."
    names = [event.name for event in telemetry.events if event.name.startswith(prefixes)]
    first = names.index(f"{prefixes[0]}failed")
    assert [name.removeprefix(prefixes[0]).removeprefix(prefixes[1]) for name in names[first:]] == expected.split()


async def test_the_last_known_catalogue_stands_in(telemetry: Captured) -> None:
    """`last_known_catalog` gives the last list of the same tenant as stale, and without one the failure stays."""
    provider = Lists()
    rule = Rule(when=failed_discovery, then=fallback(last_known_catalog), kind="degraded")
    model = ScriptedModel("one", ToolCall("add", {"a": 1, "b": 2}), "two")
    agent = Agent("a", model=model, providers=[provider], reliability=rules(rule))
    mine, other = Identity(tenant="mine"), Identity(tenant="other")
    await within(agent.run("go", identity=mine))
    provider.faults = [OSError("down")] * 3
    assert (await within(agent.run("go", identity=mine))).output == "two"
    caches = [attributes(span)["pellucid.discovery.cache"] for span in telemetry.find("discover_tools hub")]
    assert caches == ["none", "stale", "stale"]
    assert [event.name for event in telemetry.events].count("tools.catalog_stale") == 2
    with pytest.raises(DiscoveryError) as caught:
        await within(agent.run("go", identity=other))
    assert caught.value.__notes__ == ["the rule 'degraded' could not fall back: nothing_known"]


async def test_other_tools_stand_in_for_a_provider() -> None:
    """A fallback for a provider may return other tools."""
    provider = DiscoveryProvider(FakeHub(faults=[OSError("down")] * 9), id="hub")
    rule = Rule(when=failed_discovery, then=fallback(lambda s: [add]), kind="degraded")
    model = ScriptedModel(ToolCall("add", {"a": 1, "b": 2}), "3")
    agent = Agent("a", model=model, providers=[provider], reliability=rules(rule))
    assert (await within(agent.run("go"))).output == "3"


async def test_only_idempotent_tools_are_tried_again(telemetry: Captured) -> None:
    """A rule repeats only idempotent tools, and the span of another one says why it is not repeated."""
    calls: list[str] = []

    def failing(name: str, *, idempotent: bool) -> Tool:
        async def run(arguments: Any, ctx: Any) -> str:
            calls.append(name)
            if len(calls) < 3:
                raise ToolError("busy")
            return "done"

        return Tool(name=name, run=run, idempotent=idempotent)

    model = ScriptedModel(ToolCall("safe"), "ok")
    agent = Agent("a", model=model, tools=[failing("safe", idempotent=True)], reliability=rules(TWICE))
    await within(agent.run("go"))
    assert calls == ["safe"] * 3
    assert ending(telemetry.span("execute_tool safe"))[0] == "completed"
    calls.clear()
    once = ScriptedModel(ToolCall("pay"), "ok")
    await within(Agent("a", model=once, tools=[failing("pay", idempotent=False)], reliability=rules(TWICE)).run("go"))
    assert calls == ["pay"]
    [barred] = [event for event in telemetry.span("execute_tool pay").events if event.name.startswith("rel")]
    assert (barred.attributes or {})["pellucid.reliability.kind"] == "not_idempotent"


async def test_a_value_stands_in_for_a_tool() -> None:
    """The value of a fallback for a tool is the result that the model reads."""

    @tool
    async def price() -> int:
        """Ask."""
        raise ToolError("closed")

    rule = Rule(when=lambda s: s.tool_name == "price" and s.error is not None, then=fallback(lambda s: 42), kind="x")
    model = ScriptedModel(ToolCall("price"), "ok")
    result = await within(Agent("a", model=model, tools=[price], reliability=rules(rule)).run("go"))
    part: Any = result.messages[2].parts[0]
    assert (part.response, part.is_error) == (42, False)


async def test_a_rule_may_end_the_run_for_a_tool(telemetry: Captured) -> None:
    """`fail_fast` for a tool ends the run in the middle of several calls."""

    @tool
    async def broken() -> str:
        """Break."""
        raise ToolError("broken")

    rule = Rule(when=lambda s: s.tool_name == "broken" and s.error is not None, then=fail_fast(), kind="x")
    model = ScriptedModel([ToolCall("broken"), ToolCall("add", {"a": 1, "b": 2})])
    with pytest.raises(ReliabilityFailFast, match="tool of 'broken'"):
        await within(Agent("a", model=model, tools=[broken, add], reliability=rules(rule)).run("go"))


async def test_a_cancellation_is_never_tried_again() -> None:
    """A cancellation is not repeated."""
    token, calls = CancelToken(), 0

    async def stop(arguments: Any, ctx: Any) -> None:
        nonlocal calls
        calls += 1
        token.cancel()
        await anyio.sleep_forever()

    greedy = Rule(when=lambda s: s.operation == "tool" and s.attempt > 0, then=retry(), kind="x")
    agent = Agent(
        "a", model=ScriptedModel(ToolCall("stop")), tools=[Tool(name="stop", run=stop, idempotent=True)],
        reliability=rules(greedy),
    )  # fmt: skip
    with pytest.raises(RunCancelled):
        await within(agent.run("go", signal=token))
    assert calls == 1


async def test_rules_without_a_word_about_errors_are_about_failures(telemetry: Captured) -> None:
    """A rule that does not mention errors neither repeats nor replaces a success."""
    given = [
        Rule(when=lambda s: s.operation == "discovery" and s.attempt < 3, then=retry(backoff=0.2), kind="transient"),
        Rule(when=lambda s: s.operation == "inference", then=retry_other(), kind="next-model"),
        Rule(when=lambda s: s.operation == "discovery", then=fallback(last_known_catalog), kind="degraded"),
        Rule(when=lambda s: s.operation == "tool", then=fallback(lambda s: 0), kind="canned"),
    ]
    first = ScriptedModel(ToolCall("add", {"a": 1, "b": 2}), "one", ToolCall("add", {"a": 1, "b": 2}), down())
    model = FallbackModel(first, ScriptedModel("two", name="other"))
    provider = Lists()
    agent = Agent("a", model=model, providers=[provider], reliability=rules(*given))
    result = await within(agent.run("go"))
    part: Any = result.messages[2].parts[0]
    assert (result.output, part.response) == ("one", 3)
    assert told(telemetry) == []
    provider.faults = [OSError("down")] * 3
    assert (await within(agent.run("go"))).output == "two"
    assert told(telemetry) == [
        ("retried", "transient", 1),
        ("retried", "transient", 2),
        ("fell_back", "degraded", 3),
        ("retried", "next-model", 1),
        ("recovered", None, 2),
    ]


async def test_only_what_is_done_is_told(telemetry: Captured) -> None:
    """A decision that cannot be carried out is not counted, and the span says why."""
    too_long = Rule(when=lambda s: s.error is not None, then=retry(max_backoff=10.0), kind="x")
    other = Rule(when=lambda s: s.error is not None, then=retry_other(), kind="x")
    canned = Rule(when=lambda s: s.error is not None, then=fallback(last_known_catalog), kind="x")
    for rule, model, limits in (
        (too_long, ScriptedModel(down(retry_after=60.0)), Limits()),
        (too_long, ScriptedModel(down(retry_after=9.0)), Limits(timeout=5.0)),
        (other, ScriptedModel(down()), Limits()),
    ):
        with pytest.raises(ModelError, match="down"):
            await within(Agent("a", model=model, limits=limits, reliability=rules(rule)).run("go"))
    with pytest.raises(DiscoveryError):
        await within(
            Agent("a", model=ScriptedModel(), providers=[Lists(OSError("x"))], reliability=rules(canned)).run("go")
        )
    spans = [*telemetry.find("chat"), telemetry.span("discover_tools hub")]
    why = [
        (event.name, (event.attributes or {})["pellucid.reliability.kind"])
        for span in spans
        for event in span.events
        if event.name.startswith("reliability.")
    ]
    assert why == [
        ("reliability.not_retried", "retry_after"),
        ("reliability.not_retried", "deadline"),
        ("reliability.not_retried", "no_other"),
        ("reliability.not_fallen_back", "nothing_known"),
    ]
    assert (told(telemetry), decisions(telemetry)) == ([], {})
    assert [event.name for event in telemetry.events].count("tools.discovery_failed") == 1


async def test_a_discovery_that_fails_in_the_end_counts_its_attempts(telemetry: Captured) -> None:
    """The span of a failed discovery has the number of its attempts."""
    with pytest.raises(DiscoveryError):
        await within(
            Agent("a", model=ScriptedModel(), providers=[Lists(*[OSError("x")] * 3)], reliability=rules(TWICE)).run(
                "go"
            )
        )
    assert attributes(telemetry.span("discover_tools hub"))["pellucid.discovery.attempts"] == 3


async def test_what_stands_in_for_a_provider_is_not_its_last_known_catalogue() -> None:
    """The list of a fallback does not become the last known catalogue."""
    down_first = Rule(when=lambda s: failed_discovery(s) and s.iteration == 1, then=fallback(lambda s: []), kind="x")
    then_known = Rule(when=failed_discovery, then=fallback(last_known_catalog), kind="y")
    provider = Lists(OSError("1"), OSError("2"))
    agent = Agent(
        "a",
        model=ScriptedModel(ToolCall("gone"), "ok"),
        providers=[provider],
        reliability=rules(down_first, then_known),
    )
    with pytest.raises(DiscoveryError) as caught:
        await within(agent.run("go"))
    assert caught.value.__notes__ == ["the rule 'y' could not fall back: nothing_known"]


@pytest.mark.parametrize("operation", ["discovery", "inference", "tool"])
async def test_a_fallback_that_fails_is_not_what_is_raised(telemetry: Captured, operation: str) -> None:
    """If a fallback fails, the original failure stays, with a note about the fallback."""

    @tool
    async def price() -> int:
        """Ask."""
        raise ToolError("closed")

    def broken(situation: Situation) -> Any:
        raise KeyError("no such thing")

    rule = Rule(when=lambda s: s.operation == operation, then=fallback(broken), kind="canned")
    model = ScriptedModel(down()) if operation == "inference" else ScriptedModel(ToolCall("price"), "ok")
    provider = Lists(OSError("x")) if operation == "discovery" else static_tools([price])
    run = Agent("a", model=model, providers=[provider], reliability=rules(rule)).run("go")
    if operation == "tool":
        part: Any = (await within(run)).messages[2].parts[0]
        assert part.response == "closed"
        return
    with pytest.raises(DiscoveryError if operation == "discovery" else ModelError) as caught:
        await within(run)
    assert caught.value.__notes__ == ["the fallback of the rule 'canned' also failed: KeyError: 'no such thing'"]


async def test_nothing_stands_in_for_the_rest_of_a_stream(telemetry: Captured) -> None:
    """No fallback replaces the rest of a stream that was read in part."""

    class Breaking(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            """Yield a piece, then fail."""
            yield ModelDelta("text", "Once")
            raise down()

    rule = Rule(when=lambda s: s.error is not None, then=fallback(lambda s: "sorry"), kind="canned")

    async def read() -> None:
        async with Agent("a", model=Breaking("x"), reliability=rules(rule)).stream("go") as events:
            async for _ in events:
                pass

    with pytest.raises(ModelError, match="down") as caught:
        await within(read())
    assert caught.value.__notes__ == ["the rule 'canned' could not fall back: mid_stream"]


async def test_what_a_tool_failure_means() -> None:
    """The kind of a tool's failure tells a timeout, invalid arguments and a `ToolError` apart."""
    seen: list[Any] = []

    async def hang(arguments: Any, ctx: Any) -> None:
        await anyio.sleep_forever()

    async def refuse(arguments: Any, ctx: Any) -> None:
        raise ToolError("no")

    def look(situation: Situation) -> bool:
        if situation.operation == "tool":
            seen.append(situation.error_kind)
        return False

    tools = [Tool(name="hang", run=hang, timeout=0.01), add, Tool(name="refuse", run=refuse)]
    model = ScriptedModel(ToolCall("hang"), ToolCall("add", {"a": "x"}), ToolCall("refuse"), "ok")
    look_only = Rule(when=look, then=ok(), kind="look")
    await within(Agent("a", model=model, tools=tools, reliability=rules(look_only)).run("go"))
    assert seen == ["timeout", "invalid_request", "tool_error"]


async def test_a_provider_that_fails_because_it_is_cancelled_is_not_asked_again() -> None:
    """A provider that fails because its run is cancelled is not called again."""
    token, calls = CancelToken(), 0

    class Stops:
        id = "stops"

        def list_tools(self, ctx: DiscoveryContext) -> list[Tool]:
            nonlocal calls
            calls += 1
            token.cancel()
            raise OSError("cancelled, so to say")

    rule = Rule(when=lambda s: s.error is not None, then=retry(backoff=0.0), kind="x")
    agent = Agent("a", model=ScriptedModel(), providers=[Stops()], reliability=rules(rule))
    with pytest.raises(RunCancelled):
        await within(agent.run("go", signal=token))
    assert calls == 1


async def test_rules_of_one_kind_that_raise_are_counted_one_by_one(telemetry: Captured) -> None:
    """Each of several rules that raise is counted and skipped."""
    asked: list[int] = []

    def note(number: int, *, breaks: bool) -> Any:
        def when(situation: Situation) -> bool:
            if situation.operation == "inference":
                asked.append(number)
                if breaks:
                    raise RuntimeError(str(number))
            return False

        return when

    given = [Rule(when=note(n, breaks=n > 1), then=retry(), kind="same") for n in (1, 2, 3)]
    await within(Agent("a", model=ScriptedModel("hi"), reliability=rules(*given, fails_closed=False)).run("go"))
    assert asked == [1, 2, 3]
    [point] = [point for point in telemetry.metrics if point.name == "pellucid.telemetry.errors"]
    assert point.value == 2


async def test_what_is_no_rule_is_refused() -> None:
    """A wrong rule is refused when it is made, with what to do."""

    async def wait(situation: Situation) -> bool:
        return True

    bad: list[tuple[Any, str]] = [
        (lambda: Reliability(["x"]), "is not a Rule"),  # type: ignore[list-item]
        (lambda: Rule(when=True, then=retry(), kind="x"), "is not a function"),  # type: ignore[arg-type]
        (lambda: Rule(when=wait, then=retry(), kind="x"), "is async"),
        (lambda: Rule(when=always, then=retry, kind="x"), "call it, as in then=retry"),  # type: ignore[arg-type]
        (lambda: Rule(when=always, then=retry(), kind=""), "kind must not be empty"),
        (lambda: Rule(when=always, then=retry(), kind="x", on="never"), "is not an outcome"),  # type: ignore[arg-type]
        (
            lambda: rules(pre_check=[Rule(when=always, then=fail_fast(), kind="x", on="any")]),
            "before the first attempt",
        ),
        (lambda: retry(backoff=-1), "must not be negative"),
        (lambda: fallback("x"), "pass a function"),  # type: ignore[arg-type]
    ]
    for make, said in bad:
        with pytest.raises(ConfigError, match=said):
            make()


def test_names_of_telemetry() -> None:
    """The metrics of decisions and circuits have the names that dashboards use."""
    assert semconv.RELIABILITY_DECISIONS.name == "pellucid.reliability.decisions"
    assert semconv.CIRCUIT_STATE.name == "pellucid.circuit.state"
    assert issubclass(CircuitOpen, Exception)
