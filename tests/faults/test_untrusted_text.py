"""Texts of hubs, models and servers, which may not control a terminal, forge log lines or fill memory."""

from __future__ import annotations

import io
import logging
import re
import sys
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from mcp import MCPError
from mcp_types import ListToolsResult

from pellucid import (
    Agent,
    DiscoveryContext,
    DiscoveryError,
    DiscoveryProvider,
    PellucidError,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
    cli,
    semconv,
)
from pellucid.errors import InvalidCatalog
from pellucid.events import ToolsQuarantined
from pellucid.mcp import MCPProvider
from pellucid.telemetry import Scope
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.console import Console
from support.mcp_servers import listing_server, tool_of
from support.runs import attributes, within

if TYPE_CHECKING:
    from argparse import Namespace

    from mcp_types import CallToolResult

    from pellucid_exporters.testing import Captured

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\n2026-01-01ERROR:forged\u202e[bold]%s{0}</b>"
HUGE = 1_000_000
LARGE = 20_000
"""Characters that the definition of a tool may still have, escaped."""
MOVES = re.compile("\x1b\\[\\??[0-9;]*[A-Za-z]|\r")
"""Sequences that Rich itself writes to redraw the screen."""

CODES = [-32042, 404, 7, 123_456, -1]


def dangerous(text: str) -> set[str]:
    """Return the characters of one shown line that a terminal or a reader of lines would act upon."""
    return {character for character in text if not character.isprintable()}


async def answering(arguments: Any, ctx: object) -> str:
    """Answer with dangerous text."""
    return EVIL


async def failing(arguments: Any, ctx: object) -> str:
    """Fail in the words of a hub."""
    raise OSError(EVIL)


def hostile(**options: Any) -> Tool:
    """Return a tool of which every text is meant to harm."""
    schema = {"type": "object", "properties": {EVIL: {"type": "string", "description": EVIL * 100, "enum": [EVIL]}}}
    given = {"name": "read", "description": EVIL + "x" * LARGE, "input_schema": schema, "run": answering, **options}
    return Tool(**given)


def evil_agent(**options: Any) -> Agent:
    """Return an agent whose hub, model and tools do all they can."""
    hub = FakeHub([hostile(), hostile(name="fail", run=failing)])
    calls = [ToolCall("read", {EVIL: EVIL}), ToolCall("fail", {}), ToolCall(EVIL, {}, EVIL)]
    return Agent("a", model=ScriptedModel(calls, EVIL), providers=[DiscoveryProvider(hub, id="hub")], **options)


@pytest.mark.anyio
@pytest.mark.parametrize("live", [False, True], ids=["plain", "terminal"])
async def test_texts_of_hubs_do_not_act_on_the_terminal(*, live: bool) -> None:
    """The console shows no character of a hub, tool or model that a terminal acts upon, and shows markup as it is."""
    stream = io.StringIO()
    console = Console(content=True, live=live, color=False, stream=stream)
    telemetry = configure("s", console=console, set_global=False)
    try:
        await within(evil_agent(telemetry=telemetry).run("x"), 30)
    finally:
        await anyio.to_thread.run_sync(telemetry.shutdown)
    shown = MOVES.sub("", stream.getvalue()) if live else stream.getvalue()
    assert "execute_tool read" in shown
    assert "[bold]%s{0}</b>" in shown
    assert not {character for line in shown.split("\n") for character in dangerous(line)}


@pytest.mark.anyio
async def test_texts_of_hubs_are_no_labels_and_name_no_spans(telemetry: Captured) -> None:
    """Texts of hubs are no labels of metrics, and names of spans and attributes are bounded."""
    await within(evil_agent().run("x"), 30)
    labels = {str(value) for point in telemetry.metrics for value in point.attributes.values()}
    assert not [label for label in labels if "forged" in label or len(label) > 100]
    assert {span.name for span in telemetry.find("execute_tool")} == {
        "execute_tool read",
        "execute_tool fail",
        f"execute_tool {EVIL[:64]}",
    }
    longest = max(len(str(value)) for span in telemetry.spans for value in attributes(span).values())
    assert longest < HUGE / 10


@pytest.mark.anyio
async def test_arguments_and_results_are_passed_on_as_they_are() -> None:
    """Arguments and results are passed on as they are, without formatting or evaluating them."""
    given: list[Any] = []

    async def take(arguments: Any, ctx: object) -> str:
        given.append(arguments)
        return EVIL

    agent = Agent("a", model=ScriptedModel(ToolCall("read", {EVIL: EVIL}), "x"), tools=[hostile(run=take)])
    result = await within(agent.run("x"))
    assert given == [{EVIL: EVIL}]
    assert [part.response for part in result.messages[2].parts if isinstance(part, ToolResult)] == [EVIL]


@pytest.mark.anyio
async def test_texts_of_hubs_cannot_forge_a_log_line(caplog: pytest.LogCaptureFixture, telemetry: Captured) -> None:
    """Each log message is one line, whatever a hub's error and a model's names contain."""
    caplog.set_level(logging.INFO, "pellucid")
    said = "down\n2026-01-01ERROR:forged\x1b[2J"
    calls = [ToolCall("read", {}, "id\nERROR:forged"), ToolCall("a\nb", {})]
    tool = hostile(run=failing)
    await within(Agent("a", model=ScriptedModel(calls, "x"), tools=[tool]).run("x"))
    hub = DiscoveryProvider(FakeHub(faults=[OSError(said)]), id="hub")
    with pytest.raises(DiscoveryError):
        await within(Agent("a", model=ScriptedModel(), providers=[hub]).run("x"))
    messages = [record.getMessage() for record in caplog.records if record.name == "pellucid"]
    assert any("forged" in message for message in messages)
    assert not {character for message in messages for character in dangerous(message)}


