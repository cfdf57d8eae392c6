"""Transport to a server process, with a limit of each message.

The MCP SDK's own transport buffers a line of any length, and copies the whole buffer for each chunk of it. It is used
on Windows, whose processes need job objects, and for encodings other than strict UTF-8.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TextIO

import anyio
from anyio.abc import AsyncResource, Process
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import StdioServerParameters
from mcp.client.stdio import get_default_environment, stdio_client
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from pellucid.mcp.link import Link
from pellucid.response_limits import Counter, ResponseTooLarge

_EXIT_TIMEOUT: Final = 2.0
"""Seconds for a server to exit after its input was closed, and again after SIGTERM: as of the MCP SDK."""
_FLUSH_TIMEOUT: Final = 0.5
"""Seconds to write the messages that were accepted."""
_POLL_INTERVAL: Final = 0.01

_GONE: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)


@asynccontextmanager
async def open_process(parameters: StdioServerParameters, errlog: TextIO, link: Link) -> AsyncIterator[Any]:
    """Start a server and yield the streams of its messages; stop the server afterwards.

    A message that is too large ends the connection, because nobody can know which request it answers.
    """
    if sys.platform == "win32" or (parameters.encoding, parameters.encoding_error_handler) != ("utf-8", "strict"):
        async with stdio_client(parameters, errlog=errlog) as streams:
            yield streams
        return
    with anyio.CancelScope(shield=True):  # asyncio leaks a process, and its pipes, whose start is cancelled
        process = await anyio.open_process(
            [parameters.command, *parameters.args],
            env=get_default_environment() | (parameters.env or {}),
            stderr=errlog,
            cwd=parameters.cwd,
            start_new_session=True,
        )
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, accepted = anyio.create_memory_object_stream[SessionMessage](0)
    written = anyio.Event()

    async def write() -> None:
        try:
            await _write(process, accepted)
        except _GONE:
            await received.aclose()  # so that requests do not wait for answers
        finally:
            written.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, process, received, link)
        tasks.start_soon(write)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                incoming.close()
                outgoing.close()
                with anyio.move_on_after(_FLUSH_TIMEOUT):
                    await written.wait()
                await _stop(process)
                for stream in (received, accepted):
                    await stream.aclose()
                await checkpoint()  # for the tasks, which end on their own now
            tasks.cancel_scope.cancel()


async def _write(process: Process, accepted: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    async with accepted:
        async for item in accepted:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            await process.stdin.send(f"{text}\n".encode())


async def _read(process: Process, received: MemoryObjectSendStream[SessionMessage | Exception], link: Link) -> None:
    assert process.stdout is not None
    lines = _Lines(link.limits.longest)
    with suppress(*_GONE):
        async with received:
            try:
                async for chunk in process.stdout:
                    for line in lines.add(chunk):
                        await received.send(_parsed(line, link))
            except ResponseTooLarge as error:
                link.refusal = error.with_traceback(None)
                await process.stdout.aclose()
                return
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                pass  # the session has ended
        async for _ in process.stdout:  # a server that cannot write might not exit
            pass


class _Lines:
    """Parser of lines that buffers the incomplete last one."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._pending: list[bytes] = []

    def add(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in this chunk.

        Raises:
            ResponseTooLarge: a line is longer than the counter permits.
        """
        first, *others = chunk.split(b"\n")
        self._counter.add(len(first))
        self._pending.append(first)
        if not others:
            return []
        lines = [b"".join(self._pending), *others[:-1]]
        self._pending, self._counter.received = [others[-1]], 0
        self._counter.add(len(others[-1]))
        return lines


def _parsed(line: bytes, link: Link) -> SessionMessage | Exception:
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError as error:  # the session decides
        return error
    return SessionMessage(link.counted(message, len(line)))


async def _stop(process: Process) -> None:
    """Stop a server: close its input, then terminate and at last kill the whole process group."""
    assert process.stdin is not None
    assert process.stdout is not None
    await _close(process.stdin)
    if not await _has_exited(process):
        await terminate_posix_process_tree(process, _EXIT_TIMEOUT)
        await _has_exited(process)
    await _close(process.stdout)
    # A child that has inherited the pipes would keep asyncio's transport open. Nothing public closes it.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with suppress(PermissionError):
            transport.close()


async def _close(stream: AsyncResource) -> None:
    with suppress(*_GONE):
        await stream.aclose()


async def _has_exited(process: Process) -> bool:
    """Wait for the exit. Not with `wait`, which on asyncio also waits for children that have inherited the pipes."""
    with anyio.move_on_after(_EXIT_TIMEOUT):
        while process.returncode is None:  # noqa: ASYNC110  (a process is no event)
            await anyio.sleep(_POLL_INTERVAL)
    return process.returncode is not None
