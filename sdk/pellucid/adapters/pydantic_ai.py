"""pydantic-ai: a provider as a toolset of its agents, and a toolset of its as a hub."""

from __future__ import annotations

import base64
from typing import Any

from pydantic_ai import BinaryContent, ModelRetry, RunContext, ToolReturn
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import AgentDepsT, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_ai.usage import RunUsage
from pydantic_core import SchemaValidator, core_schema, to_json

from pellucid.adapters.content import observed, text_of
from pellucid.context import DiscoveryContext, ToolContext
from pellucid.errors import ToolError
from pellucid.messages import BlobPart, Part, TextPart, modality_of
from pellucid.providers import ToolProvider
from pellucid.tools import Tool
from pellucid.types import JSONObject

__all__ = ["PellucidToolset", "PydanticAIHub"]

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


def _content(part: Part) -> Any:
    if isinstance(part, BlobPart) and part.mime_type is not None:
        return BinaryContent(base64.b64decode(part.content), media_type=part.mime_type)
    return part.content if isinstance(part, TextPart) else part.to_dict()


def _value(value: Any) -> Any:
    value = value.return_value if isinstance(value, ToolReturn) else value
    items = value if isinstance(value, list) else [value]
    return tuple(map(_part, items)) if any(isinstance(item, BinaryContent) for item in items) else value


def _part(item: Any) -> Part:
    if not isinstance(item, BinaryContent):
        return TextPart(item if isinstance(item, str) else to_json(item).decode())
    content = base64.b64encode(item.data).decode()
    return BlobPart(content=content, modality=modality_of(item.media_type), mime_type=item.media_type)
