from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pellucid import (
    Agent,
    CancelToken,
    ConfigError,
    DiscoveryProvider,
    Identity,
    Limits,
    Message,
    ModelError,
    ModelResponse,
    TextPart,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    Usage,
    combined,
    semconv,
    static_tools,
    tool,
)
from pellucid.errors import InvalidCatalog, ToolNameCollision
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from pellucid_exporters.testing import capture, check_telemetry
from support.runs import COMPLETED, attributes, ending, iteration, span_id, within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from pellucid import DiscoveryContext, ModelRequest
    from pellucid.models import Settings
    from pellucid_exporters.testing import Captured, Tree

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = ToolCall("add", {"a": 1, "b": 2})


def answer(text: str | ToolCall, **usage: Any) -> ModelResponse:
    """Return a response with usage."""
    message = Message("assistant", text if isinstance(text, str) else [text])
    return ModelResponse(
        message=message, usage=Usage(**usage), finish_reason="stop" if isinstance(text, str) else "tool_call"
    )


# --- one run ----------------------------------------------------------------------------------------------------------


async def test_a_run_without_tools_is_one_iteration(telemetry: Captured) -> None:
    """A run without tools has the same shape of trace as any other run."""
    result = await within(Agent("a", model=ScriptedModel("Rain.")).run("Will it rain?"))
    assert (result.status, result.output, result.stop_reason, result.iterations) == ("completed", "Rain.", "stop", 1)
    assert result.messages == (Message("user", "Will it rain?"), Message("assistant", "Rain."))
    assert result.degraded == ()
    assert telemetry.tree() == [("invoke_agent a", iteration())]
    check_telemetry(telemetry)


async def test_each_phase_of_each_iteration_is_one_span(telemetry: Captured) -> None:
    """The spans of an iteration are siblings below the run's span, with the number of the iteration."""
    model = ScriptedModel(ADD, [ToolCall("add", {"a": 3, "b": 4})], "7")
    await within(Agent("a", model=model, tools=[add]).run("Add."))
    assert telemetry.tree() == [("invoke_agent a", [*iteration("add"), *iteration("add"), *iteration()])]
    phases = [span for span in telemetry.spans if span.parent is not None]
    assert [attributes(span)[semconv.ITERATION] for span in phases] == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]
    assert {ending(span) for span in telemetry.spans} == {COMPLETED}
    check_telemetry(telemetry)


async def test_the_result_names_its_trace_and_run(telemetry: Captured) -> None:
    """`trace_id` and `run_id` of a result are those of its spans, events and log lines."""
    result = await within(Agent("a", model=ScriptedModel("x")).run("y"))
    assert {event.trace_id for event in telemetry.events} == {result.trace_id}
    assert {attributes(span)[semconv.RUN_ID] for span in telemetry.spans} == {result.run_id}
    assert {line["run_id"] for line in telemetry.logs} == {result.run_id}


async def test_the_run_span_says_what_the_run_came_to(telemetry: Captured) -> None:
    """The span of a run has its usage, iterations, stop reason and conversation."""
    model = ScriptedModel(answer(ADD, input_tokens=10, output_tokens=2), answer("3", input_tokens=20, output_tokens=3))
    agent = Agent("a", model=model, tools=[add], description="Adds.")
    await within(agent.run("Add.", identity=Identity(conversation_id="c1")))
    found = attributes(telemetry.span("invoke_agent"))
    assert found[semconv.AGENT_NAME] == "a"
    assert found[semconv.AGENT_DESCRIPTION] == "Adds."
    assert found[semconv.CONVERSATION_ID] == "c1"
    assert found[semconv.REQUEST_MODEL] == "scripted"
    assert found[semconv.ITERATIONS] == 2
    assert found[semconv.STOP_REASON] == "stop"
    assert found[semconv.RESPONSE_FINISH_REASONS] == ("stop",)
    assert (found[semconv.USAGE_INPUT_TOKENS], found[semconv.USAGE_OUTPUT_TOKENS]) == (30, 5)


