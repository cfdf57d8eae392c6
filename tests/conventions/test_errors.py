"""`error.type`: few values, the same for the same fault, on span, metric, event and log line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    DiscoveryError,
    DiscoveryProvider,
    Limits,
    PellucidError,
    Reliability,
    ToolCall,
    ToolError,
    semconv,
    tool,
)
from pellucid.reliability import Rule, retry
from pellucid.testing import FakeHub, FunctionModel, ScriptedModel
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


class VendorError(Exception):
    """An error of a library, whose text is different each time."""


class Status:
    """A fault that differs in its text and not in its kind."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> str:
        """Fail, each time with another text."""
        self.number += 1
        raise VendorError(f"request {self.number} to https://example.com/{self.number} failed")


@tool
async def plain() -> str:
    """Fail with an error of Python's."""
    raise ValueError("no such thing")


@tool
async def chosen() -> str:
    """Fail with a type of one's own choosing."""
    raise ToolError("try later", error_type="rate_limited")


@tool
async def own() -> str:
    """Fail as tools do that say nothing of the type."""
    raise ToolError("no such city")


@tool(timeout=0.05)
async def slow() -> str:
    """Take too long."""
    await anyio.sleep_forever()
    return ""


@tool
async def late() -> str:
    """Fail with a timeout of some library."""
    raise TimeoutError


@tool
async def vendor() -> str:
    """Fail with an error of some library's."""
    raise VendorError("x")


@tool
async def add(a: int) -> int:
    """Take a number."""
    return a


