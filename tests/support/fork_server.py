"""A Python process that has imported what tests need, and forks itself for each script that it is asked to run.

Importing the SDKs of OpenTelemetry, MCP and the vendors takes one to two CPU seconds, and tests start hundreds of
processes. `main` takes the path of a socket. A client sends a request (JSON: arguments, environment, folder) with
its standard streams, gets the id of the process that runs it, and, when that has ended, its exit status. The process
gets SIGIO, which ends it, when its client has gone.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import warnings
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MODULES: Final = (
    "anthropic",
    "google.genai",
    "mcp.client.stdio",
    "mcp.client.streamable_http",
    "mcp.server.mcpserver",
    "openai",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._logs",
    "opentelemetry.sdk.metrics",
    "opentelemetry.sdk.trace",
    "pellucid.mcp.provider",
    "pellucid.nats.link",
    "pellucid.server",
    "pellucid.testing",
    "pellucid_exporters.console",
    "pellucid_exporters.pipeline",
    "psycopg",
    "rich.live",
    "sqlite3",
    "structlog",
    "trio",
    "uvicorn",
)
HEAD: Final = 4
"""Bytes of a request's length."""


def main(path: str) -> None:
    """Import packages and serve until standard input ends; in a forked process, run what was asked for."""
    for module in MODULES:
        importlib.import_module(module)
    warnings.resetwarnings()
    warnings.simplefilter("error")
    gc.collect()
    gc.freeze()
    script = _serve(path)
    if script is not None:
        script()


def _serve(path: str) -> Callable[[], None] | None:
    wakeup, alarm = socket.socketpair()
    running: dict[int, socket.socket] = {}
    with wakeup, alarm, socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        for end in (wakeup, alarm):
            end.setblocking(False)
        signal.set_wakeup_fd(alarm.fileno())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        listener.bind(path)
        listener.listen(128)
        print("ready", flush=True)
        for source in (listener, wakeup, sys.stdin):
            selector.register(source, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if sys.stdin in ready:
                return None
            if wakeup in ready:
                wakeup.recv(4096)
                _report_ended(running)
            if listener in ready:
                client, _ = listener.accept()
                request, streams = _receive(client)
                if (pid := os.fork()) == 0:
                    signal.set_wakeup_fd(-1)
                    for other in running.values():
                        other.close()
                    return partial(_run, request, streams, client.detach())
                running[pid] = client
                client.sendall(pid.to_bytes(HEAD, "big"))
                for stream in streams:
                    os.close(stream)


def _report_ended(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as client:
            try:
                client.sendall(os.waitstatus_to_exitcode(status).to_bytes(HEAD, "big", signed=True))
            except OSError:
                continue  # the client has gone


def _receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, streams, _, _ = socket.recv_fds(client, HEAD, 3)
    length = int.from_bytes(head, "big")
    with client.makefile("rb") as file:
        return json.loads(file.read(length)), list(streams)


def _run(request: dict[str, Any], streams: list[int], client: int) -> None:
    """Run a script as if this process had been started for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fcntl.fcntl(client, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(client, fcntl.F_SETFL, fcntl.fcntl(client, fcntl.F_GETFL) | os.O_ASYNC)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    program, *arguments = request["arguments"]
    if program == "-c":
        code, *arguments = arguments
        sys.argv = ["-c", *arguments]
        sys.path[0] = ""
        script = ModuleType("__main__")
        sys.modules["__main__"] = script
        exec(compile(code, "<string>", "exec"), script.__dict__)
    else:
        sys.argv = [program, *arguments]
        sys.path[0] = str(Path(program).parent.absolute())
        runpy.run_path(program, run_name="__main__")
