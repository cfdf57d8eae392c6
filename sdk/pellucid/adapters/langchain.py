"""LangChain: tools of a provider for its agents, and its tools as ours."""

from __future__ import annotations

import json
from typing import Any, Unpack

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import PrivateAttr

from pellucid.adapters.content import observed, text_of, text_of_part
from pellucid.context import ToolContext
from pellucid.errors import ToolError
from pellucid.messages import BlobPart, Part, TextPart, modality_of
from pellucid.providers import ToolProvider
from pellucid.standalone import ObservedProvider
from pellucid.tools import Tool
from pellucid.tools.tool import ToolOptions
from pellucid.types import JSONObject

__all__ = ["from_langchain", "langchain_tools"]


async def langchain_tools(provider: ToolProvider[None]) -> list[BaseTool]:
    """Return the tools that a provider, or the result of `observe`, lists now, for agents of LangChain.

    LangChain takes tools once, so agents do not see later changes. Calls of tools with `needs_approval` are refused.

    Raises:
        DiscoveryError: the provider failed.
    """
    source = observed(provider)
    return [_PellucidTool(source, tool) for tool in await source.list_tools()]


class _PellucidTool(BaseTool):
    """Tool of ours; a `StructuredTool` would keep arguments such as `config` for itself."""

    _provider: ObservedProvider[None] = PrivateAttr()

    def __init__(self, provider: ObservedProvider[None], tool: Tool[Any]) -> None:
        super().__init__(
            name=tool.name, description=tool.description, args_schema=tool.input_schema, handle_tool_error=True
        )
        self._provider = provider

    def _run(self, /, **arguments: Any) -> Any:
        raise NotImplementedError(f"tool {self.name!r} is asynchronous; use ainvoke()")

    async def _arun(self, /, **arguments: Any) -> Any:
        result = await self._provider.call_tool(self.name, arguments)
        if result.is_error:
            raise ToolException(text_of(result))
        parts = result.response
        return [_block(part) for part in parts] if isinstance(parts, tuple) else text_of(result)


def _block(part: Part) -> dict[str, Any]:
    if isinstance(part, BlobPart) and part.mime_type is not None:
        kind = "image" if part.modality == "image" else "file"
        return {"type": kind, "base64": part.content, "mime_type": part.mime_type}
    return {"type": "text", "text": text_of_part(part)}


def from_langchain(theirs: BaseTool, **options: Unpack[ToolOptions]) -> Tool:
    """Return a tool of LangChain as ours.

    Args:
        theirs: The tool.
        **options: Those of `pellucid.tool`, such as `timeout` and `needs_approval`.
    """

    async def run(arguments: JSONObject, ctx: ToolContext) -> Any:
        request = {"type": "tool_call", "id": ctx.tool_call_id, "name": theirs.name, "args": arguments}
        message = await theirs.ainvoke(request)
        if not isinstance(message, ToolMessage):
            return message
        if message.status == "error":
            raise ToolError(message.text)
        if isinstance(message.content, str):
            return message.content
        return tuple(_part(block) for block in message.content_blocks)

    function = convert_to_openai_tool(theirs)["function"]
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return Tool(name=theirs.name, description=theirs.description, input_schema=schema, run=run, **options)


def _part(block: Any) -> Part:
    if (data := block.get("base64")) and (mime_type := block.get("mime_type")):
        return BlobPart(content=data, modality=modality_of(mime_type), mime_type=mime_type)
    return TextPart(block["text"] if block["type"] == "text" else json.dumps(block))
