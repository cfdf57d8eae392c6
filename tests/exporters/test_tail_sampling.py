"""Tail sampling of real runs: which of them arrive, and that only spans are sampled."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor

from pellucid import (
    Agent,
    CancelToken,
    DiscoveryError,
    DiscoveryProvider,
    Limits,
    Message,
    ModelError,
    ModelResponse,
    RunCancelled,
    RunTimeout,
    ToolCall,
    Usage,
    combined,
    semconv,
    tool,
)
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from pellucid_exporters import TailSampling
from support.clock import SOON, outlast
from support.runs import within
from support.sampling import sampled, start_run

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span

    from pellucid.events import Event
    from pellucid_exporters.telemetry import Telemetry

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

NOTHING_ELSE = TailSampling(share=0.0)
FAST = ["chat scripted", "compose_request", "discover_tools static", "invoke_agent a"]


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def fail() -> str:
    """Fail."""
    raise ValueError("no")


def agent(telemetry: Telemetry, *steps: Any, name: str = "a", **more: Any) -> Agent:
    """Return an agent that follows a script."""
    return Agent(name, model=ScriptedModel(*steps), telemetry=telemetry, **more)


async def test_a_run_without_anything_to_see_is_dropped_and_counted() -> None:
    """No span of an unremarkable run arrives; all are counted as sampled out, and none as lost."""
    with sampled(NOTHING_ELSE) as out:
        await within(agent(out.telemetry, "hello").run("hi"))
        assert out.names == []
        assert out.sampled_out == len(FAST)
        assert out.decisions == {("dropped", False): 1}
        assert out.count("pellucid_telemetry_dropped") == 0
        assert out.count("pellucid_telemetry_errors") == 0


async def test_a_failed_run_arrives_whole() -> None:
    """A run whose model fails is kept with all of its spans."""
    with sampled(NOTHING_ELSE) as out:
        with pytest.raises(ModelError):
            await within(agent(out.telemetry, RuntimeError("no")).run("hi"))
        assert out.names == FAST
        assert out.decisions == {("failed", False): 1}
        assert out.sampled_out == 0


async def test_a_run_past_its_deadline_is_kept() -> None:
    """A run past its deadline is kept, since a timeout is a failure."""

    async def hang(request: object) -> str:
        await outlast()

    with sampled(NOTHING_ELSE) as out:
        with pytest.raises(RunTimeout):
            await within(agent(out.telemetry, hang, limits=Limits(timeout=SOON)).run("hi"))
        assert out.names == FAST


async def test_a_cancelled_run_is_like_any_other() -> None:
    """A run that was cancelled is dropped like any other, since it has not failed."""
    token = CancelToken()

    async def leave(request: object) -> str:
        token.cancel("enough")
        await anyio.sleep_forever()
        return "never"

    with sampled(NOTHING_ELSE) as out:
        with pytest.raises(RunCancelled):
            await within(agent(out.telemetry, leave).run("hi", signal=token))
        assert out.names == []
        assert out.decisions == {("dropped", False): 1}


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_failed_phase_of_a_run_that_went_on(keeps: bool) -> None:
    """A run with a tool that fails is kept, unless the option says otherwise."""
    with sampled(TailSampling(share=0.0, failed_phases=keeps)) as out:
        await within(agent(out.telemetry, ToolCall("fail", {}), "sorry", tools=[fail]).run("hi"))
        assert ("execute_tool fail" in out.names) is keeps


async def test_a_hub_that_was_left_out_keeps_the_run() -> None:
    """A run without a hub that failed is kept, since its discovery failed."""
    broken = DiscoveryProvider(FakeHub(faults=[ConnectionError("refused")]), id="broken")
    with sampled(NOTHING_ELSE) as out:
        providers = [combined(broken, DiscoveryProvider(FakeHub(), id="works"), on_error="skip")]
        await within(agent(out.telemetry, "hello", providers=providers).run("hi"))
        assert "discover_tools broken" in out.names
        with pytest.raises(DiscoveryError):
            await within(agent(out.telemetry, "hello", providers=[broken]).run("hi"))
        assert out.decisions == {("failed", False): 2}


async def test_a_hub_that_misses_its_objective_keeps_the_run() -> None:
    """A run with a hub that misses its own objective is kept, unless the option says otherwise."""

    def hub(name: str, objective: float | None) -> DiscoveryProvider:
        return DiscoveryProvider(FakeHub(latency=0.02), id=name, objective=objective)

    with sampled(NOTHING_ELSE) as out:
        for provider in (hub("slow", 0.01), hub("fast", 60.0), hub("easy", None)):
            await within(agent(out.telemetry, "hello", providers=[provider]).run("hi"))
        assert [name for name in out.names if name.startswith("discover")] == ["discover_tools slow"]
        assert out.decisions == {("slow", False): 1, ("dropped", False): 2}
    with sampled(TailSampling(share=0.0, slow_hubs=False)) as out:
        await within(agent(out.telemetry, "hello", providers=[hub("slow", 0.01)]).run("hi"))
        assert out.names == []


@pytest.mark.parametrize(("bound", "keeps"), [(0.01, True), (60.0, False)])
async def test_a_run_longer_than_the_bound_is_kept(bound: float, keeps: bool) -> None:
    """A run that takes longer as a whole than `slower_than` is kept."""

    async def think(request: object) -> str:
        await anyio.sleep(0.02)
        return "hello"

    with sampled(TailSampling(share=0.0, slower_than=bound)) as out:
        await within(agent(out.telemetry, think).run("hi"))
        assert out.names == (FAST if keeps else [])


@pytest.mark.parametrize(("bound", "keeps"), [(149, True), (150, False)])
async def test_a_run_of_many_tokens_is_kept(bound: int, keeps: bool) -> None:
    """A run is kept by the tokens of all its model calls, input and output together, also of nested runs."""

    def answer(text: str, tokens: int) -> ModelResponse:
        usage = Usage(input_tokens=tokens - 10, output_tokens=10)
        return ModelResponse(message=Message("assistant", text), usage=usage, finish_reason="stop")

    with sampled(TailSampling(share=0.0, more_tokens_than=bound)) as out:
        inner = agent(out.telemetry, answer("inner", 100), name="inner")

        @tool
        async def ask() -> str:
            """Ask another agent."""
            return (await inner.run("hi")).output

        await within(agent(out.telemetry, ToolCall("ask", {}), answer("outer", 50), tools=[ask]).run("hi"))
        assert bool(out.names) is keeps
        assert sum(out.decisions.values()) == 1


class Prices(SpanProcessor):
    """Gives runs a price, as models with known prices will."""

    def __init__(self, price: Any) -> None:
        self.price = price

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Set it on the spans of runs."""
        if span.name.startswith("invoke_agent"):
            span.set_attribute(semconv.COST_USD, self.price)