async def test_the_value_of_each_duration_is_that_of_its_span(telemetry: Captured) -> None:
    """Each duration histogram has exemplars that point to the spans with these durations."""
    await within(Agent("a", model=ScriptedModel(ADD, "3"), tools=[add]).run("Add."))
    spans = {span_id(span): span for span in telemetry.spans}
    metrics = (
        semconv.DISCOVERY_DURATION,
        semconv.COMPOSE_DURATION,
        semconv.OPERATION_DURATION,
        semconv.TOOL_DURATION,
        semconv.AGENT_DURATION,
    )
    for metric in metrics:
        point = telemetry.histogram(metric)
        assert point.bounds == metric.buckets
        assert point.exemplars
        for exemplar in point.exemplars:
            span = spans[exemplar.span_id]
            assert span.end_time is not None
            assert span.start_time is not None
            assert exemplar.value == pytest.approx((span.end_time - span.start_time) / 1e9)


async def test_captured_telemetry_is_the_same_every_time(telemetry: Captured) -> None:
    """Captured telemetry of equal runs is equal, ids and times included."""
    seen = []
    for _ in range(2):
        with capture() as captured:
            await within(Agent("a", model=ScriptedModel(ADD, "3"), tools=[add]).run("Add."))
        seen.append([(span.name, span.context, span.start_time, span.end_time) for span in captured.spans])
    assert seen[0] == seen[1]
    assert telemetry.spans == []


async def test_a_run_continues_the_ambient_trace(telemetry: Captured) -> None:
    """A `traceparent` of the caller's context is the parent of the run, and is restored afterwards."""
    carrier = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    token = otel_context.attach(TraceContextTextMapPropagator().extract(carrier))
    try:
        result = await within(Agent("a", model=ScriptedModel("x")).run("y"))
        assert trace.get_current_span().get_span_context().span_id == 0xB7AD6B7169203331
    finally:
        otel_context.detach(token)
    assert result.trace_id == "0af7651916cd43dd8448eb211c80319c"
    root = telemetry.span("invoke_agent")
    assert root.parent is not None
    assert root.parent.span_id == 0xB7AD6B7169203331


async def test_spans_of_tools_and_models_are_below_their_phase(telemetry: Captured) -> None:
    """Spans that a tool, a provider or a model makes are below the span of their phase."""
    tracer = telemetry.tracer_provider.get_tracer("application")

    def traced(name: str) -> str:
        with tracer.start_as_current_span(name):
            return "done"

    class Provider:
        id = "mine"

        async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            traced("list")
            return [Tool(name="t", run=lambda arguments, ctx: traced("in thread"))]

    model = ScriptedModel(lambda request: traced("think") and ToolCall("t"), "done")
    await within(Agent("a", model=model, providers=[Provider()]).run("x"))
    [(_, phases)] = telemetry.tree()
    assert phases[:4] == [
        ("discover_tools mine", [("list", [])]),
        ("compose_request", []),
        ("chat scripted", [("think", [])]),
        ("execute_tool t", [("in thread", [])]),
    ]


# --- what goes in -----------------------------------------------------------------------------------------------------


async def test_history_and_instructions_reach_the_model() -> None:
    """The model is sent the history before the input, and the instructions apart from both."""
    first = await within(Agent("a", model=ScriptedModel("Hi.")).run("I am Ann."))
    model = ScriptedModel("Ann.")
    agent = Agent("a", model=model, instructions="Be brief.")
    second = await within(agent.run("Who am I?", history=first.messages))
    assert [message.text for message in model.requests[0].messages] == ["I am Ann.", "Hi.", "Who am I?"]
    assert model.requests[0].instructions == "Be brief."
    assert [message.text for message in second.messages] == ["I am Ann.", "Hi.", "Who am I?", "Ann."]


@pytest.mark.parametrize("given", ["x", Message("user", "x"), [Message("user", [TextPart("x")])]])
async def test_input_is_a_text_a_message_or_several(given: Any) -> None:
    """The input may be a text, a message or a list of messages."""
    model = ScriptedModel("y")
    await within(Agent("a", model=model).run(given))
    assert model.requests[0].messages == (Message("user", "x"),)


@pytest.mark.parametrize("given", [[], ["x"], None])
async def test_other_input_is_refused(given: Any) -> None:
    """An input that is no message is refused before anything starts."""
    with pytest.raises((ConfigError, TypeError)):
        await within(Agent("a", model=ScriptedModel("y")).run(given))


