from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import structlog
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler

from pellucid import (
    Agent,
    CapturePolicy,
    Message,
    ModelError,
    RunResult,
    TelemetryOptions,
    Tool,
    ToolCall,
    semconv,
    tool,
)
from pellucid.telemetry import DEFAULT_REDACTORS
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters.testing import Captured, capture, check_telemetry
from support.runs import ending, iteration, within

if TYPE_CHECKING:
    from pellucid.events import Event

pytestmark = pytest.mark.anyio

ADD = ToolCall("add", {"a": 1, "b": 2})
WHOLE = [("invoke_agent a", [*iteration("add"), *iteration()])]


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Broken(Exception):
    """A fault of an observer."""


def fail(*args: Any, **kwargs: Any) -> Any:
    """Raise `Broken`."""
    raise Broken("observer is broken")


def make(**options: Any) -> Agent:
    """Return an agent that calls one tool."""
    return Agent("a", model=ScriptedModel(ADD, "3"), tools=[add], **options)


async def ran(agent: Agent) -> RunResult:
    """Return the result of a run that must not notice anything."""
    result = await within(agent.run("Add."))
    assert (result.status, result.output, result.iterations) == ("completed", "3", 2)
    return result


def errors(telemetry: Captured, part: str) -> float:
    """Return how many faults of a part were counted."""
    return telemetry.value(semconv.TELEMETRY_ERRORS, pellucid_telemetry_part=part)


async def test_a_raising_listener_is_counted(telemetry: Captured) -> None:
    """A listener that raises does not change the run, and each of its faults is counted and emitted."""
    agent = make()
    agent.on("*", fail)
    await ran(agent)
    assert telemetry.tree() == WHOLE
    told = [event for event in telemetry.events if event.name == "telemetry.error"]
    assert {(event.part, event.error) for event in told} == {("listener", "Broken: observer is broken")}  # type: ignore[attr-defined]  # by name
    # The listener hears of its own faults, too, and fails at that: counted, and told to nobody.
    assert errors(telemetry, "listener") == 2 * len(told)
    check_telemetry(telemetry)


async def test_a_raising_async_listener_is_counted(telemetry: Captured) -> None:
    """An async listener that raises hears the next event, and each fault is counted."""
    heard = []

    async def listen(event: Event) -> None:
        heard.append(event.name)
        raise Broken

    agent = make()
    agent.on("tool.*", listen)
    await ran(agent)
    assert heard == ["tool.started", "tool.completed"]
    assert errors(telemetry, "listener") == 2


async def test_an_async_listener_that_hangs_does_not_hold_the_run(telemetry: Captured) -> None:
    """An async listener that hangs does not hold the run that it hears, nor later ones."""

    async def hang(event: Event) -> None:
        await anyio.sleep_forever()

    agent = Agent("a", model=FunctionModel(lambda request: "x"))
    agent.on("*", hang)
    await within(agent.run("y"), 5)
    with anyio.fail_after(60):
        for _ in range(20):
            await agent.run("y")
    check_telemetry(telemetry)


async def test_events_for_a_listener_that_hangs_are_dropped_and_counted(telemetry: Captured) -> None:
    """Events beyond the queue of a listener that hangs are dropped and counted."""

    async def hang(event: Event) -> None:
        await anyio.sleep_forever()

    async def work(arguments: Any, ctx: Any) -> str:
        for number in range(2000):
            ctx.progress(number)
        await anyio.lowlevel.checkpoint()
        return "ok"

    agent = Agent("a", model=ScriptedModel(ToolCall("work"), "done"), tools=[Tool(name="work", run=work)])
    agent.on("*", hang)
    await within(agent.run("x"))
    assert telemetry.value(semconv.TELEMETRY_DROPPED, pellucid_telemetry_part="listener") > 900


