"""Runs as trees in the terminal."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

import pyte
import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider

from pellucid import (
    Agent,
    Decision,
    DiscoveryProvider,
    ExternalResult,
    Message,
    ModelResponse,
    TelemetryOptions,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    Usage,
    semconv,
    tool,
)
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.console import Console, ConsoleProcessor
from pellucid_exporters.console.processor import MOST_RUNS, MOST_SPANS
from support.processes import PATIENCE, command, run_python


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    if a < 0:
        raise ToolError("a must not be negative")
    return a + b


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self._written = threading.Condition()

    def isatty(self) -> bool:
        """Say so."""
        return True

    def write(self, text: str) -> int:
        """Write, and wake whoever waits for it."""
        with self._written:
            count = super().write(text)
            self._written.notify_all()
            return count

    def await_text(self, *texts: str) -> None:
        """Wait until all of the texts were written."""
        with self._written:
            assert self._written.wait_for(lambda: all(text in self.getvalue() for text in texts), timeout=PATIENCE)

    def await_writes(self, count: int) -> None:
        """Wait until there were so many writes more."""
        with self._written:
            for _ in range(count):
                assert self._written.wait(timeout=PATIENCE)


@contextmanager
def spans(options: Console, *, scope: str = semconv.SCOPE) -> Iterator[trace.Tracer]:
    """Give a tracer whose spans the console shows."""
    provider = TracerProvider()
    provider.add_span_processor(ConsoleProcessor(options))
    yield provider.get_tracer(scope)
    provider.shutdown()


def inside(span: trace.Span) -> Context:
    """Return the context of what happens inside of a span."""
    return trace.set_span_in_context(span)


def names(stream: io.StringIO) -> list[str]:
    """Return how each line begins, up to its columns."""
    return [re.split(r"(?<=\w)  ", line)[0] for line in stream.getvalue().splitlines()]


def shown(options: Console, *agents: Agent) -> str:
    """Run agents and return what the console shows."""
    assert options.stream is not None
    provider = TracerProvider()
    provider.add_span_processor(ConsoleProcessor(options))
    for agent in agents:
        with agent.override(telemetry=TelemetryOptions(tracer_provider=provider)):
            agent.run_sync("Add.")
    provider.shutdown()
    stream = options.stream
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def test_what_is_known_of_tokens_and_cost_is_shown() -> None:
    """Known tokens and costs are on the call and on the run; an unknown cost is left out."""

    def cost(dollars: float) -> str:
        usage = Usage(input_tokens=1200, output_tokens=None, cost=dollars)
        model = ScriptedModel(ModelResponse(message=Message("assistant", "hi"), usage=usage))
        return shown(Console(stream=io.StringIO()), Agent("a", model=model))

    assert cost(0.0123).count("1,200→? tokens  $0.0123") == 2
    assert cost(0.0000001).count("<$0.0001") == 2
    assert "$" not in shown(Console(stream=io.StringIO()), Agent("a", model=ScriptedModel("hi")))


def adder(*arguments: dict[str, int], name: str = "sums") -> Agent:
    """Return an agent that adds."""
    hub = DiscoveryProvider(FakeHub([Tool(name="nop", run=lambda _a, _c: "")]), id="hub")
    calls = [ToolCall("add", each) for each in arguments]
    return Agent(name, model=ScriptedModel(*calls, "Done."), tools=[add], providers=[hub])


def without_times(text: str) -> list[str]:
    """Return lines with durations and alignment taken out."""
    return [re.sub(r"\s+", " ", re.sub(r"[\d.]+ (?:m?s)\b", "T", line)).strip() for line in text.splitlines()]


def test_a_run_is_a_tree_of_lines() -> None:
    """A run is a tree with a line for each span, with its iteration and duration; unknown values are not shown as 0."""
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
    """A span that did not complete shows so, with the type and text of its error."""
    text = shown(Console(stream=io.StringIO(), width=200), adder({"a": -1, "b": 2}))
    assert "FAILED tool_error: a must not be negative" in text


class OutOfOrder(Exception):
    """An exception of a library."""


def test_an_exception_is_shown_without_its_module() -> None:
    """An exception is shown with its class and its text, once each, and without its module."""

    def vend(_arguments: object, _ctx: object) -> str:
        raise OutOfOrder("no coins left")

    agent = Agent("sums", model=ScriptedModel(ToolCall("vend", {}), "Done."), tools=[Tool(name="vend", run=vend)])
    text = shown(Console(stream=io.StringIO(), width=200), agent)
    assert "FAILED OutOfOrder: no coins left" in text


def test_what_waits_for_a_person_says_so_and_by_whom_it_was_decided() -> None:
    """A run that waits for an approval says so, and the call in the run that goes on says who approved it."""
    stream = io.StringIO()
    provider = TracerProvider()
    provider.add_span_processor(ConsoleProcessor(Console(stream=stream, width=200)))
    options: dict[str, Any] = {"telemetry": TelemetryOptions(tracer_provider=provider)}
    options["tools"] = [Tool(name="pay", run=lambda arguments, ctx: "paid", needs_approval=True)]
    waits = Agent("a", model=ScriptedModel(ToolCall("pay")), **options).run_sync("x")
    assert waits.checkpoint is not None
    decision = Decision(waits.approvals[0].approval_id, approved=True, decided_by="ann")
    Agent("a", model=ScriptedModel("done"), **options).resume_sync(waits.checkpoint, decisions=[decision])
    provider.shutdown()
    assert re.search(r"^invoke_agent a .* waits for approval", stream.getvalue(), re.MULTILINE)
    assert re.search(r"execute_tool pay .* approved by ann after [\d.]+ m?s$", stream.getvalue(), re.MULTILINE)


def test_the_wait_for_a_result_is_shown_in_the_run_that_gets_it() -> None:
    """The wait for a result is shown in the tree of the run that gets the result."""

    async def enqueue(arguments: Any, ctx: ToolContext) -> None:
        """Leave the work to another process."""

    stream = io.StringIO()
    provider = TracerProvider()
    provider.add_span_processor(ConsoleProcessor(Console(stream=stream, width=80)))
    agent = Agent(
        "a",
        model=ScriptedModel(ToolCall("job"), "waiting", "done"),
        tools=[Tool(name="job", run=enqueue, execution="external-dispatch")],
        telemetry=TelemetryOptions(tracer_provider=provider),
    )
    paused = agent.run_sync("x")
    assert "await_tool" not in stream.getvalue()
    results = [ExternalResult(result_id=request.result_id) for request in paused.external]
    agent.resume_sync(paused.checkpoint or {}, results=results)
    provider.shutdown()
    resumed = stream.getvalue().split("invoke_agent a")[2]
    assert resumed.splitlines()[1].startswith("├─ await_tool job")


def test_content_is_shown_on_request() -> None:
    """Input and output stand below their span on request, shortened."""
    text = shown(Console(stream=io.StringIO(), content=True, width=200), adder({"a": 1, "b": 2}))
    assert '│     in  {"a":1,"b":2}' in text
    assert "│     out 3" in text


@pytest.mark.parametrize("color", [False, True])
def test_lines_fit(*, color: bool) -> None:
    """No line is wider than asked for: spans are cut, and content goes on below itself."""
    text = shown(Console(stream=io.StringIO(), content=True, color=color, width=60), adder({"a": -1, "b": 2}))
    lines = re.sub("\x1b\\[[\\d;]*m", "", text).splitlines()
    assert max(len(line) for line in lines) == 60
    assert any(line.endswith("…") and "FAILED" in line for line in lines)
    assert all(line.startswith(("invoke_agent", "├─ ", "└─ ", "│  ", "   ")) for line in lines if line)
    assert "call_" in "".join(line.removeprefix("│").strip() for line in lines)


def test_names_cannot_write_to_the_terminal() -> None:
    """Control characters in names that hubs and models chose are replaced."""
    agent = Agent("evil\x1b]0;owned\x07", model=ScriptedModel(ToolCall("a\x1b[2J\nb"), "[bold]x[/bold]"))
    text = shown(Console(stream=io.StringIO()), agent)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "execute_tool a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}b" in text


def test_a_terminal_gets_colours_and_a_live_tree() -> None:
    """The finished tree has colours in a terminal, and markup in names stays text."""
    text = shown(Console(stream=Terminal(), width=100), Agent("[red]x", model=ScriptedModel("Done.")))
    assert "\x1b[" in text
    assert "invoke_agent [red]x" in text


@pytest.mark.parametrize(
    ("variables", "stream", "is_coloured"),
    [
        ({"NO_COLOR": "1"}, "Terminal", False),
        ({"NO_COLOR": "", "FORCE_COLOR": ""}, "StringIO", False),
        ({"FORCE_COLOR": "1"}, "StringIO", True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, "Terminal", False),
        ({"TERM": "dumb"}, "Terminal", False),
    ],
)
def test_the_environment_chooses_colours(
    variables: dict[str, str], stream: str, *, is_coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`NO_COLOR` wins over `FORCE_COLOR`, which colours a pipe too; a dumb terminal has none."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    where = Terminal() if stream == "Terminal" else io.StringIO()
    text = shown(Console(stream=where, live=False, width=100), adder({"a": 1, "b": 2}))
    assert ("\x1b" in text) is is_coloured
    assert text.count("invoke_agent") == 1


def test_the_environment_chooses_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width is `COLUMNS` where there is no terminal."""
    monkeypatch.setenv("COLUMNS", "44")
    text = shown(Console(stream=io.StringIO()), adder({"a": -1, "b": 2}))
    assert max(map(len, text.splitlines())) == 44


