"""A reader of server-sent events that closes all its resources when it is closed."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Final

import httpx2
from anyio import CancelScope, move_on_after

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_GRACE: Final = 1.0
"""Seconds to wait for the end of a complete response, so that its connection can be reused."""


async def read_events(response: httpx2.Response, is_over: Callable[[], bool]) -> AsyncGenerator[str]:
    """Yield the data of each event, and close the response at its end or when this generator is closed.

    The vendors' own readers abandon suspended generators to the garbage collector, about which trio warns. This reader
    has closed all inner generators when it ends.

    Args:
        response: A response whose body has not been read.
        is_over: Called after each event; returns whether it was the last one.
    """
    chunks = response.aiter_bytes()
    events = _Events()
    try:
        async for chunk in chunks:
            for data in events.of(chunk):
                yield data
                if is_over():
                    # The response is complete; errors no longer matter.
                    with move_on_after(_GRACE), suppress(Exception):
                        async for _ in chunks:
                            pass
                    return
    finally:
        with CancelScope(shield=True):
            await response.aclose()
            with suppress(Exception):  # run the inner generators to their end
                async for _ in chunks:
                    pass


class _Events:
    """A parser of server-sent events that buffers the incomplete last one."""

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[str] = []
        self._was_return = False

    def of(self, chunk: bytes) -> Iterator[str]:
        """Yield the data of each event that ends in this chunk (HTML standard, section 9.2.6)."""
        for line in self._lines(chunk):
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" ").decode())
            elif not line and self._data:
                data = "\n".join(self._data)
                self._data = []
                if data.strip():
                    yield data

    def _lines(self, chunk: bytes) -> list[bytes]:
        if self._was_return and chunk.startswith(b"\n"):  # the second half of a line ending
            chunk = chunk[1:]
            self._was_return = False
        if not chunk:
            return []
        self._was_return = chunk.endswith(b"\r")
        first, *others = _LINE_END.split(chunk)
        self._line.append(first)
        if not others:
            return []
        lines = [b"".join(self._line), *others[:-1]]
        self._line = [others[-1]]
        return lines