async def test_a_run_that_costs_too_much_is_kept() -> None:
    """A run is kept by the cost on its span; an unknown cost keeps nothing."""
    with sampled(TailSampling(share=0.0, costlier_than=0.5)) as out:
        await within(agent(out.telemetry, "hello").run("hi"))
        prices = Prices(0.5)
        out.telemetry.tracer_provider.add_span_processor(prices)
        await within(agent(out.telemetry, "hello").run("hi"))
        assert out.names == []
        prices.price = 0.51
        await within(agent(out.telemetry, "hello").run("hi"))
        assert out.names == FAST
        assert out.decisions == {("costly", False): 1, ("dropped", False): 2}


async def test_a_rule_that_fails_keeps_the_run_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A cost that is no number keeps the run, is counted each time, and logged once."""
    with sampled(TailSampling(share=0.0, costlier_than=0.5)) as out:
        out.telemetry.tracer_provider.add_span_processor(Prices("much"))
        for _ in range(2):
            assert (await within(agent(out.telemetry, "hello").run("hi"))).output == "hello"
        assert out.names == sorted(2 * FAST)
        assert out.decisions == {("fault", False): 2}
        assert out.count("pellucid_telemetry_errors") == 2
        assert 'pellucid_telemetry_part="sampler"' in out.metrics_text()
    assert len([record for record in caplog.records if "tail sampler" in record.getMessage()]) == 1


@pytest.mark.parametrize("fails", [True, False])
async def test_foreign_spans_and_nested_runs_follow_the_outermost_run(fails: bool) -> None:
    """Spans of other libraries and nested runs are kept or dropped with the outermost run."""
    with sampled(TailSampling(share=0.0, failed_phases=False)) as out:
        tracer = out.telemetry.tracer_provider.get_tracer("httpx")
        inner = agent(out.telemetry, "inner" if fails else RuntimeError("inner"), name="inner")

        @tool
        async def ask() -> str:
            """Ask another agent."""
            with tracer.start_as_current_span("GET"):
                return (await inner.run("hi")).output

        outer = agent(out.telemetry, ToolCall("ask", {}), RuntimeError("no") if fails else "fine", tools=[ask])
        if fails:
            with pytest.raises(ModelError):
                await within(outer.run("hi"))
            assert Counter(out.names)["GET"] == Counter(out.names)["invoke_agent inner"] == 1
        else:
            await within(outer.run("hi"))
            assert out.names == []
        assert sum(out.decisions.values()) == 1


async def test_spans_outside_of_runs_pass_untouched() -> None:
    """A server's span around runs arrives, and the runs are decided one by one."""
    with sampled(NOTHING_ELSE) as out:
        tracer = out.telemetry.tracer_provider.get_tracer("server")
        with tracer.start_as_current_span("POST /chat"):
            await within(agent(out.telemetry, "hello").run("hi"))
            with tracer.start_as_current_span("SELECT"):
                pass
            with pytest.raises(ModelError):
                await within(agent(out.telemetry, RuntimeError("no")).run("hi"))
        assert out.names == sorted([*FAST, "POST /chat", "SELECT"])
        assert out.decisions == {("dropped", False): 1, ("failed", False): 1}


