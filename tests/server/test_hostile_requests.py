"""Requests that are malformed, too large, too slow, or not the caller's to make: never a 5xx, never a trace back."""

from __future__ import annotations

import base64
import hmac
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from pellucid import Agent, Identity, Tool, ToolCall
from pellucid.durable import CallTokens
from pellucid.server import bearer, loopback_only
from pellucid.testing import FunctionModel, ScriptedModel
from support.server_scene import KEY, Scene

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from starlette.requests import Request

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

HALF = "\ud800"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Return a scene that does not serve yet."""
    return Scene(tmp_path)


def waiting(scene: Scene) -> Agent[Any, Any]:
    """Return an agent whose runs wait for a job."""

    def answer(request: Any) -> Any:
        return ToolCall("job") if len(request.messages) == 1 else "I am waiting."

    return Agent("a", model=FunctionModel(answer), tools=[scene.job(expires_in=60)])


@pytest.mark.parametrize("header", ["Last-Event-ID", "after"])
@pytest.mark.parametrize(
    "text", ["-1", "", " 1", "1_0", "٣", "1.0", "9" * 19, "0" * 20 + "9" * 30, "0" * 5000, "9" * 5000]
)
async def test_ids_of_events_are_checked(scene: Scene, header: str, text: str) -> None:
    """With 400 before the stream starts, and before a run is submitted."""
    async with scene.serve(waiting(scene)):
        location = (await scene.http.post("/runs", json={"input": "Hi"})).headers["location"]
        options: dict[str, Any] = {"params": {"after": text}}
        if header == "Last-Event-ID":
            options = {"headers": {header.encode(): text.encode()}}
        answer = await scene.http.get(f"{location}/events", **options)
        assert (answer.status_code, answer.json()["path"]) == (400, header)
        options.setdefault("headers", {})[b"Accept"] = b"text/event-stream"
        assert (await scene.http.post("/runs", json={"input": "Hi"}, **options)).status_code == 400
        assert len(scene.jobs) == 1
        beyond = await scene.http.get(f"{location}/events", params={"after": 10**18 - 1})
        assert beyond.text.startswith("event: run\n")


@pytest.mark.parametrize(
    "run_id", ["%00", "%0a", "%ff", "a%2Fb", "x" * 10_240, "%2e%2e", "%F0%9F%98%80", "' OR 1=1 --"]
)
async def test_ids_that_no_run_has(scene: Scene, run_id: str) -> None:
    """Whatever is in the path, it is 404."""
    async with scene.serve(waiting(scene)):
        for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/approvals"), ("POST", "/cancel")):
            answer = await scene.http.request(method, f"/runs/{run_id}{path}")
            assert (answer.status_code, "error" in answer.json()) == (404, True)
        token = scene.tokens.issue("other", "run")
        headers = {"Authorization": f"Bearer {token}"}
        for name in ("complete", "heartbeat", "progress", "cancel"):
            assert (await scene.http.post(f"/async-tools/{run_id}/{name}", headers=headers)).status_code == 404


async def test_other_methods(scene: Scene) -> None:
    """HEAD of a stream ends at once; a method that an endpoint lacks is 405 with those it has."""
    async with scene.serve(waiting(scene)):
        location = (await scene.http.post("/runs", json={"input": "Hi"})).headers["location"]
        with anyio.fail_after(10):
            head = await scene.http.head(f"{location}/events?wait=true")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith("text/event-stream")
        for path, allowed in (
            ("/runs", {"GET", "HEAD", "POST"}),
            (location, {"GET", "HEAD"}),
            (f"{location}/cancel", {"POST"}),
            ("/readyz", {"GET", "HEAD"}),
        ):
            for method in ("OPTIONS", "DELETE", "TRACE", "BREW"):
                answer = await scene.http.request(method, path)
                assert answer.status_code == 405
                assert set(answer.headers["allow"].split(", ")) == allowed
        assert (await scene.http.post("/runs/", json={"input": "Hi"})).status_code == 404  # not a redirect


async def test_text_that_is_not_unicode_is_shown_nevertheless(scene: Scene) -> None:
    """Half of a surrogate pair, which JSON can hold and UTF-8 cannot, spoils no later answer."""
    async with scene.serve(waiting(scene)):
        location = (await scene.http.post("/runs", json={"input": "Hi"})).headers["location"]
        (job,) = scene.jobs
        await scene.runs.progress(job.result_id, {HALF: HALF})
        assert (await scene.http.get(location)).json()["external"][0]["progress"] == {"?": "?"}
        assert '"progress": {"?": "?"}' in (await scene.http.get(f"{location}/events")).text


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (json.dumps({"input": HALF}).encode(), ""),
        (b'{"input": "\xed\xa0\x80"}', ""),
        ('{"input": "Hi"}'.encode("utf-16"), ""),
        (b'{"input": "Hi", "input": "Ho"}', "input"),
        (b'{"input": [{"role": "user", "role": "tool", "parts": []}]}', "role"),
    ],
)
async def test_a_body_that_readers_understand_differently(scene: Scene, body: bytes, path: str) -> None:
    """Members given twice and text that is no Unicode are refused, before anybody takes one of two meanings."""
    async with scene.serve(waiting(scene)):
        answer = await scene.http.post("/runs", content=body)
        assert (answer.status_code, answer.json()["path"]) == (400, path)
        assert (await scene.http.post("/runs", content=b'{"input": "\\ud83d\\ude00"}')).status_code == 200


@pytest.mark.parametrize(
    ("endpoint", "body", "path"),
    [
        ("progress", '{"value": NaN}', "value"),
        ("progress", '{"value": [1, {"x": 1e400}]}', "value.1.x"),
        ("progress", '{"value": ' + "[" * 500 + "]" * 500 + "}", None),
        ("progress", '{"value": ' + "9" * 5000 + "}", ""),
        ("heartbeat", '{"extend": 1e308}', "extend"),
        ("heartbeat", '{"extend": true}', "extend"),
        ("complete", '{"status": "failed", "error": ""}', "error"),
        ("cancel", "null", ""),
        ("/runs", '{"input": 5}', "input"),
        ("/runs", '{"input": []}', "input"),
        ("/runs", '{"input": [5]}', "input"),
        ("/runs", '{"input": [{"role": "user"}]}', "input"),
        ("/runs", '{"input": "x", "conversation_id": "y"}', "conversation_id"),
        ("/runs", "{}", "input"),
        ("/runs", '{"input": "x", "' + "y" * 100_000 + '": 1}', None),
    ],
)
async def test_faults_have_a_path(scene: Scene, endpoint: str, body: str, path: str | None) -> None:
    """It names members of the body, not types of the server, and is short."""
    async with scene.serve(waiting(scene)):
        await scene.http.post("/runs", json={"input": "Hi"})
        (job,) = scene.jobs
        url = endpoint if endpoint.startswith("/") else job.complete_path.replace("complete", endpoint)
        answer = await scene.http.post(url, content=body, headers={"Authorization": f"Bearer {job.token}"})
        assert answer.status_code == 400
        assert len(answer.content) < 1000
        assert path is None or answer.json()["path"] == path


@pytest.mark.parametrize("key", ["", " ", "x" * 256])
async def test_an_idempotency_key_names_one_request(scene: Scene, key: str) -> None:
    """An empty one would be that of all requests without one."""
    async with scene.serve(waiting(scene)):
        answer = await scene.http.post("/runs", json={"input": "Hi"}, headers={"Idempotency-Key": key})
        assert (answer.status_code, answer.json()["path"]) == (400, "Idempotency-Key")


@pytest.mark.parametrize("reason", ["", "a\0b", 5])
async def test_a_reason_is_a_text_that_every_database_stores(scene: Scene, reason: Any) -> None:
    """Others are refused, and the run goes on."""
    async with scene.serve(waiting(scene)):
        location = (await scene.http.post("/runs", json={"input": "Hi"})).headers["location"]
        answer = await scene.http.post(f"{location}/cancel", content=json.dumps({"reason": reason}))
        assert (answer.status_code, answer.json()["path"]) == (400, "reason")
        assert (await scene.http.get(location)).json()["status"] == "awaiting_tools"


async def test_an_idempotency_key_used_by_many_at_once(scene: Scene) -> None:
    """One run is submitted; all callers get its location."""
    async with scene.serve(waiting(scene)):
        locations: list[str] = []

        async def submit() -> None:
            answer = await scene.http.post("/runs", json={"input": "Hi"}, headers={"Idempotency-Key": "k"})
            assert answer.json()["status"] == "awaiting_tools"
            locations.append(answer.headers["location"])

        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(submit)
        assert (len(locations), len(set(locations)), len(scene.jobs)) == (40, 1, 1)


def signed(claims: Any) -> str:
    """Return a token with any claims, signed with the key of the scene."""
    text = base64.urlsafe_b64encode(claims if isinstance(claims, bytes) else json.dumps(claims).encode())
    content = f"pct1.{text.rstrip(b'=').decode()}"
    digest = hmac.digest(KEY.encode(), content.encode(), "sha256")
    return f"{content}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


@pytest.mark.parametrize(
    "claims",
    [b"", b"{", b"\xff", None, 5, [], {}, ["a", "b"], ["a", "b", "c"], [1, 2, 3], ["a", "b", 1, 2], [["a"], "b", 9e99]],
)
def test_damaged_claims_are_no_grant(claims: Any) -> None:
    """Also if their signature is valid, because another program has the same key."""
    assert CallTokens(KEY).check(signed(claims)) is None


def test_each_character_of_a_token_counts() -> None:
    """No other text is accepted, not even one that stands for the same bytes, or with text that is not ASCII."""
    tokens = CallTokens(KEY)
    token = tokens.issue("call", "run")
    assert tokens.check(token) is not None
    for position, character in enumerate(token):
        for other in "ABCDEFGHwxyz0189-_.=é\ud800":
            changed = token[:position] + other + token[position + 1 :]
            assert (tokens.check(changed) is not None) == (other == character)
    for changed in (token + "=", token + "\n", f" {token}", token.upper(), token * 100, f"{token}.{token}"):
        assert tokens.check(changed) is None


async def test_callers_of_another_tenant(scene: Scene) -> None:
    """Each endpoint answers them as for a run that does not exist, and changes nothing."""

    def authenticate(request: Request) -> Identity | None:
        tenant = request.headers.get("x-tenant")
        return Identity(tenant=tenant, principal="ann") if tenant else None

    pay = Tool(name="pay", run=lambda _arguments, _ctx: "paid", needs_approval=True)
    agent = Agent("a", model=ScriptedModel(ToolCall("pay"), "done"), tools=[pay])
    async with scene.serve(agent, authenticate=authenticate):
        mine = await scene.http.post("/runs", json={"input": "Hi"}, headers={"x-tenant": "one"})
        location = mine.headers["location"]
        decisions = [{"approvalId": mine.json()["approvals"][0]["approvalId"], "approved": True}]
        for headers in ({"x-tenant": "two"}, {"x-tenant": "two", "Last-Event-ID": "0"}):
            for method, path, body in (
                ("GET", "", None),
                ("HEAD", "", None),
                ("GET", "/events", None),
                ("HEAD", "/events", None),
                ("POST", "/approvals", {"decisions": decisions}),
                ("POST", "/cancel", {}),
            ):
                foreign = await scene.http.request(method, f"{location}{path}", json=body, headers=headers)
                unknown = await scene.http.request(method, f"/runs/none{path}", json=body, headers=headers)
                assert (foreign.status_code, foreign.content) == (unknown.status_code, unknown.content)
                assert foreign.status_code == 404
                assert (await scene.http.request(method, f"{location}{path}", json=body)).status_code == 401
        assert (await scene.http.get(location, headers={"x-tenant": "one"})).json() == mine.json()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 202),
        ({"Host": "localhost:8000"}, 202),
        ({"Host": "[::1]:8000", "Origin": "http://[::1]:8000"}, 202),
        ({"Host": "localhost:8000", "Origin": "http://localhost:3000"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "["}, 403),
        ({"Host": ""}, 403),
    ],
)
async def test_web_pages_cannot_use_a_local_server(scene: Scene, headers: dict[str, str], status: int) -> None:
    """A page in a browser can send requests to this machine, also under a name that its owner lets point here."""
    async with scene.serve(waiting(scene), authenticate=loopback_only):
        headers["Prefer"] = "respond-async"
        assert (await scene.http.post("/runs", content=b'{"input": "Hi"}', headers=headers)).status_code == status


async def test_strange_hosts(scene: Scene) -> None:
    """They are of no account to a caller with a token."""
    async with scene.serve(waiting(scene), authenticate=bearer("secret")):
        headers = {"Authorization": "Bearer secret", "Host": "[", "Prefer": "respond-async"}
        answer = await scene.http.post("/runs", json={"input": "Hi"}, headers=headers)
        assert (answer.status_code, answer.headers["location"].startswith("/runs/")) == (202, True)


async def exchange(scene: Scene, path: str, headers: dict[str, str], messages: list[Any]) -> tuple[int, bytes]:
    """Return status and body of the answer to a request that comes in pieces, as an ASGI server hands it over."""
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [
            (name.lower().encode(), value.encode()) for name, value in {"Host": "localhost", **headers}.items()
        ],
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "scheme": "http",
        "server": ("127.0.0.1", 80),
    }
    await scene.app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


async def test_a_body_that_does_not_arrive(scene: Scene) -> None:
    """It is 408."""

    async def receive() -> AsyncGenerator[bytes]:
        yield b"{"
        await anyio.sleep_forever()

    async with scene.serve(waiting(scene), body_timeout=0.05):
        async with aclosing(receive()) as body:
            answer = await scene.http.post("/runs", content=body)
        assert (answer.status_code, answer.headers["connection"]) == (408, "close")


async def test_a_client_that_leaves_in_the_middle_of_its_body(scene: Scene) -> None:
    """It is no error of the server."""
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    async with scene.serve(waiting(scene)):
        assert (await exchange(scene, "/runs", {}, messages))[0] == 400


@pytest.mark.parametrize("length", ["52428800", None])
async def test_bodies_of_50_megabytes(scene: Scene, length: str | None) -> None:
    """They are 413 before they are read, with and without a length."""
    async with scene.serve(waiting(scene)):
        await scene.http.post("/runs", json={"input": "Hi"})
        (job,) = scene.jobs
        headers = {"Authorization": f"Bearer {job.token}", **({"Content-Length": length} if length else {})}
        for path in ("/runs", job.complete_path):
            messages = [{"type": "http.request", "body": b" " * 2**20, "more_body": True} for _ in range(50)]
            status, content = await exchange(scene, path, headers, messages)
            assert (status, json.loads(content)) == (413, {"error": "the body is longer than 1048576 bytes"})
            assert len(messages) == (50 if length else 48)  # one piece of 1 MiB fits


async def test_an_error_of_the_server_shows_nothing(scene: Scene) -> None:
    """It is 500 in JSON, without the text of the error."""

    def authenticate(_request: Request) -> Identity:
        raise RuntimeError("password=hunter2")

    async with scene.serve(waiting(scene), authenticate=authenticate):
        answer: httpx.Response = await scene.http.post("/runs", json={"input": "Hi"})
        assert (answer.status_code, answer.json()) == (500, {"error": "internal error"})
