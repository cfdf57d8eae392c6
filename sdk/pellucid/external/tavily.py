"""Web search and extraction by Tavily (extra `tavily`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr

from pellucid.concurrency.per_loop import PerLoop
from pellucid.errors import ConfigError, ErrorKind, ToolError
from pellucid.external.options import ToolOptions
from pellucid.tools import Tool, tool

_KINDS: dict[str, ErrorKind] = {
    "UsageLimitExceededError": "rate_limited",
    "ForbiddenError": "auth",
    "InvalidAPIKeyError": "auth",
    "BadRequestError": "invalid_request",
    "TimeoutError": "timeout",
}
"""Kinds of failures by the class of Tavily's exception."""


class TavilyOptions(ToolOptions):
    """Options of both tools.

    Attributes:
        api_key: Key; `TAVILY_API_KEY` by default.
        base_url: Address of the API, for a proxy of your own.
        timeout: Seconds for one request.
    """

    api_key: SecretStr | None = None
    base_url: str | None = None
    timeout: float = Field(default=30.0, gt=0, le=120)


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
        ConfigError: the extra `tavily` is not installed, or there is no key.
    """
    call = _caller(options)
    chosen = options.model_dump(exclude={"api_key", "base_url"}, exclude_none=True)

    @tool(idempotent=True)
    async def search(query: Annotated[str, Field(min_length=1)]) -> Any:
        """Search the web for current information.

        Args:
            query: What to search for, as for a search engine.
        """
        return await call("search", query=query, **chosen)

    return search


def tavily_extract(options: TavilyExtractOptions) -> Tool:
    """Return the tool that reads web pages.

    Raises:
        ConfigError: the extra `tavily` is not installed, or there is no key.
    """
    call = _caller(options)
    chosen = options.model_dump(exclude={"api_key", "base_url"}, exclude_none=True)

    @tool(idempotent=True)
    async def extract(urls: Annotated[list[str], Field(min_length=1, max_length=20)]) -> Any:
        """Return the content of web pages.

        Args:
            urls: Addresses of the pages, at most 20.
        """
        return await call("extract", urls=urls, **chosen)

    return extract


def _caller(options: TavilyOptions) -> Callable[..., Any]:
    """Return a function that calls a method of Tavily's client."""
    try:
        from tavily import AsyncTavilyClient
    except ImportError:
        raise ConfigError("tavily-python is not installed; install pellucid[tavily]") from None
    key = options.api_key.get_secret_value() if options.api_key is not None else os.environ.get("TAVILY_API_KEY", "")
    if not key.strip():
        raise ConfigError("the key is missing; set apiKey or the environment variable TAVILY_API_KEY")
    clients = PerLoop(lambda: AsyncTavilyClient(key.strip(), api_base_url=options.base_url))

    async def call(method: str, **arguments: Any) -> Any:
        try:
            return await getattr(clients.get(), method)(**arguments)
        except Exception as error:
            kind = _KINDS.get(type(error).__name__, "unavailable")
            text = str(error).replace(key.strip(), "[redacted]") or type(error).__name__
            raise ToolError(f"Tavily's {method} failed: {text}", error_type=kind) from error

    return call
