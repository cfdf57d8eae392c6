"""A provider as a toolset of pydantic-ai."""

from __future__ import annotations

import base64
from typing import Any

from pydantic_ai import BinaryContent, RunContext
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.tools import AgentDepsT, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from pellucid.adapters.content import observed, text_of
from pellucid.messages import BlobPart, Part, TextPart
from pellucid.providers import ToolProvider
from pellucid.tools import Tool

_ANY = SchemaValidator(core_schema.any_schema())  # the provider validates


class PellucidToolset(AbstractToolset[AgentDepsT]):
    """Tools of a provider, or of the result of `observe`, for agents of pydantic-ai.

    Tools receive the agent's `deps`. Those with `needs_approval` are deferred, as pydantic-ai does it.
    """

    def __init__(self, provider: ToolProvider[AgentDepsT]) -> None:
        self._provider = observed(provider)

    @property
    def id(self) -> str:
        """Id of the provider."""
        return self._provider.id

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        """List the tools."""
        listed = await self._provider.list_tools()
        return {tool.name: self._converted(tool, ctx.max_retries) for tool in listed}

    def _converted(self, tool: Tool[Any], max_retries: int) -> ToolsetTool[AgentDepsT]:
        definition = ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=tool.input_schema,
            return_schema=tool.output_schema,
            kind="unapproved" if tool.needs_approval else "function",
            sequential=tool.serial,
        )
        return ToolsetTool(toolset=self, tool_def=definition, max_retries=max_retries, args_validator=_ANY)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> Any:
        """Call a tool."""
        result = await self._provider.call_tool(
            name, tool_args, deps=ctx.deps, approved=ctx.tool_call_approved, tool_call_id=ctx.tool_call_id
        )
        if result.is_error:
            raise ToolFailed(text_of(result))
        parts = result.response
        return [_content(part) for part in parts] if isinstance(parts, tuple) else parts


def _content(part: Part) -> Any:
    if isinstance(part, BlobPart) and part.mime_type is not None:
        return BinaryContent(base64.b64decode(part.content), media_type=part.mime_type)
    return part.content if isinstance(part, TextPart) else part.to_dict()
