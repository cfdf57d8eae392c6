"""Shared parts of the adapters: a client for each event loop, and the conversion of failures to `ModelError`."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import httpx2

from pellucid.concurrency.per_loop import PerLoop
from pellucid.errors import ConfigError, ErrorKind, ModelError, ModelTimeout
from pellucid.failures import describe, error_kind_of, kind_of_status
from pellucid.models.base import Settings
from pellucid.models.too_long import TOO_LONG, is_too_long
from pellucid.response_limits import Counter, Meter, ResponseRefused, is_event_stream, limiting_hooks
from pellucid.telemetry.secrets.masking import mask_text
from pellucid.text import shown_url
from pellucid.types import JSONObject

TIMEOUT: Final = httpx2.Timeout(600.0, connect=10.0)
"""Seconds to connect, and between two chunks of a response; `Limits.model_timeout` bounds the whole call."""

MIN_KEY_LENGTH: Final = 8
"""Shortest key that is masked, in characters; shorter ones are placeholders for servers without keys."""

MAX_ANSWER_BYTES: Final = 2**25
"""Most bytes of an answer that is not streamed, and of one event of a stream, after decompression."""
MAX_STREAM_BYTES: Final = 2**27
"""Most bytes of a whole stream, in which each word has an event of hundreds of bytes."""

_PORTS: Final[Mapping[str, int]] = {"https": 443, "http": 80}


@cache
def trusted() -> ssl.SSLContext:
    """Return the TLS context with the trusted certificates, shared by all clients."""
    return httpx2.create_ssl_context()


class RedirectRefused(ResponseRefused):
    """The server redirects the request to another one, which would get the conversation."""

    error_type = "redirect_refused"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def event_hooks() -> dict[str, list[Callable[..., Any]]]:
    """Return hooks for an HTTP client of a model: they limit responses, and refuse redirects to other servers."""
    hooks = limiting_hooks(_meter)
    hooks["response"].insert(0, _refuse_redirect)
    return hooks


def _meter(response: httpx2.Response) -> Meter:
    def counter(subject: str, limit: int) -> Counter:
        remedy = "ask for less with settings['max_tokens'], or check that the base URL is that of a model"
        return Counter(subject=subject, limit=limit, remedy=remedy)

    if not is_event_stream(response):
        return Meter(whole=counter("the answer", MAX_ANSWER_BYTES))
    return Meter(
        whole=counter("the streamed answer", MAX_STREAM_BYTES),
        event=counter("an event of the streamed answer", MAX_ANSWER_BYTES),
    )


async def _refuse_redirect(response: httpx2.Response) -> None:
    """Refuse a redirect to another host or port, or to plain HTTP.

    Raises:
        RedirectRefused: the response is one.
    """
    if not response.has_redirect_location:
        return
    url = response.request.url
    try:
        target = url.join(response.headers["location"])
    except httpx2.InvalidURL:  # the client says so
        return
    ports = [each.port or _PORTS.get(each.scheme) for each in (url, target)]
    is_upgrade = (url.scheme, target.scheme) == ("http", "https") and ports == [_PORTS["http"], _PORTS["https"]]
    if url.host == target.host and (is_upgrade or (url.scheme == target.scheme and ports[0] == ports[1])):
        return
    raise RedirectRefused(
        f"{_origin(url)} redirects to {_origin(target)}, which was not followed because it would get the conversation; "
        f"set base_url to that address if it is the right server",
        response.status_code,
    )


def _origin(url: httpx2.URL) -> str:
    """Return scheme, host and port, without what may be secret."""
    return f"{url.scheme}://{url.netloc.decode()}"


class _Client(Protocol):
    async def close(self) -> None: ...


_AnyClient = TypeVar("_AnyClient", bound=_Client)


class Clients(Generic[_AnyClient]):
    """One client of a vendor's SDK for each event loop, because connections of one loop do not work in another.

    Args:
        make: Creates a client; called in the event loop that needs it.
    """

    def __init__(self, make: Callable[[], _AnyClient]) -> None:
        trusted()  # now, because loading certificates takes 0.2 s, which would block an event loop
        self._clients = PerLoop(make)

    def get(self) -> _AnyClient:
        """Return the client of this event loop, creating it on first use."""
        return self._clients.get()

    async def aclose(self) -> None:
        """Close the client of this event loop; those of other loops end with their loops."""
        client = self._clients.pop()
        if client is not None:
            await client.close()


def failure(
    model: str,
    error: Exception,
    *,
    message: str | None = None,
    kind: ErrorKind | None = None,
    status: int | None = None,
    request_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    error_type: str = "",
    code: str | None = None,
    secrets: Iterable[str | None] = (),
) -> ModelError:
    """Convert a vendor's error to a `ModelError`; the caller raises it from the error.

    Args:
        model: The model's name.
        error: The error that the vendor's SDK raised.
        message: The vendor's message; defaults to the text of the error.
        kind: Kind of the failure, where the status and the type of the error do not determine it.
        status: HTTP status of the response, if there was one.
        request_id: The vendor's id of the request.
        headers: Headers of the response, for `retry-after`.
        error_type: Value of `error.type`, where the type of the error does not distinguish failures.
        code: The vendor's code of the failure.
        secrets: Keys to mask in the message; other secrets are masked as in telemetry.
    """
    if (refusal := _refusal_in(error)) is not None:
        message, kind, error_type = str(refusal), "invalid_response", refusal.error_type
        status = refusal.status if isinstance(refusal, RedirectRefused) else status
        refusal.with_traceback(None)  # its frames hold what was received
    kind = kind or _kind_of(error, status)
    details = [f"HTTP {status}"] if status is not None else []
    if request_id is not None:
        details.append(f"request {request_id}")
    text = message or describe(error)
    if kind == "invalid_request" and is_too_long(f"{code} {text}"):
        error_type = TOO_LONG
    for secret in secrets:
        if secret and len(secret) >= MIN_KEY_LENGTH:
            text = text.replace(secret, "[masked]")
    text, _ = mask_text(text)  # a vendor may quote another key than ours
    if details:
        text = f"{', '.join(details)}: {text}"
    wait = retry_after(headers or {})
    if kind == "timeout":
        return ModelTimeout(model, text, status=status, request_id=request_id, retry_after=wait)
    return ModelError(
        model,
        text,
        error_type=error_type,
        error_kind=kind,
        status=status,
        request_id=request_id,
        retry_after=wait,
    )


def _refusal_in(error: BaseException) -> ResponseRefused | None:
    """Return the error, or its cause, that says why a response was not read."""
    current: BaseException | None = error
    while current is not None and not isinstance(current, ResponseRefused):
        current = current.__cause__
    return current


def _kind_of(error: Exception, status: int | None) -> ErrorKind:
    if status is not None:
        return kind_of_status(status)
    if isinstance(error, httpx2.TimeoutException):
        return "timeout"
    if isinstance(error, httpx2.TransportError):
        return "unavailable"
    return "invalid_response" if isinstance(error, ValueError) else error_kind_of(error)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait, from `retry-after-ms` or `retry-after` (RFC 9110, section 10.2.3)."""
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            seconds = float(milliseconds) / 1000
            return max(0.0, seconds) if math.isfinite(seconds) else None
        if (value := headers.get("retry-after")) is None:
            return None
        if value.strip().replace(".", "", 1).isdigit():
            return float(value)
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):  # an invalid header
        return None