@pytest.mark.parametrize("fails", [True, False])
async def test_what_is_left_behind_follows_the_decision(fails: bool) -> None:
    """Spans that end or start after their run was decided follow the decision."""
    with sampled(TailSampling(share=0.0, failed_phases=False)) as out:
        tracer = out.telemetry.tracer_provider.get_tracer("background")
        left: list[Any] = []

        @tool
        async def leave() -> str:
            """Leave a span open, and the means to start another."""
            left.append(tracer.start_span("open"))
            left.append(trace.set_span_in_context(trace.get_current_span()))
            return "left"

        steps = (ToolCall("leave", {}), RuntimeError("no") if fails else "fine")
        if fails:
            with pytest.raises(ModelError):
                await within(agent(out.telemetry, *steps, tools=[leave]).run("hi"))
        else:
            await within(agent(out.telemetry, *steps, tools=[leave]).run("hi"))
        whole = 8  # two iterations, a tool and the run itself
        assert (len(out.names), out.sampled_out) == ((whole, 0) if fails else (0, whole))
        left[0].end()
        tracer.start_span("late", context=left[1]).end()
        assert [name for name in out.names if name in ("late", "open")] == (["late", "open"] if fails else [])
        assert (len(out.names), out.sampled_out) == ((whole + 2, 0) if fails else (0, whole + 2))


async def test_a_stream_left_early_is_decided_when_its_run_is_over() -> None:
    """A run whose stream is left early is decided when it is over."""
    with sampled(TailSampling(share=1.0)) as out:
        async with agent(out.telemetry, "one two three four").stream("hi") as events:
            async for _ in events:
                break
        assert "invoke_agent a" in out.names
        assert out.decisions == {("share", False): 1}
    with sampled(NOTHING_ELSE) as out:
        async with agent(out.telemetry, "one two three four").stream("hi") as events:
            async for _ in events:
                break
        assert out.names == []
        assert out.decisions == {("dropped", False): 1}