async def test_context_reaches_providers_and_tools() -> None:
    """Providers and tools get the caller's identity, deps and signal, and the iteration."""
    seen: list[ToolContext] = []
    asked: list[DiscoveryContext] = []

    async def look(arguments: Any, ctx: ToolContext) -> str:
        seen.append(ctx)
        return "ok"

    class Provider:
        id = "mine"

        def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            asked.append(ctx)
            return [Tool(name="look", run=look)]

    who, signal = Identity(tenant="t1", principal="p1"), CancelToken()
    agent = Agent("a", model=ScriptedModel(ToolCall("look", id="c1"), "done"), providers=[Provider()])
    result = await within(agent.run("x", identity=who, signal=signal, deps={"db": 1}))
    [ctx] = seen
    assert (ctx.run_id, ctx.iteration, ctx.tool_call_id) == (result.run_id, 1, "c1")
    assert (ctx.identity, ctx.signal, ctx.deps, ctx.expires_at) == (who, signal, {"db": 1}, None)
    assert [(each.iteration, each.identity, each.signal) for each in asked] == [(1, who, signal), (2, who, signal)]


async def test_tool_results_are_the_next_request() -> None:
    """The model reads the result of each call under its id, and a call without an id gets one."""
    model = ScriptedModel([ADD, ToolCall("add", {"a": 5, "b": 5}, id="mine")], "done")
    await within(Agent("a", model=model, tools=[add]).run("Add."))
    asked, answered = model.requests[1].messages[-2:]
    first, second = asked.tool_calls
    assert first.id
    assert second.id == "mine"
    assert [(part.id, part.response) for part in answered.parts if isinstance(part, ToolResult)] == [
        (first.id, 3),
        ("mine", 10),
    ]


# --- limits and usage -------------------------------------------------------------------------------------------------


async def test_a_run_out_of_iterations_asks_for_a_closing_answer(telemetry: Captured) -> None:
    """After the last iteration the model is asked once more without tools."""
    model = FunctionModel(lambda request: ADD if request.tools else "Not done.")
    result = await within(Agent("a", model=model, tools=[add], limits=Limits(max_iterations=2)).run("Add."))
    assert (result.status, result.stop_reason, result.iterations) == ("limit_reached", "max_iterations", 2)
    assert result.output == "Not done."
    assert [len(request.tools) for request in model.requests] == [1, 1, 0]
    closing: list[Tree] = [("compose_request", []), ("chat function", [])]
    two = iteration("add", model="function") * 2
    assert telemetry.tree() == [("invoke_agent a", [*two, *closing])]
    assert telemetry.histogram(semconv.RUN_ITERATIONS, pellucid_stop_reason="max_iterations").value == 2
    check_telemetry(telemetry)


async def test_a_closing_answer_that_calls_tools_anyway_is_stripped_of_them() -> None:
    """A closing answer that calls tools is kept without the calls."""
    model = FunctionModel(lambda request: Message("assistant", [TextPart("Well."), ADD]))
    result = await within(Agent("a", model=model, tools=[add], limits=Limits(max_iterations=1)).run("Add."))
    assert result.messages[-1] == Message("assistant", "Well.")


async def test_calls_beyond_max_tool_calls_are_refused() -> None:
    """Calls beyond `max_tool_calls` get an error with the limit, and a closing answer is asked for."""
    model = FunctionModel(lambda request: [ADD, ADD] if request.tools else "One was enough.")
    limits = Limits(max_tool_calls=1, parallel_tools=1)
    result = await within(Agent("a", model=model, tools=[add], limits=limits).run("Add."))
    assert (result.status, result.stop_reason, result.output) == ("limit_reached", "max_tool_calls", "One was enough.")
    results = [part for part in model.requests[1].messages[-1].parts if isinstance(part, ToolResult)]
    assert sorted(part.is_error for part in results) == [False, True]
    assert "the limit of 1 tool calls for this run is reached" in str(results)


async def test_usage_is_summed_where_it_is_known() -> None:
    """The usage of a run is the sum of the known figures."""
    model = ScriptedModel(
        answer(ADD, input_tokens=10, output_tokens=2), answer(ADD, output_tokens=4), answer("x", input_tokens=5)
    )
    result = await within(Agent("a", model=model, tools=[add]).run("x"))
    assert result.usage == Usage(input_tokens=15, output_tokens=6)


