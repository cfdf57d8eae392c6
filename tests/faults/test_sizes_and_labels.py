"""Content and names of any size and number: exports arrive, and metrics stay few."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pellucid import Agent, CapturePolicy, Limits, Message, ModelError, RunTimeout, Tool, ToolCall, Usage, semconv
from pellucid.models import ModelResponse
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.options import Otlp, Prometheus
from pellucid_exporters.testing import capture, check_telemetry
from support.clock import SOON, outlast
from support.openmetrics import fetch_bytes
from support.otlp_receiver import otlp_receiver
from support.runs import attributes, within

if TYPE_CHECKING:
    from pellucid import ModelRequest
    from pellucid_exporters.options import OtlpProtocol
    from pellucid_exporters.testing import Captured

pytestmark = pytest.mark.anyio

GRPC_LIMIT = 4 * 1024 * 1024
"""Bytes that a gRPC receiver takes in one message unless it is told otherwise."""


def returning(value: Any, name: str = "t") -> Tool:
    """Return a tool that returns a value."""

    async def run(arguments: Any, ctx: Any) -> Any:
        return value

    return Tool(name=name, run=run)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
async def test_many_huge_values_arrive(protocol: OtlpProtocol) -> None:
    """An 11 MB result and hundreds of spans of 100 kB, recorded in full, arrive whole in requests below 4 MiB."""
    policy = CapturePolicy("full", max_bytes=128 * 1024, max_span_bytes=256 * 1024)
    with anyio.fail_after(100), otlp_receiver(protocol) as receiver:
        otlp = Otlp(endpoint=receiver.endpoint, protocol=protocol)
        telemetry = configure("s", otlp=otlp, capture=policy, set_global=False)
        try:
            tools = [returning("x" * 11_000_000, "huge"), returning("y" * 100_000, "big")]
            steps: list[Any] = [ToolCall("huge"), *[[ToolCall("big") for _ in range(25)] for _ in range(20)], "done"]
            limits = Limits(max_iterations=30, max_result_bytes=20_000_000)
            agent = Agent("a", model=ScriptedModel(*steps), tools=tools, limits=limits, telemetry=telemetry)
            await agent.run("x")
            assert await anyio.to_thread.run_sync(telemetry.flush, 60)
        finally:
            await anyio.to_thread.run_sync(telemetry.shutdown)
        assert receiver.faults == []
        assert max(receiver.sizes) < GRPC_LIMIT
        names = [span.name for span in receiver.spans]
        assert names.count("execute_tool big") == 500
        assert names.count("execute_tool huge") == names.count("invoke_agent a") == 1
        for span in receiver.spans:
            for attribute in span.attributes:
                if attribute.key in (semconv.TOOL_CALL_RESULT, semconv.INPUT_MESSAGES):
                    assert json.loads(attribute.value.string_value)


async def test_names_that_models_and_callers_invent_are_no_labels(telemetry: Captured) -> None:
    """A thousand invented tool names, call ids, runs and conversations add no time series."""
    calls = [ToolCall(f"invented-{number}", {}, f"id-{number}") for number in range(1000)]
    await within(Agent("a", model=ScriptedModel(calls, "x")).run("x"), 30)
    await within(Agent("a", model=ScriptedModel("x")).run("x"))
    before = len(telemetry.metrics)
    assert {
        point.attributes[semconv.TOOL_NAME] for point in telemetry.metrics if point.name == semconv.TOOL_DURATION.name
    } == {"_OTHER"}
    for number in range(50):
        history = [Message("user", f"{number}"), Message("assistant", "x")]
        await within(Agent("a", model=ScriptedModel("x")).run(f"{number}", history=history))
    assert len(telemetry.metrics) == before


async def test_names_that_models_answer_under_are_few_labels() -> None:
    """600 models that nobody has asked for, with long names, leave a small page of metrics, and are counted."""
    names = [f"{number}-{'x' * 300}" for number in range(600)]
    answers = iter(names)

    def answer(request: ModelRequest) -> ModelResponse:
        usage = Usage(input_tokens=1, output_tokens=1)
        return ModelResponse(message=Message("assistant", "x"), usage=usage, model=next(answers))

    with anyio.fail_after(60):
        telemetry = configure("s", prometheus=Prometheus(port=0), set_global=False)
        try:
            agent = Agent("a", model=FunctionModel(answer), telemetry=telemetry)
            for _ in names:
                await agent.run("x")
            assert telemetry.prometheus_url is not None
            page = await anyio.to_thread.run_sync(fetch_bytes, telemetry.prometheus_url, "text/plain")
        finally:
            await anyio.to_thread.run_sync(telemetry.shutdown)
    assert len(page) < 300_000
    families = {family.name: family for family in text_string_to_metric_families(page.decode())}
    samples = families["gen_ai_client_operation_duration_seconds"].samples
    models = {sample.labels["gen_ai_response_model"] for sample in samples}
    assert (len(models), "_OTHER" in models, max(map(len, models))) == (17, True, 128)
    lost = families["pellucid_telemetry_dropped"].samples
    counted = [sample.value for sample in lost if sample.labels["pellucid_telemetry_part"] == "label"]
    assert sum(counted) >= 584


async def test_a_name_in_the_request_is_a_label_however_many_answered(telemetry: Captured) -> None:
    """A router with more models than are kept has all that it asks for by name."""
    for number in range(40):
        answer = ModelResponse(message=Message("assistant", "x"), model=f"m{number}")
        model = FunctionModel(partial(lambda answer, request: answer, answer), name=f"m{number}")
        await within(Agent("a", model=model).run("x"))
    points = [point for point in telemetry.metrics if point.name == semconv.OPERATION_DURATION.name]
    assert {point.attributes[semconv.RESPONSE_MODEL] for point in points} == {f"m{number}" for number in range(40)}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_names_of_tools_are_few_labels(telemetry: Captured) -> None:
    """Those of a hub are labels up to a limit, the others are one; each span keeps its own."""
    names = [f"t{number}" for number in range(1010)]
    model = ScriptedModel([ToolCall(name) for name in names], "x")
    await within(Agent("a", model=model, tools=[returning("x", name) for name in names]).run("x"), 60)
    points = [point for point in telemetry.metrics if point.name == semconv.TOOL_DURATION.name]
    labels = {point.attributes[semconv.TOOL_NAME] for point in points}
    assert (len(labels), "_OTHER" in labels) == (1001, True)
    spans = [span for span in telemetry.spans if span.name.startswith("execute_tool")]
    assert {attributes(span)[semconv.TOOL_NAME] for span in spans} == set(names)


async def test_ids_in_errors_are_no_labels(telemetry: Captured) -> None:
    """Errors with a new text each time are one kind of error."""

    def fail(request: ModelRequest) -> Any:
        raise ConnectionError(f"request {len(model.requests)} refused")

    model = FunctionModel(fail)
    for _ in range(20):
        with pytest.raises(ModelError):
            await within(Agent("a", model=model).run("x"))
    points = [point for point in telemetry.metrics if point.name == semconv.OPERATION_DURATION.name]
    assert [point.count for point in points] == [20]


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, 10**400, float("nan"), float("inf"), "\ud800", "\x00", "a\u202eb"]
)
async def test_values_that_formats_do_not_know(value: Any) -> None:
    """Numbers beyond 64 bits, no numbers, halves of characters and control characters are exported all the same."""
    with anyio.fail_after(60), otlp_receiver("http/protobuf") as receiver:
        telemetry = configure("s", otlp=Otlp(endpoint=receiver.endpoint, protocol="http/protobuf"), set_global=False)
        try:
            model = ScriptedModel(ToolCall("t", {"value": value}), "x")
            result = await Agent("a", model=model, tools=[returning({"value": str(value)})], telemetry=telemetry).run(
                "x"
            )
            assert result.output == "x"
            assert await anyio.to_thread.run_sync(telemetry.flush, 10)
        finally:
            await anyio.to_thread.run_sync(telemetry.shutdown)
        assert receiver.faults == []
        assert sum(span.name.startswith("execute_tool") for span in receiver.spans) == 1
        assert len(receiver.spans) == 8


async def test_an_error_without_a_text_is_named(telemetry: Captured) -> None:
    """An exception whose text is empty is told by what caused it or by its type: never by nothing."""

    async def silent(arguments: Any, ctx: Any) -> None:
        raise RuntimeError from ConnectionResetError("the peer hung up")

    model = ScriptedModel(ToolCall("silent"), TimeoutError())
    with pytest.raises(ModelError, match="TimeoutError"):
        await within(Agent("a", model=model, tools=[Tool(name="silent", run=silent)]).run("x"))
    description = telemetry.find("chat")[1].status.description
    assert description is not None
    assert "TimeoutError" in description
    check_telemetry(telemetry)


async def test_a_failed_tool_without_a_text_says_what_failed(telemetry: Captured) -> None:
    """The status of its span is not empty either."""

    async def silent(arguments: Any, ctx: Any) -> None:
        raise RuntimeError from ConnectionResetError("the peer hung up")

    model = ScriptedModel(ToolCall("silent"), "x")
    await within(Agent("a", model=model, tools=[Tool(name="silent", run=silent)]).run("x"))
    assert telemetry.span("execute_tool").status.description == "ConnectionResetError: the peer hung up"


async def test_a_deadline_says_so_on_every_span(telemetry: Captured) -> None:
    """A span that the run's deadline ended has a text that says more than nothing."""

    async def hang(arguments: Any, ctx: Any) -> None:
        await outlast()

    model = ScriptedModel(ToolCall("hang"), "x")
    agent = Agent("a", model=model, tools=[Tool(name="hang", run=hang)], limits=Limits(timeout=SOON))
    with pytest.raises(RunTimeout):
        await within(agent.run("x"))
    for name in ("execute_tool", "invoke_agent"):
        span = telemetry.span(name)
        assert attributes(span)[semconv.ERROR_TYPE] == "timeout"
        assert "deadline" in (span.status.description or "")


async def test_nothing_leaves_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With exporters imported but not configured, a run opens no connection."""
    opened: list[Any] = []
    monkeypatch.setattr("socket.socket.connect", lambda *where: opened.append(where))
    await within(Agent("a", model=ScriptedModel("x")).run("x"))
    with capture():
        await within(Agent("a", model=ScriptedModel("x")).run("x"))
    assert opened == []