@pytest.mark.parametrize("method", ["on_start", "on_end"])
async def test_a_raising_span_processor_is_counted(telemetry: Captured, method: str) -> None:
    """A span processor that raises is counted, and metrics and events are complete."""
    telemetry.is_checked = False  # broken on purpose
    broken = SpanProcessor()
    setattr(broken, method, fail)
    telemetry.tracer_provider.add_span_processor(broken)
    await ran(make())
    assert errors(telemetry, "span") == 8
    assert telemetry.histogram(semconv.TOOL_DURATION).count == 1
    assert [event.name for event in telemetry.events if event.name.startswith("run.")] == [
        "run.started",
        "run.completed",
    ]


async def test_a_raising_sampler_is_counted(telemetry: Captured) -> None:
    """A sampler that raises is counted, and the run has events and metrics without spans."""
    telemetry.is_checked = False  # broken on purpose

    class Sampling(Sampler):
        def should_sample(self, *args: Any, **kwargs: Any) -> Any:
            return fail()

        def get_description(self) -> str:
            return "broken"

    pipeline = TelemetryOptions(
        tracer_provider=TracerProvider(sampler=Sampling(), shutdown_on_exit=False),
        meter_provider=telemetry.meter_provider,
        listeners=telemetry.listeners,
    )
    result = await ran(make(telemetry=pipeline))
    assert result.trace_id == "0" * 32
    assert errors(telemetry, "span") == 8


async def test_a_raising_log_sink_is_counted(telemetry: Captured) -> None:
    """A log sink that raises is counted, and other sinks get every line."""
    telemetry.is_checked = False  # broken on purpose
    pipeline = TelemetryOptions(meter_provider=telemetry.meter_provider, log_sinks=(fail, *telemetry.log_sinks))
    await ran(make(telemetry=pipeline))
    assert len(telemetry.logs) == 8
    assert errors(telemetry, "log") == 8


async def test_a_raising_structlog_processor_is_counted(telemetry: Captured) -> None:
    """A structlog processor that raises is counted, and other sinks get every line."""
    structlog.configure(processors=[fail])
    try:
        await ran(make())
    finally:
        structlog.reset_defaults()
    assert errors(telemetry, "log") == 8
    assert len(telemetry.logs) == 8


async def test_a_raising_redactor_is_counted_and_leaks_nothing() -> None:
    """A redactor that raises is counted, and content that it could not redact is not recorded."""
    policy = CapturePolicy(redactors=(*DEFAULT_REDACTORS, fail))
    with capture(capture=policy) as telemetry:
        await ran(make(instructions="be secretive"))
    assert errors(telemetry, "recording") > 0
    assert telemetry.tree() == WHOLE
    assert "be secretive" not in repr([dict(span.attributes or {}) for span in telemetry.spans])
    check_telemetry(telemetry)


async def test_a_raising_redactor_does_not_hide_a_failure() -> None:
    """A redactor that raises does not hide the failure of a run, whose text is not recorded."""
    policy = CapturePolicy(redactors=(fail,))
    with capture(capture=policy) as telemetry:
        agent = Agent("a", model=ScriptedModel(OSError("s3cret")))
        with pytest.raises(Exception, match="s3cret"):
            await within(agent.run("x"))
    check_telemetry(telemetry)
    assert "s3cret" not in repr((telemetry.logs, telemetry.events))


async def test_a_value_that_cannot_be_recorded_is_counted(telemetry: Captured) -> None:
    """A value that raises while it is recorded is counted and does not change the run."""

    class Treacherous(dict[str, Any]):
        def items(self) -> Any:
            return fail()

    async def receive(arguments: Any, ctx: Any) -> str:
        return "ok"

    call = ToolCall("receive", Treacherous(a=1))
    agent = Agent("a", model=ScriptedModel(call, "done"), tools=[Tool(name="receive", run=receive)])
    assert (await within(agent.run("x"))).output == "done"
    assert errors(telemetry, "recording") > 0
    check_telemetry(telemetry)


