"""Exceptions that are no `Exception`: they fail the call in which they were raised, and stop neither loop nor runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, DiscoveryError, DiscoveryProvider, ModelError, Tool, ToolCall, ToolResult, semconv
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from pellucid_exporters.testing import capture
from support.runs import ending, results

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid_exporters.testing import Captured

pytestmark = pytest.mark.usefixtures("quiet_opentelemetry")


class Halt(BaseException):
    """An exception of an application's own, beside `Exception`."""


HALT = f"{Halt.__module__}.Halt"


each_exit = pytest.mark.parametrize(
    ("make", "error_type", "text"),
    [
        pytest.param(lambda: SystemExit(3), "SystemExit", "SystemExit: 3", id="exit"),
        pytest.param(lambda: Halt("enough"), HALT, "Halt: enough", id="own"),
        pytest.param(lambda: BaseExceptionGroup("two", [Halt("enough")]), "BaseExceptionGroup", "Halt", id="group"),
    ],
)


class Broken:
    """An application whose parts raise at one place; `tool` in a task, `thread` in a worker thread."""

    def __init__(self, place: str, error: BaseException) -> None:
        self.place = place
        self.error = error
        self.id = "own"
        self.calls = 0
        self.hub = FakeHub(faults=[error] * 9 if place == "hub" else [])
        run = self.work_in_thread if place == "thread" else self.work
        self.tools = [Tool(name="work", run=run)]
        model = FunctionModel(self.answer)
        self.agent = Agent("a", model=model, tools=self.tools, providers=[self, DiscoveryProvider(self.hub, id="hub")])
        if place == "listener":
            self.agent.on("inference.started", self.hear)
        if place == "async listener":
            self.agent.on("inference.started", self.hear_later)

    def reach(self, place: str) -> None:
        """Raise if this is the place."""
        if place == self.place:
            self.calls += 1
            raise self.error

    async def work(self, arguments: Any, ctx: object) -> str:
        """Be the tool."""
        self.reach("tool")
        return "worked"

    def work_in_thread(self, arguments: Any, ctx: object) -> str:
        """Be the tool, in a thread."""
        self.reach("thread")
        return "worked"

    def list_tools(self, ctx: object) -> Any:
        """Be a provider, sync or async."""
        self.reach("provider")
        return self.list_later() if self.place == "async provider" else []

    async def list_later(self) -> list[Tool]:
        """Be an async provider."""
        self.reach("async provider")
        return []

    def answer(self, request: Any) -> Any:
        """Be the model."""
        self.reach("model")
        return "done" if isinstance(request.messages[-1].parts[0], ToolResult) else ToolCall("work")

    def hear(self, event: object) -> None:
        """Be a listener."""
        self.reach("listener")

    async def hear_later(self, event: object) -> None:
        """Be an async listener."""
        self.reach("async listener")


async def beside(broken: Broken) -> Any:
    """Run it beside another run of the same event loop, which is under way meanwhile and ends well."""
    over = anyio.Event()

    async def answer(request: object) -> str:
        await over.wait()
        return "done"

    neighbour, came = Agent("neighbour", model=FunctionModel(answer, name="other")), []

    async def run() -> None:
        came.append((await neighbour.run("x")).output)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            try:
                return await broken.agent.run("x")
            except Exception as error:  # noqa: BLE001  (looked at by the test)
                return error
            finally:
                over.set()
                await anyio.wait_all_tasks_blocked()
                assert came == ["done"]


@pytest.mark.anyio
@pytest.mark.parametrize("place", ["tool", "thread"])
@each_exit
async def test_a_tool_that_exits_has_failed(
    telemetry: Captured, place: str, make: Callable[[], BaseException], error_type: str, text: str
) -> None:
    """The model is told, and the run goes on."""
    result = await beside(Broken(place, make()))
    [said] = results(result)
    assert result.output == "done"
    assert said.is_error
    assert str(said.response).startswith("The tool failed. ")
    assert text in str(said.response)
    assert ending(telemetry.span("execute_tool work")) == ("failed", "ERROR", error_type)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("place", "raised", "span"),
    [
        ("model", ModelError, "chat function"),
        ("provider", DiscoveryError, "discover_tools own"),
        ("async provider", DiscoveryError, "discover_tools own"),
        ("hub", DiscoveryError, "discover_tools hub"),
    ],
)
@each_exit
async def test_what_exits_ends_its_own_run(
    telemetry: Captured,
    place: str,
    raised: type[Exception],
    span: str,
    make: Callable[[], BaseException],
    error_type: str,
    text: str,
) -> None:
    """A model or provider that exits has failed: it was asked once, and what it raised is among the causes."""
    broken = Broken(place, make())
    error = await beside(broken)
    assert isinstance(error, raised)
    assert text in str(error)
    causes = []
    cause: BaseException | None = error
    while (cause := cause.__cause__ if cause is not None else None) is not None:
        causes.append(cause)
    assert broken.error in causes
    assert (len(broken.hub.calls) if place == "hub" else broken.calls) == 1
    assert ending(telemetry.span(span)) == ("failed", "ERROR", error_type)


@pytest.mark.anyio
@pytest.mark.parametrize("place", ["listener", "async listener"])
@each_exit
async def test_a_listener_that_exits_is_counted(
    telemetry: Captured, place: str, make: Callable[[], BaseException], error_type: str, text: str
) -> None:
    """The run does not notice."""
    broken = Broken(place, make())
    result = await beside(broken)
    assert result.output == "done"
    assert broken.calls == 2
    assert telemetry.value(semconv.TELEMETRY_ERRORS, pellucid_telemetry_part="listener") == 2


INTERRUPTED = ["tool", "tools", "thread", "model", "provider", "async provider", "hub", "listener"]


async def read(agent: Agent) -> None:
    """Read a run as a stream."""
    async with agent.stream("x") as events:
        async for _ in events:
            pass


ways: dict[str, Callable[[Agent], object]] = {
    "asyncio": lambda agent: anyio.run(agent.run, "x"),
    "trio": lambda agent: anyio.run(agent.run, "x", backend="trio"),
    "stream": lambda agent: anyio.run(read, agent),
    "portal": lambda agent: agent.run_sync("x"),
}


@pytest.mark.parametrize("way", ways)
@pytest.mark.parametrize("place", INTERRUPTED)
def test_an_interrupt_stops_the_program(place: str, way: str) -> None:
    """`KeyboardInterrupt` leaves the event loop as itself, with every span ended; the next program runs as ever."""
    broken = Broken(place.removesuffix("s"), KeyboardInterrupt())
    if place == "tools":
        model = ScriptedModel([ToolCall("work"), ToolCall("work")], "done")
        broken.agent = Agent("a", model=model, tools=broken.tools)
    with capture() as telemetry:
        telemetry.is_checked = place != "listener"  # of the event that interrupts, other listeners never hear
        with pytest.raises(KeyboardInterrupt):
            ways[way](broken.agent)
        assert telemetry.unended == []
        assert len(broken.hub.calls) <= 1
    assert Agent("b", model=ScriptedModel("done")).run_sync("x").output == "done"
