from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pydantic
import pytest

from pellucid import (
    Agent,
    BlobPart,
    Limits,
    TextPart,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    semconv,
    tool,
)
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import check_telemetry
from support.hubs import nothing
from support.runs import COMPLETED, TIMEOUT, attributes, ending, results, within
from support.tools import call, echo, measure, named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import DiscoveryContext
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


# --- calls that cannot be made ----------------------------------------------------------------------------------------


async def test_an_unknown_tool_is_a_result_that_suggests_others(telemetry: Captured) -> None:
    """The result of an unknown tool suggests a similar name, and the name is no label of metrics."""
    [result] = await call(ToolCall("ecko", {"text": "x"}), tools=[echo])
    assert result.is_error
    assert result.response == "Unknown tool: 'ecko'. Did you mean 'echo'?"
    assert ending(telemetry.span("execute_tool ecko")) == ("failed", "ERROR", "unknown_tool")
    point = telemetry.histogram(semconv.TOOL_DURATION)
    assert (point.attributes[semconv.TOOL_NAME], point.attributes[semconv.ERROR_TYPE]) == ("_OTHER", "unknown_tool")
    check_telemetry(telemetry)


async def test_an_unknown_tool_among_thousands_is_compared_with_none_of_them() -> None:
    """The result of an unknown tool among thousands lists the first names without a suggestion."""
    tools = [Tool(name=f"tool_number_{number}", run=nothing) for number in range(2000)]
    [result] = await call(ToolCall("tool_nmber_7", {}), tools=tools)
    assert "Did you mean" not in str(result.response)
    assert str(result.response).endswith("tool_number_18, tool_number_19, ....")


async def test_an_unknown_tool_without_alternatives_says_so() -> None:
    """The result of an unknown tool says if no tools are available."""
    [result] = await call(ToolCall("x"))
    assert result.response == "Unknown tool: 'x'. No tools are available; answer without them."


async def test_a_tool_that_was_removed_is_told_from_an_invented_one() -> None:
    """The result of a call to a tool that was removed since it was offered says so."""

    class Changing:
        id = "changing"

        def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            return [echo, measure] if ctx.iteration == 1 else [echo]

    model = ScriptedModel(ToolCall("measure", {"length": 1}), ToolCall("measure", {"length": 1}), "done")
    first, second = results(await within(Agent("a", model=model, providers=[Changing()]).run("x")))
    assert not first.is_error
    assert second.is_error
    assert str(second.response).startswith("Tool 'measure' was removed since it was offered. Available tools: echo.")


@pytest.mark.parametrize("arguments", ["{not json", '"text"', "[1]"])
async def test_arguments_that_are_no_json_object_are_refused(telemetry: Captured, arguments: str) -> None:
    """Arguments that are no JSON object are refused, and the model reads what to send."""
    [result] = await call(ToolCall("echo", arguments), tools=[echo])
    assert result.is_error
    assert "Send one JSON object." in str(result.response)
    assert ending(telemetry.span("execute_tool")) == ("failed", "ERROR", "invalid_arguments")
    check_telemetry(telemetry)


async def test_arguments_as_json_text_are_read() -> None:
    """Arguments that come as JSON text are parsed."""
    [result] = await call(ToolCall("echo", '{"text": "hi"}'), tools=[echo])
    assert result.response == "hi"


async def test_arguments_that_violate_the_schema_are_refused_without_their_values(telemetry: Captured) -> None:
    """Arguments that violate the schema are refused with the argument's name and without its value."""
    [result] = await call(ToolCall("measure", {"length": "hunter2"}), tools=[measure])
    assert result.is_error
    assert "The arguments of 'measure' do not fit its schema: length" in str(result.response)
    assert "hunter2" not in str(result.response)
    assert ending(telemetry.span("execute_tool")) == ("failed", "ERROR", "invalid_arguments")


async def test_a_call_id_used_twice_is_run_once(telemetry: Captured) -> None:
    """A call id that is used twice runs once, and its result says that the second call was not run."""
    first, second = ToolCall("echo", {"text": "one"}, id="c"), ToolCall("echo", {"text": "two"}, id="c")
    [result] = await call(first, second, tools=[echo])
    assert str(result.response).startswith("one\n\nNote: you used the call id 'c' for several calls")
    spans = telemetry.find("execute_tool echo")
    assert sorted(ending(span)[0] for span in spans) == ["completed", "failed"]
    check_telemetry(telemetry)


