"""Replays of runs that paused because an MCP server asked a person."""

from __future__ import annotations

from typing import Any

import pytest

from pellucid import Agent, Decision, ToolCall
from pellucid.mcp import MCPProvider
from pellucid.testing import ScriptedModel
from pellucid_replay import replay
from support.asking_server import AskingServer
from support.runs import within
from support.tapes import recording, tapes_of

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("tool", ["order", "sign", "twice"])
async def test_a_run_that_was_asked(tool: str, approved: bool) -> None:
    """It pauses and goes on as it did; the server is not called, and nobody is asked."""
    asking = AskingServer()
    provider = MCPProvider.connect(asking.server, id="shop", elicitation="pause")

    def agent() -> Agent[Any, Any]:
        return Agent("clerk", model=ScriptedModel(ToolCall(tool, {}, "c1"), "Done."), providers=[provider])

    async with provider:
        with recording() as (telemetry, listings):
            recorded = agent()
            result = await within(recorded.run("Go."))
            while result.checkpoint is not None:
                [question] = result.elicitations
                content = {"size": "M"} if approved and question.elicitation == "form" else None
                decision = Decision(question.approval_id, approved, arguments=content)
                result = await within(recorded.resume(result.checkpoint, decisions=[decision]))
        calls = len(asking.calls)
        [tape] = tapes_of(telemetry, listings)
        outcome = (await within(replay(agent(), tape))).check()
    assert outcome.result is not None
    assert (outcome.result.status, outcome.result.output) == ("completed", "Done.")
    assert outcome.result.messages == result.messages
    assert len(asking.calls) == calls