def test_a_plain_tree_has_the_width_of_its_terminal() -> None:
    """Lines do not wrap in a terminal without colours either."""
    termios = pytest.importorskip("termios", reason="needs a pseudo-terminal")
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 40))
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(theirs, "w") as stream:
        with spans(Console(stream=stream, color=False)) as tracer:
            tracer.start_span("invoke_agent " + "a" * 60).end()
        line = screen.read(1000).decode().splitlines()[0]
    assert len(line) <= 40
    assert line.endswith("ms")


def test_the_tree_goes_to_what_is_standard_output_by_then() -> None:
    """A tree is written to the standard output of the moment, as by `print`, or nowhere if there is none."""
    redirected = io.StringIO()
    with spans(Console()) as tracer:
        with redirect_stdout(redirected):
            tracer.start_span("invoke_agent a").end()
        with redirect_stdout(None):
            tracer.start_span("invoke_agent b").end()
    assert names(redirected) == ["invoke_agent a", ""]


def test_no_colour_means_no_escape_codes() -> None:
    """A terminal without colours gets plain text, once, without codes that move its cursor."""
    text = shown(Console(stream=Terminal(), color=False), adder({"a": 1, "b": 2}))
    assert "\x1b" not in text
    assert text.count("invoke_agent sums") == 1


