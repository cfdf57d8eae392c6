"""Durable runs over HTTP: submit, follow, decide, complete."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Identity, Tool, ToolCall
from pellucid.durable import CallTokens
from pellucid.server import bearer
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid.tools import ToolAnnotations
from support.server_scene import KEY, Scene, events

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Return a scene that does not serve yet."""
    return Scene(tmp_path)


async def test_a_run_is_answered(scene: Scene) -> None:
    """Without streaming the answer has the output; its location has it too, later."""
    async with scene.serve(Agent("a", model=ScriptedModel("Hello."))):
        answer = await scene.http.post("/runs", json={"input": "Hi"})
        assert (answer.status_code, answer.json()["status"], answer.json()["output"]) == (200, "completed", "Hello.")
        again = await scene.http.get(answer.headers["location"])
        assert again.json() == answer.json()


async def test_a_run_is_streamed_and_continued_after_the_last_event(scene: Scene) -> None:
    """Each stored event has an id; a client that comes back gets those after it, and the state at the end."""
    async with scene.serve(Agent("a", model=ScriptedModel("Hello."))):
        answer = await scene.http.post("/runs", json={"input": "Hi"}, headers={"Accept": "text/event-stream"})
        seen = [event for event in events(answer.text) if event[1] != "inference.delta"]
        assert [name for _, name, _ in seen] == ["step.answer", "run.completed", "run"]
        assert seen[-1][2]["output"] == "Hello."
        location = answer.headers["location"]
        rest = await scene.http.get(f"{location}/events", headers={"Last-Event-ID": str(seen[0][0])})
        assert events(rest.text) == seen[1:]
        wrong = await scene.http.get(f"{location}/events?after=x")
        assert (wrong.status_code, wrong.json()["path"]) == (400, "after")


async def test_an_external_call_is_completed(scene: Scene) -> None:
    """The stream ends with what to do next; the result continues the run; repeated, other and late results are told."""
    model = ScriptedModel([ToolCall("job", {}, "c1"), ToolCall("job", {}, "c2")], "wait", "done")
    async with scene.serve(Agent("a", model=model, tools=[scene.job()])):
        answer = await scene.http.post("/runs", json={"input": "Hi"}, headers={"Accept": "text/event-stream"})
        state = events(answer.text)[-1][2]
        assert (state["status"], len(state["external"])) == ("awaiting_tools", 2)
        first, second = scene.jobs
        waiting = await scene.complete(first, output={"n": 1})
        assert (waiting.status_code, waiting.json()) == (
            202,
            {"status": "waiting_for_async_tools", "resultId": first.result_id, "pendingCount": 1},
        )
        accepted = await scene.complete(second, output=2)
        assert (accepted.status_code, accepted.json()) == (
            202,
            {"status": "accepted", "resultId": second.result_id, "invoked": True},
        )
        assert (await scene.complete(second, output=2)).status_code == 200
        other = await scene.complete(second, output=3)
        assert (other.status_code, other.json()["status"]) == (409, "completed")
        rest = await scene.http.get(f"{answer.headers['location']}/events?wait=true")
        assert events(rest.text)[-1][2]["output"] == "done"


async def test_tokens_are_checked_before_anything_else(scene: Scene) -> None:
    """A wrong token is 401, that of another call 404 like an unknown call; nothing is told of what exists."""
    model = ScriptedModel([ToolCall("job", {}, "c1"), ToolCall("job", {}, "c2")], "wait")
    async with scene.serve(Agent("a", model=model, tools=[scene.job()])):
        await scene.http.post("/runs", json={"input": "Hi"})
        first, second = scene.jobs
        assert first.token is not None
        call = await scene.runs.call(first.result_id)
        assert call is not None
        run_id = call.run_id
        expired = CallTokens(KEY, grace=0.0).issue(first.result_id, run_id, expires_at=1.0)
        foreign_key = CallTokens("x" * 32).issue(first.result_id, run_id)
        cut, longer = first.token[:-2], f"{first.token}x"
        for token in ("none", cut, longer, expired, foreign_key, "pct1..", "pct1.é.é", "x" * 9999):
            answer = await scene.complete(first, token)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), token
        other_run = scene.tokens.issue(first.result_id, "other")
        unknown = scene.tokens.issue("async_tool_x", run_id)
        for url, foreign in (
            (first.complete_path, second.token),
            (first.complete_path, other_run),
            ("/async-tools/async_tool_x/complete", unknown),
        ):
            answer = await scene.http.post(
                url, headers={"Authorization": f"Bearer {foreign}"}, json={"status": "completed"}
            )
            assert (answer.status_code, answer.json()) == (404, {"error": "Async tool result not found"})
        rotated = CallTokens("y" * 32, KEY)
        grant = rotated.check(first.token)
        assert grant is not None
        assert grant.result_id == first.result_id
        assert (await scene.complete(first, output=1)).status_code == 202


