"""Strands: a provider as a tool provider of its agents."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from typing import Any

from strands.tools import ToolProvider as StrandsProvider
from strands.types._events import ToolResultEvent
from strands.types.tools import AgentTool

from pellucid.adapters.content import observed, text_of, text_of_part
from pellucid.messages import BlobPart, ToolResult
from pellucid.providers import ToolProvider
from pellucid.standalone import ObservedProvider
from pellucid.tools import Tool

__all__ = ["PellucidTools"]

_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Images that models take; Bedrock refuses a conversation with another one."""


class PellucidTools(StrandsProvider):
    """Tools of a provider, or of the result of `observe`, for agents of Strands: `Agent(tools=[...])`.

    Strands lists the tools once, when the agent is made. Calls of tools with `needs_approval` are refused.
    """

    def __init__(self, provider: ToolProvider[None]) -> None:
        self._provider = observed(provider)

    async def load_tools(self, **kwargs: Any) -> Sequence[AgentTool]:
        """List the tools."""
        return [_PellucidTool(self._provider, tool) for tool in await self._provider.list_tools()]

    def add_consumer(self, consumer_id: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def remove_consumer(self, consumer_id: Any, **kwargs: Any) -> None:
        """Do nothing: the provider belongs to the application."""


class _PellucidTool(AgentTool):
    tool_type = "pellucid"
    tool_name = ""
    tool_spec: Any = None

    def __init__(self, provider: ObservedProvider[None], tool: Tool[Any]) -> None:
        super().__init__()
        self._provider = provider
        self.tool_name = tool.name
        schema = {"json": tool.input_schema}
        self.tool_spec = {"name": tool.name, "description": tool.description or tool.name, "inputSchema": schema}
        if tool.output_schema is not None:
            self.tool_spec["outputSchema"] = {"json": tool.output_schema}

    async def stream(self, tool_use: Any, invocation_state: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Call the tool."""
        call_id = tool_use["toolUseId"]
        result = await self._provider.call_tool(self.tool_name, tool_use["input"], tool_call_id=call_id)
        status = "error" if result.is_error else "success"
        yield ToolResultEvent({"toolUseId": call_id, "status": status, "content": _content(result)})


def _content(result: ToolResult) -> list[dict[str, Any]]:
    if not isinstance(result.response, tuple):
        return [{"json": result.response}] if isinstance(result.response, dict) else [{"text": text_of(result)}]
    return [
        {"image": {"format": part.mime_type.partition("/")[2], "source": {"bytes": base64.b64decode(part.content)}}}
        if isinstance(part, BlobPart) and part.mime_type in _IMAGES
        else {"text": text_of_part(part)}
        for part in result.response
    ]
