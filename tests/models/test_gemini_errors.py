"""Errors of Gemini: answers, streams and connections that fail."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from google import genai
from google.auth.exceptions import RefreshError, TransportError
from google.genai import types

from pellucid import ModelError
from pellucid.errors import ModelTimeout
from pellucid.failures import error_type_of
from pellucid.models.gemini import GeminiModel
from support.gemini_wire import ASKED, KEY, NAME, detail, event, fault, gemini, piece, read, streamed, text, whole
from support.vendor_server import Answer, Cut, Hang, answer_json, answer_sse

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


async def failed(*answers: Answer, timeout: Any = 5.0) -> ModelError:  # noqa: ASYNC109  (the model's)
    """Return the error of a whole answer; one request must have been made."""
    async with gemini(timeout=timeout) as (model, server):
        server.answers(*answers)
        with pytest.raises(ModelError) as caught:
            await model.generate(ASKED)
        assert len(server.requests) == 1
    return caught.value


async def broke(answer: Answer, *, timeout: Any = 5.0) -> ModelError:  # noqa: ASYNC109  (the model's)
    """Return the error of a stream; one request must have been made."""
    async with gemini(timeout=timeout) as (model, server):
        server.answers(answer)
        with pytest.raises(ModelError) as caught:
            await read(model)
        assert len(server.requests) == 1
    return caught.value


STATUSES = [
    (400, "INVALID_ARGUMENT", "invalid_request"),
    (401, "UNAUTHENTICATED", "auth"),
    (403, "PERMISSION_DENIED", "auth"),
    (404, "NOT_FOUND", "invalid_request"),
    (413, "INVALID_ARGUMENT", "invalid_request"),
    (429, "RESOURCE_EXHAUSTED", "rate_limited"),
    (499, "CANCELLED", "unavailable"),
    (500, "INTERNAL", "unavailable"),
    (503, "UNAVAILABLE", "unavailable"),
    (504, "DEADLINE_EXCEEDED", "timeout"),
    (529, "OVERLOADED", "unavailable"),
]


@pytest.mark.parametrize(("code", "status", "kind"), STATUSES)
async def test_the_status_says_what_an_error_means(code: int, status: str, kind: str) -> None:
    """The HTTP status gives the kind of an error, with the API's message and the SDK's error as the cause."""
    answer = answer_json(fault(code, status, "No good."), status=code, x_request_id="req_7")
    for error in (await failed(answer), await broke(answer)):
        assert error.error_kind == kind
        assert error_type_of(error) == ("timeout" if kind == "timeout" else str(code))
        assert isinstance(error.__cause__, genai.errors.APIError)
        assert str(error) == f"call of model {NAME!r} failed: HTTP {code}, request req_7: No good."
        assert error.request_id == "req_7"
        assert error.status == code


async def test_a_wrong_key_is_an_error_of_authentication() -> None:
    """A wrong key is an error of authentication, although its status is 400."""
    reason = detail("ErrorInfo", reason="API_KEY_INVALID", domain="googleapis.com")
    error = await failed(
        answer_json(fault(400, "INVALID_ARGUMENT", "API key not valid.", reason, detail("Help")), status=400)
    )
    assert (error.error_kind, error.status) == ("auth", 400)


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"retry-after": "17"}, [], 17.0),
        ({}, [detail("QuotaFailure"), detail("RetryInfo", retryDelay="12.5s")], 12.5),
        ({"retry-after": "17"}, [detail("RetryInfo", retryDelay="12s")], 17.0),
        ({}, [detail("RetryInfo")], None),
        ({}, ["nonsense"], None),
        ({}, [], None),
    ],
)
async def test_when_to_ask_again(headers: dict[str, str], details: list[Any], seconds: float | None) -> None:
    """`retry_after` comes from the header or from the details of the error."""
    body = fault(429, "RESOURCE_EXHAUSTED", "Quota exceeded.", *details)
    answer = Answer(status=429, headers=headers, body=[json.dumps(body).encode()])
    for error in (await failed(answer), await broke(answer)):
        assert (error.error_kind, error.retry_after) == ("rate_limited", seconds)


async def test_when_to_ask_again_as_a_date() -> None:
    """`retry_after` may be a date in the header."""
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    error = await failed(answer_json(fault(429, "RESOURCE_EXHAUSTED", "Wait."), status=429, retry_after=date))
    assert error.retry_after is not None
    assert 3000 < error.retry_after <= 3600


async def test_the_id_of_a_request_from_its_details() -> None:
    """The request id comes from the details of the error if no header has it."""
    body = fault(500, "INTERNAL", "Oops.", detail("RequestInfo", requestId="abc"))
    assert (await failed(answer_json(body, status=500))).request_id == "abc"


@pytest.mark.parametrize(
    "body", [b"<html>Bad gateway</html>", b"", b"[]", b'"no"', b'{"error": "no"}', b'{"error": null}']
)
async def test_errors_of_proxies(body: bytes) -> None:
    """The status of a proxy's error counts, whatever its body is."""
    answer = Answer(status=502, body=[body] if body else [])
    for error in (await failed(answer), await broke(answer)):
        assert (error.error_kind, error.status) == ("unavailable", 502)


