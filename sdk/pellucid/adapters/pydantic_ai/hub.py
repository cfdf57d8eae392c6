"""A toolset of pydantic-ai as a hub."""

from __future__ import annotations

import base64
from typing import Any

from pydantic_ai import BinaryContent, ModelRetry, RunContext, ToolReturn
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_ai.usage import RunUsage
from pydantic_core import to_json

from pellucid.context import DiscoveryContext, ToolContext
from pellucid.errors import ToolError
from pellucid.messages import BlobPart, Part, TextPart, modality_of
from pellucid.tools import Tool
from pellucid.types import JSONObject


class PydanticAIHub:
    """A toolset of pydantic-ai as a hub: `DiscoveryProvider(PydanticAIHub(toolset), id="orders")`.

    Toolsets that connect are entered for each listing and call; enter them in your program to keep a connection.
    """

    def __init__(self, toolset: AbstractToolset[Any]) -> None:
        self._toolset = toolset

    async def fetch_catalog(self, ctx: DiscoveryContext) -> tuple[Tool, ...]:
        """List the tools."""
        async with self._toolset:
            listed = await self._toolset.get_tools(_context())
        return tuple(self._converted(tool) for tool in listed.values())

    def _converted(self, theirs: ToolsetTool[Any]) -> Tool:
        definition = theirs.tool_def

        async def run(arguments: JSONObject, ctx: ToolContext) -> Any:
            context = _context(deps=ctx.deps, tool_call_id=ctx.tool_call_id, tool_name=definition.name)
            context.tool_call_approved = definition.kind == "unapproved"  # this is called once a person has approved
            try:
                async with self._toolset:
                    valid = theirs.args_validator.validate_python(arguments)
                    return _value(await self._toolset.call_tool(definition.name, valid, context, theirs))
            except (ModelRetry, ToolFailed) as error:
                raise ToolError(error.message) from error

        return Tool(
            name=definition.name,
            description=definition.description or "",
            input_schema=definition.parameters_json_schema,
            needs_approval=definition.kind == "unapproved",
            serial=definition.sequential,
            timeout=definition.timeout,
            run=run,
        )


def _context(**values: Any) -> RunContext[Any]:
    return RunContext(**{"deps": None, "model": TestModel(), "usage": RunUsage(), **values})


def _value(value: Any) -> Any:
    value = value.return_value if isinstance(value, ToolReturn) else value
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(map(_part, items)) if any(isinstance(item, BinaryContent) for item in items) else value


def _part(item: Any) -> Part:
    if isinstance(item, BinaryContent):
        content = base64.b64encode(item.data).decode()
        return BlobPart(content=content, modality=modality_of(item.media_type), mime_type=item.media_type)
    return TextPart(item if isinstance(item, str) else to_json(item).decode())
