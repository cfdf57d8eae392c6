from __future__ import annotations

import ast
import contextvars
import logging
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.trace import format_span_id

from pellucid import (
    Agent,
    CapturePolicy,
    DiscoveryError,
    RunCancelled,
    RunTimeout,
    TelemetryOptions,
    Tool,
    ToolCall,
    ToolError,
    semconv,
)
from pellucid.events import Event, ToolsDiscoveryCompleted, ToolsDiscoveryFailed, ToolsDiscoveryStarted
from pellucid.telemetry import DISCOVERY, DISPATCH, Boundary, Scope, boundary
from pellucid.telemetry.phases import BACKGROUND_DISCOVERY, PHASES
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import TICK, Captured, capture
from support import notes
from support.runs import attributes, ending, span_id

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@pytest.fixture(autouse=True)
def _not_checked(telemetry: Captured) -> None:
    """Leave out the check of the telemetry, because boundaries alone are no run."""
    telemetry.is_checked = False


def observe(scope: Scope, **notes: Any) -> Boundary:
    """Return the boundary of a discovery."""
    return boundary(scope, DISCOVERY, "rube", provider_id="rube", provider_kind="hub", cache="none", **notes)


def run_scope(telemetry: Captured) -> Scope:
    """Return the scope of a run."""
    scope = Scope(agent="a", run_id="r1", pipeline=telemetry)
    scope.iteration = 2
    return scope