async def test_the_key_is_in_no_message() -> None:
    """The key is in no error, even if the server repeats it."""
    answer = answer_json(fault(403, "PERMISSION_DENIED", f"Key {KEY} is leaked."), status=403)
    for error in (await failed(answer), await broke(answer)):
        assert "Key [masked] is leaked." in str(error)
        assert KEY not in str(error)
        assert KEY not in repr(error)


# --- answers that are none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"null",
        b"[]",
        b'"hi"',
        b"{}",
        b'{"candidates": []}',
        b'{"candidates": {}}',
        b'{"candidates": 5}',
        b'{"candidates": [{"content": 1}]}',
    ],
)
async def test_an_answer_of_another_shape(body: bytes) -> None:
    """An answer of another shape is an invalid response."""
    error = await failed(Answer(headers={"content-type": "application/json"}, body=[body]))
    assert error.error_kind == "invalid_response"


async def test_an_empty_body_is_no_answer() -> None:
    """An empty body is an invalid response."""
    assert (await failed(Answer())).error_kind == "invalid_response"


async def test_an_answer_without_content() -> None:
    """An answer without content is an invalid response."""
    for error in (await failed(whole()), await broke(streamed(piece(), piece(finish="STOP")))):
        assert error.error_kind == "invalid_response"
        assert "no usable answer; its finish reason is STOP" in str(error)


async def test_what_does_not_fit_is_not_repeated() -> None:
    """An error about an invalid response names the place and repeats no content."""
    secret = piece({"functionCall": {"name": "pay", "args": "card 4111"}}, finish="STOP")
    error = await failed(answer_json(secret))
    assert error.error_kind == "invalid_response"
    assert "functionCall.args" in str(error)
    assert "4111" not in str(error)


# --- streams that break -----------------------------------------------------------------------------------------------

BEGUN = event(piece(text("Once upon")))


async def test_a_stream_without_an_end_is_an_error() -> None:
    """A stream that ends without a finish reason is an error."""
    error = await broke(answer_sse(BEGUN))
    assert error.error_kind == "unavailable"
    assert "response is incomplete" in str(error)


async def test_a_stream_that_ends_in_an_event_is_an_error() -> None:
    """A stream that ends within an event is a broken connection."""
    error = await broke(answer_sse(BEGUN, event(piece(text(" a time."), finish="STOP"))[:40]))
    assert error.error_kind == "unavailable"


async def test_an_empty_stream_is_an_error() -> None:
    """An empty stream is a broken connection."""
    assert (await broke(answer_sse())).error_kind == "unavailable"


async def test_a_stream_without_candidates_is_an_error() -> None:
    """A stream without candidates is an invalid response."""
    assert (await broke(streamed({"responseId": "x"}))).error_kind == "invalid_response"


async def test_a_dropped_connection() -> None:
    """A dropped connection is `unavailable`, in a stream and in a whole answer."""
    error = await broke(answer_sse(BEGUN, Cut()))
    assert error.error_kind == "unavailable"
    assert isinstance(error.__cause__, httpx2.TransportError)
    assert (await failed(Answer(body=[b'{"cand', Cut()]))).error_kind == "unavailable"


@pytest.mark.parametrize("garbage", [b"data: {secret}\n\n", b"data: \xff\n\n", b"<html>\n\n", b"data: [1]\n\n"])
async def test_garbage_in_a_stream(garbage: bytes) -> None:
    """An invalid event of a stream is an error that does not repeat it."""
    error = await broke(answer_sse(BEGUN, garbage))
    assert error.error_kind == "invalid_response"
    assert "an event of its stream is" in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize(("code", "status", "kind"), STATUSES)
