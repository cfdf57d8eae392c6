"""How `GeminiModel` reaches the API: one HTTP client for each event loop, and streams that close when they are left."""

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

from pellucid.models.http import trusted

_LIMITS: Final = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)

_NO_DATA: Final = re.compile(rb":|event:|id:|retry:")
"""Beginnings of lines of an event stream that carry none of the answer."""

_INTERNAL: Final = 500
"""The code of errors in streams that have none."""

T = TypeVar("T")


class NotAnEvent(ValueError):
    """A stream holds something that is no event of the API."""


class Connection:
    """A client of the SDK over an HTTP client that works on every event loop that anyio knows.

    The client that the SDK makes for itself asks asyncio which loop it runs in; with one that it is given it does not.
    """

    def __init__(self, *, api_key: str, base_url: str, timeout: httpx2.Timeout) -> None:
        async def prepare(request: httpx2.Request) -> None:
            # The SDK knows one number for all time-outs, and sends it to the server, too.
            request.extensions["timeout"] = timeout.as_dict()

        context = trusted()
        self._http = httpx2.AsyncClient(limits=_LIMITS, event_hooks={"request": [prepare]}, verify=context)
        _watch(self._http)
        options = types.HttpOptions(
            base_url=base_url,
            httpx_async_client=self._http,
            client_args={"verify": context},  # of the SDK's clients that are not used, but made
            async_client_args={"ssl": context},
        )
        self.client = genai.Client(api_key=api_key, vertexai=False, http_options=options)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()
        self.client.close()


def watch(client: genai.Client) -> None:
    """Have streams of a client that was given close at once, too; nothing else of it changes.

    That is for a client over httpx2, which is what the SDK uses where aiohttp is not installed.
    """
    http: Any = getattr(client._api_client, "_async_httpx_client", None)  # noqa: SLF001  (nowhere public)
    if getattr(http, "_per_loop", False):  # the SDK's own: a client for each event loop, and one that picks it
        http = http._client_for_running_loop()  # noqa: SLF001
    if isinstance(http, httpx2.AsyncClient):
        _watch(http)


def _watch(http: httpx2.AsyncClient) -> None:
    hooks = http.event_hooks
    if _note not in hooks["response"]:
        hooks["request"].append(_ask_for_plain_text)
        hooks["response"].append(_note)


async def streamed(stream: AsyncIterator[T]) -> AsyncGenerator[T]:
    """Yield what the SDK yields; when left early, close the connection at once.

    The SDK's streams are generators inside generators: closing the outermost leaves the others, and the connection, to
    the garbage collector. So the body is closed, and they are run to their end, which is an error now. Where the body
    is not known, closing the outermost has to do.
    """
    bodies: list[_Body] = []
    items = cast("AsyncGenerator[T]", aiter(stream))
    try:
        while True:
            with _noting(bodies):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item
    finally:
        for body in bodies:
            await body.aclose()
        if bodies:
            await _run_out(items)
        await items.aclose()


async def _run_out(items: AsyncIterator[Any]) -> None:
    """Let generators inside generators come to their ends, now that there is nothing left to read."""
    with suppress(Exception):
        async for _ in items:
            pass


class _Body(httpx2.AsyncByteStream):
    """The body of a streamed answer, of which the SDK sees nothing but events that are JSON objects.

    It takes comments and keep-alives for JSON itself, and where it finds that an event is an error, or none, the
    generators below that place are not run to their end. To read on when the body is closed fails.
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
                        event.append(line)  # errors have come as bare JSON
                    elif event and not line:
                        yield self._checked(b" ".join(event))
                        event = []
            if event:
                yield self._checked(b" ".join(event), is_last=True)
        finally:
            await self.aclose()
            await _run_out(received)

    async def _lines(self) -> AsyncIterator[list[bytes]]:
        begun: list[bytes] = []  # a line of which the end has not arrived; it may be an image of megabytes
        async for piece in self._body:
            first, newline, rest = piece.partition(b"\n")
            begun.append(first)
            if newline:
                *lines, last = rest.split(b"\n")
                yield [line.rstrip(b"\r") for line in (b"".join(begun), *lines)]
                begun = [last]
        yield [b"".join(begun)]

    def _checked(self, event: bytes, *, is_last: bool = False) -> bytes:
        try:
            value = json.loads(event)
        except ValueError:
            if is_last:  # the stream broke off here, which is seen by what is missing
                return b""
            raise NotAnEvent("an event of its stream is not JSON") from None
        if not isinstance(value, dict):
            raise NotAnEvent(f"an event of its stream is no object, but of type {type(value).__name__}")
        if "error" in value:
            told = value["error"]
            code = told.get("code") if isinstance(told, dict) else None
            raise errors.APIError(code if isinstance(code, int) and code else _INTERNAL, value, self._response)
        return b"data: " + event + b"\n\n"

    async def aclose(self) -> None:
        await self._body.aclose()


_opened: ContextVar[list[_Body] | None] = ContextVar("pellucid_gemini_opened", default=None)
"""Where to note the body of the answer that is being asked for, while a stream is asked for."""


@contextmanager
def _noting(bodies: list[_Body]) -> Iterator[None]:
    token = _opened.set(bodies)
    try:
        yield
    finally:
        _opened.reset(token)


async def _ask_for_plain_text(request: httpx2.Request) -> None:
    if _opened.get() is not None:
        request.headers["accept-encoding"] = "identity"


async def _note(response: httpx2.Response) -> None:
    bodies = _opened.get()
    if bodies is None or response.status_code != httpx2.codes.OK:
        return
    if isinstance(response.stream, httpx2.AsyncByteStream) and "content-encoding" not in response.headers:
        body = _Body(response, response.stream)
        response.stream = body
        bodies.append(body)
