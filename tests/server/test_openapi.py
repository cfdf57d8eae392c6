"""The OpenAPI document is what the server does: schemathesis sends requests that fit it, and ones that do not."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from pellucid import Agent, ToolCall
from pellucid.server import bearer, create_agent_app
from pellucid.server.openapi import document, document_without_store
from pellucid.testing import FunctionModel
from support.server_scene import Scene, listening

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "secret-of-callers"
CALLS = ("complete", "heartbeat", "progress", "cancel")


class Served:
    """A server in a thread.

    Attributes:
        url: Its address.
        ids: Ids of a run that has ended, and of calls by the endpoint that tests use them for.
        tokens: Tokens of these calls.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.ids: dict[str, str] = {}
        self.tokens: dict[str, str] = {}

    def prepare(self, scene: Scene) -> None:
        """Submit the runs."""
        headers = {"Authorization": f"Bearer {SECRET}"}
        with httpx.Client(base_url=self.url, headers=headers, timeout=60) as http:
            self.ids["run"] = http.post("/runs", json={"input": "end"}).json()["id"]
            for name in CALLS:
                assert http.post("/runs", json={"input": "wait"}).json()["status"] == "awaiting_tools"
                job = scene.jobs[-1]
                assert job.token is not None
                self.ids[name], self.tokens[name] = job.result_id, job.token


@contextmanager
def serving(scene: Scene) -> Iterator[Served]:
    """Serve an agent in a thread within the context."""

    def answer(request: Any) -> Any:
        return ToolCall("job") if "wait" in str(request.messages[0]) and len(request.messages) == 1 else "Done."

    server: list[uvicorn.Server] = []
    ready = threading.Event()

    async def main() -> None:
        agent = Agent("a", model=FunctionModel(answer), tools=[scene.job(expires_in=600)])
        async with scene.serve(agent, authenticate=bearer(SECRET), heartbeat=0.05, patience=600):
            server.append(uvicorn.Server(uvicorn.Config(scene.app, port=0, log_level="error", lifespan="off")))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server[0].serve)
                while not server[0].started:  # noqa: ASYNC110  (uvicorn has no event for it)
                    await anyio.sleep(0.01)
                ready.set()

    thread = threading.Thread(target=anyio.run, args=(main,))
    thread.start()
    assert ready.wait(60)
    port = server[0].servers[0].sockets[0].getsockname()[1]
    try:
        yield Served(f"http://127.0.0.1:{port}")
    finally:
        server[0].should_exit = True
        thread.join(60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server with a run that has ended, and calls that wait."""
    scene = Scene(tmp_path_factory.mktemp("openapi"))
    with serving(scene) as served:
        served.prepare(scene)
        yield served


schema = schemathesis.openapi.from_dict(document(has_calls=True, has_metrics=False))
schema_without_store = schemathesis.openapi.from_dict(document_without_store(has_metrics=False))
SETTINGS = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def excluded(case: Any) -> list[Any]:
    """Return checks that do not hold: documents name neither agents nor messages, and queries have other members."""
    if case.path == "/runs":
        return [positive_data_acceptance, negative_data_rejection]
    return [negative_data_rejection] if case.method == "GET" else []


@schema.parametrize()
@SETTINGS
def test_each_operation_does_what_the_document_says(case: Any, served: Served) -> None:
    """Statuses, content types and bodies are those of the document; wrong requests are refused; nothing is a 5xx."""
    name = case.path.rpartition("/")[2]
    headers = {"Authorization": f"Bearer {SECRET}"}
    if case.path == "/calls/{result_id}":
        case.path_parameters = {"result_id": served.ids["complete"]}
    elif "{result_id}" in case.path:
        case.path_parameters = {"result_id": served.ids[name]}
        headers["Authorization"] = f"Bearer {served.tokens[name]}"
    elif "{run_id}" in case.path:
        case.path_parameters = {"run_id": served.ids["run"]}
    case.call_and_validate(base_url=served.url, headers=headers, timeout=60, excluded_checks=excluded(case))


def test_the_document_lists_all_routes() -> None:
    """Without tokens there is no endpoint for other processes."""
    paths = set(document(has_calls=True, has_metrics=True)["paths"])
    without = set(document(has_calls=False, has_metrics=False)["paths"])
    of_tokens = {"/runs/{run_id}/scores/token", *(f"/async-tools/{{result_id}}/{name}" for name in CALLS)}
    assert paths - without == {"/metrics", *of_tokens}


@pytest.fixture(scope="module")
def served_without_store() -> Iterator[str]:
    """Return the address of a server without a store."""
    agent = Agent("a", model=FunctionModel(lambda _: "Done."))
    with listening(create_agent_app([agent], authenticate=bearer(SECRET))) as port:
        yield f"http://127.0.0.1:{port}"


@schema_without_store.parametrize()
@SETTINGS
def test_each_operation_without_a_store(case: Any, served_without_store: str) -> None:
    """As those of a server with one."""
    headers = {"Authorization": f"Bearer {SECRET}"}
    case.call_and_validate(base_url=served_without_store, headers=headers, timeout=60, excluded_checks=excluded(case))
