"""Real MCP servers: installed in a folder, started over stdio, and asked for their tools with `MCPProvider`."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio import to_thread

from pellucid import Agent, DiscoveryContext, Tool
from pellucid.mcp import MCPProvider
from pellucid.testing import ScriptedModel
from pellucid.tools.catalog import check_catalog
from pellucid_exporters.testing import Captured

INSTALL_PATIENCE = 300.0
LIST_PATIENCE = 60.0
LEAVE_PATIENCE = 5.0
"""Seconds, for each server."""

_log = logging.getLogger("pellucid.mcp")


class NotInstalled(Exception):
    """A server could not be installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server as `search_servers.toml` has it. Attributes: package: with its version; command: and its arguments."""

    id: str
    package: str
    is_npm: bool
    command: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A server's tools, and how it fared.

    Attributes:
        tools: The good ones, called `mcp__<server>__<tool>`.
        names: The server's own name of each, by that name.
        quarantined: Name and problem of the others.
        pages: Requests for the list.
        connected, listed, closed: Seconds that it took.
        lines: Lines on standard error.
        left: Processes that did not end with the connection, or soon after.
    """

    server: Server
    tools: Sequence[Tool]
    names: Mapping[str, str]
    quarantined: Sequence[tuple[str, str]]
    pages: int
    connected: float
    listed: float
    closed: float
    lines: int
    left: int


def servers_of(path: Path, data: Path) -> list[Server]:
    """Return the servers in a file; `data` is the folder that they may write to."""
    return [
        Server(
            id=name,
            package=said.get("npm") or said["pypi"],
            is_npm="npm" in said,
            command=[part.format(data=data) for part in said["command"]],
            env={key: value.format(data=data) for key, value in said.get("env", {}).items()},
        )
        for name, said in tomllib.loads(path.read_text(encoding="utf-8")).items()
    ]


def install(server: Server, folder: Path) -> Path:
    """Install a server in a folder of its own, unless that version is there, and return its executable.

    No install scripts are run: they would download browsers, and are nothing that listing tools needs.

    Raises:
        NotInstalled: with the last lines that the installer said.
    """
    mark = folder / "installed"
    if not mark.exists() or mark.read_text(encoding="utf-8") != server.package:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if server.is_npm:
            _do(
                "npm",
                "install",
                "--prefix",
                ".",
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
                server.package,
                cwd=folder,
            )
        else:
            _do(sys.executable, "-m", "venv", ".", cwd=folder)
            _do("bin/python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", server.package, cwd=folder)
        mark.write_text(server.package, encoding="utf-8")
    return folder / ("node_modules/.bin" if server.is_npm else "bin") / server.command[0]


def _do(*command: str, cwd: Path) -> None:
    # A session of its own, so that what the installer starts ends with it.
    process = subprocess.Popen(
        command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=INSTALL_PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise NotInstalled(f"{command[0]} was not done within {INSTALL_PATIENCE:g} s") from None
    if process.returncode:
        raise NotInstalled(f"{command[0]} failed: {' | '.join(said.splitlines()[-3:])}")


async def observe(server: Server, cache: Path, telemetry: Captured) -> Observed:
    """Install a server if need be, start it, let an agent discover its tools, and end it.

    Raises:
        NotInstalled: it is not to be had.
        DiscoveryError: it did not start, or did not list its tools.
    """
    program = await to_thread.run_sync(install, server, cache / "servers" / server.id)
    env = {"HOME": str(cache / "home"), **server.env}
    provider = MCPProvider.stdio(
        str(program),
        *server.command[1:],
        id=server.id,
        env=env,
        cwd=cache / "data",
        prefix=True,
        timeout=LIST_PATIENCE,
        on_invalid="quarantine",
    )
    agent = Agent("bench", model=ScriptedModel("done"), providers=[provider])
    before = len(telemetry.spans)
    with _counted() as lines:
        began = time.perf_counter()
        async with provider:
            connected = time.perf_counter()
            await agent.run("x")
            listed = time.perf_counter()
            spans = telemetry.spans[before:]
            pages = sum(span.name == "MCP send tools/list" for span in spans)
            catalog = check_catalog(server.id, await provider.list_tools(DiscoveryContext()), quarantine=True)
            started = _descendants()
            closing = time.perf_counter()
        closed = time.perf_counter()
    return Observed(
        server=server,
        tools=catalog.tools,
        names={tool.name: provider.server_name(tool.name) for tool in catalog.tools},
        quarantined=catalog.quarantined,
        pages=pages,
        connected=connected - began,
        listed=listed - connected,
        closed=closed - closing,
        lines=len(lines),
        left=await _left(started),
    )


async def _left(started: set[int]) -> int:
    """Return how many of these processes do not end in time."""
    with anyio.move_on_after(LEAVE_PATIENCE):
        while started & _running().keys():  # noqa: ASYNC110  (nobody tells of the end of another's child)
            await anyio.sleep(0.1)
    return len(started & _running().keys())


@contextmanager
def _counted() -> Iterator[list[str]]:
    """Give what servers write to their standard error, line by line, as it goes to the log."""
    lines: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, level = Keeping(), _log.level
    _log.addHandler(handler)
    _log.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        _log.setLevel(level)
        _log.removeHandler(handler)


def _running() -> dict[int, int]:
    """Return the ids of all processes, each with that of its parent."""
    said = subprocess.run(["ps", "-axo", "pid=,ppid="], check=True, text=True, stdout=subprocess.PIPE).stdout
    return {int(pid): int(parent) for pid, parent in map(str.split, said.splitlines())}


def _descendants() -> set[int]:
    """Return the ids of the processes that this one started, and of those that they did."""
    parents, found = _running(), {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}
