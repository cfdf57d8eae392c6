"""Baseline of the server: a Starlette endpoint that makes one raw transaction, served by the same uvicorn.

`python -m bench.baseline --port PORT --store URL`. A request runs one UPDATE … RETURNING and one INSERT by psycopg in
a worker thread, on one of as many connections as the server's store has.
"""

from __future__ import annotations

import argparse
from queue import SimpleQueue
from typing import Final

import anyio
import psycopg
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pellucid_commands.serving.http_server import Protocol

CONNECTIONS: Final = 8
TABLES: Final = """
CREATE TABLE IF NOT EXISTS raw (id TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS raw_events (run_id TEXT, seq BIGSERIAL, value TEXT, PRIMARY KEY (run_id, seq));
"""


def application(url: str) -> Starlette:
    """Return the application."""
    idle: SimpleQueue[psycopg.Connection] = SimpleQueue()
    for _ in range(CONNECTIONS):
        idle.put(psycopg.connect(url))
    limiter = anyio.CapacityLimiter(CONNECTIONS)

    def write(call_id: str, body: str) -> None:
        connection = idle.get()
        try:
            row = connection.execute("UPDATE raw SET value = %s WHERE id = %s RETURNING id", (body, call_id)).fetchone()
            assert row is not None
            connection.execute("INSERT INTO raw_events (run_id, value) VALUES (%s, %s)", (call_id, "settled"))
            connection.commit()
        finally:
            idle.put(connection)

    async def complete(request: Request) -> Response:
        await request.json()
        body = (await request.body()).decode()
        await anyio.to_thread.run_sync(write, request.path_params["call_id"], body, limiter=limiter)
        return JSONResponse({"status": "accepted"}, 202)

    return Starlette(routes=[Route("/async-tools/{call_id}/complete", complete, methods=["POST"])])


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--store", required=True)
    arguments = parser.parse_args()
    uvicorn.run(application(arguments.store), port=arguments.port, http=Protocol, server_header=False)


if __name__ == "__main__":
    main()