async def test_a_run_that_fails_says_what_it_has_used(telemetry: Captured) -> None:
    """The span and log line of a failed run have its tokens and iterations."""
    model = ScriptedModel(answer(ADD, input_tokens=10, output_tokens=2), RuntimeError("overloaded"))
    with pytest.raises(ModelError):
        await within(Agent("a", model=model, tools=[add]).run("go"))
    found = attributes(telemetry.span("invoke_agent"))
    assert (found[semconv.ITERATIONS], found[semconv.USAGE_INPUT_TOKENS], found[semconv.USAGE_OUTPUT_TOKENS]) == (
        2,
        10,
        2,
    )
    line = next(line for line in telemetry.logs if line["event"] == "run.failed")
    assert (line["iterations"], line["input_tokens"], line["output_tokens"]) == (2, 10, 2)


async def test_unknown_usage_leaves_no_trace(telemetry: Captured) -> None:
    """Unknown usage is neither an attribute nor a measurement."""
    await within(Agent("a", model=ScriptedModel("x")).run("y"))
    assert all(semconv.USAGE_INPUT_TOKENS not in attributes(span) for span in telemetry.spans)
    assert all(point.name != semconv.TOKEN_USAGE.name for point in telemetry.metrics)


async def test_known_usage_is_measured(telemetry: Captured) -> None:
    """The token histogram counts input and output tokens apart."""
    await within(Agent("a", model=ScriptedModel(answer("x", input_tokens=7, output_tokens=3))).run("y"))
    assert telemetry.histogram(semconv.TOKEN_USAGE, gen_ai_token_type="input").value == 7
    assert telemetry.histogram(semconv.TOKEN_USAGE, gen_ai_token_type="output").value == 3


# --- failures ---------------------------------------------------------------------------------------------------------


async def test_a_failing_model_fails_the_run(telemetry: Captured) -> None:
    """A failing model ends the run with an error that names it, and both spans have the type of the cause."""
    cause = ConnectionError("refused")
    with pytest.raises(ModelError, match="model 'scripted' failed: ConnectionError: refused") as caught:
        await within(Agent("a", model=ScriptedModel(cause)).run("x"))
    assert caught.value.__cause__ is cause
    expected = ("failed", "ERROR", "ConnectionError")
    assert ending(telemetry.span("chat")) == ending(telemetry.span("invoke_agent")) == expected
    assert telemetry.histogram(semconv.OPERATION_DURATION, error_type="ConnectionError").count == 1
    check_telemetry(telemetry)


async def test_a_model_that_takes_too_long_is_a_timeout(telemetry: Captured) -> None:
    """`Limits.model_timeout` bounds each call."""
    model = FunctionModel(lambda request: anyio.sleep_forever())  # type: ignore[arg-type,return-value]  # never returns
    with pytest.raises(ModelError, match=r"no answer within 0\.01 s"):
        await within(Agent("a", model=model, limits=Limits(model_timeout=0.01)).run("x"))
    assert ending(telemetry.span("chat")) == ("timeout", "ERROR", "timeout")
    check_telemetry(telemetry)


async def test_a_model_that_returns_something_else_is_an_error(telemetry: Captured) -> None:
    """The error about a model that does not return a `ModelResponse` names the type of the object."""

    class Odd:
        name = "odd"
        provider_name = "test"

        async def generate(self, request: ModelRequest) -> Any:
            return {"text": "hi"}

        def stream(self, request: ModelRequest) -> Any:
            raise NotImplementedError

    with pytest.raises(ModelError, match="an object of type dict instead of a ModelResponse"):
        await within(Agent("a", model=Odd()).run("x"))
    assert ending(telemetry.span("chat")) == ("failed", "ERROR", "invalid_response")


async def test_a_name_that_two_providers_offer_is_a_collision(telemetry: Captured) -> None:
    """Two providers with a tool of one name raise `ToolNameCollision`, and the compose span fails."""

    class Other:
        id = "other"

        def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            return [add]

    with pytest.raises(ToolNameCollision, match="'add' is offered by both 'static' and 'other'"):
        await within(Agent("a", model=ScriptedModel(), tools=[add], providers=[Other()]).run("x"))
    assert ending(telemetry.span("compose_request")) == ("failed", "ERROR", "tool_name_collision")
    check_telemetry(telemetry)


