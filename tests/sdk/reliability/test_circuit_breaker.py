"""Circuit breakers, which keep calls away from what fails again and again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    ConfigError,
    DiscoveryContext,
    DiscoveryError,
    DiscoveryProvider,
    FallbackModel,
    ModelError,
    TelemetryOptions,
    Tool,
    ToolCall,
    ToolError,
    combined,
    static_tools,
    tool,
)
from pellucid.errors import CircuitOpen
from pellucid.reliability import CircuitBreaker
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from support.clock import Clock
from support.reliability import breaking, changes, states
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import ModelRequest, ToolProvider
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


class Hub:
    """A provider that fails until it is told to work. Attributes: calls: number of its calls."""

    id = "hub"

    def __init__(self) -> None:
        self.works = False
        self.calls = 0

    async def list_tools(self, ctx: DiscoveryContext) -> list[Tool]:
        """List tools or fail."""
        self.calls += 1
        await anyio.lowlevel.checkpoint()
        if not self.works:
            raise OSError("down")
        return []


async def test_a_provider_is_left_alone_and_tried_again(telemetry: Captured) -> None:
    """A circuit opens, half-opens and closes across runs, with events and a gauge, and refuses calls while open."""
    time, hub = Clock(), Hub()
    agent = Agent("a", model=FunctionModel(lambda request: "hi"), providers=[hub], reliability=breaking(time))
    for _ in range(2):
        with pytest.raises(DiscoveryError, match="OSError: down"):
            await within(agent.run("go"))
    assert (hub.calls, states(telemetry), changes(telemetry)) == (2, [2], ["circuit.opened"])
    with pytest.raises(CircuitOpen) as caught:
        await within(agent.run("go"))
    assert isinstance(caught.value, DiscoveryError)
    assert (caught.value.provider_id, caught.value.retry_after, hub.calls) == ("hub", 10.0, 2)
    assert attributes(telemetry.find("discover_tools hub")[-1])["error.type"] == "circuit_open"
    time.now += 10.0
    hub.works = True
    assert (await within(agent.run("go"))).output == "hi"
    assert changes(telemetry) == ["circuit.opened", "circuit.half_opened", "circuit.closed"]
    assert states(telemetry) == [0]


async def test_a_failing_probe_opens_the_circuit_again(telemetry: Captured) -> None:
    """A failing probe opens the circuit for another cooldown."""
    time, hub = Clock(), Hub()
    agent = Agent("a", model=FunctionModel(lambda request: "hi"), providers=[hub], reliability=breaking(time))
    for later in (0.0, 0.0, 10.0):
        time.now += later
        with pytest.raises(DiscoveryError, match="down"):
            await within(agent.run("go"))
    with pytest.raises(CircuitOpen):
        await within(agent.run("go"))
    assert hub.calls == 3
    assert changes(telemetry) == ["circuit.opened", "circuit.half_opened", "circuit.opened"]


async def test_models_of_one_name_have_breakers_of_their_own() -> None:
    """Models of one name at two addresses have a circuit each."""

    class Placed(FunctionModel):
        def __init__(self, host: str, *, works: bool) -> None:
            super().__init__(self.answer, name="gpt")
            self.server_address, self.works = host, works

        def answer(self, request: ModelRequest) -> str:
            if not self.works:
                raise ConnectionError("down")
            return "hi"

    model = FallbackModel(Placed("eu", works=False), Placed("us", works=True))
    agent = Agent("a", model=model, reliability=breaking(Clock(), 1))
    for _ in range(2):
        assert (await within(agent.run("go"))).output == "hi"


@pytest.mark.parametrize("is_combined", [False, True])
async def test_a_hub_that_was_not_asked_has_not_failed(telemetry: Captured, *, is_combined: bool) -> None:
    """A refusal by a hub's back-off does not count as a failure for its circuit."""
    hub = FakeHub(faults=[OSError("down")] * 9)
    provider: ToolProvider = DiscoveryProvider(hub, id="hub", clock=Clock())
    if is_combined:
        provider = combined(provider, static_tools([]))
    agent = Agent("a", model=FunctionModel(lambda request: "hi"), providers=[provider], reliability=breaking(Clock()))
    for _ in range(5):
        with pytest.raises(DiscoveryError):
            await within(agent.run("go"))
    assert (len(hub.calls), changes(telemetry)) == (1, [])


@pytest.mark.parametrize("is_combined", [False, True])
async def test_one_fetch_that_fails_is_one_failure(telemetry: Captured, *, is_combined: bool) -> None:
    """A failed fetch that many runs share counts as one failure."""
    time, fails = Clock(), anyio.Event()

    class Slow(FakeHub):
        async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            self.calls.append(ctx)
            await fails.wait()
            raise OSError("down")

    hub = Slow()
    provider: ToolProvider = DiscoveryProvider(hub, id="hub", clock=time)
    if is_combined:
        provider = combined(provider, static_tools([]))
    agent = Agent("a", model=ScriptedModel(), providers=[provider], reliability=breaking(Clock(), failures=2))

    async def attempt() -> None:
        with pytest.raises(DiscoveryError, match="down"):
            await agent.run("go")

    for fetches, told in ((1, []), (2, ["circuit.opened"])):
        fails = anyio.Event()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(attempt)
                await anyio.wait_all_tasks_blocked()
                fails.set()
        assert (len(hub.calls), changes(telemetry)) == (fetches, told)
        time.now += 60  # the hub is no longer left alone