async def test_tokens_follow_their_calls(scene: Scene) -> None:
    """A heartbeat that extends a call returns a token that lasts as long; the first one does, too."""
    scene.tokens = CallTokens(KEY, grace=0.0)
    async with scene.serve(
        Agent("a", model=ScriptedModel(ToolCall("job"), "wait", "done"), tools=[scene.job(expires_in=60.0)])
    ):
        await scene.http.post("/runs", json={"input": "Hi"})
        [job] = scene.jobs
        assert job.token is not None
        first = scene.tokens.check(job.token)
        headers = {"Authorization": f"Bearer {job.token}"}
        url = job.complete_path.replace("complete", "heartbeat")
        same = await scene.http.post(url, headers=headers, json={})
        assert (same.status_code, "token" in same.json()) == (200, False)
        longer = await scene.http.post(url, headers=headers, json={"extend": 6000})
        token = longer.json()["token"]
        assert longer.headers["pellucid-call-token"] == token
        second = scene.tokens.check(token)
        assert first is not None
        assert second is not None
        assert (second.result_id, second.run_id) == (first.result_id, first.run_id)
        assert second.expires_at == int(longer.json()["deadline"]) > first.expires_at + 5000
        old = scene.tokens.issue(first.result_id, first.run_id, expires_at=1.0)
        assert (await scene.complete(job, old, output=1)).status_code == 202
        assert (await scene.complete(job, token, output=1)).status_code == 200


@pytest.mark.parametrize("days", [-40, 40])
async def test_clocks_of_processes(scene: Scene, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """A wrong clock of workers and servers has no effect: calls and tokens expire by the database's."""
    right = time.time
    monkeypatch.setattr("time.time", lambda: right() + days * 86_400)
    jobs = [scene.job(expires_in=3600.0), replace(scene.job(), name="open")]
    model = ScriptedModel([ToolCall("job", {}, "c1"), ToolCall("open", {}, "c2")], "wait", "done")
    async with scene.serve(Agent("a", model=model, tools=jobs)):
        await scene.http.post("/runs", json={"input": "Hi"})
        assert sorted(job.expires_at is None for job in scene.jobs) == [False, True]
        for job in scene.jobs:
            if job.expires_at is not None:
                assert abs(job.expires_at.timestamp() - right() - 3600) < 600
            monkeypatch.setattr("time.time", lambda: right() - days * 86_400)
            assert (await scene.complete(job, output=1)).status_code == 202


@pytest.mark.parametrize("name", ["output", "response"])
async def test_the_output_of_a_call_has_an_old_name(scene: Scene, name: str) -> None:
    """Workers that send it are understood; the model reads the same, also if it is null."""
    for value in ({"n": 1}, None):
        model = ScriptedModel(ToolCall("job"), "wait", "done")
        async with scene.serve(Agent("a", model=model, tools=[scene.job()])):
            await scene.http.post("/runs", json={"input": "Hi"})
            job = scene.jobs[-1]
            body: dict[str, Any] = {name: value}
            assert (await scene.complete(job, **body)).status_code == 202
            call = await scene.runs.call(job.result_id)
            assert call is not None
            assert (call.status, call.output) == ("completed", value)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"{", ""),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
        (b"[]", ""),
        (b'{"status": "done"}', "status"),
        (b'{"status": "failed"}', "error"),
        (b'{"status": "completed", "error": "x"}', "error"),
        (b'{"status": "completed", "respones": 1}', "respones"),
        (b'{"status": "completed", "output": 1, "response": 1}', "response"),
    ],
)
async def test_bodies_that_do_not_fit_are_refused(scene: Scene, body: bytes, path: str) -> None:
    """With 400 and the place of the fault; the call stays as it is."""
    agent = Agent("a", model=ScriptedModel(ToolCall("job"), "wait"), tools=[scene.job()])
    async with scene.serve(agent):
        await scene.http.post("/runs", json={"input": "Hi"})
        (job,) = scene.jobs
        headers = {"Authorization": f"Bearer {job.token}"}
        answer = await scene.http.post(job.complete_path, content=body, headers=headers)
        assert (answer.status_code, answer.json()["path"]) == (400, path)
        too_big = await scene.http.post(job.complete_path, content=b" " * 2**21, headers=headers)
        assert too_big.status_code == 413
        assert (await scene.http.get(job.complete_path)).headers["allow"] == "POST"