def test_a_live_tree_leaves_standard_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Text that the application prints during a run goes to standard output, and not into the live tree."""
    stream = Terminal()
    with spans(Console(stream=stream, live=True)) as tracer:
        run = tracer.start_span("invoke_agent a")
        sys.stdout.write("answer\n")
        run.end()
    assert capsys.readouterr().out == "answer\n"
    assert "answer" not in stream.getvalue()


def test_a_live_tree_shows_what_is_under_way() -> None:
    """A span appears when it starts, with the time that it has been running."""
    stream = Terminal()
    with spans(Console(stream=stream, live=True, color=False, width=100)) as tracer:
        run = tracer.start_span("invoke_agent a")
        chat = tracer.start_span("chat slow", context=inside(run))
        stream.await_text("└─ chat slow", "s …")
        chat.end()
        run.end()
    assert without_times(stream.getvalue().split("\x1b[2K")[-1])[:2] == ["invoke_agent a T", "└─ chat slow T"]


def displayed(written: str) -> list[str]:
    """Return the lines that a terminal shows."""
    screen = pyte.Screen(100, 40)
    screen.set_mode(pyte.modes.LNM)
    pyte.Stream(screen).feed(written)
    assert not screen.cursor.hidden
    return "\n".join(line.rstrip() for line in screen.display).rstrip().splitlines()


def test_a_live_tree_waits_for_the_end_of_a_line() -> None:
    """A live tree is not drawn while the program is in the middle of a line, and comes back below that line."""
    stream, clock = Terminal(), Terminal()
    with (
        spans(Console(stream=stream, live=True, color=False, width=100)) as tracer,
        spans(Console(stream=clock, live=True, color=False, width=100)) as other,
    ):
        run, waiting = tracer.start_span("invoke_agent a"), other.start_span("invoke_agent b")
        stream.await_text("invoke_agent a")
        for text in ("Take ", "an ", "umbrella."):
            stream.write(text)
            stream.flush()
            clock.await_writes(2)  # another tree is drawn meanwhile
        stream.write("\n")
        drawn = stream.getvalue().count("invoke_agent a")
        while stream.getvalue().count("invoke_agent a") == drawn:
            clock.await_writes(1)
        run.end()
        waiting.end()
    assert "Take an umbrella.\n" in stream.getvalue()
    assert [line.split("  ")[0] for line in displayed(stream.getvalue())] == ["Take an umbrella.", "invoke_agent a"]


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)], ids=["first", "last"])
def test_two_consoles_share_a_stream_and_leave_it_as_it_was(order: slice) -> None:
    """Two consoles on one stream can be stopped in any order, and leave the stream to the other."""
    stream = io.StringIO()
    providers = []
    for _ in range(2):
        provider = TracerProvider()
        provider.add_span_processor(ConsoleProcessor(Console(stream=stream)))
        providers.append(provider)
    stopped, other = providers[order]
    stopped.shutdown()
    stream.write("text")
    other.get_tracer(semconv.SCOPE).start_span("invoke_agent a").end()
    other.shutdown()
    stream.write("more")
    assert names(stream) == ["text", "invoke_agent a", "", "more"]


STREAMED = """
    import anyio
    from pellucid import Agent, Message, ModelDelta, ModelResponse
    from pellucid.events import InferenceDelta
    from pellucid.testing import FunctionModel
    from pellucid_exporters import Console, configure
    import sys

    telemetry = configure("weather", console=eval(sys.argv[1]))


    async def main():
        send, printed = anyio.create_memory_object_stream(8)

        async def answer(request):
            for part in ("Take ", "an ", "umbrella."):
                yield ModelDelta("text", part)
                await printed.receive()
            yield ModelResponse(message=Message("assistant", "Take an umbrella."))

        print("weather: ", end="", flush=True)
        async with send, printed, Agent("weather", model=FunctionModel(answer)).stream("Rain?") as events:
            async for event in events:
                if isinstance(event, InferenceDelta) and event.type == "text":
                    print(event.content, end="", flush=True)
                    await send.send(None)
        print("\\nend")


    anyio.run(main)
    telemetry.shutdown()
    """


def shown_in_a_terminal(script: str, *arguments: str) -> list[str]:
    """Run a script in a pseudo-terminal, and return the lines that it shows."""
    termios = pytest.importorskip("termios", reason="needs a pseudo-terminal")
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (40, 100))
    written = bytearray()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        with os.fdopen(theirs, "wb") as output:
            environment = {**os.environ, "TERM": "xterm-256color"}
            started = subprocess.Popen(command(script, *arguments), stdout=output, stderr=output, env=environment)
        with suppress(OSError):  # EIO: the process has ended
            while part := screen.read(4096):
                written += part
    assert started.wait(PATIENCE) == 0, written
    return displayed(written.decode())


@pytest.mark.parametrize(
    "console", ["True", "Console(live=False)", "Console(color=False)", "Console(stream=sys.stderr)"]
)
def test_a_streamed_answer_is_one_line_in_a_terminal(console: str) -> None:
    """A streamed answer is one line in a terminal, though it is flushed, and the tree begins on the next."""
    lines = shown_in_a_terminal(STREAMED, console)
    assert lines[0] == "weather: Take an umbrella."
    assert lines[1].startswith("invoke_agent weather")
    assert [sum("invoke_agent" in line for line in lines), lines[-1]] == [1, "end"]


def test_a_streamed_answer_is_one_line_in_a_pipe() -> None:
    """A streamed answer is one line in a pipe, and the tree begins on the next."""
    lines = run_python(STREAMED, "True").stdout.splitlines()
    assert lines[0] == "weather: Take an umbrella."
    assert lines[1].startswith("invoke_agent weather")


def test_runs_do_not_mix() -> None:
    """Runs at the same time are each written as a whole when they are over."""
    stream = io.StringIO()
    with spans(Console(stream=stream)) as tracer:
        first = tracer.start_span("invoke_agent first")
        second = tracer.start_span("invoke_agent second")
        for root, name in ((first, "chat a"), (second, "chat b"), (first, "chat c")):
            tracer.start_span(name, context=inside(root)).end()
        second.end()
        first.end()
        tracer.start_span("late", context=inside(first)).end()
    assert names(stream) == ["invoke_agent second", "└─ chat b", "", "invoke_agent first", "├─ chat a", "└─ chat c", ""]


def test_agents_inside_of_agents_nest() -> None:
    """A run inside of a tool call is part of the outer run's tree."""
    stream = io.StringIO()
    with spans(Console(stream=stream)) as tracer:
        outer = tracer.start_span("invoke_agent outer")
        call = tracer.start_span("execute_tool ask", context=inside(outer))
        inner = tracer.start_span("invoke_agent inner", context=inside(call))
        tracer.start_span("chat m", context=inside(inner)).end()
        for span in (inner, call, outer):
            span.end()
    assert names(stream) == [
        "invoke_agent outer",
        "└─ execute_tool ask",
        "   └─ invoke_agent inner",
        "      └─ chat m",
        "",
    ]