def server_at(url: str, *, owner: str) -> tuple[str, int]:
    """Return the values of `server.address` and `server.port` for the base URL of a model.

    Raises:
        ConfigError: `url` is not a base URL; the message starts with `owner`.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{owner}: {shown_url(url)!r} is not a base URL: {error}") from error
    if host is None or parts.scheme not in _PORTS:
        raise ConfigError(f"{owner}: {shown_url(url)!r} is not a base URL; it must start with http:// or https://")
    return host, port or _PORTS[parts.scheme]


def missing_key(owner: str, variable: str) -> ConfigError:
    """Return the error of a model without a key."""
    return ConfigError(f"{owner}: no API key; set the environment variable {variable}, or pass api_key=")


def json_object(value: object, name: str) -> JSONObject:
    """Return a vendor's JSON value if it is an object.

    Raises:
        ValueError: it is not an object; the message calls it `name`.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not a JSON object")  # noqa: TRY004  (the server's fault, not a caller's)
    return value


def cut_stream() -> EOFError:
    """Return the error of a stream that ended before the response was complete."""
    return EOFError("the stream ended before the response was complete")


def refuse_unknown(model: str, settings: Settings, supported: AbstractSet[str]) -> None:
    """Check that the vendor has a parameter for each setting.

    Raises:
        ModelError: it has none for a setting.
    """
    if unknown := sorted(name for name in settings if name != "extra" and name not in supported):
        raise ModelError(
            model,
            f"its API has no parameter for {', '.join(unknown)}; remove it from the agent's settings, or pass "
            f"the vendor's own parameter in settings['extra']",
            error_type="invalid_request",
            error_kind="invalid_request",
        )
