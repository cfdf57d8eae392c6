"""Failures of `AnthropicModel`: what they mean, and that nothing short looks whole."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2
import pytest

from pellucid import Agent, ModelError
from pellucid.errors import ModelTimeout
from pellucid.models import AnthropicModel
from support.anthropic_wire import KEY, event, events, fault, message, streamed, text, tool_use
from support.models import HELLO, read
from support.ports import free_port
from support.runs import everything, within
from support.vendor_server import Answer, Cut, Hang, answer_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from pellucid_exporters.testing import Captured
    from support.vendor_server import Chunk, VendorServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


@pytest.fixture
async def model(server: VendorServer) -> AsyncIterator[AnthropicModel]:
    """Return a model at that server."""
    async with aclosing(AnthropicModel("claude", api_key=KEY, base_url=server.url)) as model:
        yield model


async def failing(model: AnthropicModel, *, stream: bool) -> ModelError:
    """Return the error of a call."""
    with pytest.raises(ModelError) as caught:
        await (read(model, HELLO) if stream else within(model.generate(HELLO)))
    assert KEY not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "kind", "means"),
    [
        (400, "invalid_request_error", "invalid_request"),
        (401, "authentication_error", "auth"),
        (402, "billing_error", "auth"),
        (403, "permission_error", "auth"),
        (404, "not_found_error", "invalid_request"),
        (413, "request_too_large", "invalid_request"),
        (422, "of_next_year", "invalid_request"),
        (429, "rate_limit_error", "rate_limited"),
        (500, "api_error", "unavailable"),
        (503, "of_next_year", "unavailable"),
        (504, "timeout_error", "timeout"),
        (529, "overloaded_error", "unavailable"),
    ],
)
async def test_a_status(
    server: VendorServer, model: AnthropicModel, status: int, kind: str, means: str, stream: bool
) -> None:
    """Each has its kind, status and request id; the vendor's error is the cause, and there is one attempt."""
    server.always(fault(kind, f"No, with {KEY} never.", status=status))
    error = await failing(model, stream=stream)
    assert (error.error_kind, error.request_id) == (means, "req_1")
    assert error.status == status
    assert isinstance(error, ModelTimeout) == (means == "timeout")
    assert f"HTTP {status}, request req_1: No, with [masked] never." in str(error)
    assert isinstance(error.__cause__, anthropic.APIStatusError)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "1.5"}, 1.5),
        ({"retry_after_ms": "250", "retry_after": "1"}, 0.25),
        ({"retry_after": format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)}, 0.0),
        ({"retry_after": "soon"}, None),
        ({"retry_after_ms": "inf"}, None),
        ({"retry_after_ms": "nan"}, None),
        ({}, None),
    ],
)
async def test_when_to_ask_again(
    server: VendorServer, model: AnthropicModel, header: dict[str, str], seconds: float | None
) -> None:
    """As seconds, milliseconds or a date; what means nothing is unknown."""
    server.always(fault("rate_limit_error", status=429, **header))
    assert (await failing(model, stream=False)).retry_after == seconds


async def test_when_to_ask_again_after_a_timeout(server: VendorServer, model: AnthropicModel) -> None:
    """A vendor that ran out of time may say it, too."""
    server.always(fault("timeout_error", status=504, retry_after="7"))
    error = await failing(model, stream=False)
    assert isinstance(error, ModelTimeout)
    assert (error.status, error.retry_after) == (504, 7.0)


async def test_a_date_to_ask_again(server: VendorServer, model: AnthropicModel) -> None:
    """Is the time until then."""
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    server.always(fault("rate_limit_error", status=429, retry_after=later))
    assert 3000 < ((await failing(model, stream=False)).retry_after or 0) <= 3600


BEGUN = events(message(text("Once upon a time")))[:6]


def error_event(kind: str) -> bytes:
    """Return an error in the middle of a stream."""
    return event("error", error={"type": kind, "message": "No more."})


