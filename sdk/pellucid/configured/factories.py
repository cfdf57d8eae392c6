"""Factories of the tools that are shipped."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pydantic import Field

from pellucid.configured.echo import dispatched_echo, echo
from pellucid.configured.options import Factory, ToolOptions
from pellucid.configured.tavily import tavily_extract, tavily_search
from pellucid.tools import ProviderTool, Tool


class GoogleSearchOptions(ToolOptions):
    """Options of Gemini's own search.

    Attributes:
        search_types: Kinds of results, `{"webSearch": {}, "imageSearch": {}}`.
        time_range_filter: Interval of publication, `{"startTime": ..., "endTime": ...}` in RFC 3339.
        exclude_domains: Domains that are not searched.
    """

    search_types: Mapping[str, Any] | None = None
    time_range_filter: Mapping[str, Any] | None = None
    exclude_domains: list[str] | None = Field(default=None, max_length=2000)


def google_search(options: GoogleSearchOptions) -> Tool:
    """Return Gemini's own search, which Google runs."""
    members = options.model_dump(by_alias=True, exclude_none=True)
    return ProviderTool(vendor="gemini", type="google_search", options=members)


FACTORIES: Final[Mapping[str, Factory]] = MappingProxyType(
    {
        "tavilySearch": tavily_search,
        "tavilyExtract": tavily_extract,
        "googleSearch": google_search,
        "test_async": echo,
        "test_external_async": dispatched_echo,
    }
)
"""Factories of the shipped tools, by the name in the configuration."""