async def test_a_history_never_has_two_calls_of_one_id() -> None:
    """The next request has one call and one result of an id that was used twice."""
    model = ScriptedModel([ToolCall("echo", {"text": "1"}, id="c"), ToolCall("echo", {"text": "2"}, id="c")], "done")
    await within(Agent("a", model=model, tools=[echo]).run("x"))
    asked, answered = model.requests[1].messages[-2:]
    assert [part.id for part in asked.tool_calls] == ["c"]
    assert len(answered.parts) == 1


# --- tools that misbehave ---------------------------------------------------------------------------------------------


async def test_a_tool_that_raises_is_a_result(telemetry: Captured) -> None:
    """An exception of a tool is a result for the model, and the span has its type and stack trace."""

    @tool
    async def explode() -> None:
        """Fail."""
        raise KeyError("no such row")

    [result] = await call(ToolCall("explode"), tools=[explode])
    assert result.is_error
    assert result.response == "The tool failed. KeyError: 'no such row'"
    span = telemetry.span("execute_tool")
    assert ending(span) == ("failed", "ERROR", "KeyError")
    [event] = span.events
    assert event.name == "exception"
    assert "in explode" in str(dict(event.attributes or {})["exception.stacktrace"])
    assert ending(telemetry.span("invoke_agent")) == COMPLETED
    check_telemetry(telemetry)


async def test_a_tool_error_chooses_what_the_model_reads(telemetry: Captured) -> None:
    """The text of a `ToolError` is the result, and its type is `error.type`."""

    @tool
    def book() -> None:
        """Fail."""
        raise ToolError("Sold out. Try Tuesday.", error_type="sold_out")

    [result] = await call(ToolCall("book"), tools=[book])
    assert (result.response, result.is_error) == ("Sold out. Try Tuesday.", True)
    assert ending(telemetry.span("execute_tool")) == ("failed", "ERROR", "sold_out")


@pytest.mark.parametrize("error", [TimeoutError("read timed out"), ExceptionGroup("several", [OSError("one")])])
async def test_errors_of_any_kind_are_results(telemetry: Captured, error: Exception) -> None:
    """A `TimeoutError` or an exception group of a tool is a result for the model."""

    async def fail(arguments: Any, ctx: ToolContext) -> str:
        raise error

    [result] = await call(ToolCall("t"), tools=[named("t", fail)])
    assert result.is_error
    check_telemetry(telemetry)


async def test_a_tool_that_hangs_is_stopped(telemetry: Captured) -> None:
    """A tool that hangs is stopped at its timeout, which is a result for the model."""

    async def hang(arguments: Any, ctx: ToolContext) -> str:
        await anyio.sleep_forever()
        return "never"

    [result] = await call(ToolCall("t"), tools=[named("t", hang, timeout=0.01)])
    assert result.response == "Tool 't' did not finish within 0.01 s and was stopped."
    assert ending(telemetry.span("execute_tool")) == TIMEOUT
    assert ending(telemetry.span("invoke_agent")) == COMPLETED
    check_telemetry(telemetry)


async def test_a_thread_that_blocks_is_left_behind(telemetry: Captured) -> None:
    """A run does not wait for a thread that blocks beyond the timeout."""
    release = threading.Event()
    try:
        [result] = await call(
            ToolCall("t"),
            tools=[named("t", lambda arguments, ctx: release.wait(60))],
            limits=Limits(tool_timeout=0.05),
        )
    finally:
        release.set()
    assert "did not finish within 0.05 s" in str(result.response)
    assert ending(telemetry.span("execute_tool")) == TIMEOUT
    check_telemetry(telemetry)


async def test_threads_that_were_left_behind_do_not_use_up_the_run_s_threads(telemetry: Captured) -> None:
    """Sync tools still run after as many blocked threads as there are slots."""
    release = threading.Event()
    blocked = named("blocked", lambda arguments, ctx: release.wait(60), timeout=0.05)
    quick = named("quick", lambda arguments, ctx: "ok")
    model = ScriptedModel([ToolCall("blocked"), ToolCall("blocked")], ToolCall("quick"), "done")
    agent = Agent("a", model=model, tools=[blocked, quick], limits=Limits(parallel_tools=2, tool_timeout=30.0))
    try:
        *_, result = results(await within(agent.run("x")))
    finally:
        release.set()
    assert result.response == "ok"
    check_telemetry(telemetry)


