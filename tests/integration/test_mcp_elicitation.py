"""Questions that MCP servers ask a person before they answer a call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

from pellucid import Agent, ConfigError, Decision, Identity, Limits, TextPart, ToolCall, semconv
from pellucid.approvals.elicitation import Elicitation
from pellucid.durable import DurableRuns
from pellucid.errors import CheckpointError
from pellucid.mcp import MCPProvider
from pellucid.testing import ScriptedModel
from support.approvals import events, passed_on, pending
from support.asking_server import SIZE, AskingServer
from support.durable_agents import results
from support.processes import python
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import Callable

    from pellucid import RunResult
    from pellucid.durable import RunStore
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.usefixtures("quiet_opentelemetry")]

LEGACY = (str(Path(__file__).parents[1] / "support" / "mcp_servers.py"), "legacy")


def agent_of(name: str, elicitation: Any = "pause", **options: Any) -> tuple[AskingServer, Agent[Any, Any]]:
    """Return a server that asks, and an agent that calls the tool of this name once."""
    asking = AskingServer()
    provider = MCPProvider.connect(asking.server, id="shop", elicitation=elicitation)
    model = ScriptedModel(ToolCall(name, {}, "c1"), "Done.")
    return asking, Agent("clerk", model=model, providers=[provider], **options)


def answer_of(result: RunResult[Any], call: str = "c1") -> Any:
    """Return the result of a call."""
    parts = [part for message in result.messages for part in message.tool_results]
    return next(part.response for part in parts if part.id == call)


async def test_a_run_pauses_for_a_form(telemetry: Captured) -> None:
    """A run pauses for a form with its schema; the answer reaches the server, and the call ends."""
    asking, agent = agent_of("order")
    async with agent:
        waits = await within(agent.run("Order one."))
        [question] = waits.elicitations
        assert waits.status == "awaiting_approval"
        assert waits.approvals == (question,)
        assert (question.elicitation, question.reason, question.input_schema) == ("form", "Which size?", SIZE)
        assert (question.tool_name, question.tool_call_id, question.url) == ("order", "c1", None)
        assert pending(telemetry, "order") == 1
        answer = Decision(question.approval_id, approved=True, arguments={"size": "M"}, decided_by="ann")
        done = await within(agent.resume(passed_on(waits.checkpoint), decisions=[answer]))
    accepted = {"action": "accept", "content": {"size": "M"}}
    assert asking.calls == [(None, {}), ("ordered", {"q": accepted})]
    assert (done.status, json.loads(answer_of(done))) == ("completed", {"q": accepted})
    first, second = telemetry.find("execute_tool order")
    assert attributes(first)[semconv.APPROVAL_OUTCOME] == "awaiting"
    assert attributes(second)[semconv.APPROVAL_OUTCOME] == "approved"
    [answered] = [event for event in second.events if event.name == "elicitation.answered"]
    assert dict(answered.attributes or {}) == {
        "pellucid.elicitation.mode": "form",
        "pellucid.elicitation.action": "accept",
    }
    assert [len(events(telemetry, name)) for name in ("approval.requested", "approval.decided")] == [1, 1]
    assert pending(telemetry, "order") == 0


async def test_a_run_pauses_for_an_address() -> None:
    """A run pauses for an address that a person opens; the server learns only that they agreed."""
    asking, agent = agent_of("sign")
    async with agent:
        waits = await within(agent.run("Sign."))
        [question] = waits.elicitations
        assert (question.elicitation, question.url) == ("url", "https://sign.example/7")
        decision = Decision(question.approval_id, approved=True)
        await within(agent.resume(passed_on(waits.checkpoint), decisions=[decision]))
    assert asking.calls[1] == ("signed", {"s": {"action": "accept"}})


async def test_a_person_declines(telemetry: Captured) -> None:
    """A server is told that a person declines, and answers as it likes."""
    asking, agent = agent_of("order")
    async with agent:
        waits = await within(agent.run("Order one."))
        denied = Decision(waits.elicitations[0].approval_id, approved=False)
        done = await within(agent.resume(passed_on(waits.checkpoint), decisions=[denied]))
    assert asking.calls[1] == ("ordered", {"q": {"action": "decline"}})
    assert done.output == "Done."
    [answered] = telemetry.find("execute_tool order")[1].events
    assert dict(answered.attributes or {}) == {
        "pellucid.elicitation.mode": "form",
        "pellucid.elicitation.action": "decline",
    }


async def test_nobody_answers_in_time() -> None:
    """A question that nobody answers expires as an approval does, and the server is told that nobody chose."""
    asking, agent = agent_of("order", limits=Limits(approval_timeout=1e-6))
    async with agent:
        waits = await within(agent.run("Order one."))
        late = Decision(waits.elicitations[0].approval_id, approved=True, arguments={"size": "M"})
        await within(agent.resume(passed_on(waits.checkpoint), decisions=[late]))
    assert asking.calls[1] == ("ordered", {"q": {"action": "cancel"}})


@pytest.mark.parametrize("content", [None, {"size": "XL"}, {"size": "M", "count": 0}])
async def test_an_answer_that_does_not_fit(content: Any) -> None:
    """An answer that does not fit is refused before anything runs; the checkpoint can be resumed with another."""
    asking, agent = agent_of("order")
    async with agent:
        waits = await within(agent.run("Order one."))
        approval_id = waits.elicitations[0].approval_id
        with pytest.raises(CheckpointError, match=r"does not fit the schema of the question: .*approved=False"):
            await agent.resume(passed_on(waits.checkpoint), decisions=[Decision(approval_id, True, arguments=content)])
        assert len(asking.calls) == 1
        right = Decision(approval_id, True, arguments={"size": "S"})
        assert (await within(agent.resume(passed_on(waits.checkpoint), decisions=[right]))).output == "Done."


async def test_questions_are_answered_one_by_one() -> None:
    """A call with several questions waits for the last answer; earlier answers are in the checkpoint."""
    asking, agent = agent_of("both")
    async with agent:
        waits = await within(agent.run("Order and sign."))
        form, url = waits.elicitations
        assert {form.tool_call_id, url.tool_call_id} == {"c1:q", "c1:s"}
        signed = Decision(url.approval_id, approved=True)
        waits = await within(agent.resume(passed_on(waits.checkpoint), decisions=[signed]))
        assert waits.elicitations == (form,)
        assert len(asking.calls) == 1
        sized = Decision(form.approval_id, approved=True, arguments={"size": "S"})
        done = await within(agent.resume(passed_on(waits.checkpoint), decisions=[sized]))
    answers = {"q": {"action": "accept", "content": {"size": "S"}}, "s": {"action": "accept"}}
    assert asking.calls[1] == ("both", answers)
    assert done.output == "Done."


async def test_a_server_asks_again() -> None:
    """Each question of a server that asks again is a pause of its own, with the state of the one before."""
    asking, agent = agent_of("twice")
    async with agent:
        waits = await within(agent.run("Order two."))
        seen = set()
        for size in ("S", "M"):
            [question] = waits.elicitations
            seen.add(question.approval_id)
            sized = Decision(question.approval_id, approved=True, arguments={"size": size})
            waits = await within(agent.resume(passed_on(waits.checkpoint), decisions=[sized]))
    assert [state for state, _ in asking.calls] == [None, "first", "second"]
    assert waits.output == "Done."
    assert len(seen) == 2


async def test_a_sub_agent_that_is_asked() -> None:
    """A question to a sub-agent is one of its caller, who resumes both."""
    asking, inner = agent_of("order", description="Orders.")
    outer = Agent(
        "boss", model=ScriptedModel(ToolCall("clerk", {"input": "Go."}, "o1"), "OK."), tools=[inner.as_tool()]
    )
    async with inner:
        waits = await within(outer.run("Order."))
        [question] = waits.elicitations
        sized = Decision(question.approval_id, approved=True, arguments={"size": "S"})
        done = await within(outer.resume(passed_on(waits.checkpoint), decisions=[sized]))
    assert done.output == "OK."
    assert len(asking.calls) == 2


async def test_a_function_answers(telemetry: Captured) -> None:
    """A function answers questions in the process, and the run does not pause."""
    asked: list[Elicitation] = []

    async def reply(question: Elicitation) -> dict[str, Any] | bool:
        asked.append(question)
        return {"size": "M"} if question.mode == "form" else True

    asking, agent = agent_of("both", reply)
    async with agent:
        done = await within(agent.run("Order and sign."))
    assert [(each.provider_id, each.mode, each.message, each.url) for each in asked] == [
        ("shop", "form", "Which size?", None),
        ("shop", "url", "Sign.", "https://sign.example/7"),
    ]
    answers = {"q": {"action": "accept", "content": {"size": "M"}}, "s": {"action": "accept"}}
    assert (done.status, asking.calls[1]) == ("completed", ("both", answers))
    names = [event.name for event in telemetry.span("execute_tool both").events]
    assert names.count("elicitation.answered") == 2


def _fails(_: Elicitation) -> None:
    raise LookupError("no terminal")


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (lambda _: None, '{"q": {"action": "decline"}}'),
        (lambda _: {"size": "XL"}, "does not fit its schema"),
        (_fails, "no terminal"),
    ],
)
async def test_a_function_that_does_not_answer(reply: Callable[[Elicitation], Any], result: str) -> None:
    """A function that returns None declines; an answer that does not fit, or an error, fails the call."""
    _, agent = agent_of("order", reply)
    async with agent:
        done = await within(agent.run("Order one."))
    assert result in str(answer_of(done))


@pytest.mark.parametrize(
    ("tool", "elicitation", "problem"),
    [
        ("sample", "pause", "asked for sampling/createMessage, which is not supported"),
        ("roots", lambda _: None, "asked for roots/list, which is not supported"),
        ("broken", "pause", "asked for input with an invalid schema"),
        ("twice", lambda _: {"size": "S"}, None),
        ("later", "pause", None),
        ("order", None, "Elicitation not supported"),
    ],
)
async def test_what_servers_ask_for(tool: str, elicitation: Any, problem: str | None) -> None:
    """Requests for more time and more questions are answered; all others, or questions to nobody, fail the call."""
    asking, agent = agent_of(tool, elicitation)
    async with agent:
        done = await within(agent.run("Go."))
    assert set(asking.can_ask) == {elicitation is not None}
    assert done.output == "Done."
    [result] = [part for message in done.messages for part in message.tool_results]
    assert result.is_error == (problem is not None)
    assert problem is None or problem in str(result.response)


def test_the_protocol_is_checked() -> None:
    """A wrong protocol raises ConfigError when the provider is made."""
    with pytest.raises(ConfigError, match="'shop': protocol='2025-11-25' must be 'auto' or 'legacy'"):
        MCPProvider.connect(AskingServer().server, id="shop", protocol="2025-11-25")  # type: ignore[arg-type]


@pytest.mark.parametrize("elicitation", ["yes", 7])
def test_the_option_is_checked(elicitation: Any) -> None:
    """A wrong `elicitation` raises ConfigError when the provider is made."""
    with pytest.raises(ConfigError, match=r"'shop': elicitation=.*; give 'pause', or a function"):
        agent_of("order", elicitation)


async def test_a_durable_run_waits(store: RunStore) -> None:
    """A durable run waits for an answer in the store, also if there is a function; a wrong answer is not stored."""
    asking, agent = agent_of("order", lambda _: {"size": "S"})
    runs = DurableRuns(store, [agent])
    async with agent:
        run_id = await runs.submit(agent, "Order one.")
        await within(runs.work_until_idle())
        state = await runs.status(run_id)
        [question] = state.approvals
        assert (state.status, question.elicitation, question.input_schema) == ("waiting", "form", SIZE)
        with pytest.raises(CheckpointError, match="does not fit the schema of the question"):
            await runs.decide(run_id, [Decision(question.approval_id, approved=True)])
        await runs.decide(run_id, [Decision(question.approval_id, approved=True, arguments={"size": "M"})])
        await within(runs.work_until_idle())
    state = await runs.status(run_id)
    assert (state.status, state.output) == ("completed", "Done.")
    assert json.loads(results(state)["c1"]) == {"q": {"action": "accept", "content": {"size": "M"}}}
    assert len(asking.calls) == 2


def legacy(tmp_path: Path, name: str, elicitation: Any) -> Agent[Any, Any]:
    """Return an agent that calls a tool of a server of protocol 2025-11-25."""
    env = {"PELLUCID_TEST_LOG": str(tmp_path / "log")}
    provider = MCPProvider.stdio(*python(*LEGACY), id="old", env=env, elicitation=elicitation)
    return Agent("clerk", model=ScriptedModel(ToolCall(name, {}, "c1"), "Done."), providers=[provider])


@pytest.mark.parametrize(
    ("elicitation", "answer"),
    [
        (lambda _: {"size": "M"}, {"action": "accept", "content": {"size": "M"}}),
        (lambda _: None, {"action": "decline"}),
        ("pause", {"action": "decline"}),
        (_fails, {"code": -32603, "message": "the client could not ask"}),
    ],
)
async def test_a_server_that_holds_the_call_open(tmp_path: Path, elicitation: Any, answer: Any) -> None:
    """A question of a server that holds the call open is answered by a function, or declined, since no run pauses."""
    agent = legacy(tmp_path, "ask", elicitation)
    async with agent:
        done = await within(agent.run("Order one."))
    assert json.loads(answer_of(done)) == answer


async def test_a_server_whose_tools_ask_by_a_request() -> None:
    """A server of the SDK whose tools ask by a request can be asked with the older protocol."""
    server = MCPServer("shop")

    class Size(BaseModel):
        size: str

    @server.tool(structured_output=False)
    async def order(ctx: Context) -> str:
        """Order one."""
        asked: Any = await ctx.elicit("Which size?", Size)
        return str(asked.data.size)

    provider = MCPProvider.connect(server, id="shop", elicitation=lambda _: {"size": "M"}, protocol="legacy")
    async with Agent("a", model=ScriptedModel(ToolCall("order", {}, "c1"), "Done."), providers=[provider]) as agent:
        done = await within(agent.run("Order one."))
    assert answer_of(done) == "M"


async def test_a_durable_run_whose_call_is_held_open(tmp_path: Path, store: RunStore) -> None:
    """A durable run whose call is held open declines the question, since its process may be killed."""
    agent = legacy(tmp_path, "ask", lambda _: {"size": "M"})
    runs = DurableRuns(store, [agent])
    async with agent:
        run_id = await runs.submit(agent, "Order one.")
        await within(runs.work_until_idle())
    assert json.loads(results(await runs.status(run_id))["c1"]) == {"action": "decline"}


async def test_a_question_ends_with_its_call(tmp_path: Path) -> None:
    """A function that answers a question is cancelled when nobody waits for the call any more."""
    asked, ended = anyio.Event(), anyio.Event()

    async def never(_: Elicitation) -> None:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    agent = legacy(tmp_path, "ask", never)
    async with agent:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run, "Order one.")
            await within(asked.wait())
            tasks.cancel_scope.cancel()
        await within(ended.wait())


async def test_a_question_without_a_call(tmp_path: Path) -> None:
    """A question that belongs to no call is asked of nobody, and the server is told that nobody chose."""
    env = {"PELLUCID_TEST_LOG": str(tmp_path / "log")}
    async with MCPProvider.stdio(*python(*LEGACY), id="old", env=env, elicitation=_fails) as provider:
        [part] = await within(provider.read("notes://1"))
    assert isinstance(part, TextPart)
    assert json.loads(part.content) == {"action": "cancel"}


@pytest.mark.parametrize("calls", [1, 2])
async def test_who_is_asked_for(tmp_path: Path, calls: int) -> None:
    """A function knows the identity that it answers for, also if the server may ask for either of two calls."""
    asked: list[Identity | None] = []

    def reply(question: Elicitation) -> None:
        asked.append(question.identity)

    env = {"PELLUCID_TEST_LOG": str(tmp_path / "log")}
    provider = MCPProvider.stdio(*python(*LEGACY), id="old", env=env, elicitation=reply)
    model = ScriptedModel([ToolCall("hang", {}, "c0"), ToolCall("ask", {}, "c1")][-calls:], "Done.")
    async with Agent("clerk", model=model, providers=[provider]) as agent:
        await within(agent.run("Order one.", identity=Identity(tenant="t")))
    assert asked == [Identity(tenant="t")]


@pytest.mark.parametrize("elicitation", ["pause", lambda _: {"at": {"pin": "4711"}}])
async def test_nested_values(elicitation: Any) -> None:
    """Nested values in an answer are refused before they are sent, without being shown."""
    asking, agent = agent_of("nested", elicitation)
    async with agent:
        done = await within(agent.run("Order one."))
        if done.elicitations:
            answer = Decision(done.elicitations[0].approval_id, approved=True, arguments={"at": {"pin": "4711"}})
            with pytest.raises(CheckpointError, match="does not fit the schema of the question: at: ") as raised:
                await agent.resume(passed_on(done.checkpoint), decisions=[answer])
            text = str(raised.value)
        else:
            text = str(answer_of(done))
    assert "at: " in text
    assert "4711" not in text
    assert len(asking.calls) == 1


@pytest.mark.parametrize("elicitation", ["pause", lambda _: {"word": "wombat"}])
async def test_answers_are_not_recorded(telemetry: Captured, monkeypatch: pytest.MonkeyPatch, elicitation: Any) -> None:
    """Answers are in no span, event or log line, also if all content is recorded."""
    monkeypatch.setenv("PELLUCID_CAPTURE", "full")
    asking, agent = agent_of("quiet", elicitation)
    async with agent:
        done = await within(agent.run("A word."))
        if done.elicitations:
            answer = Decision(done.elicitations[0].approval_id, approved=True, arguments={"word": "wombat"})
            done = await within(agent.resume(passed_on(done.checkpoint), decisions=[answer]))
    assert asking.calls[1] == ("quiet", {"q": {"action": "accept", "content": {"word": "wombat"}}})
    assert done.output == "Done."
    spans = [(attributes(span), [dict(event.attributes or {}) for event in span.events]) for span in telemetry.spans]
    recorded = repr((spans, telemetry.events, telemetry.logs))
    assert "A word." in recorded
    assert "wombat" not in recorded


@pytest.mark.parametrize("approved", [True, False])
async def test_a_server_that_wants_an_address_opened_first(tmp_path: Path, approved: bool) -> None:
    """A run pauses for an address that a server of protocol 2025-11-25 wants opened, and then calls again or not."""
    agent = legacy(tmp_path, "open", "pause")
    async with agent:
        waits = await within(agent.run("Pay."))
        [question] = waits.elicitations
        assert (question.elicitation, question.url) == ("url", "https://pay.example/1")
        decision = Decision(question.approval_id, approved=approved)
        done = await within(agent.resume(passed_on(waits.checkpoint), decisions=[decision]))
    assert ("paid" if approved else "nobody did") in str(answer_of(done))
