"""Callback URLs over HTTP: what is accepted, delivered, and tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from pellucid import Agent, Identity
from pellucid.durable import Callbacks, verify_callback
from pellucid.testing import FunctionModel
from support.receiver import receiver
from support.server_scene import Scene

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

pytestmark = pytest.mark.anyio

KEY = b"k" * 32


def by_header(request: Request) -> Identity:
    """Return the caller that a header names."""
    return Identity(principal=request.headers.get("x-user"))


async def test_a_run_is_delivered_to_its_callback_url(tmp_path: Path) -> None:
    """The worker sends what `GET /runs/{id}` answers; a state that was given up is sent again on request."""
    scene = Scene(tmp_path)
    agent = Agent("a", model=FunctionModel(lambda _: "Hello."))
    with receiver() as hook:
        scene.callbacks = Callbacks([KEY], [hook.url])
        hook.answers.append((410, {}))
        async with scene.serve(agent, authenticate=by_header):
            submitted = await scene.http.post("/runs", json={"input": "Hi", "callbackUrl": f"{hook.url}/1"})
            assert submitted.status_code == 200
            location = submitted.headers["location"]
            while not await scene.runs.dead_callbacks():  # noqa: ASYNC110  (the worker tells nobody)
                await anyio.sleep(0.01)
            again = f"{location}/callback"
            assert (await scene.http.post(again, headers={"x-user": "eve"})).status_code == 404
            assert (await scene.http.post(again)).status_code == 202
            while len(hook.received) < 2:  # noqa: ASYNC110  (a thread receives)
                await anyio.sleep(0.01)
            first, second = hook.received
            assert first.headers["webhook-id"] == second.headers["webhook-id"]
            state = verify_callback(second.body, second.headers, KEY)
            assert state == {**(await scene.http.get(location)).json(), "version": 1}
            while (await scene.http.post(again)).status_code != 409:  # noqa: ASYNC110  (until the answer is noted)
                await anyio.sleep(0.01)


@pytest.mark.parametrize("url", ["https://example.org/hooks/../admin", "https://other.example.org/hooks/", 7])
@pytest.mark.parametrize("has_callbacks", [True, False])
async def test_other_urls_are_refused(tmp_path: Path, url: object, has_callbacks: bool) -> None:
    """Before the run is submitted, also by a server that delivers none."""
    scene = Scene(tmp_path)
    scene.callbacks = Callbacks([KEY], ["https://example.org/hooks/"]) if has_callbacks else None
    async with scene.serve(Agent("a", model=FunctionModel(lambda _: "Hello."))):
        answer = await scene.http.post("/runs", json={"input": "Hi", "callbackUrl": url})
        assert (answer.status_code, answer.json()["path"]) == (400, "callbackUrl")