async def test_a_worker_shows_that_it_is_alive(scene: Scene) -> None:
    """Heartbeats move the deadline, progress is shown, and a call that it gives up is cancelled."""
    agent = Agent("a", model=ScriptedModel(ToolCall("job"), "wait", "gave up"), tools=[scene.job(expires_in=60)])
    async with scene.serve(agent):
        answer = await scene.http.post("/runs", json={"input": "Hi"})
        (job,) = scene.jobs
        url, headers = job.complete_path.removesuffix("complete"), {"Authorization": f"Bearer {job.token}"}
        before = answer.json()["external"][0]["deadline"]
        moved = await scene.http.post(f"{url}heartbeat", json={"extend": 600}, headers=headers)
        assert moved.json()["deadline"] > before + 500
        await scene.http.post(f"{url}progress", json={"value": {"half": True}}, headers=headers)
        state = (await scene.http.get(answer.headers["location"])).json()
        assert state["external"][0]["progress"] == {"half": True}
        cancelled = await scene.http.post(f"{url}cancel", json={"reason": "no truck"}, headers=headers)
        assert cancelled.json() == {"status": "accepted", "resultId": job.result_id, "invoked": True}
        late = await scene.http.post(f"{url}heartbeat", headers=headers)
        assert (late.status_code, late.json()["status"]) == (409, "cancelled")
        assert (await scene.complete(job, output=1)).status_code == 409


@pytest.mark.parametrize("form", ["decisions", "content"])
async def test_approvals_are_decided(scene: Scene, form: str) -> None:
    """In Pellucid's form, or as a message of the AI SDK; by the caller, unless it names somebody else."""
    pay = Tool(name="pay", run=lambda _arguments, _ctx: "paid", needs_approval=True)
    agent = Agent("a", model=ScriptedModel(ToolCall("pay"), "done"), tools=[pay])
    async with scene.serve(agent, authenticate=lambda _request: Identity(principal="ann")):
        answer = await scene.http.post("/runs", json={"input": "Hi"})
        assert answer.json()["status"] == "awaiting_approval"
        (request,) = answer.json()["approvals"]
        decision = {"approvalId": request["approvalId"], "approved": True}
        body = {
            "decisions": {"decisions": [decision]},
            "content": {"role": "tool", "content": [{"type": "tool-approval-response", **decision}]},
        }[form]
        location = answer.headers["location"]
        decided = await scene.http.post(f"{location}/approvals", json=body)
        assert decided.json() == {"approvals": [{"approvalId": request["approvalId"], "outcome": "settled"}]}
        call = await scene.runs.call(request["approvalId"])
        assert call is not None
        assert call.output == {"approved": True, "reason": None, "arguments": None, "decided_by": "ann"}
        rest = await scene.http.get(f"{location}/events?wait=true")
        assert events(rest.text)[-1][2]["output"] == "done"
        none = await scene.http.post(f"{location}/approvals", json={})
        assert none.status_code == 400


async def test_who_approves_reads_what_the_tool_says_of_itself(scene: Scene) -> None:
    """With the names of MCP; nothing is there of a tool that says nothing."""
    said = ToolAnnotations(title="Pay a bill", destructive_hint=True)
    pay = Tool(name="pay", run=lambda _arguments, _ctx: "paid", needs_approval=True, annotations=said)
    plain = Tool(name="plain", run=lambda _arguments, _ctx: "paid", needs_approval=True)
    agent = Agent("a", model=ScriptedModel([ToolCall("pay"), ToolCall("plain")], "done"), tools=[pay, plain])
    async with scene.serve(agent):
        answer = await scene.http.post("/runs", json={"input": "Hi"})
        first, second = answer.json()["approvals"]
    assert first["annotations"] == {"title": "Pay a bill", "destructiveHint": True}
    assert "annotations" not in second


