"""Runs as trees in the terminal."""

from __future__ import annotations

import io
import re

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from pellucid import Agent, DiscoveryProvider, Telemetry, Tool, ToolCall, ToolError, semconv, tool
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.console import MOST_SPANS, Console, ConsoleProcessor


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    if a < 0:
        raise ToolError("a must not be negative")
    return a + b


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def shown(options: Console, *agents: Agent) -> str:
    """Run agents and return what the console shows."""
    assert options.stream is not None
    provider = TracerProvider()
    provider.add_span_processor(ConsoleProcessor(options))
    for agent in agents:
        agent._telemetry = Telemetry(tracer_provider=provider)
        agent.run_sync("Add.")
    provider.shutdown()
    stream = options.stream
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def adder(*arguments: dict[str, int], name: str = "sums") -> Agent:
    """Return an agent that adds."""
    hub = DiscoveryProvider(FakeHub([Tool(name="nop", run=lambda _a, _c: "")]), id="hub")
    calls = [ToolCall("add", each) for each in arguments]
    return Agent(name, model=ScriptedModel(*calls, "Done."), tools=[add], providers=[hub])


def without_times(text: str) -> list[str]:
    """Return lines with durations and alignment taken out."""
    return [re.sub(r"\s+", " ", re.sub(r"[\d.]+ (?:m?s)\b", "T", line)).strip() for line in text.splitlines()]


def test_a_run_is_a_tree_of_lines() -> None:
    """Each span is a line with iteration, duration and what is known of it; nothing unknown is shown as 0."""
    text = shown(Console(stream=io.StringIO()), adder({"a": 1, "b": 2}))
    lines = without_times(text)
    assert lines[0] == "invoke_agent sums T 2 iterations"
    assert sorted(lines[1:3]) == ["├─ discover_tools hub [1] T miss 1 tool", "├─ discover_tools static [1] T 1 tool"]
    assert lines[3:6] == [
        "├─ compose_request [1] T 2 tools 1 message",
        "├─ chat scripted [1] T",
        "├─ execute_tool add [1] T from static",
    ]
    assert "├─ discover_tools hub [2] T hit 1 tool" in lines
    assert lines[9] == "└─ chat scripted [2] T"
    assert "token" not in text
    assert "\x1b" not in text


def test_failures_are_loud() -> None:
    """A span that did not complete says so, with type and text."""
    text = shown(Console(stream=io.StringIO(), width=200), adder({"a": -1, "b": 2}))
    assert "FAILED tool_error: a must not be negative" in text


def test_content_is_shown_on_request() -> None:
    """Input and output stand below their span, shortened."""
    text = shown(Console(stream=io.StringIO(), content=True, width=200), adder({"a": 1, "b": 2}))
    assert '│     in  {"a":1,"b":2}' in text
    assert "│     out 3" in text


def test_names_cannot_write_to_the_terminal() -> None:
    """Control characters in names that hubs and models chose are replaced."""
    agent = Agent("evil\x1b]0;owned\x07", model=ScriptedModel(ToolCall("a\x1b[2J\nb"), "[bold]x[/bold]"))
    text = shown(Console(stream=io.StringIO()), agent)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "execute_tool a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}b" in text


def test_a_terminal_gets_colours_and_a_live_tree() -> None:
    """In a terminal the finished tree has colours, and markup in names stays text."""
    text = shown(Console(stream=Terminal(), width=100), Agent("[red]x", model=ScriptedModel("Done.")))
    assert "\x1b[" in text
    assert "invoke_agent [red]x" in text


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """`NO_COLOR` leaves the tree without colours even in a terminal."""
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(Console(stream=Terminal(), live=False, width=100), adder({"a": 1, "b": 2}))
    assert "\x1b" not in text


def test_runs_do_not_mix() -> None:
    """Each run is written as a whole when it is over, whatever ran in between."""
    stream = io.StringIO()
    provider = TracerProvider()
    provider.add_span_processor(ConsoleProcessor(Console(stream=stream)))
    tracer = provider.get_tracer(semconv.SCOPE)
    first = tracer.start_span("invoke_agent first")
    second = tracer.start_span("invoke_agent second")
    for root, name in ((first, "chat a"), (second, "chat b"), (first, "chat c")):
        tracer.start_span(name, context=trace.set_span_in_context(root)).end()
    second.end()
    first.end()
    tracer.start_span("late", context=trace.set_span_in_context(first)).end()
    lines = [line.split("  ")[0] for line in stream.getvalue().splitlines()]
    assert lines == ["invoke_agent second", "└─ chat b", "", "invoke_agent first", "├─ chat a", "└─ chat c", ""]


def test_a_run_with_very_many_spans_is_cut() -> None:
    """Memory is bounded; what is left out is counted."""
    stream = io.StringIO()
    provider = TracerProvider()
    provider.add_span_processor(ConsoleProcessor(Console(stream=stream)))
    tracer = provider.get_tracer(semconv.SCOPE)
    root = tracer.start_span("invoke_agent big")
    for _ in range(MOST_SPANS + 10):
        tracer.start_span("chat", context=trace.set_span_in_context(root)).end()
    root.end()
    assert stream.getvalue().splitlines()[-2] == "… and 11 more spans"


def test_a_stream_that_fails_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A closed stream reaches neither the run nor the log more than once."""
    stream = io.StringIO()
    provider = TracerProvider()
    provider.add_span_processor(ConsoleProcessor(Console(stream=stream)))
    stream.close()
    tracer = provider.get_tracer(semconv.SCOPE)
    for _ in range(3):
        tracer.start_span("invoke_agent a").end()
    assert len(caplog.records) == 1
