"""Feedback over HTTP: callers score runs, and browsers with a token that is bound to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent
from pellucid.context import Identity
from pellucid.server import Caller, RequestRate, by_role, create_agent_app
from pellucid.server.callers import loopback_only
from pellucid.server.scores import MAX_EXPLANATION, MAX_LIFETIME
from pellucid.testing import ScriptedModel
from pellucid_exporters import StoreReader
from support.local_store import storing
from support.server_scene import KEY, Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from starlette.requests import Request

    from pellucid.durable import CallTokens
    from pellucid_exporters import Telemetry

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

ANN = {"x-user": "ann"}
BOB = {"x-user": "bob"}


def caller(request: Request) -> Identity | None:
    """Return who a proxy in front says that it is."""
    user = request.headers.get("x-user")
    roles = frozenset(request.headers.get("x-roles", "").split(","))
    return Caller(tenant="acme", principal=user, roles=roles) if user else None


@pytest.fixture
def telemetry(tmp_path: Path) -> Iterator[Telemetry]:
    """Give telemetry to a store."""
    with storing(tmp_path / "store.db") as telemetry:
        yield telemetry


@pytest.fixture
async def scene(tmp_path: Path, telemetry: Telemetry) -> AsyncIterator[Scene]:
    """Serve an agent."""
    agent = Agent("support", version="7", model=ScriptedModel(*["done"] * 3), telemetry=telemetry)
    options: dict[str, Any] = {"authenticate": caller, "authorize": by_role, "telemetry": telemetry}
    async with Scene(tmp_path).serve(agent, **options) as scene:
        yield scene


async def submit(scene: Scene) -> str:
    """Submit a run of Ann, and return its address once it has ended."""
    answer = await scene.http.post("/runs", json={"input": "go"}, headers=ANN)
    assert answer.status_code == 200
    return f"/runs/{answer.json()['id']}"


async def token_of(scene: Scene, run: str, **body: Any) -> dict[str, str]:
    """Return the headers with a token of a run of Ann."""
    answer = await scene.http.post(f"{run}/scores/token", json=body, headers=ANN)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return {"Authorization": f"Bearer {answer.json()['token']}"}


async def test_a_caller_scores_a_run(scene: Scene, telemetry: Telemetry, tmp_path: Path) -> None:
    """The owner of a run, or an approver, scores it; the score is on the run's trace, under the name of who gave it."""
    run = await submit(scene)
    body = {"name": "correct", "value": 0.5, "label": "so-so", "explanation": "the price is old"}
    for headers, status in (
        (ANN, 202),
        ({**BOB, "x-roles": "approver"}, 202),
        (BOB, 404),
        ({}, 401),
    ):
        answer = await scene.http.post(f"{run}/scores", json=body, headers=headers)
        assert answer.status_code == status, headers
    assert answer.headers["www-authenticate"] == "Bearer"
    assert telemetry.flush()
    reader = StoreReader(tmp_path / "store.db")
    (row,) = reader.runs()
    first, second = reader.scores(row.run_id)
    assert (first.name, first.value, first.label, first.explanation) == ("correct", 0.5, "so-so", "the price is old")
    assert (first.by, second.by, first.agent, first.version) == ("ann", "bob", "support", "7")
    assert [first.span_id] == [span.span_id for span in reader.spans(row.run_id) if span.phase == "run"]
    assert (await scene.http.post("/runs/unknown/scores", json=body, headers=ANN)).status_code == 404


async def test_a_browser_scores_a_run_once(scene: Scene, telemetry: Telemetry, tmp_path: Path) -> None:
    """A browser scores a run once with its token: the same again is a duplicate, another score or name is refused."""
    run = await submit(scene)
    headers = await token_of(scene, run, names=["thumb", "stars"], by="user-7")
    up: dict[str, Any] = {"name": "thumb", "value": 1, "label": "up"}
    answers = [
        await scene.http.post(f"{run}/scores", json=body, headers=headers)
        for body in (up, up, {**up, "value": 0}, {**up, "name": "correct"}, {**up, "name": "stars", "value": 5})
    ]
    assert [answer.status_code for answer in answers] == [202, 200, 409, 403, 400]
    assert answers[1].json() == {"status": "duplicate"}
    assert "another score of the name thumb" in answers[2].json()["error"]
    assert "thumb, stars" in answers[3].json()["error"]
    assert answers[4].json()["path"] == "value"
    assert (await scene.http.post(f"{await submit(scene)}/scores", json=up, headers=headers)).status_code == 404
    assert telemetry.flush()
    reader = StoreReader(tmp_path / "store.db")
    (thumb,) = [score for row in reader.runs() for score in reader.scores(row.run_id)]
    assert (thumb.name, thumb.value, thumb.by) == ("thumb", 1, "user-7")


async def test_a_token_scores_once_on_all_servers(tmp_path: Path, telemetry: Telemetry) -> None:
    """A token scores once on all servers with one store, and after a restart, until its run goes."""
    agent = Agent("support", model=ScriptedModel("done"), telemetry=telemetry)
    options: dict[str, Any] = {"authenticate": caller, "authorize": by_role, "telemetry": telemetry}
    first, second = Scene(tmp_path), Scene(tmp_path)
    async with first.serve(agent, **options):
        run = await submit(first)
        headers = await token_of(first, run)
        up = {"name": "thumb", "value": 1}
        assert (await first.http.post(f"{run}/scores", json=up, headers=headers)).status_code == 202
    async with second.serve(agent, **options):
        assert (await second.http.post(f"{run}/scores", json=up, headers=headers)).status_code == 200
        assert (await second.http.post(f"{run}/scores", json={**up, "value": 0}, headers=headers)).status_code == 409
        assert await second.store.purge(0) == 1
        assert (await second.http.post(f"{run}/scores", json=up, headers=headers)).status_code == 404


