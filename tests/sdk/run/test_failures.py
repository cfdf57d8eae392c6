"""Errors that carry their run: the conversation to continue from, its usage and its ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    CancelToken,
    ConfigError,
    Decision,
    DiscoveryError,
    DiscoveryProvider,
    Limits,
    Message,
    ModelError,
    OutputError,
    PellucidError,
    Reliability,
    RunCancelled,
    RunTimeout,
    TextPart,
    ToolCall,
    ToolError,
    Usage,
    dump_messages,
    load_messages,
    tool,
)
from pellucid.errors import PolicyHalt, ReliabilityFailFast, ToolNameCollision
from pellucid.models import ModelResponse
from pellucid.reliability import Rule, fail_fast
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid.run.stream import RunStream
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

ADD = ToolCall("add", {"a": 1, "b": 2}, id="sum")


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def hang() -> None:
    """Never end."""
    await anyio.sleep_forever()


def results(messages: Any) -> dict[str, tuple[bool, str]]:
    """Return the results in a conversation by ids of calls: whether each is an error, and its text."""
    return {
        part.id: (part.is_error, str(part.response))
        for message in messages
        for part in message.parts
        if message.role == "tool"
    }


async def read(stream: RunStream[Any]) -> None:
    """Read the events of a stream to the end."""
    async with stream:
        async for _ in stream:
            pass


async def failing(agent: Agent[Any, Any], **options: Any) -> PellucidError:
    """Return the error of a run."""
    with pytest.raises(PellucidError) as failed:
        await within(agent.run("go", **options))
    return failed.value


def in_discovery() -> Agent:
    """Return an agent whose hub is down."""
    hub = FakeHub(faults=[OSError("down")])
    return Agent("a", model=ScriptedModel(), providers=[DiscoveryProvider(hub, id="hub")])


def colliding() -> Agent:
    """Return an agent with two tools of one name."""
    hub = DiscoveryProvider(FakeHub([add]), id="hub")
    return Agent("a", model=ScriptedModel(), tools=[add], providers=[hub])


def halting() -> Agent:
    """Return an agent whose policy ends the run at the call."""
    policy = lambda request: "halt" if request.stage == "dispatch" else "allow"  # noqa: E731
    return Agent("a", model=ScriptedModel(ADD), tools=[add], policy=policy)


def failing_fast() -> Agent:
    """Return an agent with a rule that ends the run at the second model call."""
    rule = Rule(when=lambda s: s.operation == "inference" and s.iteration > 1, then=fail_fast(), kind="enough")
    return Agent("a", model=ScriptedModel(ADD), tools=[add], reliability=Reliability(pre_check=[rule]))


@pytest.mark.parametrize(
    ("make", "kind", "roles"),
    [
        (in_discovery, DiscoveryError, ["user"]),
        (colliding, ToolNameCollision, ["user"]),
        (
            lambda: Agent("a", model=ScriptedModel(ADD, OSError("down")), tools=[add]),
            ModelError,
            ["user", "assistant", "tool"],
        ),
        (
            lambda: Agent("a", model=ScriptedModel("one", "two"), output=int),
            OutputError,
            ["user", "assistant", "user", "assistant"],
        ),
        (halting, PolicyHalt, ["user", "assistant", "tool"]),
        (failing_fast, ReliabilityFailFast, ["user", "assistant", "tool"]),
        (
            lambda: Agent("a", model=ScriptedModel(ToolCall("hang", {})), tools=[hang], limits=Limits(timeout=0.2)),
            RunTimeout,
            ["user", "assistant", "tool"],
        ),
    ],
)
async def test_each_error_of_a_run_carries_it(
    make: Callable[[], Agent[Any, Any]], kind: type[PellucidError], roles: list[str], telemetry: Captured
) -> None:
    """Each error of a run has its messages, usage, iterations and ids, as the run's span has."""
    error = await failing(make())
    span = telemetry.span("invoke_agent a")
    facts = dict(span.attributes or {})
    assert type(error) is kind
    assert [message.role for message in error.messages] == roles
    assert error.run_id == facts["pellucid.run.id"]
    assert error.trace_id == f"{span.get_span_context().trace_id:032x}"
    assert error.iterations == facts["pellucid.iterations"]
    assert error.usage.input_tokens == facts.get("gen_ai.usage.input_tokens")
    assert tuple(load_messages(dump_messages(error.messages))) == error.messages
    calls = [call.id for message in error.messages for call in message.tool_calls]
    assert list(results(error.messages)) == calls


async def test_a_run_continues_after_a_failure() -> None:
    """A run that continues after a failure does not repeat the tool calls of the failed run."""
    model = ScriptedModel(ADD, OSError("down"), "3")
    agent = Agent("a", model=model, tools=[add])
    error = await failing(agent)
    result = await within(agent.run("Go on.", history=error.messages))
    assert result.output == "3"
    assert result.messages[:3] == error.messages
    assert results(model.requests[-1].messages) == {"sum": (False, "3")}


