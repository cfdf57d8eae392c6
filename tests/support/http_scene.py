"""A durable run with every kind of call, through a server that can be killed, and a client that repeats requests."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx

from pellucid import Identity
from pellucid.durable import CallTokens, Completion, DurableRuns, open_store
from support.durable_scene import Journey, scene, watch
from support.nats_faults import FaultyQueue
from support.ports import free_port
from support.processes import command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from support.stores import Location

KEY = "k" * 32
SCRIPT = """
    import sys

    sys.path.insert(0, sys.argv[1])
    from support.http_scene import serve

    serve(*sys.argv[2:])
"""
TESTS = Path(__file__).parents[1]


def completion(port: int) -> Completion:
    """Return where results are returned to the server on a port of this machine."""
    return Completion(f"http://127.0.0.1:{port}", CallTokens(KEY))


class ServerProcess:
    """A process that serves the scene's runs; without a worker.

    Attributes:
        port: Its port.
    """

    def __init__(self, stack: ExitStack, location: Location, path: Path, nats: str = "") -> None:
        self.port = free_port()
        self._location = location
        self._path = path
        self._nats = nats
        self._process: subprocess.Popen[bytes] | None = None
        stack.callback(self.kill)

    def start(self, kill_at: int = 0) -> None:
        """Start, to be killed at a point of its journey; 0 for never."""
        arguments = (TESTS, *self._location.arguments, self._path, self.port, kill_at, self._nats)
        self._process = subprocess.Popen(command(SCRIPT, *arguments), stderr=subprocess.DEVNULL)

    @property
    def is_running(self) -> bool:
        """True if the process has not ended."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill the process. Another one may be started meanwhile."""
        if (process := self._process) is not None:
            process.kill()
            process.wait()


class Client:
    """Client that repeats each request until it is answered, and starts the server again if it has ended."""

    def __init__(self, server: ServerProcess, http: httpx.AsyncClient) -> None:
        self._server = server
        self._http = http
        self._tokens = CallTokens(KEY)

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Return the first answer that is not 503."""
        while True:
            try:
                answer = await self._http.request(method, f"http://127.0.0.1:{self._server.port}{path}", **options)
            except httpx.TransportError:
                if not self._server.is_running:
                    await anyio.to_thread.run_sync(self._server.start)
            else:
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    return answer
            await anyio.sleep(0.02)

    async def submit(self, principal: str | None = None) -> str:
        """Submit the run of a principal, and return its location."""
        headers = {"Prefer": "respond-async", "Idempotency-Key": "one", **_headers(principal)}
        answer = await self.request("POST", "/runs", json={"input": "go"}, headers=headers)
        assert answer.status_code == 202, answer.text
        return str(answer.headers["location"])

    async def attend(self, location: str, principal: str | None = None) -> str:
        """Decide and return what a run waits for, each twice; return its status before."""
        headers = _headers(principal)
        state: dict[str, Any] = (await self.request("GET", location, headers=headers)).json()
        assert state["status"] not in ("failed", "cancelled"), state
        for approval in state.get("approvals", ()):
            body = {"decisions": [{"approvalId": approval["approvalId"], "approved": True}]}
            for _ in range(2):
                answer = await self.request("POST", f"{location}/approvals", json=body, headers=headers)
                assert answer.status_code == 200, answer.text
        for call in state.get("external", ()):
            await self._complete(state["id"], call)
        return str(state["status"])

    async def _complete(self, run_id: str, call: Mapping[str, str]) -> None:
        """Return a result twice, and then another one, which is refused.

        The call of an interrupted sub-agent may have been cancelled since the client read of it.
        """
        result_id, tool = call["resultId"], call["toolName"]
        token = self._tokens.issue(result_id, run_id)
        for response in (f"{tool} settled", f"{tool} settled", "another result"):
            answer = await self.request(
                "POST",
                f"/async-tools/{result_id}/complete",
                json={"status": "completed", "output": response},
                headers={"Authorization": f"Bearer {token}"},
            )
            if call["toolCallId"] == "c-inner" and answer.json().get("status") == "cancelled":
                return
            assert answer.status_code in ({409} if response == "another result" else {202, 200}), (call, answer.text)


def _headers(principal: str | None) -> dict[str, str]:
    return {"X-Principal": principal} if principal is not None else {}


def authenticate(request: Request) -> Identity:
    """Return the caller that the request names."""
    return Identity(principal=request.headers.get("x-principal"))


def serve(url: str, options: str, path: str, port: str, kill_at: str, nats: str) -> None:
    """Serve the scene until this process is killed; with a NATS server, its queue loses and doubles messages."""
    import uvicorn

    from pellucid.server import create_app

    journey = Journey(Path(path), int(kill_at))

    async def run() -> None:
        async with open_store(url, **json.loads(options)) as store, AsyncExitStack() as stack:
            queue = await stack.enter_async_context(FaultyQueue(nats)) if nats else None
            watch(store, journey)
            agent = scene(Journey(Path(path)))
            runs = DurableRuns(store, [agent], completion=completion(int(port)), queue=queue)
            app = create_app(runs, tokens=CallTokens(KEY), authenticate=authenticate)
            await uvicorn.Server(uvicorn.Config(app, port=int(port), log_level="error", access_log=False)).serve()

    anyio.run(run)
    sys.exit(1)