def test_faults_of_telemetry_are_logged_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A fault of telemetry is logged on one line, whatever its text contains."""
    Scope().fault("test of text", OSError(EVIL))
    [message] = [record.getMessage() for record in caplog.records if "test of text" in record.getMessage()]
    assert "forged" in message
    assert not dangerous(message)


def test_the_command_line_shows_errors_harmlessly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line prints the text of an error without characters that a terminal acts upon."""

    def run(options: Namespace) -> int:
        raise PellucidError(f"discovery failed: {EVIL}")

    command = cli.Command(name="try", help="Try.", add_arguments=lambda parser: None, run=run)
    monkeypatch.setattr(cli, "_installed_commands", lambda _: [command])
    assert cli.main(["try"]) == 1
    [line, end] = capsys.readouterr().err.split("\n")
    assert line.startswith("pellucid: try: discovery failed: ")
    assert not dangerous(line)
    assert end == ""


@pytest.mark.anyio
async def test_what_a_dying_server_writes_is_bounded_and_harmless(caplog: pytest.LogCaptureFixture) -> None:
    """The last words of a dying server are in the error and the log, bounded and without control characters."""
    caplog.set_level(logging.DEBUG, "pellucid.mcp")
    code = f"import sys; sys.stderr.write('x' * {HUGE} + chr(27) + '[2Jlast\\n'); sys.exit(1)"
    provider = MCPProvider.stdio(sys.executable, "-c", code, id="hub")
    with anyio.fail_after(60):
        with pytest.raises(DiscoveryError, match="last") as failed:
            await provider.list_tools(DiscoveryContext())
        await provider.aclose()
    said = str(failed.value)
    logged = [record.getMessage() for record in caplog.records if record.name == "pellucid.mcp"]
    assert any("last" in line for line in logged)
    for line in (said, *logged):
        assert len(line) < HUGE / 10
        assert not dangerous(line)


@pytest.mark.anyio
async def test_what_a_model_reads_of_a_failure_is_bounded() -> None:
    """The text of an error that a model reads is cut like that of a result."""

    async def fail(arguments: Any, ctx: object) -> str:
        raise ToolError("x" * HUGE)

    agent = Agent("a", model=ScriptedModel(ToolCall("read", {}), "x"), tools=[hostile(run=fail)])
    result = await within(agent.run("x"))
    [said] = [part for message in result.messages for part in message.parts if isinstance(part, ToolResult)]
    assert said.is_error
    assert len(str(said.response)) < agent._setup.limits.max_result_bytes + 200
    assert f"[cut: {HUGE:,} bytes in all" in str(said.response)


BROKEN = {"type": "object", "properties": {"a": {"type": EVIL + "x" * HUGE}}}


@pytest.mark.anyio
@pytest.mark.parametrize(
    "tool",
    [
        hostile(name=EVIL + "x" * HUGE),
        hostile(input_schema=BROKEN),
        hostile(input_schema={"type": "object", "$ref": f"https://evil.example/{EVIL}" + "x" * HUGE}),
        hostile(description="\ud800" + "x" * HUGE),
    ],
    ids=["name", "schema", "reference", "description"],
)
async def test_what_is_wrong_with_a_tool_is_told_in_bounded_and_harmless_words(telemetry: Captured, tool: Tool) -> None:
    """The problem of a broken tool is told in short and harmless words, in the error and in the event."""
    with pytest.raises(InvalidCatalog) as refused:
        await within(Agent("a", model=ScriptedModel(), providers=[DiscoveryProvider(FakeHub([tool]), id="h")]).run("x"))
    hub = DiscoveryProvider(FakeHub([tool]), id="h", on_invalid="quarantine")
    await within(Agent("a", model=ScriptedModel("x"), providers=[hub]).run("x"))
    [event] = [event for event in telemetry.events if isinstance(event, ToolsQuarantined)]
    for text in (str(refused.value), event.problem, event.tool_name):
        assert len(text) < 1_000
        assert not dangerous(text)


@pytest.mark.anyio
async def test_a_cursor_is_told_in_bounded_words() -> None:
    """The error about a repeated cursor quotes a bounded part of the cursor."""
    server = listing_server(lambda cursor: ListToolsResult(tools=[tool_of("a")], next_cursor=EVIL + "x" * HUGE))
    with anyio.fail_after(60):
        async with MCPProvider.connect(server, id="hub") as provider:
            with pytest.raises(InvalidCatalog, match="repeats the cursor") as refused:
                await provider.list_tools(DiscoveryContext())
    assert len(str(refused.value)) < 1_000


@pytest.mark.anyio
async def test_a_server_cannot_add_a_time_series_with_every_error(telemetry: Captured) -> None:
    """Error codes that neither JSON-RPC nor HTTP knows share one label, and the span has the code."""
    codes = iter(CODES)

    def refuse(name: str, arguments: dict[str, Any]) -> CallToolResult:
        raise MCPError(code=next(codes), message="no")

    server = listing_server(lambda cursor: ListToolsResult(tools=[tool_of("a")]), refuse)
    with anyio.fail_after(60):
        async with MCPProvider.connect(server, id="hub") as provider:
            await Agent("a", model=ScriptedModel(*[ToolCall("a", {})] * 5, "x"), providers=[provider]).run("x")
    spans = telemetry.find("execute_tool")
    assert [attributes(span)[semconv.RPC_RESPONSE_STATUS_CODE] for span in spans] == [str(code) for code in CODES]
    assert [attributes(span)[semconv.ERROR_TYPE] for span in spans] == ["-32042", "404", *["_OTHER"] * 3]
