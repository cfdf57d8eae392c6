from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode

from fidelity.scripts import Playing, Script, make_tool, quick
from pellucid import Agent, CapturePolicy, DiscoveryProvider, ToolCall, semconv
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import Captured, Exemplar, Point, capture, check_telemetry
from pellucid_exporters.testing.checks.measurements import SDK_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRIPT = Script([["quick"], ["quick", "broken"]], [], "text", True, False, "nothing", "reads", 1, 1, True)


@pytest.fixture
def told() -> Iterator[Captured]:
    """Telemetry of a streamed run with a hub, tools and usage; it is right until a test changes it."""

    async def read() -> None:
        provider = DiscoveryProvider(FakeHub(lambda n: [make_tool(f"hub_{n}", quick)]), id="hub", ttl=0)
        tools = [make_tool("quick", quick)]
        async with Agent("a", model=Playing(SCRIPT), tools=tools, providers=[provider]).stream("go") as events:
            async for _ in events:
                pass

    with capture(capture=CapturePolicy()) as telemetry:
        anyio.run(read)
        check_telemetry(telemetry)
        telemetry.is_checked = False
        yield telemetry


def bend(telemetry: Captured, which: str, **changes: Any) -> None:
    """Change the first span of a name: its fields, or the attributes given as `attributes`."""
    span: Any = telemetry.find(which)[0]
    attributes = changes.pop("attributes", {})
    for field, value in changes.items():
        setattr(span, f"_{field}", value)
    if attributes:
        merged = {**span.attributes, **attributes}
        span._attributes = {key: value for key, value in merged.items() if value is not None}


def bend_points(telemetry: Captured, change: Callable[[Point], Point | None]) -> None:
    """Change the points of the metrics."""
    changed = [made for point in telemetry.metrics if (made := change(point)) is not None]
    type(telemetry).metrics = property(lambda self: changed)  # type: ignore[method-assign,assignment]  # put back by the fixture below


@pytest.fixture(autouse=True)
def _metrics_put_back() -> Iterator[None]:
    original = Captured.metrics
    yield
    Captured.metrics = original  # type: ignore[method-assign]  # see `bend_points`


SPANS: dict[str, tuple[dict[str, Any], str]] = {
    "a span below nothing": ({"parent": None}, "is not below its run"),
    "a span below another": ({"parent": SpanContext(1, 4, is_remote=False)}, "is below span"),
    "a span that outlives its run": ({"end_time": 2**62}, "does not lie within"),
    "a span that ends before it begins": ({"end_time": 1}, "ends before it begins"),
    "another name": ({"name": "chat other"}, "should be called 'chat scripted'"),
    "another kind": ({"kind": SpanKind.SERVER}, "the kind SERVER instead of CLIENT"),
    "no model": ({"attributes": {semconv.REQUEST_MODEL: None}}, "should be of type str"),
    "a number as a text": ({"attributes": {semconv.ATTEMPT: "1"}}, "should be of type int"),
    "a second attempt of nothing": ({"attributes": {semconv.ATTEMPT: 2}}, "no failed attempt goes before it"),
    "a cost that nobody counted": ({"attributes": {semconv.COST_USD: 0.5}}, "its chat spans add up to 0.5"),
    "a share above one": ({"attributes": {semconv.CACHED_SHARE: 1.5}}, "no share of its input"),
    "another operation": ({"attributes": {semconv.OPERATION_NAME: "talk"}}, "instead of 'chat'"),
    "no outcome": ({"attributes": {semconv.OUTCOME: None}}, "has no outcome"),
    "a success with an error": ({"attributes": {semconv.ERROR_TYPE: "x"}}, "error.type 'x'"),
    "a success with status error": ({"status": Status(StatusCode.ERROR)}, "status ERROR"),
    "a timeout that is none": (
        {"attributes": {semconv.OUTCOME: "timeout", semconv.ERROR_TYPE: "x"}, "status": Status(StatusCode.ERROR)},
        "outcome timeout but error.type 'x'",
    ),
    "half a JSON": ({"attributes": {semconv.INPUT_MESSAGES: '[{"role'}}, "not JSON"),
    "too long a text": ({"attributes": {semconv.OUTPUT_MESSAGES: f'"{"x" * 40_000}"'}}, "the bound is"),
    "other usage": ({"attributes": {semconv.USAGE_INPUT_TOKENS: 1000}}, "chat spans add up to"),
    "another run": ({"attributes": {semconv.RUN_ID: "another"}}, "usage"),
    "a later iteration": ({"attributes": {semconv.ITERATION: 9}}, "has the iterations"),
    "another label": ({"attributes": {semconv.RESPONSE_MODEL: "x"}}, "has 0 measurements for 1 spans"),
    "another duration": ({"start_time": 2**60}, "adds up to"),
    "below another phase": ({"parent": SpanContext(1, 2, is_remote=False)}, r"is below span 'discover_tools"),
    "no trace of its own": ({"context": SpanContext(9, 4, is_remote=False)}, "is in another trace than"),
}