def test_a_run_that_continues_a_trace_from_elsewhere_stands_alone() -> None:
    """A run whose parent is remote has its own tree, even where that parent is a run of the same process."""
    stream = io.StringIO()
    with spans(Console(stream=stream)) as tracer:
        first = tracer.start_span("invoke_agent first")
        here = first.get_span_context()
        remote = trace.SpanContext(here.trace_id, here.span_id, is_remote=True, trace_flags=here.trace_flags)
        second = tracer.start_span("invoke_agent second", context=inside(trace.NonRecordingSpan(remote)))
        first.end()
        second.end()
    assert names(stream) == ["invoke_agent first", "", "invoke_agent second", ""]


def test_only_runs_are_shown() -> None:
    """Spans outside of a run are not shown, whatever they are called; a run inside of a web request is."""
    stream = io.StringIO()
    with spans(Console(stream=stream)) as tracer, spans(Console(stream=stream), scope="other") as other:
        other.start_span("invoke_agent theirs").end()
        request = tracer.start_span("GET /answer")
        tracer.start_span("invoke_agent ours", context=inside(request)).end()
        request.end()
    assert names(stream) == ["invoke_agent ours", ""]


def test_a_run_with_very_many_spans_is_cut() -> None:
    """A run with very many spans is cut, and the spans that are left out are counted."""
    stream = io.StringIO()
    with spans(Console(stream=stream)) as tracer:
        root = tracer.start_span("invoke_agent big")
        for _ in range(MOST_SPANS + 10):
            tracer.start_span("chat", context=inside(root)).end()
        root.end()
    assert names(stream)[-2] == "… and 11 more spans, with all below them"


