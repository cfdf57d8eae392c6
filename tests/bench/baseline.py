"""Baselines of the server: a Starlette endpoint that writes by psycopg in a worker thread, on the same uvicorn.

`python -m bench.baseline --port PORT --store URL`. A request runs one UPDATE … RETURNING and one INSERT in a
transaction; with `--same`, it sends what Pellucid sends: the statement that settles a call, and two
notifications. It has as many connections as the server's store.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

import anyio
import psycopg
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pellucid.durable.store.postgres import psycopg_statements
from pellucid_commands.serving.http_server import Protocol

CONNECTIONS: Final = 8
TABLES: Final = """
CREATE TABLE IF NOT EXISTS raw (id TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS raw_events (run_id TEXT, seq BIGSERIAL, value TEXT, PRIMARY KEY (run_id, seq));
"""


Write: TypeAlias = Callable[[psycopg.Connection[Any], str, str], None]


def write_least(connection: psycopg.Connection[Any], call_id: str, body: str) -> None:
    """Write a body and an event."""
    row = connection.execute("UPDATE raw SET value = %s WHERE id = %s RETURNING id", (body, call_id)).fetchone()
    assert row is not None
    connection.execute("INSERT INTO raw_events (run_id, value) VALUES (%s, %s)", (call_id, "settled"))
    connection.commit()


def settling() -> Write:
    """Return a function that writes what a settlement of Pellucid writes, and notifies workers and readers."""
    statement = psycopg_statements()["settle"]

    def write(connection: psycopg.Connection[Any], call_id: str, body: str) -> None:
        digest = hashlib.sha256(body.encode()).hexdigest()
        run_id = call_id.removeprefix("async_tool_")
        values = {
            "id": call_id,
            "run_id": run_id,
            "status": "completed",
            "payload": body,
            "digest": digest,
            "trace": None,
            "is_overdue": 0,
            "entries": 1,
            "events": f'[{{"type": "async_tool.settled", "result_id": "{call_id}", "status": "completed"}}]',
        }
        assert connection.execute(statement, values).fetchone() is not None
        connection.execute(f"NOTIFY pellucid, 'events {run_id}'; NOTIFY pellucid, 'work typical'")

    return write


def application(url: str, write: Write, *, is_same: bool) -> Starlette:
    """Return the application."""
    idle: SimpleQueue[psycopg.Connection[Any]] = SimpleQueue()
    for _ in range(CONNECTIONS):
        connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=is_same)
        if is_same:
            connection.execute("SET search_path TO pellucid")
        idle.put(connection)
    limiter = anyio.CapacityLimiter(CONNECTIONS)

    def write_one(call_id: str, body: str) -> None:
        connection = idle.get()
        try:
            write(connection, call_id, body)
        finally:
            idle.put(connection)

    async def complete(request: Request) -> Response:
        await request.json()
        body = (await request.body()).decode()
        await anyio.to_thread.run_sync(write_one, request.path_params["call_id"], body, limiter=limiter)
        return JSONResponse({"status": "accepted"}, 202)

    return Starlette(routes=[Route("/async-tools/{call_id}/complete", complete, methods=["POST"])])


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--same", action="store_true", help="the transaction of Pellucid")
    arguments = parser.parse_args()
    write = settling() if arguments.same else write_least
    uvicorn.run(
        application(arguments.store, write, is_same=arguments.same),
        port=arguments.port,
        http=Protocol,
        server_header=False,
    )


if __name__ == "__main__":
    main()
