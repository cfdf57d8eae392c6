"""Operations over HTTP: listing and retrying runs, reading calls, and settling calls without their token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, ToolCall, tool
from pellucid.context import Identity
from pellucid.durable.store.overviews import start_of
from pellucid.server import Caller, by_role
from pellucid.server import operation as operation_module
from pellucid.testing import FunctionModel
from support.server_scene import Scene

if TYPE_CHECKING:
    from starlette.requests import Request

    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

ANN = {"x-user": "ann"}
BOB = {"x-user": "bob"}
OPERATOR = {"x-user": "olga", "x-roles": "operator"}
STRANGER = {"x-user": "olga", "x-tenant": "other", "x-roles": "operator"}


@pytest.fixture
def scene(location: Location) -> Scene:
    """Return a server on a store of this test, on each database."""
    return Scene(location)


def caller(request: Request) -> Identity:
    """Return who a proxy in front says that it is."""
    roles = request.headers.get("x-roles", "")
    tenant = request.headers.get("x-tenant", "acme")
    return Caller(tenant=tenant, principal=request.headers["x-user"], roles=frozenset(roles.split(",")))


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


def worker(scene: Scene) -> Agent[Any, Any]:
    """Return an agent that hands a call to another process and asks for an approval, or answers, as it is told."""

    def answer(request: Any) -> Any:
        if len(request.messages) > 1 or "wait" not in str(request.messages[0]):
            return "Done."
        return [ToolCall("job"), ToolCall("pay", {"amount": 7})]

    return Agent("a", model=FunctionModel(answer), tools=[scene.job(pending="wait"), pay])


def serving(scene: Scene) -> Any:
    """Serve this agent to callers with roles."""
    return scene.serve(worker(scene), authenticate=caller, authorize=by_role)


async def submit(scene: Scene, text: str, headers: dict[str, str]) -> str:
    """Submit a run, wait until it ends or waits, and return its id."""
    answer = await scene.http.post("/runs", json={"input": text}, headers=headers)
    return str(answer.json()["id"])


async def listed(scene: Scene, query: str, headers: dict[str, str]) -> list[str]:
    """Return the ids of all pages of a list, following `Link`."""
    found: list[str] = []
    path: str | None = f"/runs{query}"
    while path is not None:
        answer = await scene.http.get(path, headers=headers)
        assert answer.status_code == 200, answer.text
        found += [run["id"] for run in answer.json()["runs"]]
        assert ("next" in answer.links) == (answer.json()["cursor"] is not None)
        path = answer.links["next"]["url"] if "next" in answer.links else None
    return found


async def test_callers_list_the_runs_that_they_may_read(scene: Scene) -> None:
    """An owner lists its own runs, an operator those of its tenant, and others none, with filters and pages."""
    async with serving(scene):
        waits, done = await submit(scene, "wait", ANN), await submit(scene, "go", ANN)
        other = await submit(scene, "go on", BOB)
        assert set(await listed(scene, "", ANN)) == {waits, done}
        assert await listed(scene, "", BOB) == [other]
        assert set(await listed(scene, "?limit=1", OPERATOR)) == {waits, done, other}
        assert await listed(scene, "", STRANGER) == []
        assert await listed(scene, "?status=open", OPERATOR) == [waits]
        assert await listed(scene, "?status=completed&agent=a&text=GO%20ON&olderThan=0", OPERATOR) == [other]
        assert await listed(scene, "?status=completed&text=go%20on", ANN) == []
        (run,) = (await scene.http.get("/runs?status=waiting", headers=OPERATOR)).json()["runs"]
        assert (run["tenant"], run["principal"], run["pending"], run["status"]) == ("acme", "ann", 2, "waiting")
        state = (await scene.http.get(f"/runs/{waits}", headers=ANN)).json()
        assert (state["createdAt"], state["updatedAt"]) == (run["createdAt"], run["updatedAt"])


async def test_cursors_have_nothing_of_runs_that_are_hidden(
    scene: Scene, location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that ends among runs of others has each visible run once, also of one time, and no id of another run."""
    monkeypatch.setattr(operation_module, "_BATCH", 2)
    monkeypatch.setattr(operation_module, "MAX_LOOKED_AT", 4)
    async with serving(scene):
        owners = [ANN, BOB, BOB, BOB, ANN, BOB, BOB, BOB, BOB, BOB, ANN]
        runs = [(await submit(scene, "go", owner), owner) for owner in owners]
        for place, (run_id, _) in enumerate(runs):
            location.execute(f"UPDATE runs SET created_at = {1000 + place // 2} WHERE id = '{run_id}'")
        own = {run_id for run_id, owner in runs if owner is ANN}
        found: list[str] = []
        path = "/runs"
        for _ in range(20):
            answer = await scene.http.get(path, headers=ANN)
            found += [run["id"] for run in answer.json()["runs"]]
            cursor = answer.json()["cursor"]
            if cursor is None:
                break
            position = start_of(cursor)
            assert position.id in {"", *own}
            path = answer.links["next"]["url"]
        assert sorted(found) == sorted(own)


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("status=lost", "status"),
        ("status=due&status=failed", "status"),
        ("older_than=5", "older_than"),
        ("olderThan=-1", "olderThan"),
        ("olderThan=nan", "olderThan"),
        ("limit=0", "limit"),
        ("limit=9999999999999", "limit"),
        ("limit=%D9%A3", "limit"),
        ("cursor=x", "cursor"),
        ("agent=%00", "agent"),
    ],
)
async def test_queries_are_checked(scene: Scene, query: str, path: str) -> None:
    """A filter that is unknown, doubled or wrong is refused by name."""
    async with serving(scene):
        answer = await scene.http.get(f"/runs?{query}", headers=ANN)
        assert (answer.status_code, answer.json()["path"]) == (400, path)


