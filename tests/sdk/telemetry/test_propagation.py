from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import format_span_id

import pellucid
from pellucid import Agent, CapturePolicy, DiscoveryProvider, TelemetryOptions, ToolCall, semconv, tool
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from support import scene
from support.runs import attributes, span_id, within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = {
    "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
    "tracestate": "vendor=opaque,other=1",
    "baggage": "tenant=acme",
}


@pytest.fixture
def caller() -> Iterator[None]:
    """The context of a request that came in."""
    attached = context.attach(propagate.extract(CALLER))
    yield
    context.detach(attached)


def here() -> dict[str, str]:
    """Return what a request that is sent from here would carry."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


class Places:
    """An agent that notes what is current in each place that user code runs in."""

    def __init__(self, telemetry: Any = None) -> None:
        self.seen: dict[str, dict[str, str]] = {}

        @tool
        async def in_task() -> str:
            self.seen["tool"] = here()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.note, "task")
            return "ok"

        @tool
        def in_thread() -> str:
            self.seen["thread"] = here()
            return "ok"

        async def listed(number: int) -> Any:
            return []

        def model(request: Any) -> Any:
            self.seen["model"] = here()
            step = sum(message.role == "assistant" for message in request.messages)
            return [ToolCall("in_task", {}), ToolCall("in_thread", {})] if step == 0 else "done"

        self.hub = FakeHub()
        provider = DiscoveryProvider(self, id="hub")
        self.agent = Agent(
            "a", model=FunctionModel(model), tools=[in_task, in_thread], providers=[provider], telemetry=telemetry
        )

    async def fetch_catalog(self, ctx: object) -> list[Any]:
        """Be a hub that lists nothing."""
        self.seen["hub"] = here()
        return []

    async def note(self, place: str) -> None:
        """Note what is current in a task."""
        self.seen[place] = here()


PLACES = {"tool", "task", "thread", "model", "hub"}


@pytest.mark.parametrize("how", ["run", "stream", "run_sync"])
@pytest.mark.usefixtures("caller")
async def test_the_caller_s_trace_goes_on_everywhere(telemetry: Captured, how: str) -> None:
    """`traceparent`, `tracestate` and baggage of the caller are there wherever code of the application runs."""
    places = Places()
    if how == "run":
        await within(places.agent.run("go"))
    elif how == "stream":
        async with places.agent.stream("go") as events:
            async for _ in events:
                pass
    else:
        await within(anyio.to_thread.run_sync(places.agent.run_sync, "go"))
    assert set(places.seen) == PLACES
    for place, seen in places.seen.items():
        assert seen["traceparent"].split("-")[1] == TRACE, place
        assert (seen["tracestate"], seen["baggage"]) == (CALLER["tracestate"], CALLER["baggage"]), place
    names = {"tool": "execute_tool in_task", "task": "execute_tool in_task", "thread": "execute_tool in_thread"}
    for place, name in {**names, "model": "chat function", "hub": "discover_tools hub"}.items():
        assert places.seen[place]["traceparent"].split("-")[2] == span_id(
            telemetry.find(name)[-1 if place == "model" else 0]
        )
    run = telemetry.span("invoke_agent")
    assert run.parent is not None
    assert format_span_id(run.parent.span_id) == "b7ad6b7169203331"


@pytest.mark.usefixtures("caller")
async def test_without_an_sdk_the_caller_s_own_span_is_current_everywhere() -> None:
    """Providers that do nothing hide nothing: what is sent on is what came in."""
    places = Places(TelemetryOptions(tracer_provider=trace.NoOpTracerProvider()))
    await within(places.agent.run("go"))
    assert places.seen == dict.fromkeys(PLACES, CALLER)


@pytest.mark.usefixtures("caller")
async def test_a_run_that_is_not_sampled_says_so_to_whom_it_calls(telemetry: Captured) -> None:
    """The trace goes on with the flag unset; there are metrics, and events and log lines with its id, but no spans."""
    telemetry.is_checked = False  # there are measurements without spans
    pipeline = TelemetryOptions(
        tracer_provider=TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False),
        meter_provider=telemetry.meter_provider,
        listeners=telemetry.listeners,
        log_sinks=telemetry.log_sinks,
    )
    places = Places(pipeline)
    await within(places.agent.run("go"))
    for seen in places.seen.values():
        _, trace_id, _, flags = seen["traceparent"].split("-")
        assert (trace_id, flags, seen["baggage"]) == (TRACE, "00", "tenant=acme")
    assert telemetry.spans == []
    assert telemetry.histogram(semconv.AGENT_DURATION).count == 1
    assert telemetry.histogram(semconv.AGENT_DURATION).exemplars == ()
    assert {line["trace_id"] for line in telemetry.logs} == {event.trace_id for event in telemetry.events} == {TRACE}


@pytest.mark.parametrize("how", ["run", "stream"])
async def test_a_caller_s_decision_not_to_sample_is_respected(telemetry: Captured, how: str) -> None:
    """With the SDK's usual sampler, a `traceparent` whose flag is unset gives no spans, and stays unset for others."""
    telemetry.is_checked = False  # there are measurements without spans
    asked = TracerProvider(shutdown_on_exit=False)
    exporter = InMemorySpanExporter()
    asked.add_span_processor(SimpleSpanProcessor(exporter))
    places = Places(TelemetryOptions(tracer_provider=asked, meter_provider=telemetry.meter_provider))
    attached = context.attach(propagate.extract({**CALLER, "traceparent": f"00-{TRACE}-b7ad6b7169203331-00"}))
    try:
        if how == "run":
            await within(places.agent.run("go"))
        else:
            async with places.agent.stream("go") as events:
                async for _ in events:
                    pass
    finally:
        context.detach(attached)
    assert exporter.get_finished_spans() == ()
    assert {tuple(seen["traceparent"].split("-")[1::2]) for seen in places.seen.values()} == {(TRACE, "00")}
    assert {(seen["tracestate"], seen["baggage"]) for seen in places.seen.values()} == {
        (CALLER["tracestate"], CALLER["baggage"])
    }


