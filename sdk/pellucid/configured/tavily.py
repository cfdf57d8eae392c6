"""Web search and extraction by Tavily (extra `tavily`)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SecretStr

from pellucid.configured.options import ToolOptions
from pellucid.errors import ConfigError, ErrorKind, ToolError
from pellucid.failures import describe, error_kind_of, kind_of_status
from pellucid.tools import Tool, tool

_KEY: Final = re.compile(r"[!-~]+")

_STATUSES: Final[Mapping[str, int]] = {
    "BadRequestError": 400,
    "InvalidAPIKeyError": 401,
    "ForbiddenError": 403,
    "UsageLimitExceededError": 429,
}
"""HTTP status by the class of Tavily's exception."""


class TavilyOptions(ToolOptions):
    """Options of both tools.

    Attributes:
        api_key: Key; `TAVILY_API_KEY` by default.
        base_url: Address of the API, for a proxy of your own.
        timeout: Seconds for one call.
    """

    api_key: SecretStr | None = None
    base_url: str | None = Field(default=None, pattern="^https?://")
    timeout: float = Field(default=30.0, ge=1, le=60)


class TavilySearchOptions(TavilyOptions):
    """Options of `tavilySearch`, under the names of Tavily's API.

    Attributes:
        max_results: Maximum number of results, 1 to 20.
    """

    search_depth: Literal["basic", "advanced"] = "basic"
    topic: Literal["general", "news", "finance"] = "general"
    max_results: int = Field(default=5, ge=1, le=20)
    include_answer: bool = False
    include_domains: list[str] | None = None
    exclude_domains: list[str] | None = None


class TavilyExtractOptions(TavilyOptions):
    """Options of `tavilyExtract`, under the names of Tavily's API."""

    extract_depth: Literal["basic", "advanced"] = "basic"
    format: Literal["markdown", "text"] = "markdown"


def tavily_search(options: TavilySearchOptions) -> Tool:
    """Return the tool that searches the web.

    Raises:
        ConfigError: the extra `tavily` is not installed, or the key is missing or invalid.
    """
    call = _method("search", options)

    @tool(idempotent=True, timeout=options.timeout)
    async def search(query: Annotated[str, Field(min_length=1)]) -> Any:
        """Search the web for current information.

        Args:
            query: Words of the search, as for a search engine.
        """
        return await call(query=query)

    return search


def tavily_extract(options: TavilyExtractOptions) -> Tool:
    """Return the tool that reads web pages.

    Raises:
        ConfigError: the extra `tavily` is not installed, or the key is missing or invalid.
    """
    call = _method("extract", options)

    @tool(idempotent=True, timeout=options.timeout)
    async def extract(urls: Annotated[list[str], Field(min_length=1, max_length=20)]) -> Any:
        """Return the content of web pages.

        Args:
            urls: Addresses of the pages, at most 20.
        """
        return await call(urls=urls)

    return extract


def _method(name: str, options: TavilyOptions) -> Callable[..., Any]:
    """Return a function that calls a method of Tavily's client."""
    try:
        import httpx
        from tavily import AsyncTavilyClient
    except ImportError as error:
        raise ConfigError(f"tavily-python cannot be imported ({error}); install pellucid[tavily]") from error
    key = _key(options.api_key)
    certificates = httpx.create_ssl_context()  # now, because loading them would block an event loop
    parameters = options.model_dump(exclude={"api_key", "base_url"}, exclude_none=True)

    async def call(**arguments: Any) -> Any:
        # A connection for each call: there is none to close, and none that belongs to another event loop.
        async with httpx.AsyncClient(verify=certificates) as connections:
            client = AsyncTavilyClient(key, api_base_url=options.base_url, client=connections)
            try:
                return await getattr(client, name)(**arguments, **parameters)
            except Exception as error:  # noqa: BLE001  (raised again as the failure of the tool)
                cause = error if key not in str(error) else None  # the texts of causes are recorded, too
                raise _failure(name, error, key) from cause

    return call


def _key(option: SecretStr | None) -> str:
    """Return the key of the configuration or the environment.

    Raises:
        ConfigError: it is missing, or no HTTP header can contain it.
    """
    key = (option.get_secret_value() if option is not None else os.environ.get("TAVILY_API_KEY", "")).strip()
    if not key:
        raise ConfigError("the key is missing; set apiKey or the environment variable TAVILY_API_KEY")
    if _KEY.fullmatch(key) is None:
        raise ConfigError("the key has characters that are not printable ASCII, or spaces")
    return key


def _failure(method: str, error: Exception, key: str) -> ToolError:
    status = _STATUSES.get(type(error).__name__) or getattr(getattr(error, "response", None), "status_code", None)
    kind: ErrorKind
    if status is not None:
        kind = kind_of_status(status)
    elif type(error).__name__ == "TimeoutError":  # Tavily's own is not a built-in `TimeoutError`
        kind = "timeout"
    elif isinstance(error, ValueError | TypeError | AttributeError):  # not JSON, or not an object
        kind = "invalid_response"
    else:
        kind = error_kind_of(error)
        kind = "unavailable" if kind == "unknown" else kind
    text = describe(error).replace(key, "[masked]")
    return ToolError(f"Tavily's {method} failed: {text}", error_type=kind, error_kind=kind, status=status)
