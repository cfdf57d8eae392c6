"""A Python process that has imported what tests need, and forks itself for each script that it is asked to run.

Importing the SDKs of OpenTelemetry, MCP and the vendors takes one to two CPU seconds, and tests start hundreds of
processes. `main` takes the path of a socket. A client sends a request (arguments, environment, folder) with its
standard streams and a pipe that ends when all is sent, gets the id of the process that runs it, and, when that has
ended, its exit status. The process gets SIGIO, which ends it, when its client has gone.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import marshal
import os
import runpy
import selectors
import signal
import socket
import sys
import warnings
from contextlib import suppress
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
    "pellucid.cli",
    "pellucid.mcp.provider",
    "pellucid.durable.queue.link",
    "pellucid.server",
    "pellucid.testing",
    "pellucid_exporters.console",
    "pellucid_exporters.file",
    "pellucid_exporters.local.reader",
    "pellucid_exporters.pipeline",
    "pellucid_exporters.recorder.providers",
    "psycopg",
    "requests",
    "rich.live",
    "sqlite3",
    "structlog",
    "trio",
    "uvicorn",
)
HEAD: Final = 4
"""Bytes of a request's length."""

_CLEARED: Final = ("__main__", "builtins", "pellucid", "pellucid_exporters", "sys")
_spared: Final[dict[str, Any]] = {}


def main(path: str) -> None:
    """Import packages and serve until standard input ends; in a forked process, run what was asked for."""
    atexit.register(_spare_packages)  # the first that is registered is the last that runs
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(128)
        print("listening", flush=True)
        _import()
        script = _serve(listener)
    if script is not None:
        script()


def _import() -> None:
    for module in MODULES:
        importlib.import_module(module)
    _spared.update((name, module) for name, module in sys.modules.items() if name.partition(".")[0] not in _CLEARED)
    _spared[""] = _spared  # a cycle, which is frozen: nothing in it is ever freed
    warnings.resetwarnings()
    warnings.simplefilter("error")
    gc.collect()
    gc.freeze()


def _spare_packages() -> None:
    """Let the interpreter end without taking apart the packages that it had before the fork: most of its time.

    What the script has made or imported is taken apart, and so is all of Pellucid.
    """
    for name in _spared:
        sys.modules.pop(name, None)


def _serve(listener: socket.socket) -> Callable[[], None] | None:
    wakeup, alarm = socket.socketpair()
    running: dict[int, socket.socket] = {}
    with wakeup, alarm, selectors.DefaultSelector() as selector:
        for end in (wakeup, alarm):
            end.setblocking(False)
        signal.set_wakeup_fd(alarm.fileno())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for source in (listener, wakeup, sys.stdin):
            selector.register(source, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if sys.stdin in ready:
                return None
            if wakeup in ready:
                wakeup.recv(4096)
                _report_ended(running)
            if listener in ready and (script := _start(listener, running)) is not None:
                return script


def _start(listener: socket.socket, running: dict[int, socket.socket]) -> Callable[[], None] | None:
    """Fork a process for the next request; in it, return what it runs."""
    client, _ = listener.accept()
    request, streams = _receive(client)
    if request is None:
        client.close()
    elif (pid := os.fork()) == 0:
        signal.set_wakeup_fd(-1)
        for other in running.values():
            other.close()
        return partial(_run, request, streams, client)
    else:
        running[pid] = client
        _send(client, pid)
    for stream in streams:
        os.close(stream)
    return None


def _report_ended(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as client:
            _send(client, os.waitstatus_to_exitcode(status))


def _send(client: socket.socket, number: int) -> None:
    with suppress(ConnectionError):  # the client has gone
        client.sendall(number.to_bytes(HEAD, "big", signed=True))


def _receive(client: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return a request, None if its client was killed before it had sent it, and the streams."""
    head, streams, _, _ = socket.recv_fds(client, HEAD, 4)
    length = int.from_bytes(head, "big")
    with client.makefile("rb") as file:
        body = file.read(length)
    return marshal.loads(body) if head and len(body) == length else None, list(streams)


def _is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def _run(request: dict[str, Any], streams: list[int], client: socket.socket) -> None:
    """Run a script as if this process had been started for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, waiting = streams
    os.read(waiting, 1)  # the kernel signals what was sent while the client is still in its call, also if it was read
    os.close(waiting)
    fcntl.fcntl(client, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(client, fcntl.F_SETFL, fcntl.fcntl(client, fcntl.F_GETFL) | os.O_ASYNC)
    if _is_closed(client):  # already, so no signal will come
        os._exit(1)
    client.detach()
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
    elif program == "-m":
        sys.path[0] = os.getcwd()  # noqa: PTH109
        name, *arguments = arguments
        sys.argv = [name, *arguments]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [program, *arguments]
        sys.path[0] = str(Path(program).parent.absolute())
        runpy.run_path(program, run_name="__main__")
