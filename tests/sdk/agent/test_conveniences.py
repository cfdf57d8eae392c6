"""Shortcuts for everyday code: decorated listeners, the text of a stream, standard retries, sync calls."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any, assert_type

import pytest

from pellucid import Agent, ConfigError, Message, ModelError, Reliability, TextPart, ToolCall, ToolError, tool
from pellucid.events import RunCompleted, ToolFailed
from pellucid.testing import FunctionModel, ScriptedModel
from support.processes import PATIENCE, python
from support.runs import within

if TYPE_CHECKING:
    from pellucid.errors import ErrorKind

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@tool(idempotent=True)
async def busy() -> str:
    """Fail."""
    raise ToolError("busy", error_kind="rate_limited")


async def test_a_listener_can_be_decorated() -> None:
    """`on` decorates a listener of a name, a pattern or a class, and returns the function."""
    heard: list[str] = []
    agent = Agent("a", model=ScriptedModel(ToolCall("busy", {}), "done", "done"), tools=[busy])

    @agent.on("run.*")
    async def of_runs(event: Any) -> None:
        heard.append(event.name)

    @agent.on(ToolFailed)
    def of_tools(event: ToolFailed) -> None:
        heard.append(event.tool_name)

    @agent.on("run.completed", once=True)
    def first(event: RunCompleted) -> None:
        heard.append("first")

    for _ in range(2):
        await within(agent.run("go"))
    assert sorted(heard) == sorted(["run.started", "run.completed"] * 2 + ["busy", "first"])
    assert of_runs.__name__ == "of_runs"
    with pytest.raises(ConfigError, match=r"run\.finished"):
        agent.on("run.finished")(print)


async def test_the_text_of_a_stream() -> None:
    """`text()` of a stream gives the text of all answers in pieces, and the result is there afterwards."""
    said = Message("assistant", [TextPart("Let me see. "), ToolCall("busy", {})])
    stream = Agent("a", model=ScriptedModel(said, "It is busy."), tools=[busy]).stream("go")
    async with stream as events:
        pieces = [piece async for piece in events.text()]
    assert "".join(pieces) == "Let me see. It is busy."
    assert len(pieces) > 2
    assert_type(stream.result.output, str)
    assert stream.result.output == "It is busy."


async def test_the_text_of_a_stream_of_a_model_that_does_not_stream() -> None:
    """`text()` gives the whole text of a model that does not stream."""
    async with Agent("a", model=FunctionModel(lambda _: "It is busy.")).stream("go") as events:
        assert "".join([piece async for piece in events.text()]) == "It is busy."


async def test_the_text_of_a_stream_that_fails() -> None:
    """`text()` of a failing run raises the error of the run."""
    async with Agent("a", model=ScriptedModel(OSError("down"))).stream("go") as events:
        with pytest.raises(ModelError, match="down"):
            _ = [piece async for piece in events.text()]


def failure(kind: ErrorKind, status: int | None = None, retry_after: float | None = None) -> ModelError:
    """Return the failure of a model."""
    return ModelError("m", "no", error_kind=kind, status=status, retry_after=retry_after)


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (failure("rate_limited", 429), 3),
        (failure("unavailable", 503), 3),
        (failure("timeout", 504), 3),
        (ConnectionError("refused"), 3),
        (failure("timeout"), 1),
        (failure("invalid_request", 400), 1),
        (failure("auth", 401), 1),
        (failure("rate_limited", 429, retry_after=61), 1),
    ],
    ids=repr,
)
async def test_the_standard_retries_are_those_of_vendors(error: Exception, calls: int) -> None:
    """`Reliability.standard()` repeats a model call twice after a failure that may pass soon."""
    model, reliability = ScriptedModel(*[error] * 5), Reliability.standard()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    reliability.sleep, reliability.jitter = sleep, lambda: 1.0
    with pytest.raises(ModelError):
        await within(Agent("a", model=model, reliability=reliability).run("go"))
    assert len(model.requests) == calls
    assert waits == [0.5, 1.0][: calls - 1]


async def test_the_standard_retries_wait_as_the_vendor_says_and_leave_tools_alone() -> None:
    """`Reliability.standard()` waits as the vendor says, and does not repeat tools."""
    limited = failure("rate_limited", 429, retry_after=7)
    model, reliability = ScriptedModel(limited, ToolCall("busy", {}), "done"), Reliability.standard()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    reliability.sleep = sleep
    assert (await within(Agent("a", model=model, tools=[busy], reliability=reliability).run("go"))).output == "done"
    assert waits == [7]


SCRIPT = """
import asyncio, sys, types, warnings
from pellucid import Agent
from pellucid.testing import ScriptedModel

warnings.simplefilter("always")
kernel = sys.argv[1]
if kernel != "none":
    shell = types.SimpleNamespace(**({"kernel": 1} if kernel == "notebook" else {}))
    sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)

async def main():
    for _ in range(2):
        print(Agent("a", model=ScriptedModel("done")).run_sync("go").output)

print(Agent("a", model=ScriptedModel("first")).run_sync("go").output)
asyncio.run(main())
"""


@pytest.mark.parametrize(("kernel", "warnings"), [("none", 1), ("terminal", 1), ("notebook", 0)])
def test_a_sync_call_in_a_loop_works_and_warns_once(kernel: str, warnings: int) -> None:
    """A sync call in an event loop works and warns once with its line, except in a notebook."""
    done = subprocess.run(python("-c", SCRIPT, kernel), capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.split() == ["first", "done", "done"]
    assert done.stderr.count("blocks the loop until the run has ended") == warnings
    assert done.stderr.count("<string>:14: RuntimeWarning") == warnings
