"""Runs with random calls that pause and resume in random order."""

from __future__ import annotations

import json
import random
from itertools import chain
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, Decision, ExternalResult, Tool, ToolCall
from pellucid.events import AsyncToolContinued
from pellucid.testing import FunctionModel
from pellucid_exporters.testing import capture, check_telemetry
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid import ModelRequest, RunResult, ToolContext
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

ASYNCHRONOUS = ("job", "place", "background")
KINDS = (*ASYNCHRONOUS, "job", "place", "pay")


class Generated:
    """An agent with a sub-agent, whose models make random calls.

    Attributes:
        kinds: Kinds of the calls, except those of the sub-agent.
    """

    def __init__(self, seed: int, telemetry: Captured) -> None:
        self.chance = random.Random(seed)
        self.kinds: list[str] = []
        tools = [
            Tool(name="job", run=self.work, execution="external-dispatch"),
            Tool(name="place", run=self.work, execution="external-dispatch", pending="wait"),
            Tool(name="background", run=self.work, execution="same-invocation"),
            Tool(name="pay", run=self.work, needs_approval=True),
        ]
        model = FunctionModel(self.model(KINDS, messages=1))
        inner = Agent("inner", model=model, tools=tools, description="d", telemetry=telemetry)
        model = FunctionModel(self.model((*KINDS, "inner", "inner"), messages=2))
        self.agent = Agent("outer", model=model, tools=[*tools, inner.as_tool()], telemetry=telemetry)

    async def work(self, arguments: Any, ctx: ToolContext) -> str:
        """Take no time or a little."""
        await anyio.sleep(self.chance.choice((0, 0.002)))
        return "worked"

    def model(self, kinds: tuple[str, ...], messages: int) -> Callable[[ModelRequest], Any]:
        """Return a model that answers with calls several times."""

        def answer(request: ModelRequest) -> Any:
            names = [{call.name for call in message.tool_calls} - {"async_status"} for message in request.messages]
            if sum(map(bool, names)) == messages:
                return "done"
            chosen = self.chance.choices(kinds, k=self.chance.randint(1, 4))
            self.kinds += [kind for kind in chosen if kind != "inner"]
            arguments = {"input": "x"}
            return [
                ToolCall(kind, arguments if kind == "inner" else {}, f"c{number}") for number, kind in enumerate(chosen)
            ]

        return answer

    async def resume(self, paused: RunResult[Any]) -> RunResult[Any]:
        """Resume with some of the decisions and results, some of them twice."""
        external = self.chance.sample(paused.external, self.chance.randint(0, len(paused.external)))
        fewest = 0 if external or not paused.approvals else 1
        approvals = self.chance.sample(paused.approvals, self.chance.randint(fewest, len(paused.approvals)))
        return await self.agent.resume(
            json.loads(json.dumps(paused.checkpoint)),
            results=[ExternalResult(result_id=item.result_id, output="r") for item in external] * 2,
            decisions=[Decision(request.approval_id, approved=True) for request in approvals],
        )


def pending(telemetry: Captured, kind: str) -> float:
    """Return the number of pending calls or approvals."""
    return sum(point.value for point in telemetry.metrics if point.name == f"pellucid.{kind}.pending")


async def test_generated_pauses() -> None:
    """Each call has one result and one wait, and what is pending is counted, in whatever order runs resume."""
    for seed in range(40):
        with capture() as telemetry:
            generated = Generated(seed, telemetry)
            result = await within(generated.agent.run("x"))
            while result.checkpoint is not None:
                assert pending(telemetry, "external") == len(result.external)
                assert pending(telemetry, "approval") == len(result.approvals)
                result = await within(generated.resume(result))
            assert result.status == "completed"
            assert pending(telemetry, "external") == pending(telemetry, "approval") == 0
            spans = [span for span in telemetry.spans if span.name.startswith("await_tool ")]
            settled = [attributes(span)["pellucid.async_tool.result_id"] for span in spans]
            assert len(settled) == sum(kind in ASYNCHRONOUS for kind in generated.kinds)
            continued = [event.result_ids for event in telemetry.events if isinstance(event, AsyncToolContinued)]
            assert sorted(chain.from_iterable(continued)) == sorted(settled)
            check_telemetry(telemetry)
