"""Events that a client gets of a streamed run: those that an end user may see, unless more is selected."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pellucid import Agent, ConfigError, Message, ModelError, Tool, ToolCall, ToolError
from pellucid.messages import Part, ReasoningPart, TextPart
from pellucid.server import EventStreamResponse
from pellucid.testing import ScriptedModel
from support.durable_agents import PAY
from support.processes import PATIENCE
from support.server_scene import BASE, events

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

SECRET = "hidden-from-users"


async def streamed(agent: Agent[Any], **options: Any) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """Return the text of a stream, and its events."""

    async def endpoint(_request: Request) -> Response:
        return EventStreamResponse(agent.stream("Hi"), **options)

    app = Starlette(routes=[Route("/", endpoint)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as http:
        with anyio.fail_after(PATIENCE):
            text = (await http.get("/")).text
    return text, [(name, data) for _, name, data in events(text)]


def busy(*more: Any) -> Agent[Any]:
    """Return an agent that thinks, calls a tool, whose arguments and failure are nobody's business, and goes on."""

    async def fail(arguments: Any, ctx: Any) -> str:
        await ctx.progress(arguments)
        raise ToolError(SECRET)

    parts: list[Part] = [ReasoningPart(SECRET), TextPart("I look."), ToolCall("look_up", {"key": SECRET}, "c1")]
    return Agent("a", model=ScriptedModel(Message("assistant", parts), *more), tools=[Tool(name="look_up", run=fail)])


async def test_an_end_user_sees_text_and_tools() -> None:
    """An end user sees text and tools, and no reasoning, arguments, errors of tools, hubs or usage."""
    text, seen = await streamed(busy("It rains."))
    assert SECRET not in text
    assert {name for name, _ in seen} == {"run.started", "inference.delta", "tool.started", "tool.failed", "run"}
    assert "".join(data["content"] for name, data in seen if name == "inference.delta") == "I look.It rains."
    [failed] = [data for name, data in seen if name == "tool.failed"]
    assert failed.keys() == {"runId", "iteration", "time", "toolName", "toolCallId", "outcome"}
    assert (failed["toolName"], failed["toolCallId"]) == ("look_up", "c1")
    state = seen[-1][1]
    assert (state["status"], state["output"]) == ("completed", "It rains.")
    assert state.keys() <= {"id", "status", "output", "stopReason", "traceId"}


async def test_an_end_user_sees_that_a_run_failed() -> None:
    """An end user sees that a run failed, and not the vendor's message."""
    text, seen = await streamed(busy(ModelError("gpt", SECRET)))
    assert SECRET not in text
    assert seen[-1][1]["error"] == {"type": "failed", "message": "the run has failed"}


async def test_an_end_user_sees_that_a_person_must_approve() -> None:
    """An end user sees the tool and the id of an approval, without the arguments of its call."""
    text, seen = await streamed(Agent("a", model=ScriptedModel(ToolCall("pay", {"to": SECRET}, "c1")), tools=[PAY]))
    assert SECRET not in text
    [asked] = [data for name, data in seen if name == "approval.requested"]
    [approval] = seen[-1][1]["approvals"]
    assert asked["approvalId"] == approval["approvalId"]
    assert (asked["toolName"], approval["toolName"], approval["toolCallId"]) == ("pay", "pay", "c1")
    assert (seen[-1][1]["status"], "input" in approval) == ("awaiting_approval", False)


async def test_all_is_everything() -> None:
    """`select="all"` sends each event with all fields but the identity, in camelCase, and the whole state."""
    text, seen = await streamed(busy("It rains."), select="all")
    assert SECRET in text
    [failed] = [data for name, data in seen if name == "tool.failed"]
    assert {"durationMs", "errorType", "providerId", "traceId"} <= failed.keys()
    [first, _] = [data for name, data in seen if name == "inference.completed"]
    assert "inputTokens" in first["usage"]
    assert not [key for _, data in seen for key in data if "_" in key or key == "identity"]
    assert "usage" in seen[-1][1]


async def test_approvals_have_their_input_if_all_is_sent() -> None:
    """An approval has its input if all is sent, under the name that the rest of the API uses."""
    agent = Agent("a", model=ScriptedModel(ToolCall("pay", {"to": "Ann"}, "c1")), tools=[PAY])
    _, seen = await streamed(agent, select="all")
    [asked] = [data for name, data in seen if name == "approval.requested"]
    assert asked["input"] == seen[-1][1]["approvals"][0]["input"] == {"to": "Ann"}


@pytest.mark.parametrize(
    "select", [{"tool.started", "tool.progress"}, lambda event: event.name in ("tool.started", "tool.progress")]
)
async def test_selected_events_are_whole(select: Any) -> None:
    """Only selected events are sent, whole and numbered without gaps, and the end as an end user may see it."""
    text, seen = await streamed(busy("It rains."), select=select)
    assert [name for name, _ in seen] == ["tool.started", "tool.progress", "run"]
    assert seen[1][1]["value"] == {"key": SECRET}
    assert [line for line in text.splitlines() if line.startswith("id: ")] == ["id: 1", "id: 2", "id: 3"]
    assert "usage" not in seen[-1][1]


async def test_the_name_run_selects_the_whole_state() -> None:
    """The name `run` selects the whole state, with its error."""
    _, seen = await streamed(busy(ModelError("gpt", "no credit")), select=["run"])
    assert [name for name, _ in seen] == ["run"]
    assert "no credit" in seen[0][1]["error"]["message"]


@pytest.mark.parametrize("select", ["tool.started", "everything", {"tool.begun"}, 3, None])
async def test_what_selects_nothing_is_refused(select: Any) -> None:
    """A selection of nothing raises ConfigError when the response is made."""
    stream = Agent("a", model=ScriptedModel("x")).stream("Hi")
    with pytest.raises(ConfigError, match=r"EventStreamResponse.*a function of the event"):
        EventStreamResponse(stream, select=select)
