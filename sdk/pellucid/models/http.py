"""What adapters share: a client for each event loop, and how a vendor's failure becomes a `ModelError`."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Final, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import httpx2

from pellucid.concurrency.per_loop import PerLoop
from pellucid.errors import ConfigError, ErrorKind, ModelError, ModelTimeout
from pellucid.failures import describe, error_kind_of, kind_of_status
from pellucid.models.base import Settings
from pellucid.types import JSONObject

TIMEOUT: Final = httpx2.Timeout(600.0, connect=10.0)
"""Seconds for a connection, and between two pieces of an answer; `Limits.model_timeout` bounds the whole call."""

SHORTEST_KEY: Final = 8
"""Characters of a key that is one; shorter ones are placeholders for servers that ask for none."""

_PORTS: Final[Mapping[str, int]] = {"https": 443, "http": 80}


@cache
def trusted() -> ssl.SSLContext:
    """Return whom to trust, for all clients."""
    return httpx2.create_ssl_context()


class _Client(Protocol):
    async def close(self) -> None: ...


_AnyClient = TypeVar("_AnyClient", bound=_Client)


class Clients(Generic[_AnyClient]):
    """One client of a vendor's SDK for each event loop: connections of one loop do not work in another.

    Args:
        make: Makes a client; called in the loop that needs it.
    """

    def __init__(self, make: Callable[[], _AnyClient]) -> None:
        trusted()  # now, because what it loads and reads takes 0.2 s, in which an event loop would stand still
        self._clients = PerLoop(make)

    def get(self) -> _AnyClient:
        """Return the client of this event loop."""
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
    secrets: Iterable[str | None] = (),
) -> ModelError:
    """Return what to raise for a vendor's error.

    Args:
        model: The model's name.
        error: What the vendor's SDK raised; raise what is returned from it.
        message: What the vendor says; the error's own text if not given.
        kind: What it means, where the status and the type of the error do not say it.
        status: HTTP status of the answer, if there was one.
        request_id: The vendor's id of the request.
        headers: Those of the answer, for `retry-after`.
        error_type: Value of `error.type`, where the type of the error does not tell one failure from another.
        secrets: Keys, which the text must not show.
    """
    kind = kind or _kind_of(error, status)
    told = [f"HTTP {status}"] if status is not None else []
    if request_id is not None:
        told.append(f"request {request_id}")
    text = message or describe(error)
    for secret in secrets:
        if secret and len(secret) >= SHORTEST_KEY:
            text = text.replace(secret, "[masked]")
    if told:
        text = f"{', '.join(told)}: {text}"
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


def _kind_of(error: Exception, status: int | None) -> ErrorKind:
    if status is not None:
        return kind_of_status(status)
    if isinstance(error, httpx2.TimeoutException):
        return "timeout"
    if isinstance(error, httpx2.TransportError):
        return "unavailable"
    return "invalid_response" if isinstance(error, ValueError) else error_kind_of(error)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that `retry-after-ms` or `retry-after` ask for (RFC 9110, section 10.2.3)."""
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            seconds = float(milliseconds) / 1000
            return max(0.0, seconds) if math.isfinite(seconds) else None
        if (given := headers.get("retry-after")) is None:
            return None
        if given.strip().replace(".", "", 1).isdigit():
            return float(given)
        return max(0.0, (parsedate_to_datetime(given) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):  # a header that says nothing
        return None


def server_at(url: str, *, asked_by: str) -> tuple[str, int]:
    """Return the values of `server.address` and `server.port` for the base URL of a model.

    Raises:
        ConfigError: it is none; says who asked.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{asked_by}: {url!r} is no base URL: {error}") from error
    if host is None or parts.scheme not in _PORTS:
        raise ConfigError(f"{asked_by}: {url!r} is no base URL; write it with http:// or https://")
    return host, port or _PORTS[parts.scheme]


def missing_key(owner: str, variable: str) -> ConfigError:
    """Return the error of a model without a key."""
    return ConfigError(f"{owner}: there is no key; set the environment variable {variable}, or pass api_key=")


def json_object(value: object, name: str) -> JSONObject:
    """Return a vendor's JSON value, if it is an object.

    Raises:
        ValueError: it is not; the message calls it `name`.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not a JSON object")  # noqa: TRY004  (the server's fault, not a caller's)
    return value


def cut_stream() -> EOFError:
    """Return the error of a stream that ended too early."""
    return EOFError("the stream ended before the answer did")


def refuse_unknown(model: str, settings: Settings, known: AbstractSet[str]) -> None:
    """Refuse settings that a vendor has no parameter for.

    Raises:
        ModelError: there is one.
    """
    if unknown := sorted(name for name in settings if name != "extra" and name not in known):
        raise ModelError(
            model,
            f"its API has no parameter for {', '.join(unknown)}; remove that from the agent's settings, or pass what "
            f"the vendor calls it in settings['extra']",
            error_type="invalid_request",
            error_kind="invalid_request",
        )
