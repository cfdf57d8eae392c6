"""Limits of HTTP responses, counted while they are decompressed and before anybody buffers them."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx2
from anyio.lowlevel import checkpoint

from pellucid.errors import PellucidError

_SLICE: Final = 2**17
"""Most bytes that are decompressed at a time; other tasks run between two slices."""
_ACCEPTED: Final = "gzip, deflate"
_GZIP: Final = 16 + zlib.MAX_WBITS
_HEADER: Final = 2
"""Bytes that tell zlib's format from raw deflate; servers send both as `deflate`."""
_EVENT_END: Final = re.compile(rb"\n\r?\n|\r\r")
_LONGEST_END: Final = 3


class ResponseRefused(PellucidError):
    """A response that is not read any further; its connection is closed."""


class ResponseTooLarge(ResponseRefused):
    """A response or message has more bytes than its limit."""

    error_type = "response_too_large"


class UnknownEncoding(ResponseRefused):
    """A response is compressed in a way that was not asked for, and that cannot be counted."""

    error_type = "unknown_encoding"


@dataclass(slots=True, kw_only=True)
class Counter:
    """Counter of received bytes, after decompression.

    Attributes:
        subject: Name of what is received, for the error.
        limit: Most bytes.
        remedy: Remedy that the error names.
        received: Bytes so far.
    """

    subject: str
    limit: int
    remedy: str
    received: int = 0

    def add(self, size: int) -> None:
        """Count bytes.

        Raises:
            ResponseTooLarge: they are more than the limit.
        """
        self.received += size
        if self.received > self.limit:
            raise ResponseTooLarge(
                f"{self.subject} has more than {self.limit} bytes ({self.received} so far); {self.remedy}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """Counters of one response.

    Attributes:
        whole: Counter of the whole response; None for an event stream that may stay open.
        event: Counter of one event of a stream, which starts at 0 after each.
        refused: Receives the error, and returns the one that the reader of the body gets.
    """

    whole: Counter | None
    event: Counter | None = None
    refused: Callable[[ResponseRefused], Exception] | None = None


def is_event_stream(response: httpx2.Response) -> bool:
    """Return whether a response consists of server-sent events."""
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


def limiting_hooks(meter: Callable[[httpx2.Response], Meter]) -> dict[str, list[Callable[..., Any]]]:
    """Return event hooks with which an HTTP client counts each response; they precede all others.

    Hooks, because a transport of one's own would turn off the proxies of the environment.

    Args:
        meter: Returns the counters of a response whose headers have arrived.
    """

    async def prepare(request: httpx2.Request) -> None:
        if request.headers.get("accept-encoding") != "identity":
            request.headers["accept-encoding"] = _ACCEPTED

    async def limit(response: httpx2.Response) -> None:
        if isinstance(response.stream, httpx2.AsyncByteStream):
            encoding = response.headers.pop("content-encoding", "identity").strip().lower()
            response.headers.pop("content-length", None)
            response.stream = _LimitedBody(response.stream, encoding, meter(response))

    return {"request": [prepare], "response": [limit]}


class _LimitedBody(httpx2.AsyncByteStream):
    """The decompressed body of a response.

    An iterator and no generator, which its reader could abandon half read.
    """

    def __init__(self, body: httpx2.AsyncByteStream, encoding: str, meter: Meter) -> None:
        self._body = body
        self._chunks: AsyncIterator[bytes] | None = None
        self._encoding = encoding
        self._decoder = _DECODERS.get(encoding, _Identity)()
        self._meter = meter
        self._event_tail = b""

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._chunks = aiter(self._body)
        return self

    async def __anext__(self) -> bytes:
        assert self._chunks is not None
        if self._encoding not in _DECODERS:
            await self._refuse(
                UnknownEncoding(
                    f"the response has the content-encoding {self._encoding[:40]!r}, which was not asked for; "
                    f"let the server send {_ACCEPTED} or no compression"
                )
            )
        if self._decoder.has_more:
            await checkpoint()
        while not (piece := self._decoder.take()):
            try:
                self._decoder.feed(await anext(self._chunks))
            except StopAsyncIteration:
                self._decoder.finish()
                raise
        try:
            self._count(piece)
        except ResponseTooLarge as error:
            await self._refuse(error)
        return piece

    async def aclose(self) -> None:
        await self._body.aclose()

    def _count(self, piece: bytes) -> None:
        if (whole := self._meter.whole) is not None:
            whole.add(len(piece))
        if (event := self._meter.event) is not None:
            text = self._event_tail + piece
            start = 0
            for match in _EVENT_END.finditer(text):
                end = match.end() - len(self._event_tail)
                event.add(end - start)
                event.received, start = 0, end
            event.add(len(piece) - start)
            self._event_tail = b"" if start == len(piece) else text[-_LONGEST_END + 1 :]

    async def _refuse(self, error: ResponseRefused) -> None:
        """Close the connection and raise the error."""
        await self._body.aclose()
        if self._chunks is not None:
            with suppress(Exception):  # run the inner generators to their end
                async for _ in self._chunks:
                    pass
        raise error if self._meter.refused is None else self._meter.refused(error)


class _Identity:
    """Decoder of a body that is not compressed."""

    def __init__(self) -> None:
        self._pending = b""

    @property
    def has_more(self) -> bool:
        """True if `take` may return more bytes before `feed` is called."""
        return bool(self._pending)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._pending += data

    def take(self) -> bytes:
        """Return the next bytes; none if it must be fed before."""
        piece, self._pending = self._pending, b""
        return piece

    def finish(self) -> None:
        """Note the end of the body.

        Raises:
            httpx2.RemoteProtocolError: it ended before it was complete.
        """


class _Gzip(_Identity):
    """Decoder of gzip, a slice at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._zlib = zlib.decompressobj(_GZIP)
        self._is_full = False
        self._has_begun = False

    @property
    def has_more(self) -> bool:
        return self._is_full or bool(self._pending)

    def take(self) -> bytes:
        if not self.has_more or self._zlib.eof:
            self._pending, self._is_full = b"", False
            return b""
        self._has_begun = True
        try:
            piece = self._zlib.decompress(self._pending, _SLICE)
        except zlib.error as error:
            raise httpx2.DecodingError(f"the compressed response is broken: {error}") from error
        self._pending = self._zlib.unconsumed_tail
        self._is_full = len(piece) == _SLICE  # zlib may hold more, although it has taken all of its input
        return piece

    def finish(self) -> None:
        if self._has_begun and not self._zlib.eof:
            raise httpx2.RemoteProtocolError("the compressed response ended before it was complete")


class _Deflate(_Gzip):
    """Decoder of deflate, with zlib's header or without."""

    def take(self) -> bytes:
        if not self._has_begun:
            if len(self._pending) < _HEADER:
                return b""
            has_header = self._pending[0] & 0x0F == zlib.DEFLATED and int.from_bytes(self._pending[:2]) % 31 == 0
            self._zlib = zlib.decompressobj(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)
        return super().take()


_DECODERS: Final[dict[str, type[_Identity]]] = {
    "": _Identity,
    "identity": _Identity,
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "deflate": _Deflate,
}