async def test_a_tool_that_does_not_let_itself_be_stopped_cannot_hold_the_run(telemetry: Captured) -> None:
    """A tool that shields itself from its timeout does not hold the run."""
    release = anyio.Event()

    async def stubborn(arguments: Any, ctx: ToolContext) -> str:
        with anyio.CancelScope(shield=True):
            await release.wait()
        return "late"

    try:
        [result] = await call(ToolCall("t"), tools=[named("t", stubborn, timeout=0.01)])
    finally:
        release.set()
    assert "did not finish within 0.01 s" in str(result.response)
    assert ending(telemetry.span("execute_tool")) == TIMEOUT
    check_telemetry(telemetry)


@pytest.mark.parametrize("value", [object(), {1: {object()}}, lambda: None])
async def test_a_result_that_cannot_be_json_is_an_error(telemetry: Captured, value: object) -> None:
    """A result that cannot be JSON is an error that names its type."""

    async def odd(arguments: Any, ctx: ToolContext) -> object:
        return value

    [result] = await call(ToolCall("t"), tools=[named("t", odd)])
    assert result.is_error
    assert f"an object of type {type(value).__name__} that cannot be turned into JSON" in str(result.response)
    assert ending(telemetry.span("execute_tool")) == ("failed", "ERROR", "invalid_result")
    check_telemetry(telemetry)


async def test_a_circular_result_is_an_error() -> None:
    """A result that contains itself is an error, and the run goes on."""

    async def odd(arguments: Any, ctx: ToolContext) -> object:
        loop: list[Any] = []
        loop.append(loop)
        return loop

    [result] = await call(ToolCall("t"), tools=[named("t", odd)])
    assert result.is_error


@pytest.mark.parametrize(
    ("value", "size"), [("x" * 50_000_000, "50,000,000"), (["x" * 50_000_000], "over 262,144")], ids=["text", "data"]
)
async def test_a_result_of_50_megabytes_is_cut(telemetry: Captured, value: object, size: str) -> None:
    """A result of 50 megabytes is cut for the model and on the span."""

    async def big(arguments: Any, ctx: ToolContext) -> object:
        return value

    [result] = await call(ToolCall("t"), tools=[named("t", big)])
    assert not result.is_error
    assert len(str(result.response)) < 300_000
    assert f"[cut: {size} bytes in all" in str(result.response)
    assert len(attributes(telemetry.span("execute_tool"))[semconv.TOOL_CALL_RESULT]) <= 32 * 1024
    assert ending(telemetry.span("execute_tool")) == COMPLETED


@pytest.mark.parametrize(("count", "written"), [(3, 3), (20, 20), (2000, 60)], ids=["small", "large", "too large"])
async def test_a_large_result_is_written_in_a_thread_and_no_further_than_it_is_read(count: int, written: int) -> None:
    """A large result is written in a thread and only as far as it is read, and a small one in the event loop."""
    threads: list[int] = []

    class Row(pydantic.BaseModel):
        text: str = "x" * 5000

        @pydantic.field_serializer("text")
        def note(self, text: str) -> str:
            threads.append(threading.get_ident())
            return text

    rows = [Row() for _ in range(count)]

    async def give(arguments: Any, ctx: ToolContext) -> object:
        return {"rows": rows}

    [result] = await call(ToolCall("t"), tools=[named("t", give)])
    assert not result.is_error
    assert str(result.response).count("text") == min(count, 53)
    assert (threading.get_ident() in threads) is (count == 3)
    assert len(threads) <= 2 * written  # once to see how long it is, once as data


@pytest.mark.parametrize(
    ("value", "response"),
    [
        ({"a": [1, 2.5, None, True]}, {"a": [1, 2.5, None, True]}),
        (None, None),
        ((1, 2), [1, 2]),
        (b"\x00", "AA=="),
        (TextPart("hi"), (TextPart("hi"),)),
        ([BlobPart(content="AA==", modality="image")], (BlobPart(content="AA==", modality="image"),)),
    ],
)
async def test_a_result_is_json_data_or_parts(value: object, response: object) -> None:
    """A result is JSON data or content parts."""

    async def give(arguments: Any, ctx: ToolContext) -> object:
        return value

    [result] = await call(ToolCall("t"), tools=[named("t", give)])
    assert (result.response, result.is_error) == (response, False)


async def test_a_sync_function_that_returns_an_awaitable_is_awaited() -> None:
    """An awaitable that a sync function returns is awaited."""

    async def later() -> str:
        return "later"

    [result] = await call(ToolCall("t"), tools=[named("t", lambda arguments, ctx: later())])
    assert result.response == "later"