def test_span_metric_events_and_log_line_agree(telemetry: Captured) -> None:
    """The span, metric, events and log line of a boundary have the same duration, ids and outcome."""
    with observe(run_scope(telemetry)) as b:
        b.note(tool_count=3)
    span = telemetry.span("discover_tools rube")
    context = span.get_span_context()
    assert context is not None
    assert span.start_time is not None
    assert span.end_time is not None
    seconds = (span.end_time - span.start_time) / 1e9
    point = telemetry.histogram(semconv.DISCOVERY_DURATION, pellucid_provider_id="rube")
    started, completed = telemetry.events
    (line,) = telemetry.logs
    assert isinstance(started, ToolsDiscoveryStarted)
    assert isinstance(completed, ToolsDiscoveryCompleted)
    assert point.count == 1
    assert point.value == pytest.approx(seconds)
    assert completed.duration_ms == line["duration_ms"] == pytest.approx(seconds * 1e3)
    ids = (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert {(event.trace_id, event.span_id) for event in telemetry.events} == {ids}
    assert (line["trace_id"], line["span_id"]) == ids
    assert [(exemplar.trace_id, exemplar.span_id) for exemplar in point.exemplars] == [ids]
    assert (ending(span), line["outcome"], line["level"]) == (("completed", "UNSET", None), "completed", "info")
    assert line["timestamp"] == span.end_time
    assert (line["event"], line["tool_count"], completed.tool_count) == ("tools.discovery_completed", 3, 3)
    assert {event.run_id for event in telemetry.events} == {line["run_id"]} == {attributes(span)[semconv.RUN_ID]}
    assert (
        {event.iteration for event in telemetry.events} == {line["iteration"]} == {attributes(span)[semconv.ITERATION]}
    )


async def test_instrumentation_of_logging_sees_the_span_of_the_line(telemetry: Captured) -> None:
    """The current span is that of the boundary while its log record is created."""
    created: list[tuple[str, str]] = []

    class Instrumented(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            current = trace.get_current_span().get_span_context()
            created.append((format_span_id(current.span_id), record.__dict__["span_id"]))

    logger, handler = logging.getLogger("pellucid"), Instrumented()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        await Agent("a", model=ScriptedModel(ToolCall("do"), "x"), tools=[Tool(name="do", run=done)]).run("go")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert len(created) == len(telemetry.spans) == 8
    assert all(current == of_line for current, of_line in created)
    assert not trace.get_current_span().get_span_context().is_valid


async def done(arguments: Any, ctx: Any) -> str:
    """Do nothing."""
    return "done"


def test_what_a_sampler_may_ask_for_is_there_from_the_start(telemetry: Captured) -> None:
    """Notes that are given at the start are attributes of the started span."""
    with observe(run_scope(telemetry), server_address="example.com") as b:
        assert b.span.is_recording()
        (span,) = telemetry.started
        before = dict(span.attributes or {})
        b.note(tool_count=1, cache="hit", unknown="left out", digest=None)
    notes.misspelled.clear()
    after = attributes(telemetry.span("discover_tools"))
    assert before == {
        semconv.RUN_ID: "r1",
        semconv.ITERATION: 2,
        semconv.PHASE: "discovery",
        semconv.PROVIDER_ID: "rube",
        semconv.PROVIDER_KIND: "hub",
        semconv.DISCOVERY_CACHE: "none",
        semconv.SERVER_ADDRESS: "example.com",
    }
    added = {semconv.DISCOVERY_TOOL_COUNT: 1, semconv.DISCOVERY_CACHE: "hit", semconv.OUTCOME: "completed"}
    assert after == before | added


@pytest.mark.parametrize(
    ("error", "outcome", "error_type"),
    [
        (ValueError("x"), "failed", "ValueError"),
        (TimeoutError("x"), "timeout", "timeout"),
        (RunTimeout("x"), "timeout", "timeout"),
        (RunCancelled("a"), "cancelled", None),
        (ToolError("x", error_type="rate_limited"), "failed", "rate_limited"),
        (anyio.EndOfStream("x"), "failed", "anyio.EndOfStream"),
        (ExceptionGroup("several", [ValueError("x")]), "failed", "ExceptionGroup"),
        (KeyboardInterrupt(), "cancelled", None),
        (SystemExit(1), "failed", "SystemExit"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_exit_is_paired(telemetry: Captured, error: BaseException, outcome: str, error_type: str | None) -> None:
    """An exception passes through a boundary unchanged, and the span, metric, event and log line have its type."""
    with pytest.raises(type(error)) as caught, observe(run_scope(telemetry)):
        raise error
    assert caught.value is error
    span = telemetry.span("discover_tools")
    status = "ERROR" if error_type else "UNSET"
    assert ending(span) == (outcome, status, error_type)
    assert telemetry.histogram(semconv.DISCOVERY_DURATION, error_type=error_type).count == 1
    started, failed = telemetry.events
    assert isinstance(started, ToolsDiscoveryStarted)
    assert isinstance(failed, ToolsDiscoveryFailed)
    assert (failed.outcome, failed.error_type) == (outcome, error_type)
    (line,) = telemetry.logs
    assert (line["outcome"], line.get("error_type"), line["level"]) == (
        outcome,
        error_type,
        "error" if error_type else "info",
    )
    assert [event.name for event in span.events] == (["exception"] if error_type else [])
    assert telemetry.unended == []


def test_the_type_of_a_wrapped_error_is_that_of_its_cause(telemetry: Captured) -> None:
    """`error.type` of a wrapped error is the type of its cause."""
    with pytest.raises(DiscoveryError), observe(run_scope(telemetry)):
        raise DiscoveryError("rube", "x") from ConnectionRefusedError("y")
    assert ending(telemetry.span("discover_tools")) == ("failed", "ERROR", "ConnectionRefusedError")


def test_a_failure_may_be_returned(telemetry: Captured) -> None:
    """`fail` makes the span a failed one although no exception is raised."""
    with boundary(run_scope(telemetry), DISPATCH, "add", tool_name="add", tool_call_id="c1") as b:
        b.fail(ToolError("no"))
    assert ending(telemetry.span("execute_tool add")) == ("failed", "ERROR", "tool_error")
    assert [event.name for event in telemetry.events] == ["tool.started", "tool.failed"]


async def test_a_cancelled_boundary(telemetry: Captured) -> None:
    """Native cancellation ends a boundary as cancelled and is passed on."""
    with anyio.fail_after(60), anyio.CancelScope() as scope, observe(run_scope(telemetry)):
        scope.cancel()
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert ending(telemetry.span("discover_tools")) == ("cancelled", "UNSET", None)


async def test_a_cancellation_by_the_run_s_deadline_is_a_timeout(telemetry: Captured) -> None:
    """A cancellation by the run's deadline is a timeout, unless the run was cancelled on purpose."""
    for cancelled in (False, True):
        scope = run_scope(telemetry)
        scope.deadline, scope.cancelled = anyio.current_time(), cancelled
        with anyio.fail_after(60), anyio.CancelScope() as limit, observe(scope):
            limit.cancel()
            await anyio.sleep_forever()
    by_deadline, on_purpose = telemetry.find("discover_tools")
    assert ending(by_deadline) == ("timeout", "ERROR", "timeout")
    assert ending(on_purpose) == ("cancelled", "UNSET", None)


@types.coroutine
def suspended() -> Generator[None, None, None]:
    """Suspend once."""
    yield


def test_a_coroutine_that_is_thrown_away_ends_its_boundaries(telemetry: Captured) -> None:
    """Closing a suspended coroutine ends its boundaries, even without an event loop."""
    scope = run_scope(telemetry)
    scope.deadline = 0.0

    async def work() -> None:
        with observe(scope), boundary(scope, DISPATCH, "add", tool_name="add"):
            await suspended()

    coroutine = work()
    contextvars.copy_context().run(coroutine.send, None)
    coroutine.close()
    assert [ending(span) for span in telemetry.spans] == [("cancelled", "UNSET", None)] * 2
    assert telemetry.unended == []


def test_what_was_left_behind_is_ended_once(telemetry: Captured) -> None:
    """Closing a scope ends its open boundaries once, innermost first."""
    scope = run_scope(telemetry)
    with observe(scope), boundary(scope, DISPATCH, "add", tool_name="add"):
        scope.close()
        assert [span.name for span in telemetry.spans] == ["execute_tool add", "discover_tools rube"]
    scope.close()
    assert len(telemetry.spans) == 2
    assert [ending(span)[0] for span in telemetry.spans] == ["cancelled"] * 2
    assert len(telemetry.events) == len(telemetry.logs) * 2 == 4


def test_the_span_is_current_inside_only(telemetry: Captured) -> None:
    """The span of a boundary is current inside it, and the context is restored afterwards."""
    before = trace.get_current_span()
    with observe(run_scope(telemetry)) as b:
        assert trace.get_current_span() is b.span
        with observe(run_scope(telemetry)):
            pass
    assert trace.get_current_span() is before
    inner, outer = telemetry.spans
    assert inner.parent is not None
    assert f"{inner.parent.span_id:016x}" == span_id(outer)


def test_labels_may_differ_from_attributes(telemetry: Captured) -> None:
    """A label may have another value than the attribute of the span."""
    with boundary(run_scope(telemetry), DISPATCH, "invented", tool_name="invented", tool_call_id="c1") as b:
        b.label(tool_name=semconv.OTHER)
    assert attributes(telemetry.span("execute_tool"))[semconv.TOOL_NAME] == "invented"
    point = telemetry.histogram(semconv.TOOL_DURATION)
    assert point.attributes == {semconv.TOOL_NAME: "_OTHER"}


def test_time_does_not_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that is set back changes no duration."""
    with capture(fixed=False) as telemetry:
        telemetry.is_checked = False  # a boundary alone
        scope = run_scope(telemetry)
        with observe(scope):
            monkeypatch.setattr("time.time_ns", lambda: 0)
            monkeypatch.setattr("time.time", lambda: 0.0)
    (span,) = telemetry.spans
    assert span.start_time is not None
    assert span.end_time is not None
    assert 0 <= span.end_time - span.start_time < 60e9


@pytest.mark.telemetry(fixed=True)
def test_one_reading_of_the_clock_at_each_end(telemetry: Captured) -> None:
    """A boundary reads the clock once at its start and once at its end."""
    with observe(run_scope(telemetry)):
        pass
    (span,) = telemetry.spans
    assert span.start_time is not None
    assert span.end_time == span.start_time + 2 * TICK


# --- content ----------------------------------------------------------------------------------------------------------


def content_of(policy: CapturePolicy) -> dict[str, Any]:
    """Return the recorded input, output and failure of a boundary."""
    with capture(capture=policy) as telemetry:
        b = observe(run_scope(telemetry))
        b.input({"password": "hunter2", "user": "ann"})
        b.output(["hi"])
        with pytest.raises(ValueError, match="hunter2"), b:
            raise ValueError("password=hunter2")
        span = telemetry.span("discover_tools")
        (exception,) = span.events or (None,)
        return {
            **attributes(span),
            "status": span.status.description,
            "exception": dict(exception.attributes or {}) if exception else None,
            "event": telemetry.events[-1].error,  # type: ignore[attr-defined]  # a ToolsDiscoveryFailed
            "log": telemetry.logs[-1].get("error"),
        }


def test_content_is_redacted_by_default() -> None:
    """Secrets in input, output, status, exception, event and log line are masked by default."""
    found = content_of(CapturePolicy())
    assert found[semconv.INPUT] == '{"password":"[redacted]","user":"ann"}'
    assert found[semconv.OUTPUT] == '["hi"]'
    assert found[semconv.OUTPUT_BYTES] == 6
    assert found["status"] == found["event"] == found["log"] == "password=[redacted]"
    assert "Traceback" in found["exception"]["exception.stacktrace"]
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize("mode", ["metadata", "off"])
def test_without_content_there_is_none(mode: Any) -> None:
    """`metadata` keeps digests and sizes of content, and `off` keeps none; neither keeps the text of an error."""
    found = content_of(CapturePolicy(mode))
    assert not {semconv.INPUT, semconv.OUTPUT} & set(found)
    assert (semconv.INPUT_DIGEST in found, semconv.INPUT_BYTES in found) == (mode == "metadata",) * 2
    assert (found["status"], found["exception"], found["event"], found["log"]) == (None,) * 4
    assert found[semconv.ERROR_TYPE] == "ValueError"
    assert "hunter2" not in repr(found)


# --- faults of observers ----------------------------------------------------------------------------------------------


class Broken(Exception):
    """A fault of an observer."""


def fail(*_: Any, **__: Any) -> Any:
    """Fail."""
    raise Broken("observer is broken")


def policy_of_broken_redactor() -> CapturePolicy:
    """Return a policy whose redactor fails."""
    return CapturePolicy(redactors=(fail,))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"log_sinks": (fail,)}, "log"),
        ({"listeners": (("*", fail),)}, "listener"),
        ({"capture": policy_of_broken_redactor()}, "recording"),
    ],
    ids=["sink", "listener", "redactor"],
)
@pytest.mark.parametrize("error", [None, ValueError("x")], ids=["returns", "raises"])
def test_a_broken_observer_is_counted_and_reaches_nobody(
    telemetry: Captured, change: dict[str, Any], part: str, error: Exception | None
) -> None:
    """A fault in a sink, listener or redactor is counted and does not change the code inside the boundary."""
    events: list[Event] = []
    options: dict[str, Any] = {"listeners": (), **change}
    options["listeners"] += (("*", events.append),)
    options |= {"tracer_provider": telemetry.tracer_provider, "meter_provider": telemetry.meter_provider}
    scope = Scope(pipeline=TelemetryOptions(**options))
    reached = raised = None
    try:
        with observe(scope) as b:
            b.input("x")
            reached = True
            if error is not None:
                raise error
    except ValueError as caught:
        raised = caught
    assert reached
    assert raised is error
    assert telemetry.value(semconv.TELEMETRY_ERRORS, pellucid_telemetry_part=part) >= 1
    outcome = "completed" if error is None else "failed"
    assert ending(telemetry.span("discover_tools"))[0] == outcome
    assert {event.name for event in events} == {
        "tools.discovery_started",
        f"tools.discovery_{outcome}",
        "telemetry.error",
    }


class Unprintable(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise Broken("no text")


def test_an_error_without_a_text_is_an_error_like_others(telemetry: Captured) -> None:
    """An exception whose text cannot be read fails the span with its type, and the fault is counted."""
    with pytest.raises(Unprintable), observe(run_scope(telemetry)):
        raise Unprintable
    outcome, status, error_type = ending(telemetry.span("discover_tools"))
    assert (outcome, status) == ("failed", "ERROR")
    assert str(error_type).endswith("Unprintable")
    assert telemetry.value(semconv.TELEMETRY_ERRORS, pellucid_telemetry_part="recording") == 1


def test_a_misspelled_note_fails_its_test(telemetry: Captured) -> None:
    """A misspelled note is collected for the tests and raises nothing."""
    with boundary(run_scope(telemetry), DISPATCH, "add", tol_name="add") as b:
        b.note(tool_nam="add", tool_name="add")
        b.label(tool="add")
        assert b.noted("tools") is None
    assert notes.misspelled == [f"dispatch: {name}" for name in ("tol_name", "tool_nam", "tool", "tools")]
    notes.misspelled.clear()
    assert telemetry.span("execute_tool add").attributes[semconv.TOOL_NAME] == "add"


def test_the_notes_of_all_calls_are_known() -> None:
    """Each keyword of `note` in the code is a note of some phase."""
    every = {name for phase in (*PHASES.values(), BACKGROUND_DISCOVERY) for name in notes.known(phase)}
    for file in (Path(__file__).parents[3] / "sdk").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "note":
                assert {word.arg for word in node.keywords} - {None} <= every, f"{file}:{node.lineno}"