async def test_calls_without_a_result_are_marked_as_interrupted() -> None:
    """A call without a result is marked as interrupted, and calls that had ended keep their results in call order."""
    ended = anyio.Event()

    @tool
    async def wait() -> None:
        """Stop the run when the other call has ended."""
        await ended.wait()
        token.cancel("enough")
        await anyio.sleep_forever()

    token = CancelToken()
    calls = Message("assistant", [ToolCall("wait", {}, id="first"), ADD])
    agent = Agent("a", model=ScriptedModel(calls, "done"), tools=[add, wait])
    agent.on("tool.completed", lambda event: ended.set() if event.tool_name == "add" else None)
    error = await failing(agent, signal=token)
    assert isinstance(error, RunCancelled)
    found = results(error.messages)
    assert list(found) == ["first", "sum"]
    assert found["sum"] == (False, "3")
    assert found["first"][0]
    assert "Interrupted" in found["first"][1]
    assert (await within(agent.run("Go on.", history=error.messages))).output == "done"


async def test_a_later_call_of_the_same_id_does_not_get_an_earlier_result() -> None:
    """A call that reuses the id of an earlier one does not get the earlier result."""
    first = Message("assistant", [ADD, ToolCall("add", {"a": 2, "b": 2}, id="other")])
    again = ToolCall("hang", {}, id="sum")
    agent = Agent("a", model=ScriptedModel(first, again), tools=[add, hang], limits=Limits(timeout=0.3))
    error = await failing(agent)
    assert "Interrupted" in str(error.messages[-1].parts[0].response)


async def test_an_exception_that_several_runs_raise_carries_each_of_them_to_its_own_caller() -> None:
    """An exception that several runs raise carries to each caller the conversation of its own run."""
    shared, barrier, asked = ModelError("m", "down"), anyio.Event(), 0

    async def fail(request: Any) -> str:
        nonlocal asked
        asked += 1
        if asked == 5:
            barrier.set()
        await barrier.wait()
        raise shared

    agent, caught = Agent("a", model=FunctionModel(fail)), dict[str, PellucidError]()

    async def run(text: str) -> None:
        with pytest.raises(ModelError) as failed:
            await agent.run(text)
        caught[text] = failed.value

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(run, f"question {number}")
    assert {text: error.messages[0].text for text, error in caught.items()} == {text: text for text in caught}
    assert len({error.run_id for error in caught.values()}) == 5
    assert all("down" in str(error) and error.model == "m" for error in caught.values())  # type: ignore[attr-defined]
    assert all(error.__traceback__ is not None for error in caught.values())


async def test_the_usage_of_sub_agents_is_carried() -> None:
    """The error of a failed run has the usage of its sub-agents."""
    answer = ModelResponse(message=Message("assistant", [TextPart("x")]), usage=Usage(input_tokens=7))
    inner = Agent("inner", model=FunctionModel(lambda _: answer), description="Answers.")
    ask = ToolCall("inner", {"input": "x"}, id="ask")
    error = await failing(Agent("a", model=ScriptedModel(ask, OSError("down")), tools=[inner.as_tool()]))
    assert error.usage.input_tokens >= 7
    assert results(error.messages) == {"ask": (False, "x")}


async def test_a_resumed_run_that_fails_keeps_the_results_from_before_the_pause() -> None:
    """The error of a resumed run has the results from before the pause and those of approved calls."""

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        raise ToolError("no money")

    calls = Message("assistant", [ADD, ToolCall("pay", {}, id="pay")])
    down = Agent("a", model=ScriptedModel(calls, OSError("down")), tools=[add, pay])
    paused = await within(down.run("go"))
    assert paused.checkpoint is not None
    [request] = paused.approvals
    with pytest.raises(ModelError) as failed:
        await within(down.resume(paused.checkpoint, decisions=[Decision(request.approval_id, approved=True)]))
    assert results(failed.value.messages) == {"sum": (False, "3"), "pay": (True, "no money")}


async def test_the_result_of_a_stream_that_failed_carries_the_run() -> None:
    """The error about a missing result of a stream has the run, after a failure and after an early exit."""
    agent = Agent("a", model=ScriptedModel(ADD, OSError("down")), tools=[add])
    stream = agent.stream("go")
    with pytest.raises(ModelError) as failed:
        await read(stream)
    with pytest.raises(ConfigError, match="because it failed") as refused:
        _ = stream.result
    for name in ("messages", "usage", "run_id", "trace_id", "iterations"):
        assert getattr(refused.value, name) == getattr(failed.value, name)
    stream = Agent("a", model=ScriptedModel(ToolCall("hang", {}, id="hang")), tools=[hang]).stream("go")
    async with stream:
        async for event in stream:
            if event.name == "tool.started":
                break
    with pytest.raises(ConfigError, match="because its block was left") as refused:
        _ = stream.result
    assert list(results(refused.value.messages)) == ["hang"]


def test_an_error_of_no_run_carries_none() -> None:
    """An error outside of a run has the same attributes, with empty values."""
    error = ToolError("no")
    assert (error.messages, error.usage, error.run_id, error.trace_id, error.iterations) == ((), None, "", "", 0)