async def test_an_error_that_cannot_be_printed_is_an_error_like_others(telemetry: Captured) -> None:
    """An exception whose text raises is named by its type."""

    class Mute(Exception):
        def __str__(self) -> str:
            return str(fail())

    async def work(arguments: Any, ctx: Any) -> str:
        raise Mute

    agent = Agent("a", model=ScriptedModel(ToolCall("work"), Mute()), tools=[Tool(name="work", run=work)])
    with pytest.raises(ModelError, match="Mute") as caught:
        await within(agent.run("x"))
    assert isinstance(caught.value.__cause__, Mute)
    assert ending(telemetry.span("execute_tool"))[:2] == ("failed", "ERROR")
    check_telemetry(telemetry)


async def test_progress_that_cannot_be_redacted_is_counted() -> None:
    """A redactor that raises on progress is counted, and the tool does not notice."""

    async def work(arguments: Any, ctx: Any) -> str:
        ctx.progress("half")
        return "ok"

    with capture(capture=CapturePolicy(redactors=(fail,))) as telemetry:
        agent = Agent("a", model=ScriptedModel(ToolCall("work"), "done"), tools=[Tool(name="work", run=work)])
        result = await within(agent.run("x"))
    assert not result.messages[2].parts[0].is_error  # type: ignore[union-attr]  # it is a tool result
    assert errors(telemetry, "recording") > 0


async def test_a_raising_metric_reader_does_not_matter(telemetry: Captured) -> None:
    """A metric reader that raises does not change the run."""
    telemetry.is_checked = False  # it hears the events only

    class Reader(InMemoryMetricReader):
        def _receive_metrics(self, *args: Any, **kwargs: Any) -> None:
            fail()

    reader = Reader()
    pipeline = TelemetryOptions(
        meter_provider=MeterProvider([reader], shutdown_on_exit=False), listeners=telemetry.listeners
    )
    await ran(make(telemetry=pipeline))
    with pytest.raises(Broken):
        reader.collect()
    await ran(make(telemetry=pipeline))


async def test_raising_instruments_do_not_matter(telemetry: Captured) -> None:
    """Instruments that raise do not change the run, its spans or its events."""
    telemetry.is_checked = False  # broken on purpose

    class Instrument:
        record = add = staticmethod(fail)

    class Meters:
        def get_meter(self, *args: Any, **kwargs: Any) -> Any:
            return self

        def __getattr__(self, name: str) -> Callable[..., Any]:
            return lambda *args, **kwargs: Instrument()

    pipeline: Any = TelemetryOptions(meter_provider=Meters(), tracer_provider=telemetry.tracer_provider)  # type: ignore[arg-type]  # broken on purpose
    await ran(make(telemetry=pipeline))
    assert telemetry.tree() == WHOLE


async def test_a_collection_that_takes_long_does_not_hold_a_run(telemetry: Captured) -> None:
    """A metric reader that hangs in another thread does not hold a run."""
    telemetry.is_checked = False  # the metrics are elsewhere
    inside, release = threading.Event(), threading.Event()

    class Reader(InMemoryMetricReader):
        def _receive_metrics(self, *args: Any, **kwargs: Any) -> None:
            inside.set()
            assert release.wait(60)

    reader = Reader()
    pipeline = TelemetryOptions(meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    await ran(make(telemetry=pipeline))
    collecting = threading.Thread(target=reader.collect)
    collecting.start()
    try:
        assert inside.wait(60)
        await ran(make(telemetry=pipeline))
    finally:
        release.set()
        collecting.join(60)


async def test_faults_are_logged_once(telemetry: Captured, caplog: pytest.LogCaptureFixture) -> None:
    """A part that fails again and again is logged once, and each fault is counted."""
    agent = Agent("a", model=FunctionModel(lambda request: Message("assistant", [])))
    agent.on("*", fail)
    for _ in range(3):
        await within(agent.run("x"))
    said = [record for record in caplog.records if "telemetry part 'listener' failed" in record.getMessage()]
    assert len(said) <= 1
    assert errors(telemetry, "listener") > 3
