"""The tools with which a model discovers others: `tool_search` and `__lazy__tool__discovery__`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import anyio.to_thread
from opentelemetry import trace

from pellucid import semconv
from pellucid.context import ToolContext
from pellucid.errors import ToolError
from pellucid.events import ToolsSearched
from pellucid.offer.activation import Activation
from pellucid.telemetry import current_scope
from pellucid.text import close_to
from pellucid.tools.catalog import Catalog, Denied
from pellucid.tools.names import LAZY_DISCOVERY, TOOL_SEARCH
from pellucid.tools.schema import Validator
from pellucid.tools.search import Hit
from pellucid.tools.tool import Mcp, MetaTool, Tool
from pellucid.types import JSONObject

MOST_HITS: Final = 15
FEW_HITS: Final = 3
"""Suggestions for each of several unknown names."""

LONGEST_DESCRIPTION: Final = 500
"""Characters of a description in a list of hits; it is whole when a tool is activated."""

MOST_EXPLAINED: Final = 5
"""Unknown names in one call of `__lazy__tool__discovery__` that are answered with all names that there are."""

LONGEST_QUERY: Final = 1000
BIG: Final = 500
"""Tools from which on searching is done in a worker thread, because it takes long enough to be noticed."""

_DENIED: Final = "Do not ask for it again; go on without it."
_NAMES: Final[JSONObject] = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 64}
_SEARCH_SCHEMA: Final[JSONObject] = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "maxLength": LONGEST_QUERY,
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
_TEXT: Final[JSONObject] = {"type": ["string", "null"], "maxLength": LONGEST_QUERY}
_TEXTS: Final[JSONObject] = {
    "type": ["array", "string", "null"],
    "items": {"type": "string", "maxLength": LONGEST_QUERY},
    "maxItems": 64,
    "maxLength": LONGEST_QUERY,
}
_SEARCH_TAKES: Final[JSONObject] = {
    "type": "object",
    "properties": {"query": _TEXT, "name": _TEXT, "names": _TEXTS},
    "additionalProperties": False,
}
_DISCOVERY_TAKES: Final[JSONObject] = {
    "type": "object",
    "properties": {"toolNames": {**_TEXTS, "type": ["array", "string"], "minItems": 1}},
    "required": ["toolNames"],
}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Discoverer(MetaTool):
    """Takes more than it says: models fill in every parameter, and give one name where several are allowed.

    Attributes:
        takes: JSON Schema of what it takes.
    """

    takes: JSONObject = field(repr=False)

    @cached_property
    def validator(self) -> Validator:
        """Checks arguments."""
        return Validator(self.takes)


def meta_tools(activation: Activation, catalog: Catalog) -> dict[str, Tool]:
    """Return the tools that discover the lazy ones of a catalogue, by their names."""
    tools: list[Tool] = []
    if catalog.searched:
        tools.append(search_tool(activation, catalog))
    if catalog.named:
        tools.append(discovery_tool(activation, catalog))
    return {tool.name: tool for tool in tools}


def search_tool(activation: Activation, catalog: Catalog) -> Tool:
    """Return `tool_search` for the tools of a catalogue that are found by searching."""
    search = _Search(activation, catalog)
    return _Discoverer(
        name=TOOL_SEARCH,
        description=(
            "Find and activate tools that are not listed here. Give `query` to search for tools by what they do: "
            f"the result is at most {MOST_HITS} names with descriptions, best first. Give `name`, or several `names`, "
            "to activate tools: the result has their parameters, and you can call them from then on."
        ),
        input_schema=_SEARCH_SCHEMA,
        takes=_SEARCH_TAKES,
        run=search.run,
        mode="inline",
    )


class _Search:
    """Searches the tools of one catalogue, and activates them."""

    __slots__ = ("_activation", "_catalog")

    def __init__(self, activation: Activation, catalog: Catalog) -> None:
        self._activation = activation
        self._catalog = catalog

    async def run(self, arguments: JSONObject, ctx: ToolContext) -> JSONObject:
        """Search by `query`, or activate by `name` or `names`, which win."""
        given: Mapping[str, Any] = arguments
        self._activation.check()
        if names := _several(given.get("names")):
            wanted = [given["name"], *names] if given.get("name") else names
            return {"tools": await self._activate(list(dict.fromkeys(wanted)), ctx, FEW_HITS)}
        if given.get("name"):
            return (await self._activate([given["name"]], ctx))[0]
        if str(given.get("query") or "").strip():
            return await self._search(given["query"])
        raise ToolError(
            "Provide either `name` (to activate a tool) or `query` (to search).", error_type="invalid_arguments"
        )

    async def _find(self, query: str, most: int) -> tuple[list[Hit], int]:
        catalog = self._catalog
        if len(catalog.searched) < BIG:
            return catalog.index.search(query, most)
        return await anyio.to_thread.run_sync(lambda: catalog.index.search(query, most))

    async def _search(self, query: str) -> JSONObject:
        hits, total = await self._find(query, MOST_HITS)
        names = [hit.tool.name for hit in hits]
        scope, span = current_scope(), trace.get_current_span()
        said = scope.text(query, LONGEST_QUERY)
        attributes = {semconv.SEARCH_QUERY: said, semconv.SEARCH_HITS: total, semconv.SEARCH_RANKED: names}
        try:
            span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        except Exception as error:  # noqa: BLE001  (spans are the application's)
            scope.fault("span", error)
        told = {"query": said, "hits": total, "names": tuple(names)}
        scope.emit(ToolsSearched, span.get_span_context(), told)
        hint = (
            f"Call {TOOL_SEARCH} with `name` to activate a tool; then you can call it."
            if hits
            else "No tool matches. Try other words for what the tool should do."
        )
        return {"results": _listed(hits), "total": total, "hint": hint}

    async def _activate(self, names: Sequence[str], ctx: ToolContext, most: int = MOST_HITS) -> list[JSONObject]:
        searched = self._catalog.searched
        wanted = [name for name in names if name in searched]
        scope, span = current_scope(), trace.get_current_span().get_span_context()
        denied = await self._activation.activate(
            scope, span, self._catalog, wanted, via=TOOL_SEARCH, tool_call_id=ctx.tool_call_id
        )
        return [
            self._activated(known.tool, denied.get(name))
            if (known := searched.get(name)) is not None
            else await self._unknown(name, most)
            for name in names
        ]

    def _activated(self, tool: Tool, denied: Denied | None) -> JSONObject:
        name = tool.name
        if denied is not None:
            return {"activated": False, "name": name, "error": f"permission denied: {denied.reason}", "hint": _DENIED}
        return {
            "activated": True,
            "name": name,
            "description": tool.description,
            "parameters": tool.input_schema,
            "hint": f"Tool `{name}` is now available. Call it directly on your next turn.",
        }

    async def _unknown(self, name: str, most: int) -> JSONObject:
        if name in self._catalog.eager:
            return {"activated": False, "name": name, "hint": f"Tool `{name}` needs no activation. Call it directly."}
        suggestions, _ = await self._find(name, most)
        sources = (binding.source for binding in self._catalog.searched.values())
        return {
            "activated": False,
            "name": name,
            "error": f"unknown tool: {name}",
            "suggestions": _listed(suggestions),
            "mcpServers": sorted({source.server for source in sources if isinstance(source, Mcp)}),
            "hint": f"Call {TOOL_SEARCH} with `query` to find the right name.",
        }


def _several(names: Any) -> list[str]:
    return [names] if isinstance(names, str) and names else list(names or ())


def _listed(hits: list[Hit]) -> list[JSONObject]:
    return [{"name": hit.tool.name, "description": hit.tool.description[:LONGEST_DESCRIPTION]} for hit in hits]


def discovery_tool(activation: Activation, catalog: Catalog) -> Tool:
    """Return `__lazy__tool__discovery__` for the tools of a catalogue that were made with `lazy=True`."""
    named = catalog.named

    async def run(arguments: JSONObject, ctx: ToolContext) -> JSONObject:
        activation.check()
        scope, span = current_scope(), trace.get_current_span().get_span_context()
        found: list[JSONObject] = []
        errors: list[str] = []
        names = list(dict.fromkeys(_several(arguments["toolNames"])))
        denied = await activation.activate(
            scope,
            span,
            catalog,
            [name for name in names if name in named],
            via=LAZY_DISCOVERY,
            tool_call_id=ctx.tool_call_id,
        )
        for name in names:
            if name not in named:
                left = [each for each in named if each not in activation.active]
                errors.append(_unknown(name, left, list(named)) if len(errors) < MOST_EXPLAINED else _unknown_too(name))
                continue
            if name in denied:
                errors.append(f"Permission denied: tool '{name}' was not activated: {denied[name].reason}. {_DENIED}")
                continue
            tool = named[name].tool
            found.append({"name": name, "description": tool.description, "inputSchema": tool.input_schema})
        return {"tools": found, "errors": errors} if errors else {"tools": found}

    return _Discoverer(
        name=LAZY_DISCOVERY,
        description=(
            f"You have access to additional tools that can be discovered. Available tools: [{', '.join(named)}]. "
            f"Call this tool with a list of tool names to discover their full descriptions and argument schemas "
            f"before using them."
        ),
        input_schema=_DISCOVERY_SCHEMA,
        takes=_DISCOVERY_TAKES,
        run=run,
        mode="inline",
    )


def _unknown(name: str, left: list[str], known: list[str]) -> str:
    return f"Unknown tool: '{name}'. Available tools: [{', '.join(left)}]. {close_to(name, known)}".rstrip()


def _unknown_too(name: str) -> str:
    return f"Unknown tool: '{name}'. Those that are available are listed above."
