"""Results of tool calls, in the forms that other frameworks read."""

from __future__ import annotations

import json
from typing import Any

from pellucid.messages import BlobPart, Part, TextPart, ToolResult
from pellucid.providers import ToolProvider
from pellucid.standalone import ObservedProvider, observe
from pellucid.tools import Tool
from pellucid.types import DepsT, JSONObject


def observed(provider: ToolProvider[DepsT]) -> ObservedProvider[DepsT]:
    """Return a provider that can be asked outside of a run: itself, if it is one."""
    return provider if isinstance(provider, ObservedProvider) else observe(provider)


def text_of(result: ToolResult) -> str:
    """Return a result as text: JSON if it is data."""
    if isinstance(result.response, tuple):
        return "\n".join(text_of_part(part) for part in result.response)
    return result.response if isinstance(result.response, str) else json.dumps(result.response, ensure_ascii=False)


def mcp_result(result: ToolResult, tool: Tool[Any] | None = None) -> JSONObject:
    """Return a result as the JSON of an MCP `CallToolResult`.

    Without the data that the output schema of its `tool` promises, because they were cut, it is an error: clients would
    refuse it, and not see what is left.
    """
    parts = result.response if isinstance(result.response, tuple) else (TextPart(text_of(result)),)
    structured = result.response if isinstance(result.response, dict) else result.structured
    content = [_block(part) for part in parts]
    if isinstance(structured, dict):
        return {"content": content, "isError": result.is_error, "structuredContent": structured}
    return {"content": content, "isError": result.is_error or (tool is not None and _serves_output(tool))}


def mcp_tool(tool: Tool[Any]) -> JSONObject:
    """Return a tool as the JSON of an MCP `Tool`, with its output schema if that is of an object."""
    described = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
    if tool.annotations is not None:
        said = tool.annotations.to_dict()
        described.update({name: said.pop(name) for name in ("title", "icons") if name in said}, annotations=said)
    return {**described, "outputSchema": tool.output_schema} if _serves_output(tool) else described


def _serves_output(tool: Tool[Any]) -> bool:
    """Return whether clients get the output schema; protocols before 2026-07-28 allow only one of an object."""
    return tool.output_schema is not None and tool.output_schema.get("type") == "object"


def _block(part: Part) -> JSONObject:
    if isinstance(part, BlobPart) and part.modality in ("image", "audio") and part.mime_type is not None:
        return {"type": part.modality, "data": part.content, "mimeType": part.mime_type}
    return {"type": "text", "text": text_of_part(part)}


def text_of_part(part: Part) -> str:
    """Return a part of a result as text: JSON if it is no text."""
    return part.content if isinstance(part, TextPart) else json.dumps(part.to_dict(), ensure_ascii=False)
