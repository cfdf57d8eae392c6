"""Server process of the demo: `pellucid.server` without a worker, until its standard input is closed."""

from __future__ import annotations

import socket
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import uvicorn

from pellucid.durable_runs import DurableRuns
from pellucid.server import create_app
from pellucid_commands.demo.durable.agent import freight_agent
from pellucid_commands.demo.durable.notes import Notebook
from pellucid_commands.demo.durable.options import ProcessOptions, run_process
from pellucid_commands.serving.http_server import Server

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from pellucid_exporters import Telemetry


async def serve(options: ProcessOptions, _telemetry: Telemetry) -> None:
    """Serve on a free port of this machine, and note its address."""
    notebook = Notebook(options.notes, options.process)
    agent = freight_agent(options.agent, notebook, options.jobs)
    async with options.open_store() as store, options.opened_queue() as queue:
        app = create_app(DurableRuns(store, [agent], worker=options.process, queue=queue), tokens=options.tokens)
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            notebook.write("listen", url=f"http://127.0.0.1:{listener.getsockname()[1]}")
            await _serve(app, listener)


async def _serve(app: Starlette, listener: socket.socket) -> None:
    server = Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: server.serve([listener]))
        await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        app.state.drain()
        server.should_exit = True


if __name__ == "__main__":
    run_process(serve)