@pytest.mark.parametrize(
    ("sent", "means", "said"),
    [
        ([*BEGUN, error_event("overloaded_error")], "unavailable", "No more."),
        ([*BEGUN, error_event("rate_limit_error")], "rate_limited", "No more."),
        ([*BEGUN, error_event("of_next_year")], "unavailable", "No more."),
        ([error_event("api_error")], "unavailable", "No more."),
        (BEGUN, "unavailable", "ended before the response was complete"),
        ([], "unavailable", "ended before the response was complete"),
        ([*BEGUN, Cut()], "unavailable", "incomplete chunked read"),
        ([*BEGUN, b"event: content_block_delta\ndata: {nonsense\n\n"], "invalid_response", "JSONDecodeError"),
        ([*BEGUN, b"event: content_block_delta\ndata: []\n\n"], "invalid_response", ""),
        ([*BEGUN, event("content_block_delta", index=7, delta={"type": "text_delta"})], "invalid_response", ""),
        ([*BEGUN, b"event: x\ndata: \xff\xfe\n\n"], "invalid_response", ""),
    ],
)
async def test_a_stream_that_goes_wrong(
    server: VendorServer, model: AnthropicModel, sent: Sequence[Chunk], means: str, said: str
) -> None:
    """Whatever had arrived, it is an error, and never an answer that looks whole."""
    server.always(streamed(sent))
    error = await failing(model, stream=True)
    assert error.error_kind == means
    assert said in str(error)


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (Answer(headers={"content-type": "application/json"}, body=[b'{"id": "msg_1", "conte']), "invalid_response"),
        (Answer(headers={"content-type": "text/html"}, body=[b"<html>Welcome</html>"]), "invalid_response"),
        (answer_json([]), "invalid_response"),
        (answer_json({}), "invalid_response"),
        (answer_json(message(text("Hi"), stop=None)), "invalid_response"),
        (answer_json({**message(), "content": None}), "invalid_response"),
        (answer_json(message({"type": "tool_use"}, stop="tool_use")), "invalid_response"),
        (Answer(headers={"content-type": "application/json"}, body=[b'{"id":', Cut()]), "unavailable"),
    ],
)
async def test_an_answer_that_is_none(server: VendorServer, model: AnthropicModel, answer: Answer, means: str) -> None:
    """Garbage, a page of a proxy, half an answer: each is an error of its kind."""
    server.always(answer)
    assert (await failing(model, stream=False)).error_kind == means


@pytest.mark.parametrize("stream", [False, True])
async def test_silence(server: VendorServer, stream: bool) -> None:
    """In the middle of an answer, it is a timeout."""
    answer = streamed([*BEGUN, Hang()])
    server.always(answer if stream else Answer(headers={"content-type": "application/json"}, body=[Hang()]))
    timeout = httpx2.Timeout(5.0, read=0.2)
    async with aclosing(AnthropicModel("claude", api_key=KEY, base_url=server.url, timeout=timeout)) as model:
        error = await failing(model, stream=stream)
    assert isinstance(error, ModelTimeout)
    assert error.error_kind == "timeout"


@pytest.mark.parametrize("stream", [False, True])
async def test_nobody_listens(stream: bool) -> None:
    """A refused connection is `unavailable`."""
    async with aclosing(AnthropicModel("claude", api_key=KEY, base_url=f"http://127.0.0.1:{free_port()}")) as model:
        error = await failing(model, stream=stream)
    assert (error.error_kind, error.status) == ("unavailable", None)


async def test_what_the_api_has_no_parameter_for(server: VendorServer, model: AnthropicModel) -> None:
    """Is refused before anything is sent."""
    with pytest.raises(ModelError, match="no parameter for presence_penalty, seed") as caught:
        await within(Agent("a", model=model, settings={"seed": 1, "presence_penalty": 0.5}).run("hi"))
    assert caught.value.error_kind == "invalid_request"
    assert server.requests == []


async def test_the_key_is_nowhere(server: VendorServer, model: AnthropicModel, telemetry: Captured) -> None:
    """Neither in messages nor in telemetry, also if the vendor repeats it."""
    server.always(fault("authentication_error", f"{KEY} is no good", status=401))
    with pytest.raises(ModelError):
        await within(Agent("a", model=model, telemetry=telemetry).run("hi"))
    assert KEY not in everything(telemetry)


async def test_a_broken_tool_call_in_a_stream_is_not_lost(server: VendorServer, model: AnthropicModel) -> None:
    """A stream that breaks in the middle of arguments is an error, too."""
    sent = events(message(tool_use("add", {"a": 1, "b": 2}, "toolu_1"), stop="tool_use"))
    server.always(streamed(sent[:6]))
    assert (await failing(model, stream=True)).error_kind == "unavailable"


def test_the_kinds_of_wire() -> None:
    """Every answer of these tests is one that a real client would read."""
    given: Any = anthropic.types.Message.model_validate(message(text("Hi"), tool_use("add", {}, "toolu_1")))
    assert [block.type for block in given.content] == ["text", "tool_use"]
