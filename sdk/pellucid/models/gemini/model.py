"""Models of Gemini, through Google's API (`GEMINI_API_KEY`) or Vertex AI."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import httpx2
from google import genai
from google.auth.exceptions import GoogleAuthError, TransportError
from google.genai import errors, types
from pydantic import ValidationError

from pellucid.errors import ErrorKind, ModelError
from pellucid.failures import describe
from pellucid.messages import PROVIDER_TOOLS
from pellucid.models.base import ModelRequest, ModelResponse, StreamItem
from pellucid.models.base_url import at_address
from pellucid.models.gemini.http import Connection, NotAnEvent, make_streams_closable, streamed
from pellucid.models.gemini.requests import (
    Dialect,
    functions,
    parameters,
    problems_of,
    provider_tools,
    refused,
    server_tool,
)
from pellucid.models.gemini.responses import Answer
from pellucid.models.guard import check_allowed
from pellucid.models.http import TIMEOUT, Clients, failure, missing_key, server_at

_KEYS: Final = ("GOOGLE_API_KEY", "GEMINI_API_KEY")
_BASE_URL: Final = "https://generativelanguage.googleapis.com/"
_BEFORE_3: Final = re.compile(r"(?:^|/)gemini-[12][.-]")
_CLIENT_CLOSED_REQUEST: Final = 499


class GeminiModel:
    """A Gemini model.

    ```python
    GeminiModel("gemini-3.8-flash")
    GeminiModel("gemini-3.8-flash", server_tools=[{"google_search": {}}])
    GeminiModel("gemini-3.8-flash", client=genai.Client(vertexai=True, project="shop", location="global"))
    ```

    `settings["reasoning_level"]` is one of `minimal`, `low`, `medium`, `high` and `xhigh`, or a number of tokens for
    models before Gemini 3; setting it requests thoughts. `FilePart.file_id` is the `uri` of an uploaded file.

    Args:
        name: The model's name, such as `gemini-3.8-flash`.
        api_key: Defaults to `GOOGLE_API_KEY`, or else to `GEMINI_API_KEY`.
        base_url: Defaults to `GOOGLE_GEMINI_BASE_URL`, or else to Google's URL.
        timeout: Seconds to connect, and between two chunks of a response.
        server_tools: Tools that the API runs, as it defines them: `{"google_search": {}}`, `{"code_execution": {}}`,
            `{"url_context": {}}`. Models before Gemini 3 refuse them together with other tools.
        client: A client of the SDK, such as one for Vertex AI. It is used unchanged but without retries, and the caller
            closes it. For trio pass it an HTTP client: `types.HttpOptions(httpx_async_client=httpx2.AsyncClient())`.
        native_output: Send the schema of `Agent(output=)` to the API. Models before Gemini 3 refuse that together with
            tools. For them and for models other than Gemini, the schema is put into the instructions unless this is
            true.

    Raises:
        ConfigError: the key is missing, the base URL is invalid, or the SDK does not support a server tool.
    """

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: httpx2.Timeout | float | None = TIMEOUT,
        server_tools: Sequence[Mapping[str, Any]] = (),
        client: genai.Client | None = None,
        native_output: bool | None = None,
    ) -> None:
        self.name = name
        self._custom_client = client
        if client is not None:
            # The options of a client are not public.
            base_url = client._api_client.get_read_only_http_options()["base_url"]  # noqa: SLF001
            self._key = client._api_client.api_key  # noqa: SLF001
        else:
            base_url = base_url or os.environ.get("GOOGLE_GEMINI_BASE_URL") or _BASE_URL
            self._key = key = _key(name, api_key)
            timeouts, url = httpx2.Timeout(timeout), base_url
            for kind in (types.GenerateContentConfig, types.GenerateContentResponse):
                kind.model_rebuild()  # now, because it takes 0.1 s, which would block an event loop
            self._connections = Clients(lambda: Connection(api_key=key, base_url=url, timeout=timeouts))
        self._url = base_url or _BASE_URL
        self.server_address, self.server_port = server_at(self._url, owner=repr(self))
        is_vertex = client is not None and client.vertexai
        self.provider_name = "gcp.vertex_ai" if is_vertex else "gcp.gemini"
        is_new = "gemini" in name and not _BEFORE_3.search(name)
        self.provider_tools = frozenset(("gemini", tool) for tool in PROVIDER_TOOLS["gemini"])
        self.native_output = is_new if native_output is None else native_output
        self._dialect = Dialect(model=name, provider=self.provider_name, is_signed=is_new)
        self._server_tools = [server_tool(name, tool) for tool in server_tools]
        self._may_mix_tools = is_new and not is_vertex

    def __repr__(self) -> str:
        return f"GeminiModel({self.name!r})"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the complete response."""
        check_allowed(self)
        call = self._call(request)
        answer = Answer(self.name, self.provider_name)
        token: bytes | None = None
        while True:
            config = call["config"].model_copy(update={"continuation_token": token})
            try:
                piece = await self._models().generate_content(**{**call, "config": config})
            except Exception as error:
                raise self._failure(error) from error
            for _ in answer.add(piece):
                pass
            if (token := answer.next_token()) is None:
                return answer.response()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamItem]:
        """Yield deltas as they arrive, then the complete response."""
        check_allowed(self)
        call = self._call(request)
        answer = Answer(self.name, self.provider_name)
        token: bytes | None = None
        while True:
            config = call["config"].model_copy(update={"continuation_token": token})
            async with aclosing(self._pieces({**call, "config": config})) as pieces:
                async for piece in pieces:
                    request.on_chunk()
                    for delta in answer.add(piece):
                        yield delta
            if (token := answer.next_token()) is None:
                break
        yield answer.response()

    async def warm_up(self) -> None:
        """Create the client of this event loop."""
        if self._custom_client is None:
            self._connections.get()

    async def aclose(self) -> None:
        """Close the connections of this event loop, except those of a custom client."""
        if self._custom_client is None:
            await self._connections.aclose()

    async def _pieces(self, call: Mapping[str, Any]) -> AsyncGenerator[types.GenerateContentResponse]:
        try:
            if self._custom_client is not None:
                make_streams_closable(self._custom_client)
            stream = await self._models().generate_content_stream(**call)
            async with aclosing(streamed(stream)) as pieces:
                async for piece in pieces:
                    yield piece
        except Exception as error:
            raise self._failure(error) from error

    def _models(self) -> Any:
        client = self._connections.get().client if self._custom_client is None else self._custom_client
        return client.aio.models

    def _call(self, request: ModelRequest) -> dict[str, Any]:
        """Return the arguments of the SDK's methods.

        Raises:
            ModelError: the API does not support a part or setting of the request.
        """
        try:
            return {
                "model": self.name,
                "contents": self._dialect.contents(request.messages),
                "config": self._config(request),
            }
        except ValueError as error:  # raised by the SDK's types for values that the API does not support
            raise refused(self.name, f"the API does not support the request: {_message(error)}") from error

    def _config(self, request: ModelRequest) -> types.GenerateContentConfig:
        settings = request.settings
        output = request.output if self.native_output else None
        # Together with other tools, the API runs its own only if it returns their calls, as parts to send back.
        own_tools = [*self._server_tools, *provider_tools(self.name, request.tools)]
        declared = functions(request.tools)
        mixes = self._may_mix_tools and bool(own_tools) and bool(declared)
        return types.GenerateContentConfig(
            **parameters(self.name, settings),
            system_instruction=self._dialect.instructions(request),
            tools=[*own_tools, *declared] or None,
            tool_config=types.ToolConfig(include_server_side_tool_invocations=True) if mixes else None,
            response_mime_type="application/json" if output is not None else None,
            response_json_schema=output.schema if output is not None else None,
            # The run calls the tools, and only its reliability rules decide on retries.
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
            automatic_continuation=False,
            http_options=types.HttpOptions(
                retry_options=types.HttpRetryOptions(attempts=1), extra_body=dict(settings.get("extra", {})) or None
            ),
        )

    def _failure(self, error: Exception) -> ModelError:
        """Convert an error of the SDK or of its HTTP client to a `ModelError`."""
        if not isinstance(error, errors.APIError):
            message = _message(error)
            if isinstance(error, httpx2.TransportError):
                message = at_address(self._url, describe(error))
            return failure(self.name, error, message=message, kind=_kind_of(error), secrets=[self._key])
        received: Mapping[str, str] = getattr(error.response, "headers", None) or {}
        headers = {name.lower(): value for name, value in received.items()}
        details = _details(error)
        if "RetryInfo" in details and "retry-after" not in headers:
            headers["retry-after"] = str(details["RetryInfo"].get("retryDelay", "")).removesuffix("s")
        kind: ErrorKind | None = None
        if str(details.get("ErrorInfo", {}).get("reason", "")).startswith("API_KEY"):
            kind = "auth"  # the API reports an invalid key with status 400
        elif error.code == _CLIENT_CLOSED_REQUEST:
            kind = "unavailable"
        return failure(
            self.name,
            error,
            message=str(error.message) if error.message else None,
            kind=kind,
            status=error.code,
            error_type=str(error.code),  # the SDK has one class for all client errors
            request_id=details.get("RequestInfo", {}).get("requestId") or headers.get("x-request-id"),
            headers=headers,
            secrets=[self._key],
        )