async def test_a_provider_that_is_skipped_degrades_the_result(telemetry: Captured) -> None:
    """A provider that fails and is skipped is in `degraded` of the result."""
    bad = DiscoveryProvider(FakeHub(faults=[OSError("down")]), id="bad")
    agent = Agent("a", model=ScriptedModel("done"), providers=[combined(bad, static_tools([add]), on_error="skip")])
    result = await within(agent.run("x"))
    assert result.degraded == ("bad",)
    assert ending(telemetry.span("discover_tools bad")) == ("failed", "ERROR", "OSError")
    check_telemetry(telemetry)


class EchoModel:
    """A model whose name belongs to its class."""

    name = "echo"
    provider_name = "acme"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Repeat the input."""
        return ModelResponse(message=Message("assistant", request.messages[-1].text))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelResponse]:
        """Repeat the input."""
        yield await self.generate(request)


async def test_settings_are_those_that_the_agent_was_made_with() -> None:
    """A change of the settings dictionary after the agent is made has no effect."""
    settings: Settings = {"temperature": 0.1, "extra": {"a": 1}}
    model = ScriptedModel("hi")
    agent = Agent("a", model=model, settings=settings)
    settings["temperature"] = 0.9
    await within(agent.run("x"))
    assert model.requests[0].settings == {"temperature": 0.1, "extra": {"a": 1}}


def test_options_that_cannot_work_are_refused() -> None:
    """Wrong options are refused when the agent is made, with what to do."""
    with pytest.raises(ConfigError, match="name must not be empty"):
        Agent("", model=ScriptedModel())
    with pytest.raises(ConfigError, match="unknown model 'gpt-4'"):
        Agent("a", model="gpt-4")
    with pytest.raises(ConfigError, match="is not a model"):
        Agent("a", model=object())  # type: ignore[call-overload]  # the mistake under test
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        Agent("a", model=ScriptedModel(), settings={"temprature": 1})  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="EchoModel is a class; create a model"):
        Agent("a", model=EchoModel)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="stop_sequences must be a list"):
        Agent("a", model=ScriptedModel(), settings={"stop_sequences": "END"})
    with pytest.raises(ConfigError, match=r"prices must be a function .* PriceTable"):
        Agent("a", model=ScriptedModel(), prices={"scripted": 1.0})  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="duplicate provider id"):
        Agent("a", model=ScriptedModel(), providers=[static_tools([]), static_tools([add])])
    with pytest.raises(ConfigError, match="is not a tool provider"):
        Agent("a", model=ScriptedModel(), providers=[add])  # type: ignore[list-item]  # the mistake under test
    with pytest.raises(InvalidCatalog, match="two tools are called 'add'"):
        Agent("a", model=ScriptedModel(), tools=[add, add])


# --- many runs --------------------------------------------------------------------------------------------------------


async def test_runs_at_the_same_time_do_not_mix(telemetry: Captured) -> None:
    """Each of several concurrent runs has its own trace."""
    agent = Agent("a", model=FunctionModel(lambda request: ADD if len(request.messages) == 1 else "3"), tools=[add])
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(agent.run, "Add.")
    whole = ("invoke_agent a", [*iteration("add", model="function"), *iteration(model="function")])
    assert telemetry.tree() == [whole] * 20
    runs: dict[int, set[Any]] = {}
    for span in telemetry.spans:
        assert span.context is not None
        runs.setdefault(span.context.trace_id, set()).add(attributes(span)[semconv.RUN_ID])
    assert [len(ids) for ids in runs.values()] == [1] * 20
    check_telemetry(telemetry)


@pytest.mark.anyio
async def test_a_run_that_never_waits_lets_other_tasks_run() -> None:
    """Other tasks run in each iteration, even if neither the model nor a tool waits."""
    iterations, turns = 20, 0

    @tool
    async def quick() -> str:
        """Return at once."""
        return "ok"

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    calls = iter(range(1, iterations + 1))
    model = FunctionModel(lambda _: ToolCall("quick", {}, f"c{number}") if (number := next(calls, None)) else "done")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        await Agent("a", model=model, tools=[quick], limits=Limits(max_iterations=iterations + 1)).run("go")
        tasks.cancel_scope.cancel()
    assert turns >= iterations