async def test_an_error_in_the_middle_of_a_stream(code: int, status: str, kind: str) -> None:
    """An error event in a stream has the kind that it would have as an answer."""
    error = await broke(answer_sse(BEGUN, event(fault(code, status, "No more."))))
    assert error.error_kind == kind
    assert "No more." in str(error)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_garbage_that_the_sdk_finds(anyio_backend: str) -> None:
    """An invalid event of a compressed stream is an error that does not repeat it."""
    error = await broke(answer_sse(gzip.compress(b"data: {secret}\n\n"), content_encoding="gzip"))
    assert error.error_kind == "invalid_response"
    assert str(error).endswith("an event of its stream is not JSON")


async def test_an_error_in_a_stream_that_is_no_event() -> None:
    """An error in a stream may be bare JSON of several lines."""
    body = json.dumps(fault(429, "RESOURCE_EXHAUSTED", "Wait.", detail("RetryInfo", retryDelay="3s")), indent=2)
    error = await broke(answer_sse(BEGUN, body.encode()))
    assert (error.error_kind, error.retry_after) == ("rate_limited", 3.0)


async def test_an_error_in_a_stream_without_a_code() -> None:
    """An error in a stream without a code is `unavailable`."""
    for told in ({"message": "No more."}, {"code": "E17", "message": "No more."}, "No more."):
        error = await broke(answer_sse(BEGUN, event({"error": told})))
        assert error.error_kind == "unavailable"
        assert "No more." in str(error)


async def test_what_came_before_an_error_is_told() -> None:
    """The pieces before an error are delivered."""
    told: list[Any] = []
    async with gemini() as (model, server):
        server.answers(answer_sse(BEGUN, event(fault(503, "UNAVAILABLE", "Overloaded."))))
        with pytest.raises(ModelError, match="Overloaded"):
            told.extend([item async for item in collecting(model, told)])
    assert [delta.content for delta in told] == ["Once upon"]


async def collecting(model: GeminiModel, told: list[Any]) -> Any:
    """Append items to a list as they come."""
    async for item in model.stream(ASKED):
        told.append(item)
        yield item


# --- time and connections ---------------------------------------------------------------------------------------------


async def test_an_answer_that_does_not_come() -> None:
    """An answer that stops is a `ModelTimeout` after the model's own timeout."""
    times = httpx2.Timeout(5.0, read=0.05)
    for error in (
        await failed(Answer(body=[Hang()]), timeout=times),
        await broke(answer_sse(BEGUN, Hang()), timeout=times),
    ):
        assert isinstance(error, ModelTimeout)
        assert isinstance(error.__cause__, httpx2.ReadTimeout)


async def test_nobody_listens() -> None:
    """A refused connection is an error of the model."""
    async with gemini() as (model, server):
        server.close()
        for asked in (model.generate(ASKED), read(model)):
            with pytest.raises(ModelError) as caught:
                await asked
            assert caught.value.error_kind == "unavailable"
            assert isinstance(caught.value.__cause__, httpx2.ConnectError)


async def test_a_redirection_is_not_followed() -> None:
    """A redirection is not followed."""
    error = await failed(Answer(status=307, headers={"location": "http://127.0.0.1:1/"}))
    assert error.status == 307
    assert error.error_type == "redirect_refused"


def _aiohttp(name: str) -> Exception:
    error: Exception = type(name, (Exception,), {"__module__": "aiohttp.client_exceptions"})("down")
    return error


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (RefreshError("no credentials"), "auth"),  # type: ignore[no-untyped-call]
        (TransportError("no network"), "unavailable"),  # type: ignore[no-untyped-call]
        (_aiohttp("ClientConnectorError"), "unavailable"),
        (_aiohttp("ServerTimeoutError"), "timeout"),
        (TimeoutError(), "timeout"),
        (ConnectionResetError("gone"), "unavailable"),
        (RuntimeError("what?"), "unknown"),
    ],
)
async def test_faults_of_clients_that_were_given(fault: Exception, kind: str) -> None:
    """Faults of other libraries in a given client get the matching kind."""

    def fail(request: httpx2.Request) -> httpx2.Response:
        raise fault

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(fail)) as http:
        options = types.HttpOptions(httpx_async_client=http)
        model = GeminiModel(NAME, client=genai.Client(api_key=KEY, vertexai=False, http_options=options))
        for ask in _ways(model):
            with pytest.raises(ModelError) as caught:
                await ask()
            assert caught.value.error_kind == kind
            assert caught.value.__cause__ is fault


def _ways(model: GeminiModel) -> list[Callable[[], Any]]:
    return [lambda: model.generate(ASKED), lambda: read(model)]