def test_runs_that_never_end_are_forgotten_and_counted() -> None:
    """The oldest of very many runs under way are left out, and the next tree says how many."""
    stream = io.StringIO()
    with spans(Console(stream=stream)) as tracer:
        runs = [tracer.start_span("invoke_agent a") for _ in range(MOST_RUNS + 3)]
        for run in runs:
            run.end()
    lines = names(stream)
    assert lines[:3] == ["invoke_agent a", f"… and 3 runs left out: over {MOST_RUNS} were under way at once", ""]
    assert lines.count("invoke_agent a") == MOST_RUNS


@pytest.mark.parametrize("content", [False, True])
def test_spans_of_other_libraries_may_say_anything(*, content: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Attributes of unexpected types, JSON without end and very deep trees are shown as well as can be."""
    stream = io.StringIO()
    with spans(Console(stream=stream, content=content)) as tracer:
        root = tracer.start_span("invoke_agent a", attributes={semconv.INPUT_MESSAGES: "[" * 200_000})
        path = [root]
        for _ in range(1_500):
            odd = {semconv.USAGE_INPUT_TOKENS: "many", semconv.ITERATION: "\x1b[2J", semconv.COMPOSE_TOOLS: (1, 2)}
            path.append(tracer.start_span("x", context=inside(path[-1]), attributes=odd))
        for span in reversed(path):
            span.end()
    assert names(stream)[0] == "invoke_agent a"
    assert "\x1b" not in stream.getvalue()
    assert not caplog.records


def test_a_stream_without_unicode_gets_what_it_can_show() -> None:
    """A stream that cannot encode the tree's lines gets them in ASCII, and replaces only characters that it lacks."""
    written = io.BytesIO()
    with spans(Console(stream=io.TextIOWrapper(written, encoding="latin-1"))) as tracer:
        root = tracer.start_span("invoke_agent a")
        for name in ("chat café", "chat 茶"):
            tracer.start_span(name, context=inside(root)).end()
        root.end()
        shown = written.getvalue()
    assert b"\n|- chat caf\xe9 " in shown
    assert b"\n`- chat ? " in shown


def test_a_stream_that_fails_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A stream that fails is logged once, and fails no run."""
    stream = io.StringIO()
    with spans(Console(stream=stream)) as tracer:
        stream.close()
        for _ in range(3):
            tracer.start_span("invoke_agent a").end()
    assert [record.name for record in caplog.records] == ["pellucid_exporters"]


def test_a_reader_that_has_gone_fails_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """A reader that has gone, as behind `| head`, causes one line in the log without a traceback, and fails no run."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", closefd=False)
    with spans(Console(stream=stream)) as tracer:
        for _ in range(3):
            tracer.start_span("invoke_agent a").end()
    os.close(writer)
    assert [(record.message, record.exc_info) for record in caplog.records] == [
        ("the console exporter cannot write; runs are not affected: [Errno 32] Broken pipe", None)
    ]


