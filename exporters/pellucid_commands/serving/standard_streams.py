"""Standard input and output of a server that speaks over them."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import asynccontextmanager, contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING

import anyio
from anyio import from_thread
from anyio.lowlevel import current_token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from anyio.streams.memory import MemoryObjectReceiveStream


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Send what this process and those that it starts write to standard output to standard error."""
    sys.stdout.flush()
    original = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(original, 1)
        os.close(original)


@asynccontextmanager
async def lines_of_input() -> AsyncIterator[MemoryObjectReceiveStream[str]]:
    """Receive the lines of standard input, which is empty for anybody else meanwhile.

    They are read by a daemon thread: a signal ends the process although a read cannot be interrupted.
    """
    original, empty = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    send, receive = anyio.create_memory_object_stream[str]()
    loop = current_token()

    def read() -> None:
        with (
            suppress(anyio.BrokenResourceError, anyio.RunFinishedError),  # nobody receives any longer
            open(original, encoding="utf-8", errors="replace", closefd=False) as lines,
        ):
            for line in lines:
                from_thread.run(send.send, line, token=loop)
            from_thread.run_sync(send.close, token=loop)

    threading.Thread(target=read, name="standard input", daemon=True).start()
    try:
        with receive:
            yield receive
    finally:
        os.dup2(original, 0)  # which stays open: the thread may be reading it
