"""Anthropic's Messages API: https://platform.claude.com/docs/en/api/messages.

Requests are written in `anthropic_messages` and answers read in `anthropic_answers`; this is the client and its errors.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final, Literal, TypeAlias, cast

import anthropic
import httpx2

from pellucid.errors import ErrorKind, ModelError
from pellucid.failures import describe
from pellucid.models.anthropic.requests import SAMPLING, SETTINGS, body_of
from pellucid.models.anthropic.responses import Pieces, ReportedError, Turn
from pellucid.models.base import ModelDelta, ModelRequest, ModelResponse, StreamItem
from pellucid.models.http import TIMEOUT, Clients, failure, missing_key, refuse_unknown, server_at, trusted
from pellucid.models.sse import read_events
from pellucid.types import JSONObject

Client: TypeAlias = (
    anthropic.AsyncAnthropic
    | anthropic.AsyncAnthropicBedrock
    | anthropic.AsyncAnthropicBedrockMantle
    | anthropic.AsyncAnthropicVertex
)

MAX_TOKENS: Final = 16_384
"""What every model from Claude 4 on can write, and a whole answer can be waited for in one piece."""

CREDENTIALS: Final = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_PROFILE",
    "ANTHROPIC_IDENTITY_TOKEN",
    "ANTHROPIC_IDENTITY_TOKEN_FILE",
)
"""Variables in which the vendor's SDK looks for a key, or for another way to get one."""

_HOME: Final = "https://api.anthropic.com"
_PATH: Final = "/v1/messages"
_WITH_SAMPLING: Final = {"anthropic-version": "2023-06-01"}
"""The version of the API that still has `temperature`, `top_p` and `top_k`, for the models that do."""

_PLATFORMS: Final[Sequence[tuple[type[Any], str]]] = (
    (anthropic.AsyncAnthropicBedrock, "aws.bedrock"),
    (anthropic.AsyncAnthropicBedrockMantle, "aws.bedrock"),
    (anthropic.AsyncAnthropicVertex, "gcp.vertex_ai"),
)
_KEYS: Final = ("api_key", "auth_token", "access_token", "aws_secret_key", "aws_session_token")
"""Attributes in which the SDK's clients keep what must not be told."""

_KINDS: Final[Mapping[str, ErrorKind]] = {
    "api_error": "unavailable",
    "authentication_error": "auth",
    "billing_error": "auth",
    "invalid_request_error": "invalid_request",
    "not_found_error": "invalid_request",
    "overloaded_error": "unavailable",
    "permission_error": "auth",
    "rate_limit_error": "rate_limited",
    "request_too_large": "invalid_request",
    "timeout_error": "timeout",
}