@pytest.mark.parametrize("case", SPANS)
def test_a_span_that_lies_is_found(told: Captured, case: str) -> None:
    """`check_telemetry` finds a span whose fields or attributes are wrong."""
    changes, complaint = SPANS[case]
    bend(told, "chat", **changes)
    with pytest.raises(AssertionError, match=complaint):
        check_telemetry(told)


def test_calls_of_serial_tools_that_overlap_are_found(told: Captured) -> None:
    """`check_telemetry` finds calls of a serial tool that overlap, and a wrong time in the queue."""
    bend(told, "execute_tool", attributes={semconv.TOOL_QUEUED: -1.0})
    with pytest.raises(AssertionError, match=r"queued_ms=-1\.0"):
        check_telemetry(told)
    told.spans.append(told.find("execute_tool")[0])
    with pytest.raises(AssertionError, match="of a serial tool, has ended"):
        check_telemetry(told)


def test_a_call_under_the_name_of_another_run_is_found(told: Captured) -> None:
    """`check_telemetry` finds a call below a run that names another run, which was not captured."""
    bend(told, "execute_tool", attributes={semconv.RUN_ID: "another"})
    with pytest.raises(AssertionError, match=r"of run another is below span 'invoke_agent a'"):
        check_telemetry(told)


def nest() -> Captured:
    """Return telemetry of a run that is nested in another one's tool call."""
    inner = Agent("inner", model=ScriptedModel("sure"), description="Helps.").as_tool()
    model = ScriptedModel(ToolCall("inner", {"input": "x"}), "done")
    with capture() as telemetry:
        Agent("outer", model=model, tools=[inner]).run_sync("x")
    telemetry.is_checked = False
    return telemetry


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"parent": SpanContext(1, 9, is_remote=False)}, "which is a part of it"),
        ({"context": SpanContext(9, 6, is_remote=False)}, "is in another trace than"),
        ({"start_time": 1}, "begins before span 'execute_tool inner'"),
        ({"attributes": {semconv.USAGE_INPUT_TOKENS: 3}}, "chat spans add up to None"),
    ],
)
def test_a_nested_run_in_the_wrong_place_is_found(changes: dict[str, Any], complaint: str) -> None:
    """`check_telemetry` finds a nested run that is in another trace, begins too early or counts another one's usage."""
    nested = nest()
    bend(nested, "invoke_agent inner", **changes)
    with pytest.raises(AssertionError, match=complaint):
        check_telemetry(nested)


def test_iterations_that_are_counted_wrongly_are_found(told: Captured) -> None:
    """`check_telemetry` finds a run whose span counts fewer iterations than there are."""
    bend(told, "invoke_agent", attributes={semconv.ITERATIONS: 1})
    with pytest.raises(AssertionError, match="counts 1 iterations; there are spans of 3"):
        check_telemetry(told)


def test_an_iteration_with_too_much_or_too_little_is_found(told: Captured) -> None:
    """`check_telemetry` finds an iteration that asks no provider or composes too many requests."""
    for span in told.find("compose_request") + told.find("discover_tools"):
        span._attributes = {**(span.attributes or {}), semconv.ITERATION: 1}
    with pytest.raises(AssertionError) as caught:
        check_telemetry(told)
    assert "called no provider in iteration 2" in str(caught.value)
    assert "'compose': 3" in str(caught.value)


