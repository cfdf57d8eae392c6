"""Server-sent events, read so that whoever stops reading leaves nothing open."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Final

import httpx2
from anyio import CancelScope, move_on_after

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_GRACE: Final = 1.0
"""Seconds in which an answer that is over may end, so that its connection can be used again."""


async def read_events(response: httpx2.Response, is_over: Callable[[], bool]) -> AsyncGenerator[str]:
    """Yield the data of each event; close the response when there is no more, or when this generator is closed.

    The vendors' own readers leave suspended generators to the garbage collector, about which trio complains; here all
    of them have come to their end when this one has.

    Args:
        response: An answer whose body has not been read.
        is_over: Asked after each event: whether it was the last one.
    """
    chunks = response.aiter_bytes()
    events = _Events()
    try:
        async for chunk in chunks:
            for data in events.of(chunk):
                yield data
                if is_over():
                    # What breaks now does not break the answer.
                    with move_on_after(_GRACE), suppress(Exception):
                        async for _ in chunks:
                            pass
                    return
    finally:
        with CancelScope(shield=True):
            await response.aclose()
            with suppress(Exception):  # what is left ends here, in one way or another
                async for _ in chunks:
                    pass


class _Events:
    """What has been read of a stream, up to its last whole event."""

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
        if self._was_return and chunk.startswith(b"\n"):  # the other half of a line's end
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