def _key(model: str, api_key: str | None) -> str:
    for key in (api_key, *(os.environ.get(name) for name in _KEYS)):
        if key and key.strip():
            return key.strip()
    raise missing_key(f"GeminiModel({model!r})", _KEYS[1])


def _details(error: errors.APIError) -> dict[str, Mapping[str, Any]]:
    """Return the details of an error by their short type name, such as `RetryInfo`."""
    body = error.details.get("error") if isinstance(error.details, dict) else None
    details = body.get("details") if isinstance(body, dict) else None
    return {
        str(detail.get("@type", "")).rpartition(".")[2]: detail
        for detail in (details if isinstance(details, list) else ())
        if isinstance(detail, dict)
    }


def _kind_of(error: Exception) -> ErrorKind | None:
    """Return the kind of an error that is not the API's; None for types that all adapters share."""
    module = type(error).__module__.partition(".")[0]
    if isinstance(error, GoogleAuthError):
        return "unavailable" if isinstance(error, TransportError) else "auth"
    if module in {"aiohttp", "httpx"}:  # custom clients may use them
        return "timeout" if "Timeout" in type(error).__name__ else "unavailable"
    if isinstance(error, ValidationError | json.JSONDecodeError | errors.UnknownApiResponseError | NotAnEvent):
        return "invalid_response"
    if isinstance(error, ValueError):  # the SDK refuses parameters that the API lacks
        return "invalid_request"
    if isinstance(error, TypeError | AttributeError | LookupError):  # the SDK fails on an unexpected response
        return "invalid_response"
    return None


def _message(error: Exception) -> str | None:
    """Return the message of an error without quoted content; None if the error's own text has none."""
    if isinstance(error, ValidationError):
        return problems_of(error)
    if isinstance(error, errors.UnknownApiResponseError):
        return "an event of its stream is not JSON"
    return str(error) if isinstance(error, ValueError) else None
