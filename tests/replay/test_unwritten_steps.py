"""Replays of durable runs whose passes ended because a step was not written, or its answer was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Tool, ToolCall
from pellucid.durable import DurableRuns, open_store
from pellucid.errors import StoreUnavailable
from pellucid.testing import FunctionModel
from pellucid_replay import replay
from support.durable_agents import DO, nothing
from support.runs import within
from support.tapes import recording, tapes_of

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid import ModelRequest
    from pellucid.durable import Claim, RunStore

pytestmark = pytest.mark.anyio


def answer(request: ModelRequest) -> Any:
    """Call two tools, one of which may be repeated, and answer."""
    is_called = len(request.messages) > 1
    return "x" if is_called else [ToolCall("do", {}, "c1"), ToolCall("again", {}, "c2")]


def fail_once(store: RunStore, step: str, *, is_written: bool) -> list[Claim]:
    """Have the store fail at a step, before or after its commit; return a list that then has the claim."""
    append, failed = store.append, list[Any]()

    async def append_or_fail(claim: Any, key: str, *arguments: Any) -> Any:
        if failed or not key.startswith(step):
            return await append(claim, key, *arguments)
        failed.append(claim)
        if is_written:
            await append(claim, key, *arguments)
        raise StoreUnavailable("test")

    vars(store)["append"] = append_or_fail
    return failed


@pytest.mark.parametrize(
    ("step", "is_written"),
    [("answer:2", False), ("started:1:c1", True), ("result:1:c1", False), ("result:1:c2", False)],
)
async def test_a_pass_that_ended_at_a_step_is_replayed(tmp_path: Path, step: str, is_written: bool) -> None:
    """The replay goes on as the run did: with the written results, and with the notice that others are unknown."""
    agent = Agent("a", model=FunctionModel(answer), tools=[DO, Tool(name="again", run=nothing, idempotent=True)])
    with recording() as (telemetry, listings):
        async with open_store(f"sqlite:///{tmp_path}/runs.db") as store:
            failed = fail_once(store, step, is_written=is_written)
            runs = DurableRuns(store, [agent])
            await runs.submit(agent, "go")
            await within(runs.work_until_idle())
            await store.release(*failed)  # instead of waiting for the end of the lease
            await within(runs.work_until_idle())
    [tape] = tapes_of(telemetry, listings)
    replayed = await within(replay(agent, tape))
    assert replayed.check().outcome == "completed"
    assert sorted(replayed.tool_calls) == ["again", "do"]
    assert len(telemetry.find("invoke_agent a")) == 2  # passes