async def test_a_gauge_shows_what_others_did_to_its_circuit(telemetry: Captured) -> None:
    """The gauge shows a circuit that a run with another telemetry has closed."""
    time, hub = Clock(), Hub()
    shared = breaking(time, 1)
    agents = [
        Agent(name, model=FunctionModel(lambda request: "hi"), providers=[hub], reliability=shared, telemetry=pipeline)
        for name, pipeline in (("a", telemetry), ("b", TelemetryOptions()))
    ]
    with pytest.raises(DiscoveryError):
        await within(agents[0].run("go"))
    assert states(telemetry) == [2]
    time.now += 10.0
    hub.works = True
    await within(agents[1].run("go"))
    assert states(telemetry) == [0]


async def test_a_probe_that_is_cancelled_lets_the_next_caller_probe() -> None:
    """A cancelled probe lets the next caller probe."""
    time = Clock()
    hangs = anyio.Event()
    mode = "fail"

    async def answer(request: ModelRequest) -> str:
        if mode == "fail":
            raise ConnectionError("down")
        if mode == "hang":
            hangs.set()
            await anyio.sleep_forever()
        return "hi"

    agent = Agent("a", model=FunctionModel(answer), reliability=breaking(time, 1))
    with pytest.raises(ModelError):
        await within(agent.run("go"))
    time.now += 10.0
    mode = "hang"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.run, "go")
        await within(hangs.wait())
        tasks.cancel_scope.cancel()
    mode = "work"
    assert (await within(agent.run("go"))).output == "hi"


async def test_a_model_whose_circuit_is_open_is_passed_over(telemetry: Captured) -> None:
    """A `FallbackModel` passes over a model whose circuit is open."""
    calls = 0

    def fail(request: ModelRequest) -> str:
        nonlocal calls
        calls += 1
        raise ConnectionError("down")

    model = FallbackModel(FunctionModel(fail, name="one"), FunctionModel(lambda request: "hi", name="two"))
    agent = Agent("a", model=model, reliability=breaking(Clock(), 1))
    for _ in range(3):
        assert (await within(agent.run("go"))).output == "hi"
    assert calls == 1
    types = [attributes(span).get("error.type") for span in telemetry.find("chat one")]
    assert types == ["ConnectionError", "circuit_open", "circuit_open"]


async def test_a_tool_whose_circuit_is_open_is_a_result_for_the_model() -> None:
    """The result of a tool whose circuit is open says so, and the tool is not run."""
    calls = 0

    @tool
    async def broken() -> str:
        """Break."""
        nonlocal calls
        calls += 1
        raise ConnectionError("down")

    model = ScriptedModel(ToolCall("broken"), ToolCall("broken"), "ok")
    result = await within(Agent("a", model=model, tools=[broken], reliability=breaking(Clock(), 1)).run("go"))
    assert calls == 1
    part: Any = result.messages[4].parts[0]
    assert "'broken' is not called after repeated failures" in part.response


async def test_failures_of_the_caller_do_not_count() -> None:
    """Invalid requests and `ToolError`s do not count as failures for a circuit."""
    model = ScriptedModel(*[ModelError("m", "no", error_kind="invalid_request")] * 3, "hi")
    agent = Agent("a", model=model, reliability=breaking(Clock(), 1))
    for _ in range(3):
        with pytest.raises(ModelError, match="no"):
            await within(agent.run("go"))
    assert (await within(agent.run("go"))).output == "hi"

    @tool
    async def find() -> str:
        """Find."""
        raise ToolError("there is no such thing")

    calls = ScriptedModel(*[ToolCall("find")] * 3, "ok")
    result = await within(Agent("a", model=calls, tools=[find], reliability=breaking(Clock(), 1)).run("go"))
    texts = [part.response for message in result.messages if message.role == "tool" for part in message.parts]  # type: ignore[union-attr]
    assert texts == ["there is no such thing"] * 3


async def test_a_success_starts_the_count_anew() -> None:
    """A success resets the number of failures."""
    model = ScriptedModel(OSError("1"), "ok", OSError("2"), "ok", OSError("3"), "ok")
    agent = Agent("a", model=model, reliability=breaking(Clock(), 2))
    for number in range(6):
        if number % 2:
            assert (await within(agent.run("go"))).output == "ok"
        else:
            with pytest.raises(ModelError):
                await within(agent.run("go"))


def test_circuits_are_safe_between_threads() -> None:
    """Of many threads with their own event loops, one probes a half-open circuit."""
    time, hub = Clock(), Hub()
    agent = Agent("a", model=FunctionModel(lambda request: "hi"), providers=[hub], reliability=breaking(time, 3))
    refused: list[bool] = []

    def attempt() -> None:
        try:
            anyio.run(agent.run, "go")
        except DiscoveryError as error:
            refused.append(isinstance(error, CircuitOpen))

    def all_at_once() -> None:
        threads = [threading.Thread(target=attempt) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    all_at_once()
    time.now += 10.0
    hub.calls = 0
    refused.clear()
    all_at_once()
    assert hub.calls == 1
    assert refused.count(True) == 19


def test_a_breaker_that_cannot_work_is_refused() -> None:
    """Wrong options of a circuit breaker are refused."""
    for options in ({"failures": 0}, {"cooldown": -1.0}):
        with pytest.raises(ConfigError, match="failures must be at least 1"):
            CircuitBreaker(**options)
