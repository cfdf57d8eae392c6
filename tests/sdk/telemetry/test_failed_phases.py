"""Failed runs are counted by the phase that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, Limits, ModelError, combined, semconv
from pellucid.errors import PellucidError
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters.testing import check_telemetry
from support.runs import within

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


class Broken:
    """Provider whose listing fails, or hangs."""

    id = "broken"

    def __init__(self, *, hangs: bool = False) -> None:
        self._hangs = hangs

    async def list_tools(self, ctx: object) -> list[Any]:
        """Fail, or hang."""
        if self._hangs:
            await anyio.sleep_forever()
        raise OSError("no route to the hub")


async def _fails(*_: object) -> Any:
    raise ModelError("m", "the vendor is down")


def _failures(telemetry: Captured) -> dict[tuple[Any, Any, Any], float]:
    """Return the number of failed runs by agent, phase and error."""
    agent, phase, error = semconv.AGENT_NAME, semconv.PHASE, semconv.ERROR_TYPE
    return {
        (point.attributes[agent], point.attributes[phase], point.attributes[error]): point.value
        for point in telemetry.metrics
        if point.name == semconv.RUN_FAILURES.name
    }


async def test_a_run_without_tools_failed_in_discovery(telemetry: Captured) -> None:
    """With the error of the run, which is that of the provider."""
    with pytest.raises(PellucidError):
        await within(Agent("a", model=ScriptedModel("x"), providers=[Broken()]).run("y"))
    assert _failures(telemetry) == {("a", "discovery", "OSError"): 1}
    check_telemetry(telemetry)


async def test_a_run_whose_deadline_passed_failed_where_it_was(telemetry: Captured) -> None:
    """Here in discovery, since the hub hangs."""
    agent = Agent("a", model=ScriptedModel("x"), providers=[Broken(hangs=True)], limits=Limits(timeout=1.0))
    with pytest.raises(TimeoutError):
        await within(agent.run("y"))
    assert _failures(telemetry) == {("a", "discovery", "timeout"): 1}
    check_telemetry(telemetry)


async def test_a_run_whose_model_failed_failed_in_inference(telemetry: Captured) -> None:
    """Also if a hub was skipped before."""
    provider = combined(Broken(), on_error="skip")
    with pytest.raises(ModelError):
        await within(Agent("a", model=FunctionModel(_fails), providers=[provider]).run("y"))
    assert [phase for _, phase, _ in _failures(telemetry)] == ["inference"]
    check_telemetry(telemetry)


async def test_what_no_phase_caused_is_of_the_run(telemetry: Captured) -> None:
    """An answer that is not of the type, although a hub was skipped in this iteration."""
    provider = combined(Broken(), on_error="skip")
    agent = Agent("a", model=ScriptedModel("x", "y", "z"), providers=[provider], output=int)
    with pytest.raises(ModelError):
        await within(agent.run("y"))
    assert [phase for _, phase, _ in _failures(telemetry)] == ["run"]
    check_telemetry(telemetry)


async def test_a_run_that_completes_or_is_cancelled_has_not_failed(telemetry: Captured) -> None:
    """Nor has one that went on without a hub."""
    provider = combined(Broken(), on_error="skip")
    await within(Agent("a", model=ScriptedModel("x"), providers=[provider]).run("y"))
    with anyio.move_on_after(0.05):
        await Agent("a", model=ScriptedModel("x"), providers=[Broken(hangs=True)]).run("y")
    assert _failures(telemetry) == {}
    check_telemetry(telemetry)
