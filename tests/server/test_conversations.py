"""Conversations over HTTP: runs with one `conversationId` continue each other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from pellucid import Agent, Identity, ModelError, ToolCall
from pellucid.server import create_agent_app
from pellucid.testing import FunctionModel, ScriptedModel
from support.durable_agents import DO, PAY
from support.live_runs import LiveModel
from support.server_scene import BASE, Scene, events

if TYPE_CHECKING:
    from starlette.requests import Request

    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

STREAM = {"Accept": "text/event-stream"}
ASYNC = {"Prefer": "respond-async"}


@pytest.fixture
def scene(location: Location) -> Scene:
    """Return a scene that does not serve yet, on each database."""
    return Scene(location)


def counting() -> Agent:
    """Return an agent that answers with the number of messages that its model got."""
    return Agent("a", model=FunctionModel(lambda request: str(len(request.messages))))


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """Return the texts of messages."""
    return ["".join(part.get("content", "") for part in message["parts"]) for message in messages]


async def test_three_runs_are_one_conversation(scene: Scene) -> None:
    """Each of three runs gets the messages of those before it, streamed or not, and its answer has its own."""
    async with scene.serve(counting()):
        states = []
        for headers in ({}, STREAM, {}):
            answer = await scene.http.post("/runs", json={"input": "Hi", "conversationId": "c"}, headers=headers)
            states.append(events(answer.text)[-1][2] if headers else answer.json())
        assert [state["output"] for state in states] == ["1", "3", "5"]
        assert [(state["conversationId"], texts(state["messages"])) for state in states] == [
            ("c", ["Hi", output]) for output in ("1", "3", "5")
        ]
        assert (await scene.http.get(f"/runs/{states[0]['id']}")).json() == states[0]
        found = await scene.http.get("/conversations/c")
        assert (found.status_code, found.json()) == (200, {"id": "c", "status": "idle", "runs": states})
        latest = (await scene.http.get("/conversations/c?limit=1")).json()
        assert [run["id"] for run in latest["runs"]] == [states[2]["id"]]
        earlier = (await scene.http.get(f"/conversations/c?before={latest['before']}")).json()
        assert (earlier["runs"], "before" in earlier) == (states[:2], False)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "before=-1", "before=x", "before=1e3"])
async def test_pages_that_do_not_exist_are_refused(scene: Scene, query: str) -> None:
    """A wrong page of a conversation is 400 with the name of the query member."""
    async with scene.serve(counting()):
        await scene.http.post("/runs", json={"input": "Hi", "conversationId": "c"})
        answer = await scene.http.get(f"/conversations/c?{query}")
        assert (answer.status_code, answer.json()["path"]) == (400, query.partition("=")[0])


async def test_a_second_run_is_refused(scene: Scene) -> None:
    """A second run is 409 with the id of the first while that waits for an approval; afterwards it is accepted."""
    model = FunctionModel(lambda request: ToolCall("pay") if len(request.messages) == 1 else "done")
    async with scene.serve(Agent("a", model=model, tools=[PAY])):
        body = {"input": "Hi", "conversationId": "c"}
        first = (await scene.http.post("/runs", json=body)).json()
        refused = await scene.http.post("/runs", json=body)
        assert (refused.status_code, refused.json()["runId"]) == (409, first["id"])
        assert "wait for it" in refused.json()["error"]
        conversation = (await scene.http.get("/conversations/c")).json()
        assert (conversation["status"], conversation["openRun"]) == ("awaiting_approval", first["id"])
        assert conversation["runs"][0]["approvals"] == first["approvals"]
        elsewhere = await scene.http.post("/runs", json={**body, "conversationId": "d"}, headers=ASYNC)
        assert elsewhere.status_code == 202
        [approval] = first["approvals"]
        decision = {"approvalId": approval["approvalId"], "approved": True}
        await scene.http.post(f"/runs/{first['id']}/approvals", json={"decisions": [decision]})
        await scene.http.get(f"/runs/{first['id']}/events?wait=true")
        assert (await scene.http.post("/runs", json=body)).json()["output"] == "done"


async def test_a_second_run_is_queued(scene: Scene) -> None:
    """A second run with `conversations="queue"` starts when the one before has ended; its client may wait for it."""
    model = FunctionModel(lambda request: ToolCall("pay") if len(request.messages) == 1 else str(len(request.messages)))
    async with scene.serve(Agent("a", model=model, tools=[PAY]), conversations="queue"):
        body = {"input": "Hi", "conversationId": "c"}
        first = (await scene.http.post("/runs", json=body)).json()
        second = await scene.http.post("/runs", json=body, headers=ASYNC)
        assert (second.status_code, second.json()["status"]) == (202, "queued")
        third: list[str] = []

        async def follow() -> None:
            answer = await scene.http.post("/runs", json=body, headers=STREAM)
            third.append(events(answer.text)[-1][2]["output"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            cancelled = await scene.http.post(f"/runs/{first['id']}/cancel")
            assert cancelled.status_code == 200
        assert third == ["6"]
        assert (await scene.http.get(second.headers["location"])).json()["output"] == "4"


async def test_the_same_key_is_the_same_run(scene: Scene) -> None:
    """A repeated request with its Idempotency-Key gets its own run and not 409, while that run is open and later."""
    model = ScriptedModel(ToolCall("pay"))
    async with scene.serve(Agent("a", model=model, tools=[PAY])):
        body, key = {"input": "Hi", "conversationId": "c"}, {"Idempotency-Key": "k"}
        answers = [await scene.http.post("/runs", json=body, headers=key) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json()["id"] == answers[1].json()["id"]
        other = await scene.http.post("/runs", json={**body, "conversationId": "d"}, headers=key)
        assert other.status_code == 409
        assert "runId" not in other.json()


async def test_callers_have_their_own_conversations(scene: Scene) -> None:
    """Another principal that uses the id neither sees the conversation nor learns that it exists."""

    def authenticate(request: Request) -> Identity | None:
        name = request.headers.get("x-user")
        return Identity(tenant="t", principal=name) if name else None

    async with scene.serve(counting(), authenticate=authenticate):
        body = {"input": "Hi", "conversationId": "c/ü?"}
        path = "/conversations/c%2F%C3%BC%3F"
        for name in ("ann", "bob"):
            missing = await scene.http.get(path, headers={"x-user": name})
            assert (missing.status_code, missing.json()) == (404, {"error": "conversation not found"})
            answer = await scene.http.post("/runs", json=body, headers={"x-user": name})
            assert answer.json()["output"] == "1"
            found = (await scene.http.get(path, headers={"x-user": name})).json()
            assert (found["id"], [run["id"] for run in found["runs"]]) == ("c/ü?", [answer.json()["id"]])
        assert (await scene.http.get(path)).status_code == 401


@pytest.mark.parametrize("conversation_id", ["c" * 256, "c\n", "c\0"])
async def test_ids_that_no_path_can_name_are_refused(scene: Scene, conversation_id: str) -> None:
    """A conversation id that no path can name is 400."""
    async with scene.serve(counting()):
        answer = await scene.http.post("/runs", content=json.dumps({"input": "Hi", "conversationId": conversation_id}))
        assert (answer.status_code, answer.json()["path"]) == (400, "conversationId")


async def test_a_refused_stream_is_not_expected_any_longer(scene: Scene) -> None:
    """A run that was refused as a stream is not streamed when it is sent again without one."""
    model = LiveModel(lambda request: ToolCall("pay") if len(request.messages) == 1 else "done")
    async with scene.serve(Agent("a", model=model, tools=[PAY])):
        body, key = {"input": "Hi", "conversationId": "c"}, {"Idempotency-Key": "k"}
        first = await scene.http.post("/runs", json=body)
        refused = await scene.http.post("/runs", json=body, headers={**key, **STREAM})
        assert refused.status_code == 409
        await scene.http.post(f"/runs/{first.json()['id']}/cancel")
        assert (await scene.http.post("/runs", json=body, headers=key)).json()["output"] == "done"
    assert set(model.calls) == {"generate"}


async def test_a_failed_run_does_not_end_the_conversation(scene: Scene) -> None:
    """A failed run leaves its messages in the conversation, which goes on."""
    model = ScriptedModel(ToolCall("do", {}, "c1"), ModelError("m", "no", error_kind="auth"), "back")
    async with scene.serve(Agent("a", model=model, tools=[DO])):
        failed = (await scene.http.post("/runs", json={"input": "Hi", "conversationId": "c"})).json()
        assert failed["status"] == "failed"
        answer = await scene.http.post("/runs", json={"input": "Again", "conversationId": "c"})
        assert answer.json()["output"] == "back"
        first, second = (await scene.http.get("/conversations/c")).json()["runs"]
        assert [message["role"] for message in first["messages"]] == ["user", "assistant", "tool"]
        assert texts(second["messages"]) == ["Again", "back"]


@pytest.mark.parametrize("stream", [False, True])
async def test_without_a_store_the_client_sends_the_messages_again(*, stream: bool) -> None:
    """A client of a server without a store sends all messages again, which are in each answer."""
    headers = STREAM if stream else {}
    transport = httpx.ASGITransport(create_agent_app([counting()], roles=("user", "assistant")))
    messages: list[dict[str, Any]] = []
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as http:
        for output in ("1", "3", "5"):
            messages.append({"role": "user", "parts": [{"type": "text", "content": "Hi"}]})
            with anyio.fail_after(60):
                body = {"input": messages, "conversationId": "c"}
                answer = await http.post("/runs", json=body, headers=headers)
            state = events(answer.text)[-1][2] if stream else answer.json()
            assert (state["output"], state["conversationId"]) == (output, "c")
            messages = state["messages"]
            assert texts(messages)[-2:] == ["Hi", output]
        missing = await http.get("/conversations/c")
        assert (missing.status_code, "no store" in missing.json()["error"]) == (404, True)
