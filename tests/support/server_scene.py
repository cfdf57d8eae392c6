"""A server of durable runs in this process, with a worker, and a client of it."""

from __future__ import annotations

import json
import threading
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import uvicorn

from pellucid import Agent, Tool
from pellucid.durable import Callbacks, CallTokens, Completion, DurableRuns
from pellucid.server import create_app
from support.processes import PATIENCE
from support.stores import Location

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.applications import Starlette

    from pellucid import ToolContext
    from pellucid.context import ExternalCall
    from pellucid.durable.runs.conversations import Conversations

KEY = "k" * 32
BASE = "http://127.0.0.1"


class Scene:
    """A server with a worker, and a client of it.

    Attributes:
        http: The client.
        app: The server.
        jobs: What the tools handed to other processes.
        callbacks: How states are delivered to callback URLs.
    """

    def __init__(self, path: Path | Location) -> None:
        self.jobs: list[ExternalCall] = []
        self.tokens = CallTokens(KEY)
        self.callbacks: Callbacks | None = None
        self._location = Location(f"sqlite:///{path}/runs.db") if isinstance(path, Path) else path
        self.http: httpx.AsyncClient
        self.app: Starlette
        self.runs: DurableRuns

    def job(self, **options: Any) -> Tool:
        """Return a tool whose work another process does."""

        async def enqueue(_arguments: Any, ctx: ToolContext) -> None:
            assert ctx.external is not None
            self.jobs.append(ctx.external)

        return Tool(name="job", run=enqueue, execution="external-dispatch", **options)

    @asynccontextmanager
    async def serve(
        self,
        *agents: Agent[Any, Any],
        conversations: Conversations = "refuse",
        patience: float = 60,
        **options: Any,
    ) -> AsyncIterator[Scene]:
        """Serve agents within the context."""
        async with self._location.open() as self.store:
            self.runs = DurableRuns(
                self.store,
                agents,
                completion=Completion(BASE, self.tokens),
                callbacks=self.callbacks,
                conversations=conversations,
            )
            self.app = create_app(self.runs, **{"tokens": self.tokens, **options})
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with (
                httpx.AsyncClient(transport=transport, base_url=BASE) as self.http,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(self.runs.work)
                with anyio.fail_after(patience):
                    yield self
                tasks.cancel_scope.cancel()

    async def complete(self, job: ExternalCall, token: str | None = None, **body: Any) -> httpx.Response:
        """Return a result as another process does."""
        assert job.complete_url is not None
        headers = {b"Authorization": f"Bearer {token or job.token}".encode()}
        return await self.http.post(job.complete_url, headers=headers, json={"status": "completed", **body})


def events(text: str) -> list[tuple[str | None, str, Any]]:
    """Return id, name and data of server-sent events."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
    return found


@contextmanager
def listening(app: Starlette) -> Iterator[int]:
    """Serve an application in a thread within the context, and return its port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
