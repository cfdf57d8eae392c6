"""Models of Anthropic's Messages API: https://platform.claude.com/docs/en/api/messages.

This module has the client and its errors; `requests` and `responses` convert requests and responses.
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
from pellucid.messages import PROVIDER_TOOLS
from pellucid.models.anthropic.requests import SAMPLING, SETTINGS, body_of
from pellucid.models.anthropic.responses import Pieces, ReportedError, Turn
from pellucid.models.base import ModelDelta, ModelRequest, ModelResponse, StreamItem
from pellucid.models.base_url import at_address, is_page, misses_api, without_api
from pellucid.models.guard import check_allowed
from pellucid.models.http import TIMEOUT, Clients, event_hooks, failure, missing_key, refuse_unknown, server_at, trusted
from pellucid.models.sse import read_events
from pellucid.types import JSONObject

Client: TypeAlias = (
    anthropic.AsyncAnthropic
    | anthropic.AsyncAnthropicBedrock
    | anthropic.AsyncAnthropicBedrockMantle
    | anthropic.AsyncAnthropicVertex
)

MAX_TOKENS: Final = 16_384
"""Limit that every model from Claude 4 on supports, and that needs no streaming."""

CREDENTIALS: Final = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_PROFILE",
    "ANTHROPIC_IDENTITY_TOKEN",
    "ANTHROPIC_IDENTITY_TOKEN_FILE",
)
"""Environment variables in which the vendor's SDK looks for a key or another credential."""

_BASE_URL: Final = "https://api.anthropic.com"
_PATH: Final = "/v1/messages"
_WITH_SAMPLING: Final = {"anthropic-version": "2023-06-01"}
"""The API version with `temperature`, `top_p` and `top_k`, for the models that support them."""

