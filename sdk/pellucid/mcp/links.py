"""Resource links in results, and the tool with which a model follows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.context import Identity, ToolContext
from pellucid.errors import ToolError
from pellucid.mcp.names import exposed_names
from pellucid.messages import TextPart, UriPart
from pellucid.tools import Mcp, Tool
from pellucid.types import JSONObject

MAX_HOLDERS: Final = 1000
MAX_LINKS: Final = 1000

_SCHEMA: Final[JSONObject] = {
    "type": "object",
    "properties": {"uri": {"type": "string", "description": "Address of a link in a result."}},
    "required": ["uri"],
    "additionalProperties": False,
}


class LinkTool(Tool):
    """Tool of Pellucid among those of a server; lock files do not compare it."""

    is_ours = True


class Links:
    """Links in the results that an identity got, and the tool that reads them; those used last are kept.

    Args:
        server: The provider's id.
        read: Reads a resource.
        attributes: Span attributes of requests to the server.
    """

    def __init__(self, server: str, read: Callable[..., Any], attributes: Mapping[str, AttributeValue]) -> None:
        self._server = server
        self._read = read
        self._known: BoundedMap[Identity | None, BoundedMap[str, bool]] = BoundedMap(MAX_HOLDERS)
        self.tool = LinkTool(
            name=exposed_names(["read_resource"], server, prefix=True)["read_resource"],
            description=f"Read a resource that a result of a tool of {server} links to, by its uri.",
            input_schema=_SCHEMA,
            run=self._run,
            source=Mcp(server),
            mode="mcp",
            attributes={semconv.MCP_METHOD_NAME: "resources/read", **attributes},
        )

    def add(self, identity: Identity | None, value: object) -> None:
        """Remember the links in a result."""
        parts = value if isinstance(value, tuple) else ()
        uris = [part.uri for part in parts if isinstance(part, UriPart)]
        if not uris:
            return
        known = self._known.setdefault(_holder(identity), BoundedMap(MAX_LINKS))
        for uri in uris:
            known.put(uri, True)

    def added(self, tools: Sequence[Tool], identity: Identity | None) -> Sequence[Tool]:
        """Return these tools, and the one for links if the identity has some and no tool of the server has its name."""
        if self._known.get(_holder(identity)) is None or any(tool.name == self.tool.name for tool in tools):
            return tools
        return (*tools, self.tool)

    async def _run(self, arguments: JSONObject, ctx: ToolContext) -> Any:
        uri, known = str(arguments["uri"]), self._known.get(_holder(ctx.identity))
        if known is None or known.get(uri) is None:
            raise ToolError(
                f"No result of a tool of {self._server!r} has a link to {uri[:256]!r}. Use a link as it is written.",
                error_type="unknown_link",
            )
        parts = await self._read(uri, identity=ctx.identity)
        if all(isinstance(part, TextPart) for part in parts):
            return "\n".join(part.content for part in parts)
        return parts


def _holder(identity: Identity | None) -> Identity | None:
    return replace(identity, conversation_id=None) if identity is not None else None