def test_without_rich_a_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets plain text if rich is not installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    stream = Terminal()
    with spans(Console(stream=stream, live=True, color=True)) as tracer:
        tracer.start_span("invoke_agent a").end()
    assert names(stream) == ["invoke_agent a", ""]
    assert "\x1b" not in stream.getvalue()


class Pipe(io.StringIO):
    """A stream without a terminal that counts what is written to it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        """Write."""
        self.writes.append(text)
        return super().write(text)


@pytest.mark.parametrize("options", [{}, {"color": True}, {"live": True}], ids=str)
def test_without_a_terminal_each_run_is_one_write(options: dict[str, Any]) -> None:
    """Each run is one write to a stream that is no terminal, also with colours and with a live tree."""
    stream = Pipe()
    with spans(Console(stream=stream, **options)) as tracer:
        for name in ("invoke_agent a", "invoke_agent b"):
            root = tracer.start_span(name)
            tracer.start_span("chat m", context=inside(root)).end()
            root.end()
    assert [text.count("invoke_agent") for text in stream.writes if text] == [1, 1]
    assert all(text.endswith("\n\n") for text in stream.writes if text)
    assert "\x1b[2K" not in stream.getvalue()


PIPED = """
    import sys
    from pellucid import Agent
    from pellucid.testing import ScriptedModel
    from pellucid_exporters import Console, configure

    console = eval(sys.argv[1])
    telemetry = configure("shop", console=console)
    answer = Agent("a", model=ScriptedModel("x")).run_sync("x").output
    telemetry.shutdown()
    print(answer, file=sys.stderr)
    """


@pytest.mark.parametrize(
    ("console", "environment"),
    [
        ("True", {}),
        ("Console(stream=sys.stdout)", {}),
        ("False", {"OTEL_TRACES_EXPORTER": "console"}),
    ],
)
def test_without_a_terminal_the_plain_tree_is_shown(console: str, environment: dict[str, str]) -> None:
    """A run in a pipe is written when it ends, as a plain tree without codes for a terminal."""
    done = run_python(PIPED, console, **environment)
    assert done.stdout.startswith("invoke_agent a ")
    assert done.stdout.count("invoke_agent") == 1
    assert "\x1b" not in done.stdout
    assert done.stderr == "x\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.parametrize("live", [False, True])
def test_a_forked_child_shows_its_own_runs(*, live: bool) -> None:
    """A forked child shows its own runs, although locks and a live tree are its parent's."""
    script = """
        import io
        import os
        import sys
        import threading
        from pellucid_exporters import Console, configure


        class Terminal(io.StringIO):
            def isatty(self):
                return True


        live = sys.argv[1] == "True"
        sys.stdout = shown = Terminal()
        telemetry = configure("shop", console=Console(stream=shown, live=live, color=live))
        processor = telemetry.parts.renewable[-1]
        tracer = telemetry.tracer_provider.get_tracer("pellucid")
        run = tracer.start_span("invoke_agent parent")
        held, over = threading.Event(), threading.Event()

        def hold():
            with processor._lock, processor._display.lock:
                held.set()
                over.wait(60)

        holder = threading.Thread(target=hold, daemon=True)
        holder.start()
        assert held.wait(60)
        child = os.fork()
        if child == 0:
            shown.truncate(0)
            tracer.start_span("invoke_agent child").end()
            run.end()
            telemetry.shutdown()
            is_right = "invoke_agent child" in shown.getvalue() and "invoke_agent parent" not in shown.getvalue()
            os._exit(0 if is_right and sys.stdout is shown else 1)
        over.set()
        holder.join(60)
        run.end()
        telemetry.shutdown()
        assert "invoke_agent parent" in shown.getvalue()
        assert os.waitpid(child, 0)[1] == 0
        """
    run_python(script, live)