@pytest.mark.parametrize("name", ["input", "arguments"])
async def test_a_decision_has_input_under_its_new_and_its_old_name(scene: Scene, name: str) -> None:
    """The answer to the old name says that it is deprecated; both at once are refused, and nothing is decided."""
    seen: list[Any] = []
    pay = Tool(name="pay", run=lambda arguments, _ctx: seen.append(arguments), needs_approval=True)
    agent = Agent("a", model=ScriptedModel(ToolCall("pay", {"to": "Ann"}), "done"), tools=[pay])
    async with scene.serve(agent):
        answer = await scene.http.post("/runs", json={"input": "Hi"})
        (request,) = answer.json()["approvals"]
        decision = {"approvalId": request["approvalId"], "approved": True}
        path = f"{answer.headers['location']}/approvals"
        both = await scene.http.post(path, json={"decisions": [{**decision, "input": {}, "arguments": {}}]})
        assert (both.status_code, both.json()["path"]) == (400, "decisions.0.arguments")
        decided = await scene.http.post(path, json={"decisions": [{**decision, name: {"to": "Bob"}}]})
        assert decided.status_code == 200
        assert ("deprecation" in decided.headers) is (name == "arguments")
        rest = await scene.http.get(f"{answer.headers['location']}/events?wait=true")
    assert seen == [{"to": "Bob"}]
    told = {kind: data for _, kind, data in events(rest.text)}
    assert told["approval.requested"].keys() == {"approvalId", "toolName", "time"}
    assert told["approval.decided"].keys() == {"approvalId", "approved", "time"}
    assert {"inputTokens", "outputTokens", "byModality"} <= told["run"]["usage"].keys()


async def test_the_document_has_the_version_of_the_names(scene: Scene) -> None:
    """Clients can tell the dialect; the old name of a member is deprecated in it."""
    async with scene.serve(Agent("a", model=ScriptedModel("done"))):
        document = (await scene.http.get("/openapi.json")).json()
    assert document["info"]["x-dialect"] == 2
    schemas = document["components"]["schemas"]
    assert schemas["DecisionBody"]["properties"]["arguments"]["deprecated"] is True
    assert {"inputTokens", "cost", "byModality"} <= schemas["Usage"]["properties"].keys()


async def test_callers_see_their_own_runs(scene: Scene) -> None:
    """The application says who calls; runs of others do not exist for them."""

    def authenticate(request: Request) -> Identity | None:
        name = request.headers.get("x-user")
        return Identity(tenant="t", principal=name) if name else None

    model = FunctionModel(lambda _request: "Hello.")
    async with scene.serve(Agent("a", model=model), authenticate=authenticate):
        assert (await scene.http.post("/runs", json={"input": "Hi"})).status_code == 401
        ann, bob = {"x-user": "ann", "Idempotency-Key": "1"}, {"x-user": "bob", "Idempotency-Key": "1"}
        mine = await scene.http.post("/runs", json={"input": "Hi"}, headers=ann)
        again = await scene.http.post("/runs", json={"input": "Hi"}, headers=ann)
        assert again.headers["location"] == mine.headers["location"]
        assert (await scene.http.post("/runs", json={"input": "Ho"}, headers=ann)).status_code == 409
        other = await scene.http.post("/runs", json={"input": "Ho"}, headers=bob)
        assert other.headers["location"] != mine.headers["location"]
        for path in ("", "/events"):
            assert (await scene.http.get(f"{mine.headers['location']}{path}", headers=bob)).status_code == 404
        assert (await scene.http.post(f"{mine.headers['location']}/cancel", headers=bob)).status_code == 404


async def test_a_bearer_token_of_the_environment_is_required(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the server answers nobody."""
    monkeypatch.setenv("PELLUCID_API_TOKEN", "secret")
    async with scene.serve(Agent("a", model=ScriptedModel("Hello.")), authenticate=bearer()):
        for headers in ({}, {"Authorization": "Bearer secre"}, {"Authorization": "Basic secret"}):
            assert (await scene.http.post("/runs", json={"input": "Hi"}, headers=headers)).status_code == 401
        answer = await scene.http.post("/runs", json={"input": "Hi"}, headers={"Authorization": "Bearer secret"})
        assert answer.json()["output"] == "Hello."


async def test_a_run_is_accepted_and_cancelled(scene: Scene) -> None:
    """`Prefer: respond-async` answers at once; a cancelled run says so."""
    agent = Agent("a", model=ScriptedModel(ToolCall("job"), "wait"), tools=[scene.job()])
    async with scene.serve(agent):
        answer = await scene.http.post("/runs", json={"input": "Hi"}, headers={"Prefer": "respond-async"})
        assert answer.status_code == 202
        location = answer.headers["location"]
        await scene.http.get(f"{location}/events")
        assert (await scene.http.post(f"{location}/cancel", json={"reason": "no"})).json() == {"outcome": "cancelled"}
        assert (await scene.http.get(location)).json()["error"] == {"type": None, "message": "no"}
        assert (await scene.http.post(f"{location}/cancel")).status_code == 409
        assert (await scene.http.get("/runs/none")).status_code == 404
        assert (await scene.http.get("/readyz")).json() == {"status": "ready"}