async def test_a_run_is_retried(scene: Scene) -> None:
    """An operator retries a cancelled run; an open or completed one is 409, and one of others 404."""
    async with serving(scene):
        run_id = await submit(scene, "wait", ANN)
        path = f"/runs/{run_id}/retry"
        assert (await scene.http.post(path, headers=ANN)).status_code == 409
        await scene.http.post(f"/runs/{run_id}/cancel", headers=ANN)
        for headers in (BOB, STRANGER):
            assert (await scene.http.post(path, headers=headers)).status_code == 404
        refused = await scene.http.post(path, json={"why": 1}, headers=OPERATOR)
        assert (refused.status_code, refused.json()["path"]) == (400, "why")
        page = {**OPERATOR, "Origin": "https://evil.example"}
        assert (await scene.http.post(path, headers=page)).status_code == 403
        answer = await scene.http.post(path, json={"reason": "the account exists"}, headers=OPERATOR)
        assert (answer.status_code, answer.json()) == (202, {"outcome": "due"})
        async for _ in scene.runs.events(run_id):
            pass
        assert (await scene.http.get(f"/runs/{run_id}", headers=ANN)).json()["status"] == "completed"
        again = await scene.http.post(path, headers=ANN)
        assert (again.status_code, "completed" in again.json()["error"]) == (409, True)


async def test_an_operator_settles_a_call(scene: Scene) -> None:
    """A caller who may settle a run settles its call without a token; one who may read it reads the call."""
    async with serving(scene):
        run_id = await submit(scene, "wait", ANN)
        [job] = scene.jobs
        path, body = f"/calls/{job.result_id}", {"status": "completed", "output": {"ok": True}}
        for headers in (BOB, STRANGER):
            hidden = await scene.http.get(path, headers=headers)
            unknown = await scene.http.get("/calls/async_tool_none", headers=headers)
            assert (hidden.status_code, hidden.text) == (unknown.status_code, unknown.text) == (404, unknown.text)
            assert (await scene.http.post(path, json=body, headers=headers)).status_code == 404
        call = (await scene.http.get(path, headers=ANN)).json()
        assert (call["runId"], call["kind"], call["status"], call["toolName"]) == (
            run_id,
            "external",
            "processing",
            "job",
        )
        assert call["dispatchedAt"] >= call["createdAt"]
        refused = await scene.http.post(path, json=body, headers=ANN)
        assert (refused.status_code, refused.json()["error"]) == (403, "this caller may not settle this run")
        page = {**OPERATOR, "Origin": "https://evil.example"}
        assert (await scene.http.post(path, json=body, headers=page)).status_code == 403
        wrong = await scene.http.post(path, json={"status": "failed"}, headers=OPERATOR)
        assert (wrong.status_code, wrong.json()["path"]) == (400, "error")
        answers = [await scene.http.post(path, json=body, headers=OPERATOR) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [202, 200]
        conflict = await scene.http.post(path, json={"status": "completed", "output": 1}, headers=OPERATOR)
        assert conflict.status_code == 409
        assert (await scene.http.get(path, headers=ANN)).json()["status"] == "completed"
        [approval] = (await scene.runs.status(run_id)).approvals
        decided = await scene.http.post(f"/calls/{approval.approval_id}", json=body, headers=OPERATOR)
        assert (decided.status_code, "approvals" in decided.json()["error"]) == (400, True)