@pytest.mark.parametrize(
    "provider", [TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False), trace.NoOpTracerProvider()]
)
async def test_for_spans_that_do_not_record_nothing_is_made(provider: trace.TracerProvider) -> None:
    """No content is redacted or turned into JSON for nobody; with a recording span, the same content is."""
    redacted: list[object] = []

    def note(path: Sequence[str], value: Any) -> Any:
        redacted.append(value)
        return value

    policy = CapturePolicy("redacted", redactors=(note,))
    silent = TelemetryOptions(tracer_provider=provider, capture=policy)
    await within(scene.agent(telemetry=silent).run(scene.HISTORY, identity=scene.WHO))
    assert redacted == []
    recording = TelemetryOptions(tracer_provider=TracerProvider(shutdown_on_exit=False), capture=policy)
    await within(scene.agent(telemetry=recording).run(scene.HISTORY, identity=scene.WHO))
    assert {"Look at these.", "Helps.", "Be brief.", "Add two numbers."} <= set(redacted)


async def test_a_user_s_executor_takes_the_context_along_when_wrapped(telemetry: Captured) -> None:
    """`propagate` binds what is current now; what it returns may be called many times, at the same time too."""
    tracer = telemetry.tracer_provider.get_tracer("application")

    @tool
    async def fan_out() -> list[str]:
        def work(number: int) -> str:
            with tracer.start_as_current_span(f"work {number}"):
                return str(baggage.get_baggage("tenant"))

        with ThreadPoolExecutor(4) as executor:
            bound = pellucid.propagate(work)
            assert bound.__name__ == "work"
            futures = [executor.submit(bound, number) for number in range(8)]
            found = [future.result() for future in futures]
            found += executor.map(bound, range(8, 16))
        return found

    attached = context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        result = await within(
            Agent("a", model=ScriptedModel(ToolCall("fan_out", {}), "done"), tools=[fan_out]).run("go")
        )
    finally:
        context.detach(attached)
    call = telemetry.span("execute_tool fan_out")
    assert len(telemetry.find("work")) == 16
    assert {span.parent and format_span_id(span.parent.span_id) for span in telemetry.find("work")} == {span_id(call)}
    assert str(["acme"] * 16) in str(result.messages).replace('"', "'")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_run_in_executor_takes_the_context_along_when_wrapped(telemetry: Captured) -> None:
    """The same with the event loop's own executor, which takes nothing along by itself."""

    @tool
    async def fetch() -> list[bool]:
        loop = asyncio.get_running_loop()
        inside = trace.get_current_span().get_span_context().span_id

        def current() -> bool:
            return trace.get_current_span().get_span_context().span_id == inside

        return [
            await loop.run_in_executor(None, current),
            await loop.run_in_executor(None, pellucid.propagate(current)),
        ]

    await within(Agent("a", model=ScriptedModel(ToolCall("fetch", {}), "done"), tools=[fetch]).run("go"))
    assert attributes(telemetry.span("execute_tool"))[semconv.TOOL_CALL_RESULT] == "[false,true]"


async def test_concurrent_runs_do_not_mix(telemetry: Captured) -> None:
    """Each of 50 runs at once is a trace of its own, with its own spans."""
    places = [Places() for _ in range(50)]
    async with anyio.create_task_group() as tasks:
        for each in places:
            tasks.start_soon(each.agent.run, "go")
    traces = [{seen["traceparent"].split("-")[1] for seen in each.seen.values()} for each in places]
    assert all(len(found) == 1 for found in traces)
    assert len(set.union(*traces)) == 50


async def test_what_a_telemetry_by_hand_leaves_open_is_inherited(telemetry: Captured) -> None:
    """With only a capture policy given, spans, metrics, log lines and events go where they went."""
    policy = CapturePolicy("metadata")
    agent = Agent("a", model=ScriptedModel("hello"), telemetry=TelemetryOptions(capture=policy))
    await within(agent.run("go"))
    spans = telemetry.find("")
    assert len(telemetry.logs) == len(spans) == 4
    assert "run.completed" in {event.name for event in telemetry.events}
    assert telemetry.histogram(semconv.AGENT_DURATION).count == 1
    assert semconv.INPUT_MESSAGES not in attributes(telemetry.span("chat"))


async def test_empty_sinks_and_listeners_are_not_inherited(telemetry: Captured) -> None:
    """An empty tuple says that nobody gets log lines and events."""
    telemetry.is_checked = False  # spans without log lines and events
    silent = TelemetryOptions(log_sinks=(), listeners=())
    await within(Agent("a", model=ScriptedModel("hello"), telemetry=silent).run("go"))
    assert (len(telemetry.find("")), telemetry.logs, telemetry.events) == (4, [], [])