def test_a_request_composed_before_all_providers_have_answered_is_found(told: Captured) -> None:
    """`check_telemetry` finds a request that was composed before all providers had answered."""
    request: Any = told.find("compose_request")[0]
    slowest: Any = max(told.find("discover_tools")[:2], key=lambda span: span.end_time or 0)
    slowest._end_time = request.start_time + 1
    with pytest.raises(AssertionError, match="started compose before discovery in iteration 1"):
        check_telemetry(told)


def test_content_that_the_policy_forbids_is_found(told: Captured) -> None:
    """`check_telemetry` finds recorded content that the mode or the bound of the policy forbids."""
    told.capture = CapturePolicy("metadata")
    with pytest.raises(AssertionError, match="although no content is recorded in mode 'metadata'"):
        check_telemetry(told)
    told.capture = CapturePolicy(max_bytes=256, max_span_bytes=256)
    with pytest.raises(AssertionError, match=r"has \d+ bytes of content; the bound is 256"):
        check_telemetry(told)


def test_a_run_without_a_span_of_its_own_is_found(told: Captured) -> None:
    """`check_telemetry` finds a run that has started and has no ended span."""
    root = told.span("invoke_agent")
    told.spans.remove(root)
    with pytest.raises(AssertionError, match="has 0 spans of its own that have ended instead of one"):
        check_telemetry(told)


def test_spans_of_others_are_left_alone(told: Captured) -> None:
    """`check_telemetry` ignores spans of applications, even open ones with our attributes."""
    told.tracer_provider.get_tracer("app").start_span("open", attributes={semconv.PHASE: semconv.DISPATCH})
    check_telemetry(told)


def test_events_and_lines_of_nothing_are_found(told: Captured) -> None:
    """`check_telemetry` finds an event and a log line that lead to no span."""
    told.events.append(replace(told.events[0], span_id="f" * 16))
    told.logs.append({**told.logs[0], "span_id": "e" * 16})
    with pytest.raises(AssertionError) as caught:
        check_telemetry(told)
    assert f"event run.started of run {told.events[0].run_id} names an unknown span: {'f' * 16}" in str(caught.value)
    assert f"a log line names an unknown span: {'e' * 16}" in str(caught.value)


def test_an_end_that_is_told_before_its_start_is_found(told: Captured) -> None:
    """`check_telemetry` finds an end event that comes before its start event."""
    kinds = [event.name for event in told.events]
    first, second = kinds.index("inference.started"), kinds.index("inference.completed")
    told.events[first], told.events[second] = told.events[second], told.events[first]
    with pytest.raises(AssertionError, match="has its events in the wrong order"):
        check_telemetry(told)


def test_a_span_that_never_ended_or_ended_twice_is_found(told: Captured) -> None:
    """`check_telemetry` finds a span that has not ended, and one that has ended twice."""
    span = told.spans.pop(3)
    with pytest.raises(AssertionError, match="has ended 0 times"):
        check_telemetry(told)
    told.spans += [span, span]
    with pytest.raises(AssertionError, match="has ended 2 times"):
        check_telemetry(told)


