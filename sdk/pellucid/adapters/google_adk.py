"""Google ADK: a provider as a toolset of its agents."""

from __future__ import annotations

from typing import Any

from google.adk.tools import BaseTool, ToolContext
from google.adk.tools.base_toolset import BaseToolset
from google.genai.types import FunctionDeclaration

from pellucid.adapters.content import mcp_result, observed, text_of
from pellucid.providers import ToolProvider
from pellucid.standalone import ObservedProvider
from pellucid.tools import Tool

__all__ = ["PellucidToolset"]


class PellucidToolset(BaseToolset):
    """Tools of a provider, or of the result of `observe`, for agents of Google ADK.

    Calls of tools with `needs_approval` are confirmed, as ADK does it. The options are those of `BaseToolset`.
    """

    def __init__(self, provider: ToolProvider[None], **options: Any) -> None:
        super().__init__(**options)
        self._provider = observed(provider)

    async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
        """List the tools."""
        tools = [_PellucidTool(self._provider, tool) for tool in await self._provider.list_tools()]
        return [tool for tool in tools if self._is_tool_selected(tool, readonly_context)]


class _PellucidTool(BaseTool):
    def __init__(self, provider: ObservedProvider[None], tool: Tool[Any]) -> None:
        super().__init__(name=tool.name, description=tool.description)
        self._provider = provider
        self._tool = tool

    def _get_declaration(self) -> FunctionDeclaration:
        return FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._tool.input_schema
        )

    async def check_require_confirmation(self, args: dict[str, Any], tool_context: ToolContext) -> bool:
        """Return whether a person must approve the tool's calls."""
        return bool(self._tool.needs_approval)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Call the tool, unless a person has to confirm that first."""
        confirmation = tool_context.tool_confirmation
        if self._tool.needs_approval and confirmation is None:
            tool_context.request_confirmation(hint=f"Approve or reject the call of {self.name}().")
            tool_context.actions.skip_summarization = True
            return {"error": "This tool call requires confirmation, please approve or reject."}
        if confirmation is not None and not confirmation.confirmed:
            return {"error": "This tool call is rejected."}
        result = await self._provider.call_tool(
            self._tool.name,
            args,
            approved=confirmation is not None and bool(self._tool.needs_approval),
            tool_call_id=tool_context.function_call_id,
        )
        return {"error": text_of(result)} if result.is_error else mcp_result(result)
