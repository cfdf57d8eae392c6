"""Agents in a FastAPI application: with its own authentication, and a receiver of the callbacks of their runs.

Needs `pip install 'pellucid[server]' fastapi`. With curl instead of the client below:

    curl http://127.0.0.1:8000/agents/runs -H 'X-Api-Key: key-of-ann' -H 'Prefer: respond-async' \
        -d '{"input": "What does a transport to Turin cost?", "callbackUrl": "http://127.0.0.1:8000/hooks/order-7"}'
"""

from __future__ import annotations

import base64
import secrets
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import httpx2
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response

from pellucid import Agent, Identity
from pellucid.durable import Callbacks, DurableRuns, open_store, verify_callback
from pellucid.errors import InvalidCallback
from pellucid.server import create_app, drain_at_signals
from pellucid.testing import FunctionModel
from pellucid.types import JSONObject

AGENT = Agent("freight", model=FunctionModel(lambda _: "It costs 1,860 EUR."))  # stands for a model
USERS = {"key-of-ann": "ann"}
KEY = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"  # in production, PELLUCID_CALLBACK_KEYS


def authenticate(request: Request) -> Identity | None:
    """Return the caller of `/agents`, who sees only runs of their own."""
    user = USERS.get(request.headers.get("x-api-key", ""))
    return Identity(tenant="acme", principal=user) if user is not None else None


def create_application(store_url: str, url: str, received: Callable[[str, JSONObject], None]) -> FastAPI:
    """Return the application; `received` gets what arrives at its hooks."""

    @asynccontextmanager
    async def serve_agents(app: FastAPI) -> AsyncGenerator[None]:
        async with open_store(store_url) as store, anyio.create_task_group() as tasks:
            runs = DurableRuns(store, [AGENT], callbacks=Callbacks([KEY], allow=[f"{url}/hooks/"]))
            agents = create_app(runs, authenticate=authenticate)
            app.mount("/agents", agents)
            tasks.start_soon(runs.work)  # or `pellucid worker` in another process
            with drain_at_signals(agents):  # uvicorn would wait for open streams at SIGTERM
                yield
            tasks.cancel_scope.cancel()

    app = FastAPI(lifespan=serve_agents)

    @app.post("/hooks/{order}")
    async def receive(order: str, request: Request) -> Response:
        try:
            state = verify_callback(await request.body(), request.headers, KEY)
        except InvalidCallback as error:
            raise HTTPException(401) from error
        received(order, state)  # store it in a queue: the same message may come twice
        return Response(status_code=204)

    return app


async def main() -> None:
    """Serve, submit a run as Ann, and wait for its callback."""
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryDirectory() as folder:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        is_received = anyio.Event()

        def received(order: str, state: JSONObject) -> None:
            print(f"callback for {order}: {state['status']}, {state['output']}")
            is_received.set()

        app = create_application(f"sqlite:///{folder}/durable.db", url, received)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        async with anyio.create_task_group() as tasks, httpx2.AsyncClient(base_url=url, timeout=60) as http:
            tasks.start_soon(server.serve, [listener])
            body = {"input": "What does a transport to Turin cost?", "callbackUrl": f"{url}/hooks/order-7"}
            stranger = await http.post("/agents/runs", json=body)
            print(f"without a key: {stranger.status_code}")
            headers = {"X-Api-Key": "key-of-ann", "Prefer": "respond-async"}
            submitted = await http.post("/agents/runs", json=body, headers=headers)
            print(f"submitted: {submitted.status_code}")
            await is_received.wait()
            server.should_exit = True


if __name__ == "__main__":
    anyio.run(main)