_PLATFORMS: Final[Sequence[tuple[type[Any], str]]] = (
    (anthropic.AsyncAnthropicBedrock, "aws.bedrock"),
    (anthropic.AsyncAnthropicBedrockMantle, "aws.bedrock"),
    (anthropic.AsyncAnthropicVertex, "gcp.vertex_ai"),
)
_KEYS: Final = ("api_key", "auth_token", "access_token", "aws_secret_key", "aws_session_token")
"""Attributes of the SDK's clients that hold secrets."""

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
    """A model of Anthropic: `AnthropicModel("claude-sonnet-5-5")`.

    Args:
        name: The model's name.
        api_key: Defaults to `ANTHROPIC_API_KEY`.
        base_url: Defaults to `ANTHROPIC_BASE_URL`, or else to Anthropic's URL.
        max_tokens: Sent if the agent's settings have none, because the API requires it.
        cache: Mark the stable prefix of requests (tools, instructions) and the growing history for the vendor's prompt
            cache; `"1h"` keeps them for an hour instead of five minutes.
        server_tools: Tools that Anthropic runs, as its API defines them, such as
            `{"type": "web_search_20260318", "name": "web_search"}`.
        timeout: Seconds to connect, and between two chunks of a response.
        client: A client of the vendor's SDK, for Bedrock, Vertex AI or proxies. It is used unchanged, with its own key,
            URL, timeouts and retries, and the caller closes it.

    Attributes:
        provider_name: `anthropic`, or the platform of `client`: `aws.bedrock`, `gcp.vertex_ai`.

    Raises:
        ConfigError: the key is missing, or the base URL is invalid.
    """

    native_output = True
    provider_tools = frozenset(("anthropic", name) for name in PROVIDER_TOOLS["anthropic"])

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
        url = (
            str(client.base_url)
            if client is not None
            else base_url or os.environ.get("ANTHROPIC_BASE_URL") or _BASE_URL
        )
        self.name = name
        self.provider_name = next((platform for kind, platform in _PLATFORMS if isinstance(client, kind)), "anthropic")
        self._url = url
        self.server_address, self.server_port = server_at(url, owner=f"model {name!r}")
        self._max_tokens = max_tokens
        self._cache: JSONObject | None = None
        if cache:
            self._cache = {"type": "ephemeral", "ttl": "1h"} if cache == "1h" else {"type": "ephemeral"}
        self._server_tools = [dict(tool) for tool in server_tools]
        self._custom_client = client
        self._clients = Clients(
            lambda: anthropic.AsyncAnthropic(
                api_key=api_key or None,
                base_url=url,
                timeout=timeout,
                max_retries=0,
                open_telemetry=False,  # the SDK's own spans would duplicate every call
                # The SDK's default client closes itself when it is garbage-collected, in any event loop.
                http_client=anthropic.DefaultAsyncHttpxClient(
                    timeout=timeout, verify=trusted(), event_hooks=event_hooks()
                ),
            )
        )
        keys = [api_key, *(os.environ.get(variable) for variable in CREDENTIALS[:2])]
        keys += [getattr(client, name, None) for name in _KEYS]
        self._secrets = [key for key in keys if isinstance(key, str)]

    def __repr__(self) -> str:
        return f"AnthropicModel({self.name!r}, server={self.server_address!r})"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the complete response."""
        check_allowed(self)
        turn = Turn(self._body(request))
        while True:
            response = await self._send(turn.body, request, stream=False)
            with self._converted_errors(response):
                if (whole := turn.add(response.json())) is not None:
                    return whole

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield deltas as they arrive, then the complete response."""
        check_allowed(self)
        turn = Turn(self._body(request))
        whole: ModelResponse | None = None
        streamed = ""
        while whole is None:
            response = await self._send({**turn.body, "stream": True}, request, stream=True)
            pieces = Pieces()
            with self._converted_errors(response):
                async with aclosing(self._events(response, pieces.is_over)) as events:
                    async for event in events:
                        if not (isinstance(event, dict) and event.get("type") == "ping"):
                            request.on_chunk()
                        for delta in pieces.add(event):
                            streamed += delta.content if delta.type == "text" else ""
                            yield delta
                whole = turn.add(pieces.whole())
        if explanation := whole.message.text[len(streamed) :]:  # the vendor's reason for a refusal
            yield ModelDelta("text", explanation)
        yield whole

    async def warm_up(self) -> None:
        """Create the client of this event loop."""
        if self._custom_client is None:
            self._clients.get()

    async def aclose(self) -> None:
        """Close the connections of this event loop, except those of a custom client."""
        if self._custom_client is None:
            await self._clients.aclose()

    def _client(self) -> Client:
        return self._custom_client if self._custom_client is not None else self._clients.get()

    def _body(self, request: ModelRequest) -> JSONObject:
        refuse_unknown(self.name, request.settings, SETTINGS)
        return body_of(
            request,
            self.name,
            max_tokens=self._max_tokens,
            cache=self._cache,
            # The other platforms support cache marks on blocks only.
            cache_moves=self.provider_name == "anthropic",
            server_tools=self._server_tools,
        )

    async def _send(self, body: JSONObject, request: ModelRequest, *, stream: bool) -> httpx2.Response:
        """Return the HTTP response; its body has been read unless it is a stream."""
        options: anthropic.RequestOptions = {}
        if SAMPLING & request.settings.keys():
            options = {"headers": _WITH_SAMPLING}
        with self._converted_errors():
            # The raw response, because the SDK's types drop members that servers send and expect back.
            return await self._client().post(_PATH, cast_to=httpx2.Response, body=body, options=options, stream=stream)

    async def _events(self, response: httpx2.Response, is_over: Callable[[], bool]) -> AsyncGenerator[object]:
        """Yield the events of a streamed response."""
        if isinstance(self._custom_client, anthropic.AsyncAnthropicBedrock):
            # Bedrock sends AWS's own frames, which only the SDK can read.
            client = cast("Any", self._custom_client)
            async with anthropic.AsyncStream(cast_to=object, response=response, client=client) as frames:
                async for event in frames:
                    yield event
            return
        async with aclosing(read_events(response, is_over)) as events:
            async for data in events:
                yield json.loads(data)

    @contextmanager
    def _converted_errors(self, response: httpx2.Response | None = None) -> Iterator[None]:
        """Raise errors as `ModelError`, with the request id of the `response` that is read."""
        try:
            yield
        except Exception as error:
            raise self._failure(error, response) from error

    def _failure(self, error: Exception, response: httpx2.Response | None) -> ModelError:
        details: dict[str, Any] = {}
        if response is not None:
            details["request_id"] = response.headers.get("request-id")
        match error:
            case _ if response is not None and is_page(response):
                details |= {"message": without_api(self._url, _PATH, response), "kind": "invalid_response"}
            case ReportedError():
                details |= {"message": str(error), "kind": _KINDS.get(error.kind, "unavailable")}
            case anthropic.APIStatusError():
                details |= _details(error)
                if misses_api(error.response):
                    details["message"] = without_api(self._url, _PATH, error.response)
            case anthropic.APIConnectionError() | httpx2.TransportError():
                details |= self._connection_details(error)
            case anthropic.CredentialsError():
                details["kind"] = "auth"
        return failure(self.name, error, secrets=self._secrets, **details)

    def _connection_details(self, error: Exception) -> dict[str, Any]:
        """Return message and kind of a connection that could not be opened, broke or timed out."""
        cause = (error.__cause__ or error) if isinstance(error, anthropic.APIConnectionError) else error
        is_late = isinstance(cause, httpx2.TimeoutException)
        # The text of a timeout depends on the transport.
        description = type(cause).__name__ if is_late else describe(cause)
        return {"message": at_address(self._url, description), "kind": "timeout" if is_late else "unavailable"}


def _details(error: anthropic.APIStatusError) -> dict[str, Any]:
    """Return the details of an error response. An error within a stream has the successful status of its start."""
    has_failed = error.response.is_error
    return {
        "message": error.api_message or error.message,
        "kind": _KINDS.get(error.type or "", None if has_failed else "unavailable"),
        "status": error.status_code if has_failed else None,
        "request_id": error.request_id,
        "headers": error.response.headers,
    }
