"""Models of OpenAI and of servers with compatible APIs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import anyio
import httpx2
import openai

from pellucid import semconv
from pellucid.errors import ConfigError, ErrorKind, ModelError
from pellucid.failures import describe
from pellucid.models.base import ModelRequest, ModelResponse, StreamItem
from pellucid.models.base_url import at_address, is_page, misses_api, without_api
from pellucid.models.guard import check_allowed
from pellucid.models.http import TIMEOUT, Clients, event_hooks, failure, json_object, missing_key, server_at, trusted
from pellucid.models.openai.chat import ChatCompletions
from pellucid.models.openai.content import ReportedError, members
from pellucid.models.openai.responses import Responses
from pellucid.models.sse import read_events
from pellucid.types import JSONObject

_OPENAI_URL: Final = "https://api.openai.com/v1"
_NO_KEY: Final = "none"
"""Placeholder for servers without keys, because OpenAI's SDK requires one."""


class OpenAIModel:
    """A model of OpenAI, or of a server with one of OpenAI's APIs.

    ```python
    OpenAIModel("gpt-6-sol")
    OpenAIModel("qwen3", base_url="http://localhost:11434/v1", provider_name="ollama")
    OpenAIModel("my-deployment", client=AsyncAzureOpenAI(max_retries=0), provider_name="azure.ai.openai")
    ```

    Args:
        name: The model's name on the server.
        api: `responses` or `chat`; defaults to `responses` for OpenAI and to `chat` for other servers.
        api_key: Defaults to `OPENAI_API_KEY` for every server; only OpenAI requires a key.
        base_url: Defaults to `OPENAI_BASE_URL`, or else to OpenAI's URL.
        provider_name: Value of `gen_ai.provider.name`.
        timeout: Seconds to connect, and between two chunks of a response.
        server_tools: Tools that the vendor runs, as its API defines them: `{"type": "web_search"}`.
        native_output: Whether the server accepts a JSON Schema for the answer; otherwise the schema is put into the
            instructions.
        client: A client to use unchanged, with its own key, URL, timeouts and retries. The caller closes it.

    Raises:
        ConfigError: the key is missing or invalid, or the base URL is invalid.
    """

    def __init__(
        self,
        name: str,
        *,
        api: Literal["responses", "chat"] | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        provider_name: str = "openai",
        timeout: float | httpx2.Timeout = TIMEOUT,
        server_tools: Sequence[Mapping[str, Any]] = (),
        native_output: bool = True,
        client: openai.AsyncOpenAI | None = None,
    ) -> None:
        self.name = name
        self.provider_name = provider_name
        self.native_output = native_output
        url = (
            str(client.base_url) if client is not None else base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI_URL
        )
        self._url = url
        self.server_address, self.server_port = server_at(url, owner="OpenAIModel")
        host = self.server_address or ""
        is_openai = f".{host}".endswith(".api.openai.com")
        self._custom_client = client
        self._secrets: tuple[str | None, ...] = (urlsplit(url).password,)
        if client is None:
            key = _key(api_key, required=is_openai)
            self._secrets += (key,)
            self._clients = Clients(
                lambda: openai.AsyncOpenAI(
                    api_key=key or _NO_KEY,
                    base_url=url,
                    timeout=timeout,
                    max_retries=0,
                    # The SDK's default client closes itself when it is garbage-collected, in any event loop.
                    http_client=openai.DefaultAsyncHttpxClient(
                        timeout=timeout, verify=trusted(), event_hooks=event_hooks()
                    ),
                )
            )
        else:
            self._secrets += (client.api_key,)
        self._api: Responses | ChatCompletions
        tools = tuple(server_tools)
        if (api or ("responses" if is_openai else "chat")) == "responses":
            self._api = Responses(
                model=name, provider_name=provider_name, native_output=native_output, server_tools=tools
            )
        else:
            self._api = ChatCompletions(
                model=name,
                provider_name=provider_name,
                is_openai=is_openai or host.endswith(".azure.com"),
                native_output=native_output,
                server_tools=tools,
            )

    @property
    def provider_tools(self) -> frozenset[tuple[str, str]]:
        """Vendor and type of the provider tools that the API runs: none with `api="chat"`."""
        return self._api.provider_tools

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r}, server={self.server_address!r}, path={self._api.path!r})"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the complete response."""
        check_allowed(self)
        body = self._body(request, stream=False)
        response = await self._send(body, stream=False)
        try:
            answer = _read(response)
            return self._with_attributes(self._api.response(answer), body, answer)
        except Exception as error:
            raise self._failure(error, response, kind="invalid_response") from error

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield deltas as they arrive, then the complete response."""
        check_allowed(self)
        body = self._body(request, stream=True)
        response = await self._send(body, stream=True)
        pieces = self._api.pieces()
        try:
            async with aclosing(read_events(response, lambda: pieces.is_over)) as events:
                async for data in events:
                    if not data.startswith("[DONE]"):
                        request.on_chunk()
                    for delta in pieces.add(data):
                        yield delta
            answer = pieces.whole()
            whole = self._with_attributes(self._api.response(answer), body, answer)
        except Exception as error:
            raise self._failure(error, response, kind="invalid_response") from error
        yield whole

    def _with_attributes(self, response: ModelResponse, body: JSONObject, answer: JSONObject) -> ModelResponse:
        """Add the attributes that the conventions define for OpenAI."""
        if self.provider_name != "openai":
            return response
        attributes = {
            semconv.OPENAI_API_TYPE: self._api.type,
            semconv.OPENAI_REQUEST_SERVICE_TIER: body.get("service_tier"),
            semconv.OPENAI_RESPONSE_SERVICE_TIER: answer.get("service_tier"),
            semconv.OPENAI_RESPONSE_SYSTEM_FINGERPRINT: answer.get("system_fingerprint"),
        }
        present = {name: value for name, value in attributes.items() if value and isinstance(value, str)}
        return replace(response, attributes=present)

    async def warm_up(self) -> None:
        """Create the client of this event loop."""
        if self._custom_client is None:
            self._clients.get()

    async def aclose(self) -> None:
        """Close the connections of this event loop, except those of a custom client."""
        if self._custom_client is None:
            await self._clients.aclose()

    def _body(self, request: ModelRequest, *, stream: bool) -> JSONObject:
        try:
            return self._api.body(request, stream=stream)
        except (TypeError, ValueError) as error:
            raise self._failure(error, kind="invalid_request") from error

    async def _send(self, body: JSONObject, *, stream: bool) -> httpx2.Response:
        """Return the HTTP response; its body has been read unless it is a stream."""
        client = self._custom_client if self._custom_client is not None else self._clients.get()
        try:
            # The raw response, because the SDK's types drop members that other servers send.
            return await client.post(self._api.path, cast_to=httpx2.Response, body=body, stream=stream)
        except Exception as error:
            raise self._failure(error, kind="invalid_request") from error

    def _failure(self, error: Exception, response: httpx2.Response | None = None, *, kind: ErrorKind) -> ModelError:
        """Convert an error to a `ModelError`; `kind` applies to invalid values in the request or in the response."""
        details: dict[str, Any] = {"message": describe(error)}
        if response is not None:
            details["request_id"] = response.headers.get("x-request-id")
        match error:
            case _ if response is not None and is_page(response):
                details |= {"message": self._without_api(response), "kind": "invalid_response"}
            case ReportedError():
                details |= {"message": str(error), "kind": error.kind, "status": error.status, "code": error.code}
            case openai.APIStatusError():
                details |= _details(error)
                if misses_api(error.response):
                    details["message"] = self._without_api(error.response)
            case openai.APIConnectionError():
                is_late = isinstance(error, openai.APITimeoutError)
                message = at_address(self._url, describe(error.__cause__ or error))
                details |= {"message": message, "kind": "timeout" if is_late else "unavailable"}
            case EOFError() | anyio.EndOfStream():
                details["kind"] = "unavailable"
            case ValueError() | TypeError() | LookupError() | AttributeError():
                details["kind"] = kind
        return failure(self.name, error, secrets=self._secrets, **details)

    def _without_api(self, response: httpx2.Response) -> str:
        remedy = "" if self._api.path == ChatCompletions.path else ', or use api="chat" if the server lacks this API'
        return without_api(self._url, self._api.path, response, remedy=remedy)


def _details(error: openai.APIStatusError) -> dict[str, Any]:
    return {
        "message": str(members(error.body).get("message") or error.message),
        # Not `rate_limited`: a retry does not help without credit.
        "kind": "auth" if "insufficient_quota" in {error.code, error.type} else None,
        "status": error.status_code,
        "code": error.code,
        "request_id": error.request_id,
        "headers": error.response.headers,
    }


def _key(api_key: str | None, *, required: bool) -> str | None:
    key = (api_key or os.environ.get("OPENAI_API_KEY") or "").strip()
    if not key and required:
        raise missing_key("OpenAIModel", "OPENAI_API_KEY")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("OpenAIModel: the API key has invalid characters; check that only the key was copied")
    return key or None


def _read(response: httpx2.Response) -> JSONObject:
    return json_object(response.json(), "the response")
