"""Boundary records: what a span says of a phase, as plain data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_span_id

from pellucid import Agent, CapturePolicy, DiscoveryError, DiscoveryProvider, ToolCall, semconv, tool
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.boundary_records import boundary_of
from pellucid_exporters.testing import capture

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid.telemetry.capture import CaptureMode
    from pellucid_exporters.testing import Captured


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def adding(mode: CaptureMode = "redacted") -> Captured:
    """Run an agent that adds."""
    with anyio.fail_after(60), capture(capture=CapturePolicy(mode)) as telemetry:
        model = ScriptedModel(ToolCall("add", {"a": 1, "b": 2}, id="c1"), "Three.")
        await Agent("sums", model=model, tools=[add]).run("Add.")
    return telemetry


def record(span: ReadableSpan) -> dict[str, Any]:
    """Return the record of a span that has one; it is plain data."""
    found = boundary_of(span)
    assert found is not None
    assert json.loads(json.dumps(found)) == found
    return found


@pytest.mark.anyio
async def test_a_record_says_what_its_span_says() -> None:
    """A record has the ids, phase, times and outcome of its span, and input and output as data."""
    telemetry = await adding()
    span, run = telemetry.span("execute_tool"), telemetry.span("invoke_agent")
    assert span.context is not None
    assert run.context is not None
    assert span.start_time is not None
    assert span.end_time is not None
    attributes = dict(span.attributes or {})
    assert record(span) == {
        "trace_id": f"{span.context.trace_id:032x}",
        "span_id": f"{span.context.span_id:016x}",
        "parent_span_id": format_span_id(run.context.span_id),
        "name": "execute_tool add",
        "start": span.start_time,
        "duration_ms": (span.end_time - span.start_time) / 1e6,
        "run_id": attributes[semconv.RUN_ID],
        "iteration": 1,
        "phase": "dispatch",
        "agent": "sums",
        "provider_id": "static",
        "tool_name": "add",
        "tool_call_id": "c1",
        "outcome": "completed",
        "input": {"a": 1, "b": 2},
        "input_digest": attributes[semconv.INPUT_DIGEST],
        "input_bytes": attributes[semconv.INPUT_BYTES],
        "output": 3,
        "output_digest": attributes[semconv.OUTPUT_DIGEST],
        "output_bytes": attributes[semconv.OUTPUT_BYTES],
    }
    assert "parent_span_id" not in record(run)
    assert {record(each)["phase"] for each in telemetry.spans} == {
        *(semconv.RUN, semconv.DISCOVERY, semconv.COMPOSE, semconv.INFERENCE, semconv.DISPATCH)
    }


@pytest.mark.anyio
async def test_content_by_reference_stays_a_reference() -> None:
    """A second chat's record has the new messages, and refers to those before by number and place."""
    telemetry = await adding()
    first, second = (record(span) for span in telemetry.find("chat"))
    assert [message["role"] for message in first["input"]] == ["user"]
    assert [message["role"] for message in second["input"]] == ["assistant", "tool"]
    assert (second["repeated"], second["recorded_on"]) == (1, first["span_id"])
    assert "recorded_on" not in first


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["metadata", "off"])
async def test_what_was_not_recorded_is_absent(mode: CaptureMode) -> None:
    """A record has no input and no output without content, and no digest if nothing is recorded."""
    telemetry = await adding(mode)
    found = record(telemetry.span("execute_tool"))
    assert {"input", "output"}.isdisjoint(found)
    assert ("input_digest" in found) is (mode == "metadata")


@pytest.mark.anyio
async def test_a_failure_is_told_with_type_and_text() -> None:
    """A record of a failed phase has the type and the text of its error."""
    hub = DiscoveryProvider(FakeHub([], faults=[ConnectionError("hub is down")]), id="hub")
    with anyio.fail_after(60), capture() as telemetry, pytest.raises(DiscoveryError):
        await Agent("a", model=ScriptedModel("x"), providers=[hub]).run("x")
    found = record(telemetry.span("discover_tools hub"))
    assert (found["outcome"], found["provider_id"]) == ("failed", "hub")
    assert found["error_type"] == (telemetry.span("discover_tools hub").attributes or {})[semconv.ERROR_TYPE]
    assert "hub is down" in found["error"]


def test_other_spans_have_none() -> None:
    """Spans of other libraries, and Pellucid's spans that are no phase, have no record."""
    provider = TracerProvider(shutdown_on_exit=False)
    for scope, attributes in (("other", {semconv.PHASE: "run"}), (semconv.SCOPE, {}), (semconv.SCOPE, {"x": "run"})):
        span = provider.get_tracer(scope).start_span("invoke_agent a", attributes=attributes)
        span.end()
        assert boundary_of(span) is None  # type: ignore[arg-type]  # the API's type


@pytest.mark.parametrize("content", ["[" * 100_000, '{"cut": "in ha'])
def test_content_that_is_no_json_is_kept_as_text(content: str) -> None:
    """Content that is not valid JSON is kept as the text that was recorded."""
    attributes = {semconv.PHASE: semconv.DISPATCH, semconv.TOOL_CALL_ARGUMENTS: content}
    span = TracerProvider(shutdown_on_exit=False).get_tracer(semconv.SCOPE).start_span("x", attributes=attributes)
    span.end()
    assert record(span)["input"] == content  # type: ignore[arg-type]  # the API's type
