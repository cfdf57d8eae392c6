"""The tools with which a model discovers others: `tool_search` and `__lazy__tool__discovery__`."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import anyio.to_thread
from opentelemetry import trace

from pellucid import semconv
from pellucid.context import ToolContext
from pellucid.errors import ToolError
from pellucid.events import ToolsSearched
from pellucid.selection.activation import Activation
from pellucid.text import close_to
from pellucid.tools.catalog import Catalog, Denied
from pellucid.tools.collisions import Binding
from pellucid.tools.names import LAZY_DISCOVERY, TOOL_SEARCH
from pellucid.tools.schema import Validator
from pellucid.tools.search import Hit
from pellucid.tools.tool import Builtin, Mcp, MetaTool, Tool
from pellucid.types import JSONObject

MAX_HITS: Final = 15
MAX_SUGGESTIONS: Final = 3
"""Maximum number of suggestions for each of several unknown names."""

MAX_DESCRIPTION: Final = 500
"""Maximum number of characters of a description in a list of hits; an activated tool has its whole description."""

MAX_EXPLAINED: Final = 5
"""Maximum number of unknown names in a call of `__lazy__tool__discovery__` that are answered with all names."""

MAX_QUERY: Final = 1000
LARGE_CATALOG: Final = 500
"""Tools from which a search runs in a worker thread, because it would noticeably block the event loop."""

PROVIDER: Final = "lazy"
"""Value of `pellucid.provider.id` for the tools that discover others."""

_SEARCH_DESCRIPTION: Final = (
    "Find and activate tools that are not listed here. Give `query` to search for tools by what they do: "
    f"the result is at most {MAX_HITS} names with descriptions, best first. Give `name`, or several `names`, "
    "to activate tools: the result has their parameters, and you can call them from then on."
)
_DISCOVERY_DESCRIPTION: Final = (
    "You have access to additional tools that can be discovered. Available tools: [{}]. "
    "Call this tool with a list of tool names to discover their full descriptions and argument schemas "
    "before using them."
)
_DENIED: Final = "Do not request it again; continue without it."
_NAMES: Final[JSONObject] = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 64}
_SEARCH_SCHEMA: Final[JSONObject] = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "maxLength": MAX_QUERY,
            "description": "What the tool should do, in a few words.",
        },
        "name": {"type": "string", "description": "Exact name of a tool, to activate it."},
        "names": {**_NAMES, "description": "Exact names of several tools, to activate them all."},
    },
    "additionalProperties": False,
}
_DISCOVERY_SCHEMA: Final[JSONObject] = {
    "type": "object",
    "properties": {"toolNames": {**_NAMES, "description": "Names of the tools to discover."}},
    "required": ["toolNames"],
}
_TEXT: Final[JSONObject] = {"type": ["string", "null"], "maxLength": MAX_QUERY}
_TEXTS: Final[JSONObject] = {
    "type": ["array", "string", "null"],
    "items": {"type": "string", "maxLength": MAX_QUERY},
    "maxItems": 64,
    "maxLength": MAX_QUERY,
}
_SEARCH_ACCEPTS: Final[JSONObject] = {
    "type": "object",
    "properties": {"query": _TEXT, "name": _TEXT, "names": _TEXTS},
    "additionalProperties": False,
}
_DISCOVERY_ACCEPTS: Final[JSONObject] = {
    "type": "object",
    "properties": {"toolNames": {**_TEXTS, "type": ["array", "string"], "minItems": 1}},
    "required": ["toolNames"],
}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Discoverer(MetaTool):
    """A tool that accepts more than its schema: models fill in every parameter, or give one name instead of a list.

    Attributes:
        accepts: JSON Schema of the accepted arguments.
    """

    accepts: JSONObject = field(repr=False)

    @cached_property
    def validator(self) -> Validator:
        """Validator of the accepted arguments."""
        return Validator(self.accepts)


def meta_tools(activation: Activation, catalog: Catalog) -> Mapping[str, Binding]:
    """Return the tools that discover the lazy ones of a catalogue, by name, except those that the policy denies."""
    discovery = _Discovery(activation, catalog)
    tools: list[Tool] = []
    if catalog.searched:
        tools.append(
            _Discoverer(
                name=TOOL_SEARCH,
                description=_SEARCH_DESCRIPTION,
                input_schema=_SEARCH_SCHEMA,
                accepts=_SEARCH_ACCEPTS,
                run=discovery.search,
                mode="inline",
            )
        )
    if catalog.named:
        tools.append(
            _Discoverer(
                name=LAZY_DISCOVERY,
                description=_DISCOVERY_DESCRIPTION.format(", ".join(catalog.named)),
                input_schema=_DISCOVERY_SCHEMA,
                accepts=_DISCOVERY_ACCEPTS,
                run=discovery.discover,
                mode="inline",
            )
        )
    return {tool.name: Binding(tool, PROVIDER, Builtin()) for tool in tools if tool.name not in catalog.denied}


@dataclass(frozen=True, slots=True)
class _Discovery:
    """Search and activation of the lazy tools of one catalogue."""

    activation: Activation
    catalog: Catalog

    async def search(self, arguments: JSONObject, ctx: ToolContext) -> JSONObject:
        """Activate by `name` or `names`, or else search by `query`."""
        self.activation.check()
        name, query = arguments.get("name"), arguments.get("query")
        if names := _several(arguments.get("names")):
            requested = dict.fromkeys([name, *names] if name else names)
            return {"tools": await self._activate_searched(list(requested), ctx, MAX_SUGGESTIONS)}
        if name:
            return (await self._activate_searched([name], ctx, MAX_HITS))[0]
        if str(query or "").strip():
            return await self._search(str(query))
        raise ToolError(
            "Provide either `name` (to activate a tool) or `query` (to search).", error_type="invalid_arguments"
        )

    async def discover(self, arguments: JSONObject, ctx: ToolContext) -> JSONObject:
        """Activate tools by name."""
        self.activation.check()
        named = self.catalog.named
        names = list(dict.fromkeys(_several(arguments["toolNames"])))
        denied = await self._activate(names, named, LAZY_DISCOVERY, ctx)
        tools: list[JSONObject] = []
        errors: list[str] = []
        for name in names:
            if name not in named:
                errors.append(self._unknown_name(name, is_brief=len(errors) >= MAX_EXPLAINED))
            elif name in denied:
                errors.append(f"Permission denied: tool '{name}' was not activated: {denied[name].reason}. {_DENIED}")
            else:
                tool = named[name].tool
                tools.append({"name": name, "description": tool.description, "inputSchema": tool.input_schema})
        return {"tools": tools, "errors": errors} if errors else {"tools": tools}

    def _unknown_name(self, name: str, *, is_brief: bool) -> str:
        if is_brief:
            return f"Unknown tool: '{name}'. The available tools are listed above."
        named = self.catalog.named
        available = ", ".join(item for item in named if item not in self.activation.active)
        return f"Unknown tool: '{name}'. Available tools: [{available}]. {close_to(name, named)}".rstrip()

    async def _activate(
        self, names: Sequence[str], known: Container[str], via: str, ctx: ToolContext
    ) -> Mapping[str, Denied]:
        """Activate the known tools among `names`, and return the denied ones."""
        span = trace.get_current_span().get_span_context()
        known_names = [name for name in names if name in known]
        return await self.activation.activate(span, self.catalog, known_names, via=via, tool_call_id=ctx.tool_call_id)

    async def _find(self, query: str, limit: int) -> tuple[list[Hit], int]:
        catalog = self.catalog
        if len(catalog.searched) < LARGE_CATALOG:
            return catalog.index.search(query, limit)
        return await anyio.to_thread.run_sync(lambda: catalog.index.search(query, limit))

    async def _search(self, query: str) -> JSONObject:
        hits, total = await self._find(query, MAX_HITS)
        names = [hit.tool.name for hit in hits]
        scope, span = self.activation.scope, trace.get_current_span()
        recorded_query = scope.text(query, MAX_QUERY)
        attributes = {semconv.SEARCH_QUERY: recorded_query, semconv.SEARCH_HITS: total, semconv.SEARCH_RANKED: names}
        scope.guarded(
            "span", span.set_attributes, {name: value for name, value in attributes.items() if value is not None}
        )
        payload = {"query": recorded_query, "hits": total, "names": tuple(names)}
        scope.emit(ToolsSearched, span.get_span_context(), payload)
        hint = f"Call {TOOL_SEARCH} with `name` to activate a tool; then you can call it."
        if not hits:
            hint = "No tool matches. Try other words for what the tool should do."
        return {"results": _listed(hits), "total": total, "hint": hint}

    async def _activate_searched(self, names: Sequence[str], ctx: ToolContext, limit: int) -> list[JSONObject]:
        """Activate tools, and return a result for each; of an unknown one with up to `limit` suggestions."""
        searched = self.catalog.searched
        denied = await self._activate(names, searched, TOOL_SEARCH, ctx)
        results: list[JSONObject] = []
        for name in names:
            if name in denied:
                error = f"permission denied: {denied[name].reason}"
                results.append({"activated": False, "name": name, "error": error, "hint": _DENIED})
            elif name in searched:
                results.append(_activated(searched[name].tool))
            else:
                results.append(await self._unknown(name, limit))
        return results

    async def _unknown(self, name: str, limit: int) -> JSONObject:
        if name in self.catalog.eager:
            return {"activated": False, "name": name, "hint": f"Tool `{name}` needs no activation. Call it directly."}
        suggestions, _ = await self._find(name, limit)
        sources = (binding.source for binding in self.catalog.searched.values())
        return {
            "activated": False,
            "name": name,
            "error": f"unknown tool: {name}",
            "suggestions": _listed(suggestions),
            "mcpServers": sorted({source.server for source in sources if isinstance(source, Mcp)}),
            "hint": f"Call {TOOL_SEARCH} with `query` to find the right name.",
        }


def _activated(tool: Tool) -> JSONObject:
    return {
        "activated": True,
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "hint": f"Tool `{tool.name}` is now available. Call it directly on your next turn.",
    }


def _several(names: Any) -> list[str]:
    return [names] if isinstance(names, str) and names else list(names or ())


def _listed(hits: list[Hit]) -> list[JSONObject]:
    return [{"name": hit.tool.name, "description": hit.tool.description[:MAX_DESCRIPTION]} for hit in hits]