def test_phases_out_of_order_are_found(told: Captured) -> None:
    """`check_telemetry` finds phases of a run that are out of order."""
    first, second = (span.attributes or {} for span in told.find("compose_request")[:2])
    bend(told, "compose_request", attributes={semconv.ITERATION: second[semconv.ITERATION]})
    assert first[semconv.ITERATION] == 1
    with pytest.raises(AssertionError, match="before"):
        check_telemetry(told)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda point: replace(point, count=point.count + 1), "has 2 measurements for 1 spans|measurements for"),
        (lambda point: replace(point, value=point.value * 1.5), "adds up to"),
        (lambda point: None, "has 0 measurements"),
        (lambda point: replace(point, attributes={**point.attributes, "run": "r1"}), "does not allow"),
        (lambda point: replace(point, bounds=SDK_BOUNDS), "milliseconds"),
        (
            lambda point: replace(point, exemplars=(Exemplar(value=1, trace_id="0" * 32, span_id="0" * 16),)),
            "not exported",
        ),
        (lambda point: replace(point, exemplars=tuple(replace(e, value=9.0) for e in point.exemplars)), "which took"),
    ],
)
def test_a_metric_that_lies_is_found(told: Captured, change: Callable[[Point], Point | None], complaint: str) -> None:
    """`check_telemetry` finds metrics whose counts, sums, labels, bounds or exemplars do not match the spans."""
    name = semconv.OPERATION_DURATION.name
    bend_points(told, lambda point: change(point) if point.name == name else point)
    with pytest.raises(AssertionError, match=complaint):
        check_telemetry(told)


@pytest.mark.parametrize("attribute", [semconv.COST_USD, semconv.CACHED_SHARE])
def test_costs_and_shares_that_no_metric_has_are_found(told: Captured, attribute: str) -> None:
    """`check_telemetry` finds a cost or a cached share on a span that no metric has."""
    bend(told, "chat", attributes={attribute: 0.5})
    if attribute == semconv.COST_USD:
        bend(told, "invoke_agent", attributes={attribute: 0.5})
    with pytest.raises(AssertionError, match=r"adds up to 0|has 0 measurements for 1 spans"):
        check_telemetry(told)


def test_an_exemplar_of_another_phase_is_found(told: Captured) -> None:
    """`check_telemetry` finds an exemplar of model calls that leads to another phase."""
    elsewhere = told.histogram(semconv.AGENT_DURATION).exemplars
    name = semconv.OPERATION_DURATION.name
    bend_points(told, lambda point: replace(point, exemplars=elsewhere) if point.name == name else point)
    with pytest.raises(AssertionError, match="leads to span 'invoke_agent a'"):
        check_telemetry(told)


def test_calls_of_mcp_tools_that_are_not_measured_are_found(told: Captured) -> None:
    """`check_telemetry` finds a call of an MCP tool that was not measured as a request."""
    answered = {semconv.MCP_METHOD_NAME: "tools/call", semconv.MCP_PROTOCOL_VERSION: "2026-07-28"}
    bend(told, "execute_tool quick", attributes=answered)
    with pytest.raises(AssertionError, match="0 measurements for 1 calls of MCP tools"):
        check_telemetry(told)


def test_events_and_lines_that_lie_are_found(told: Captured) -> None:
    """`check_telemetry` finds a missing event or log line of a span, and one that says something else."""
    events, logs = list(told.events), list(told.logs)
    kinds = [event.name for event in events]
    for name in ("inference.started", "inference.completed", "run.completed", "tools.discovery_completed"):
        told.events[:] = [event for index, event in enumerate(events) if index != kinds.index(name)]
        with pytest.raises(AssertionError, match=f"0 events {name}"):
            check_telemetry(told)
    where = kinds.index("tool.completed")
    late: Any = events[where]
    told.events[:] = [*events[:where], replace(late, duration_ms=1e9), *events[where + 1 :]]
    with pytest.raises(AssertionError, match=r"its event tool\.completed says"):
        check_telemetry(told)
    told.events[:] = events
    told.logs[:] = logs[1:]
    with pytest.raises(AssertionError, match="has 0 log lines"):
        check_telemetry(told)
    told.logs[:] = [{**logs[0], "outcome": "failed"}, *logs[1:]]
    with pytest.raises(AssertionError, match="its log line says 'failed'"):
        check_telemetry(told)
    told.logs[:] = logs
    check_telemetry(told)


def test_everything_that_is_wrong_is_said_at_once(told: Captured) -> None:
    """One error of `check_telemetry` lists all problems, up to twenty of them."""
    told.logs.clear()
    told.events.clear()
    with pytest.raises(AssertionError, match=r"... and \d+ more") as caught:
        check_telemetry(told)
    assert str(caught.value).count("\n- ") == 21
