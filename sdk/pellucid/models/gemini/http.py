"""Connections of `GeminiModel`: one HTTP client for each event loop, and streams that close when abandoned."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, TypeVar, cast

import httpx2
from google import genai
from google.genai import errors, types

from pellucid.models.http import event_hooks, trusted

_LIMITS: Final = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)

_NO_DATA: Final = re.compile(rb":|event:|id:|retry:")
"""Prefixes of lines of an event stream without data."""

_INTERNAL: Final = 500
"""Status of errors in streams without a code."""

T = TypeVar("T")


class NotAnEvent(ValueError):
    """A stream has data that is not an event of the API."""


class Connection:
    """A client of the SDK over an HTTP client that works on every event loop that anyio supports.

    The SDK's own HTTP client depends on asyncio; a custom one does not.
    """

    def __init__(self, *, api_key: str, base_url: str, timeout: httpx2.Timeout) -> None:
        async def prepare(request: httpx2.Request) -> None:
            # The SDK has a single number for all timeouts, and also sends it to the server.
            request.extensions["timeout"] = timeout.as_dict()

        context = trusted()
        hooks = event_hooks()
        hooks["request"].append(prepare)
        self._http = httpx2.AsyncClient(limits=_LIMITS, event_hooks=hooks, verify=context)
        _make_streams_closable(self._http)
        options = types.HttpOptions(
            base_url=base_url,
            httpx_async_client=self._http,
            client_args={"verify": context},  # for the SDK's own clients, which are created but not used
            async_client_args={"ssl": context},
        )
        self.client = genai.Client(api_key=api_key, vertexai=False, http_options=options)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()
        self.client.close()


def make_streams_closable(client: genai.Client) -> None:
    """Make the streams of a custom client close at once when they are abandoned.

    This applies to clients over httpx2, which the SDK uses if aiohttp is not installed.
    """
    http: Any = getattr(client._api_client, "_async_httpx_client", None)  # noqa: SLF001  (there is no public attribute)
    if getattr(http, "_per_loop", False):  # the SDK's own client, which delegates to one client for each event loop
        http = http._client_for_running_loop()  # noqa: SLF001
    if isinstance(http, httpx2.AsyncClient):
        _make_streams_closable(http)


def _make_streams_closable(http: httpx2.AsyncClient) -> None:
    hooks = http.event_hooks
    if _record_body not in hooks["response"]:
        hooks["request"].append(_disable_compression)
        hooks["response"].append(_record_body)


async def streamed(stream: AsyncIterator[T]) -> AsyncGenerator[T]:
    """Yield the items of an SDK stream; when closed early, close the connection at once.

    The SDK's streams are nested generators: closing the outermost abandons the others, and the connection, to the
    garbage collector. Therefore the body is closed, and the generators are run to their end, where they raise an error.
    If the body is not known, only the outermost is closed.
    """
    bodies: list[_Body] = []
    items = cast("AsyncGenerator[T]", aiter(stream))
    try:
        while True:
            with _recording(bodies):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item
    finally:
        for body in bodies:
            await body.aclose()
        if bodies:
            await _drain(items)
        await items.aclose()


async def _drain(items: AsyncIterator[Any]) -> None:
    """Run nested generators to their end, after the body was closed."""
    with suppress(Exception):
        async for _ in items:
            pass


class _Body(httpx2.AsyncByteStream):
    """The body of a streamed response, which passes only events that are JSON objects to the SDK.

    The SDK parses comments and keep-alives as JSON. When it raises for an error or an invalid event, it abandons its
    inner generators. Reading after the body was closed fails.
    """

    def __init__(self, response: httpx2.Response, body: httpx2.AsyncByteStream) -> None:
        self._response = response
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        event: list[bytes] = []
        received = self._lines()
        try:
            async for lines in received:
                for line in lines:
                    if line.startswith(b"data:"):
                        event.append(line[5:])
                    elif line and not _NO_DATA.match(line):
                        event.append(line)  # errors arrive as JSON without `data:`
                    elif event and not line:
                        yield self._checked(b" ".join(event))
                        event = []
            if event:
                yield self._checked(b" ".join(event), is_last=True)
        finally:
            await self.aclose()
            await _drain(received)

    async def _lines(self) -> AsyncIterator[list[bytes]]:
        pending: list[bytes] = []  # pieces of an incomplete line, which may be an image of megabytes
        async for piece in self._body:
            first, newline, rest = piece.partition(b"\n")
            pending.append(first)
            if newline:
                *lines, last = rest.split(b"\n")
                yield [line.rstrip(b"\r") for line in (b"".join(pending), *lines)]
                pending = [last]
        yield [b"".join(pending)]

    def _checked(self, event: bytes, *, is_last: bool = False) -> bytes:
        try:
            value = json.loads(event)
        except ValueError:
            if is_last:  # the stream was cut off; the response will be incomplete
                return b""
            raise NotAnEvent("an event of its stream is not JSON") from None
        if not isinstance(value, dict):
            raise NotAnEvent(f"an event of its stream is not an object but of type {type(value).__name__}")
        if "error" in value:
            details = value["error"]
            code = details.get("code") if isinstance(details, dict) else None
            raise errors.APIError(code if isinstance(code, int) and code else _INTERNAL, value, self._response)
        return b"data: " + event + b"\n\n"

    async def aclose(self) -> None:
        await self._body.aclose()


_bodies: ContextVar[list[_Body] | None] = ContextVar("pellucid_gemini_opened", default=None)
"""Bodies of the responses to the current streaming request; None outside of one."""


@contextmanager
def _recording(bodies: list[_Body]) -> Iterator[None]:
    token = _bodies.set(bodies)
    try:
        yield
    finally:
        _bodies.reset(token)


async def _disable_compression(request: httpx2.Request) -> None:
    if _bodies.get() is not None:
        request.headers["accept-encoding"] = "identity"


async def _record_body(response: httpx2.Response) -> None:
    bodies = _bodies.get()
    if bodies is None or response.status_code != httpx2.codes.OK:
        return
    if isinstance(response.stream, httpx2.AsyncByteStream) and "content-encoding" not in response.headers:
        body = _Body(response, response.stream)
        response.stream = body
        bodies.append(body)
