from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import httpx2
import pytest

from pellucid.models.sse import read_events
from support.vendor_server import Cut, Hang, answer_sse, vendor_server

if TYPE_CHECKING:
    from support.vendor_server import Chunk

pytestmark = pytest.mark.anyio


async def read(*chunks: Chunk, last: str | None = None) -> list[str]:
    """Return the events of an answer, up to the last one."""
    found: list[str] = []
    with vendor_server() as server, anyio.fail_after(60):
        server.answers(answer_sse(*chunks))
        async with httpx2.AsyncClient() as client:
            response = await client.send(client.build_request("GET", server.url), stream=True)
            async with aclosing(read_events(response, lambda: found[-1] == last)) as events:
                async for event in events:
                    found.append(event)  # noqa: PERF401  (`is_over` looks at it)
            assert response.is_closed
    return found


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
async def test_events_are_read_wherever_they_are_split(size: int, end: str) -> None:
    """Events are read wherever they are split, and comments, other fields and empty data are ignored."""
    lines = [": keep-alive", "", "event: x", "id: 1", 'data: {"a": "ü☀️"}', "", "data:", "", "data: b", "data:c", "", ""]
    body = end.join([*lines, "retry: 3", "data: d", "", "data: never ended"]).encode()
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    assert await read(*chunks) == ['{"a": "ü☀️"}', "b\nc", "d"]


async def test_nothing_is_read_after_the_last_event() -> None:
    """Reading ends with the last event, even if the server keeps the connection open."""
    assert await read(b"data: a\n\ndata: b\n\n", b"data: c\n\n", Hang(), last="b") == ["a", "b"]


async def test_what_breaks_after_the_last_event_breaks_nothing() -> None:
    """A connection that breaks after the last event is no error."""
    assert await read(b"data: a\n\ndata: b\n\n", Cut(), last="b") == ["a", "b"]


async def test_the_connection_is_used_again() -> None:
    """The connection is used again after the last event."""
    with vendor_server() as server, anyio.fail_after(60):
        server.always(answer_sse(b"data: a\n\n", b"data: b\n\n"))
        ports = set()
        async with httpx2.AsyncClient() as client:
            for _ in range(3):
                response = await client.send(client.build_request("GET", server.url), stream=True)
                ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))
                async with aclosing(read_events(response, lambda: True)) as events:
                    assert [event async for event in events] == ["a"]
        assert len(ports) == 1


async def test_a_dropped_connection_is_an_error() -> None:
    """A dropped connection raises a `TransportError` of httpx2."""
    with pytest.raises(httpx2.TransportError):
        await read(b"data: a\n\n", Cut())


async def test_bytes_that_are_no_text_are_an_error() -> None:
    """Bytes that are no text are an error."""
    with pytest.raises(UnicodeDecodeError):
        await read(b"data: \xff\n\n")