@pytest.mark.parametrize(
    ("call", "error_type", "kind"),
    [
        (ToolCall("plain"), "ValueError", "unknown"),
        (ToolCall("chosen"), "rate_limited", "tool_error"),
        (ToolCall("own"), "tool_error", "tool_error"),
        (ToolCall("slow"), "timeout", "timeout"),
        (ToolCall("late"), "timeout", "timeout"),
        (ToolCall("vendor"), f"{__name__}.VendorError", "unknown"),
        (ToolCall("add", {"a": "no number"}), "invalid_arguments", "invalid_request"),
        (ToolCall("add", "{"), "invalid_arguments", "invalid_request"),
        (ToolCall("made_up"), "unknown_tool", "tool_error"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
async def test_a_failed_tool_call_has_a_type(telemetry: Captured, call: ToolCall, error_type: str, kind: str) -> None:
    """A failed tool call has the same `error.type` on its span, metric, event and log line."""
    agent = Agent("a", model=ScriptedModel(call, "x"), tools=[plain, chosen, own, slow, late, vendor, add])
    await within(agent.run("go"))
    span = attributes(telemetry.span("execute_tool"))
    assert (span[semconv.ERROR_TYPE], span[semconv.ERROR_KIND]) == (error_type, kind)
    labels = telemetry.histogram(semconv.TOOL_DURATION).attributes
    assert (labels[semconv.ERROR_TYPE], semconv.ERROR_KIND in labels) == (error_type, False)
    [event] = [event for event in telemetry.events if event.name == "tool.failed"]
    assert vars_of(event)["error_type"] == error_type
    [line] = [line for line in telemetry.logs if line["event"] == "tool.failed"]
    assert line["error_type"] == error_type


def vars_of(event: Any) -> dict[str, Any]:
    """Return the payload of an event."""
    return {name: getattr(event, name) for name in ("error_type", "outcome")}


@pytest.mark.parametrize(
    ("fault", "limits", "error_type", "kind"),
    [
        (ConnectionResetError("x"), None, "ConnectionResetError", "unavailable"),
        (VendorError("x"), None, f"{__name__}.VendorError", "unknown"),
        (TimeoutError("x"), None, "timeout", "timeout"),
        ("hangs", Limits(model_timeout=0.05), "timeout", "timeout"),
        ("nonsense", None, "invalid_response", "invalid_response"),
    ],
    ids=["python", "vendor", "timeout", "hangs", "nonsense"],
)
async def test_a_failed_model_call_has_the_type_of_its_cause(
    telemetry: Captured, fault: Any, limits: Limits | None, error_type: str, kind: str
) -> None:
    """A failed model call and its run have the error type of the cause, not that of the wrapper."""

    async def model(request: object) -> Any:
        if fault == "hangs":
            await anyio.sleep_forever()
        if isinstance(fault, Exception):
            raise fault
        return None

    class Odd(FunctionModel):
        async def generate(self, request: Any) -> Any:
            return await model(request)

    with pytest.raises(PellucidError):
        await within(Agent("a", model=Odd(lambda request: ""), limits=limits).run("go"))
    for name in ("chat", "invoke_agent"):
        span = attributes(telemetry.span(name))
        assert (span[semconv.ERROR_TYPE], span[semconv.ERROR_KIND]) == (error_type, kind)
    assert telemetry.histogram(semconv.OPERATION_DURATION, error_type=error_type).count == 1
    assert telemetry.histogram(semconv.AGENT_DURATION, error_type=error_type).count == 1


@pytest.mark.parametrize(
    ("hub", "error_type"),
    [
        ({"faults": [OSError("refused")]}, "OSError"),
        ({"faults": [VendorError("x")]}, f"{__name__}.VendorError"),
        ({"latency": 60.0}, "timeout"),
        ({"tools": lambda number: "nonsense"}, "invalid_catalog"),
    ],
    ids=["python", "vendor", "timeout", "nonsense"],
)
async def test_a_failed_discovery_has_the_type_of_its_cause(telemetry: Captured, hub: Any, error_type: str) -> None:
    """A failed discovery and its run have the error type of the cause; a call during the back-off has `backoff`."""
    provider = DiscoveryProvider(FakeHub(**hub), id="hub", timeout=0.05 if "latency" in hub else None)
    agent = Agent("a", model=ScriptedModel("x"), providers=[provider])
    with pytest.raises(PellucidError):
        await within(agent.run("go"))
    for name in ("discover_tools", "invoke_agent"):
        assert attributes(telemetry.span(name))[semconv.ERROR_TYPE] == error_type
    with pytest.raises(PellucidError):
        await within(agent.run("go"))
    assert attributes(telemetry.find("discover_tools")[1])[semconv.ERROR_TYPE] == "backoff"


async def test_a_hundred_faults_of_one_kind_are_one_label(telemetry: Captured) -> None:
    """Faults that differ only in their text are counted under one label."""
    fault = Status()
    calls = [ToolCall("broken", {}, f"call_{number}") for number in range(100)]
    broken = tool(name="broken", description="Fail.")(fault)
    await within(Agent("a", model=ScriptedModel(calls, "x"), tools=[broken]).run("go"))
    assert fault.number == 100
    assert telemetry.histogram(semconv.TOOL_DURATION).count == 100


class Ring(ExceptionGroup[Exception]):
    """A group that is one of its own members."""

    @property
    def exceptions(self) -> Any:
        """Contain the group."""
        return (self,)


def own_cause() -> Exception:
    """Return an error without a text that is its own cause."""
    error = DiscoveryError.__new__(DiscoveryError)
    error.__cause__ = error
    return error


def two_in_a_circle() -> Exception:
    """Return one of two errors without a text, each the cause of the other."""
    first, second = PellucidError(), PellucidError()
    first.__cause__, second.__cause__ = second, first
    return first


def deep_group() -> Exception:
    """Return a group inside of so many groups that no recursion gets there."""
    error: Exception = OSError("deep down")
    for _ in range(5000):
        error = ExceptionGroup("", [error])
    return error


@pytest.mark.parametrize("make", [own_cause, two_in_a_circle, lambda: Ring("", [OSError()]), deep_group])
async def test_an_error_that_leads_back_to_itself_ends_like_any_other(
    telemetry: Captured, make: Callable[[], Exception]
) -> None:
    """An exception that is its own cause ends calls of tools, hubs and models like any other error."""

    @tool
    async def broken() -> str:
        """Fail."""
        raise make()

    rules = Reliability([Rule(when=lambda s: s.error_kind == "cancelled", then=retry(), kind="never")])
    agent = Agent("a", model=ScriptedModel(ToolCall("broken"), "hi"), tools=[broken], reliability=rules)
    assert (await within(agent.run("go"), 60)).output == "hi"
    providers = [DiscoveryProvider(FakeHub(faults=[make()]), id="hub")]
    with pytest.raises(DiscoveryError):
        await within(Agent("a", model=ScriptedModel("hi"), providers=providers, reliability=rules).run("go"), 60)
    with pytest.raises(PellucidError):
        await within(Agent("a", model=ScriptedModel(make()), reliability=rules).run("go"), 60)
    assert all(attributes(span).get(semconv.ERROR_TYPE) for span in telemetry.find("execute_tool"))