class AnthropicModel:
    """A model of Anthropic's: `AnthropicModel("claude-sonnet-5-5")`.

    Args:
        name: The model's name.
        api_key: `ANTHROPIC_API_KEY` if not given.
        base_url: `ANTHROPIC_BASE_URL` if not given, else Anthropic's own address.
        max_tokens: Sent when the agent's settings have none, because the API asks for it.
        cache: Mark the stable beginning of requests (tools, instructions) and the growing history for the vendor's
            prompt cache; `"1h"` keeps them for an hour instead of five minutes.
        server_tools: Tools that Anthropic runs itself, as its API defines them, such as
            `{"type": "web_search_20260318", "name": "web_search"}`.
        timeout: Seconds for a connection and between two pieces of an answer.
        client: A client of the vendor's SDK, for Bedrock, Vertex AI or proxies; used as it is, with its own key,
            address, time-outs and retries, and yours to close.

    Attributes:
        provider_name: `anthropic`, or the platform of a client that was given: `aws.bedrock`, `gcp.vertex_ai`.

    Raises:
        ConfigError: there is no key, or the address cannot be one.
    """

    native_output = True

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        max_tokens: int = MAX_TOKENS,
        cache: bool | Literal["1h"] = True,
        server_tools: Sequence[Mapping[str, Any]] = (),
        timeout: float | httpx2.Timeout = TIMEOUT,
        client: Client | None = None,
    ) -> None:
        if client is None and not api_key and not any(os.environ.get(variable) for variable in CREDENTIALS):
            raise missing_key(f"AnthropicModel({name!r})", "ANTHROPIC_API_KEY")
        url = str(client.base_url) if client is not None else base_url or os.environ.get("ANTHROPIC_BASE_URL") or _HOME
        self.name = name
        self.provider_name = next((told for kind, told in _PLATFORMS if isinstance(client, kind)), "anthropic")
        self.server_address, self.server_port = server_at(url, asked_by=f"model {name!r}")
        self._max_tokens = max_tokens
        self._cache: JSONObject | None = None
        if cache:
            self._cache = {"type": "ephemeral", "ttl": "1h"} if cache == "1h" else {"type": "ephemeral"}
        self._server_tools = [dict(each) for each in server_tools]
        self._given = client
        self._clients = Clients(
            lambda: anthropic.AsyncAnthropic(
                api_key=api_key or None,
                base_url=url,
                timeout=timeout,
                max_retries=0,
                open_telemetry=False,  # its own spans would count every call twice
                # The SDK's default closes itself when it is collected, in whichever event loop runs then.
                http_client=anthropic.DefaultAsyncHttpxClient(timeout=timeout, verify=trusted()),
            )
        )
        keys = [api_key, *(os.environ.get(variable) for variable in CREDENTIALS[:2])]
        keys += [getattr(client, name, None) for name in _KEYS]
        self._secrets = [key for key in keys if isinstance(key, str)]

    def __repr__(self) -> str:
        return f"AnthropicModel({self.name!r}, server={self.server_address!r})"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the whole answer."""
        turn = Turn(self._body(request))
        while True:
            response = await self._ask(turn.body, request, stream=False)
            with self._failing(response):
                if (whole := turn.add(response.json())) is not None:
                    return whole

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield what arrives, and last the whole answer."""
        turn = Turn(self._body(request))
        whole: ModelResponse | None = None
        said = ""
        while whole is None:
            response = await self._ask({**turn.body, "stream": True}, request, stream=True)
            pieces = Pieces()
            with self._failing(response):
                async with aclosing(self._events(response, pieces.is_over)) as events:
                    async for event in events:
                        if not (isinstance(event, dict) and event.get("type") == "ping"):
                            request.on_chunk()
                        for delta in pieces.add(event):
                            said += delta.content if delta.type == "text" else ""
                            yield delta
                whole = turn.add(pieces.whole())
        if unsaid := whole.message.text[len(said) :]:  # why the vendor refused to answer
            yield ModelDelta("text", unsaid)
        yield whole

    async def warm_up(self) -> None:
        """Make the client of this event loop."""
        if self._given is None:
            self._clients.get()

    async def aclose(self) -> None:
        """Close the connections of this event loop; a client that was given stays open."""
        if self._given is None:
            await self._clients.aclose()

    def _client(self) -> Client:
        return self._given if self._given is not None else self._clients.get()

    def _body(self, request: ModelRequest) -> JSONObject:
        refuse_unknown(self.name, request.settings, SETTINGS)
        return body_of(
            request,
            self.name,
            max_tokens=self._max_tokens,
            cache=self._cache,
            # The other platforms know marks on blocks only.
            cache_moves=self.provider_name == "anthropic",
            server_tools=self._server_tools,
        )

    async def _ask(self, body: JSONObject, request: ModelRequest, *, stream: bool) -> httpx2.Response:
        """Return the HTTP response; its body has been read unless it is a stream."""
        options: anthropic.RequestOptions = {}
        if SAMPLING & request.settings.keys():
            options = {"headers": _WITH_SAMPLING}
        with self._failing():
            # As it came: the SDK's types know less than servers send, and change what goes back to them.
            return await self._client().post(_PATH, cast_to=httpx2.Response, body=body, options=options, stream=stream)

    async def _events(self, response: httpx2.Response, is_over: Callable[[], bool]) -> AsyncGenerator[object]:
        """Yield the events of a streamed answer."""
        if isinstance(self._given, anthropic.AsyncAnthropicBedrock):
            # These come in AWS's own frames, which only the SDK can read.
            client = cast("Any", self._given)
            async with anthropic.AsyncStream(cast_to=object, response=response, client=client) as frames:
                async for event in frames:
                    yield event
            return
        async with aclosing(read_events(response, is_over)) as events:
            async for data in events:
                yield json.loads(data)

    @contextmanager
    def _failing(self, response: httpx2.Response | None = None) -> Iterator[None]:
        """Raise what goes wrong as a `ModelError`. `response`: the one that is read."""
        try:
            yield
        except Exception as error:
            raise self._failure(error, response) from error

    def _failure(self, error: Exception, response: httpx2.Response | None) -> ModelError:
        details: dict[str, Any] = {}
        if response is not None:
            details["request_id"] = response.headers.get("request-id")
        match error:
            case ReportedError():
                details |= {"message": str(error), "kind": _KINDS.get(error.kind, "unavailable")}
            case anthropic.APIStatusError():
                details |= _details(error)
            case anthropic.APIConnectionError() | httpx2.TransportError():
                details |= self._unconnected(error)
            case anthropic.CredentialsError():
                details["kind"] = "auth"
        return failure(self.name, error, secrets=self._secrets, **details)

    def _unconnected(self, error: Exception) -> dict[str, Any]:
        """Return what a connection that was not made, that broke or that brought nothing more says."""
        said = (error.__cause__ or error) if isinstance(error, anthropic.APIConnectionError) else error
        is_late = isinstance(said, httpx2.TimeoutException)
        # The text of a time-out is that of how it is made.
        what = type(said).__name__ if is_late else describe(said)
        told = f"{what} (server {self.server_address}:{self.server_port})"
        return {"message": told, "kind": "timeout" if is_late else "unavailable"}


def _details(error: anthropic.APIStatusError) -> dict[str, Any]:
    """Return what an answer with a status says; one that failed in the middle of a stream has that of its beginning."""
    has_failed = error.response.is_error
    return {
        "message": error.api_message or error.message,
        "kind": _KINDS.get(error.type or "", None if has_failed else "unavailable"),
        "status": error.status_code if has_failed else None,
        "request_id": error.request_id,
        "headers": error.response.headers,
    }
