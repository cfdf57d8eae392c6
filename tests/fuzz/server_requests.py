"""Fuzzing of the server by libFuzzer; the arguments are its own, such as `-runs=10000` or `-max_total_time=60`.

An input is a request as HTTP/1.1 writes it. `$RUN`, `$DUE` and `$RESULT` stand for valid values, and in the field
`Authorization`, `$TOKEN` and `$API`: elsewhere, an error may quote what its own caller sent.
An answer with 5xx, a traceback or a secret, in it or in the log, is a finding.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import atheris

with atheris.instrument_imports(include=["pellucid.server", "pellucid.durable", "starlette"]):
    from pellucid import Agent, Identity, ModelRequest, Tool, ToolCall
    from pellucid.durable import CallTokens, Completion, DurableRuns, open_store
    from pellucid.server import create_app
    from pellucid.testing import FunctionModel

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

KEY: Final = "the-key-that-signs-and-nobody-sees"
API: Final = "the-token-of-the-caller-that-nobody-sees"
SECRET: Final = "the-input-of-somebody-else"

_AS_CALLER: Final = "Authorization: Bearer $API\r\n"
_AS_WORKER: Final = "Authorization: Bearer $TOKEN\r\n"

SEEDS: Final = tuple(
    f"{line}\r\n{headers}\r\n{body}"
    for line, headers, body in (
        ("POST /runs", f"{_AS_CALLER}Prefer: respond-async\r\n", '{"input": "Hi", "conversationId": "c"}'),
        ("POST /runs", f"{_AS_CALLER}Idempotency-Key: k\r\n", '{"input": [{"role": "user", "parts": []}]}'),
        ("GET /conversations/c?limit=1&before=2", _AS_CALLER, ""),
        ("GET /runs/$RUN", f"{_AS_CALLER}traceparent: 00-{1:032x}-{1:016x}-01\r\n", ""),
        ("GET /runs/$RUN/events?wait=false", f"{_AS_CALLER}Last-Event-ID: 1\r\n", ""),
        ("POST /runs/$RUN/approvals", _AS_CALLER, '{"decisions": [{"approvalId": "x", "approved": true}]}'),
        ("POST /runs/$DUE/cancel", f"{_AS_CALLER}Content-Length: 3\r\n", '{"reason": "?"}'),
        ("GET /runs?status=open&olderThan=0&limit=1&text=i&cursor=WzEuNSwgIiJd", _AS_CALLER, ""),
        ("POST /runs/$DUE/retry", _AS_CALLER, '{"reason": "?"}'),
        ("GET /calls/$RESULT", _AS_CALLER, ""),
        ("POST /calls/$RESULT", _AS_CALLER, '{"status": "completed", "output": {"a": [null]}}'),
        ("POST /async-tools/$RESULT/heartbeat", _AS_WORKER, '{"extend": 10}'),
        ("POST /async-tools/$RESULT/progress", _AS_WORKER, '{"value": "half"}'),
        ("POST /async-tools/$RESULT/complete", _AS_WORKER, '{"status": "failed", "error": "?", "output": [1e9]}'),
        ("GET /openapi.json", "Host: example.org\r\n", ""),
        ("GET /readyz", "", ""),
    )
)
"""Requests from which inputs are made."""


@dataclass
class Target:
    """A server with a run that waits.

    Attributes:
        values: What stands for names in inputs.
        secrets: What stands for names in the field `Authorization`.
        log: What was logged.
    """

    app: Starlette
    values: dict[bytes, bytes]
    secrets: dict[bytes, bytes]
    log: io.StringIO

    async def send(self, content: bytes) -> tuple[int, bytes]:
        """Send a request, and return status and body of the answer."""
        head, _, body = replace_names(content, self.values).partition(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        fields = [(name.strip().lower(), value.strip()) for name, _, value in (each.partition(b":") for each in lines)]
        method, _, target = line.partition(b" ")
        raw_path, _, query = target.partition(b"?")
        parts = [body[: len(body) // 2], body[len(body) // 2 :]]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method.decode("latin-1"),
            "path": unquote(raw_path.decode("latin-1")),
            "raw_path": raw_path,
            "root_path": "",
            "query_string": query,
            "headers": [
                (name, replace_names(value, self.secrets) if name == b"authorization" else value)
                for name, value in fields
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            await asyncio.sleep(0.02)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)

    def check(self, status: int, body: bytes) -> None:
        """Check an answer and the log since the one before.

        Raises:
            RuntimeError: there is something that nobody should see.
        """
        seen = body + self.log.getvalue().encode(errors="replace")
        self.log.truncate(0)
        self.log.seek(0)
        if status >= 500 or any(text.encode() in seen for text in ("Traceback", KEY, API, SECRET)):
            raise RuntimeError(f"{status} {seen[:2000]!r}")


def replace_names(content: bytes, values: dict[bytes, bytes]) -> bytes:
    """Replace each name in a content by its value."""
    for name, value in values.items():
        content = content.replace(name, value)
    return content


def authenticate(request: Request) -> Identity | None:
    """Let one caller in."""
    return Identity(principal="caller") if request.headers.get("authorization") == f"Bearer {API}" else None


def call_once(request: ModelRequest) -> str | ToolCall:
    """Answer as a model that calls the tool, and then waits."""
    return "wait" if len(request.messages) > 1 else ToolCall("job")


async def make(stack: AsyncExitStack, folder: str) -> Target:
    """Serve an agent; a run of the caller and one of somebody else wait for results."""
    jobs: list[Any] = []

    async def enqueue(_arguments: Any, ctx: Any) -> None:
        jobs.append(ctx.external)

    job = Tool(name="job", run=enqueue, execution="external-dispatch")
    agent = Agent("a", model=FunctionModel(call_once), tools=[job])
    store = await stack.enter_async_context(open_store(f"sqlite:///{folder}/runs.db", synchronous="normal"))
    tokens = CallTokens(KEY)
    runs = DurableRuns(store, [agent], completion=Completion("http://127.0.0.1", tokens))
    run_id = await runs.submit(agent, "Hi", identity=Identity(principal="caller"))
    due = await runs.submit(agent, "Hi", identity=Identity(principal="caller"), run_id="due")
    await runs.submit(agent, SECRET, identity=Identity(principal="other"), run_id="other")
    await runs.work_until_idle()
    app = create_app(runs, authenticate=authenticate, tokens=tokens, body_timeout=0.01, max_wait=0.01)
    log = io.StringIO()
    logging.basicConfig(stream=log, level=logging.DEBUG, force=True)
    mine = jobs[0]
    values = {b"$RUN": run_id.encode(), b"$DUE": due.encode(), b"$RESULT": mine.result_id.encode()}
    return Target(app, values, {b"$TOKEN": mine.token.encode(), b"$API": API.encode()}, log)


def main() -> None:
    """Fuzz, as the arguments say."""
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as seeds:
        for number, seed in enumerate(SEEDS):
            Path(seeds, str(number)).write_text(seed)
        target = loop.run_until_complete(make(stack, folder))

        def one(content: bytes) -> None:
            target.check(*loop.run_until_complete(target.send(content)))

        atheris.Setup([*sys.argv, seeds], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