async def test_concurrent_runs_are_decided_apart() -> None:
    """Of many runs at once exactly the failed ones arrive, each whole."""

    async def answer(request: Any) -> str:
        await anyio.sleep(0.001)
        if request.messages[-1].text == "fail":
            raise RuntimeError("no")
        return "fine"

    failed = []
    with sampled(NOTHING_ELSE) as out:
        several = Agent("a", model=FunctionModel(answer), telemetry=out.telemetry)

        async def run(number: int) -> None:
            if number % 5:
                await several.run("hi")
                return
            with pytest.raises(ModelError):
                await several.run("fail")
            failed.append(number)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for number in range(60):
                    group.start_soon(run, number)
        assert Counter(out.names) == dict.fromkeys(
            ["chat function", "compose_request", "discover_tools static", "invoke_agent a"], len(failed)
        )
        assert out.receiver.unresolved_parents() == []
        assert out.decisions == {("failed", False): 12, ("dropped", False): 48}


def _count_name(heard: Counter[str], event: Event) -> None:
    heard[event.name] += 1


async def test_metrics_events_and_logs_know_all_runs() -> None:
    """Metrics, events and logs are the same with and without sampling."""
    counts = []
    for options in (None, NOTHING_ELSE):
        heard: Counter[str] = Counter()
        with sampled(options) as out:
            several = Agent("a", model=FunctionModel(lambda _: "fine"), telemetry=out.telemetry)
            several.on("*", partial(_count_name, heard))
            for _ in range(20):
                await within(several.run("hi"))
            assert bool(out.names) is (options is None)
            text = out.metrics_text()
            measured = sorted(line for line in text.splitlines() if "_count{" in line)
            counts.append((measured, heard, Counter(record.body.string_value for record in out.receiver.logs)))
    assert counts[0] == counts[1]
    assert all(counts[0])


async def test_exemplars_lead_to_traces_that_arrived() -> None:
    """Exemplars never lead to a dropped trace, in `/metrics` or in exported metrics, also when read during a run."""
    with sampled(NOTHING_ELSE) as out:
        asked: list[set[str]] = []

        def step(fails: bool) -> Any:
            def during(request: object) -> str:
                asked.append(out.prometheus_exemplars | out.otlp_exemplars)
                if fails:
                    raise RuntimeError("no")
                return "fine"

            return during

        for number in range(6):
            script = agent(out.telemetry, step(fails=number % 3 == 0))
            try:
                await within(anyio.to_thread.run_sync(script.run_sync, "hi"))
            except ModelError:
                continue
        kept = out.traces
        assert len(kept) == 2
        assert out.prometheus_exemplars <= kept
        assert out.otlp_exemplars <= kept
        assert out.prometheus_exemplars
        assert out.otlp_exemplars
        assert all(shown <= kept for shown in asked)


def test_a_kept_run_is_an_exemplar_beside_slower_ones_that_are_dropped() -> None:
    """A kept run becomes an exemplar of exported metrics beside slower runs that are dropped."""
    with sampled(NOTHING_ELSE) as out:
        histogram = out.telemetry.meter_provider.get_meter("shop").create_histogram("wait", "s")
        tracer = out.telemetry.tracer_provider.get_tracer("shop")
        for number in range(20):
            span = start_run(tracer)
            histogram.record(1.0 if number == 7 else 2.0, context=trace.set_span_in_context(span))
            span.set_attribute(semconv.OUTCOME, "failed" if number == 7 else "completed")
            span.end()
        assert len(out.otlp_exemplars) == 1
        assert out.otlp_exemplars == out.traces


async def test_what_is_undecided_at_shutdown_arrives() -> None:
    """A run that is under way at shutdown arrives as far as it has got."""
    with sampled(NOTHING_ELSE) as out:

        def end(request: object) -> str:
            out.telemetry.shutdown()
            return "fine"

        result = await within(agent(out.telemetry, end).run("hi"))
        assert result.output == "fine"
        assert sorted(span.name for span in out.receiver.spans) == ["compose_request", "discover_tools static"]