async def test_a_token_is_one_of_the_server_and_expires(scene: Scene) -> None:
    """Tokens of calls, of other keys, changed and expired ones are refused; only those who may score get one."""
    run = await submit(scene)
    body = {"name": "thumb", "value": 1}
    headers = await token_of(scene, run, expiresIn=0.001)
    token = (await token_of(scene, run))["Authorization"]
    call = scene.tokens.issue("thumb", run.rpartition("/")[2])
    for wrong in (
        headers["Authorization"],
        f"{token}x",
        token.replace("pst1.", "pct1."),
        f"Bearer {call.replace('pct1.', 'pst1.')}",
        f"Bearer {type_of(scene)('o' * 32).sign('pst1', ['run', '', '', '', '', ['thumb'], '', 2**40])}",
    ):
        answer = await scene.http.post(f"{run}/scores", json=body, headers={"Authorization": wrong})
        assert answer.status_code == 401, wrong
    assert (await scene.http.post(f"{run}/scores/token", json={}, headers=BOB)).status_code == 404
    rotated = type_of(scene)("n" * 32, KEY)
    assert rotated.claims("pst1", token.removeprefix("Bearer ")) is not None


def type_of(scene: Scene) -> type[CallTokens]:
    """Return the class of keys."""
    return type(scene.tokens)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "name"),
        ({"name": "x"}, "value"),
        ({"name": "", "value": 1}, "name"),
        ({"name": "x" * 129, "value": 1}, "name"),
        ({"name": "a\nb", "value": 1}, "name"),
        ({"name": "x", "value": -1}, "value"),
        ({"name": "x", "value": "1"}, "value"),
        ({"name": "x", "value": True}, "value"),
        ({"name": "x", "label": "l" * 129}, "label"),
        ({"name": "x", "value": 1, "explanation": "e" * (MAX_EXPLANATION + 1)}, "explanation"),
        ({"name": "x", "value": 1, "by": "the president"}, "by"),
    ],
)
async def test_a_bad_score_says_where(scene: Scene, body: dict[str, Any], path: str) -> None:
    """A bad score is 400 with the path of the fault."""
    run = await submit(scene)
    answer = await scene.http.post(f"{run}/scores", json=body, headers=ANN)
    assert (answer.status_code, answer.json()["path"]) == (400, path)
    answer = await scene.http.post(f"{run}/scores", content=b'{"name": "x", "value": NaN}', headers=ANN)
    assert answer.status_code == 400
    answer = await scene.http.post(f"{run}/scores", content=b"x" * 2_000_000, headers=ANN)
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "body", [{"names": []}, {"names": ["x"] * 9}, {"names": [""]}, {"expiresIn": MAX_LIFETIME + 1}]
)
async def test_a_token_is_bounded(scene: Scene, body: dict[str, Any]) -> None:
    """A token is bounded in its names and its lifetime."""
    answer = await scene.http.post(f"{await submit(scene)}/scores/token", json=body, headers=ANN)
    assert answer.status_code == 400


async def test_rates_hold_for_tokens(tmp_path: Path, telemetry: Telemetry) -> None:
    """Rates hold for tokens by run, and for callers."""
    agent = Agent("support", model=ScriptedModel("done"), telemetry=telemetry)
    options: dict[str, Any] = {"authenticate": caller, "telemetry": telemetry, "rate": RequestRate(0.001, burst=3)}
    async with Scene(tmp_path).serve(agent, **options) as scene:
        run = await submit(scene)
        headers = await token_of(scene, run)
        body = {"name": "thumb", "value": 1}
        found = [(await scene.http.post(f"{run}/scores", json=body, headers=headers)) for _ in range(4)]
        assert [answer.status_code for answer in found] == [202, 200, 200, 429]
        assert "retry-after" in found[-1].headers
        found = [(await scene.http.post(f"{run}/scores", json=body, headers=ANN)) for _ in range(2)]
        assert [answer.status_code for answer in found] == [202, 429]


async def test_without_keys_there_are_no_tokens(tmp_path: Path) -> None:
    """A server without keys gives no tokens, and one without a store of runs takes no scores."""
    import httpx

    agent = Agent("support", model=ScriptedModel("done"))
    async with Scene(tmp_path).serve(agent, authenticate=caller, tokens=None) as scene:
        run = await submit(scene)
        answer = await scene.http.post(f"{run}/scores/token", json={}, headers=ANN)
        assert answer.status_code == 404
        assert "PELLUCID_CALL_KEYS" in answer.json()["error"]
        assert (await scene.http.post(f"{run}/scores/token", json={}, headers=BOB)).json()["error"] == "run not found"
        assert (await scene.http.post(f"{run}/scores/token", json={})).status_code == 401
    transport = httpx.ASGITransport(create_agent_app([agent]))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        assert (await http.post("/runs/1/scores", json={"name": "x", "value": 1})).status_code == 404


async def test_a_token_of_another_server_is_no_caller(scene: Scene, telemetry: Telemetry, tmp_path: Path) -> None:
    """A token of another server is refused by a server without keys, and nothing is recorded."""
    token = await token_of(scene, await submit(scene))
    agent = Agent("other", model=ScriptedModel("done"), telemetry=telemetry)
    (tmp_path / "other").mkdir()
    async with Scene(tmp_path / "other").serve(agent, tokens=None, authenticate=loopback_only) as other:
        run = await submit(other)
        answer = await other.http.post(f"{run}/scores", json={"name": "thumb", "value": 1}, headers=token)
        assert answer.status_code == 401
    assert telemetry.flush()
    reader = StoreReader(tmp_path / "store.db")
    assert [row.scores for row in reader.runs()] == [(), ()]
