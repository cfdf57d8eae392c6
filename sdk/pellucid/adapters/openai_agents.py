"""openai-agents: a provider as an MCP server of its agents."""

from __future__ import annotations

from typing import Any

from agents.mcp import MCPServer
from mcp.types import CallToolResult, GetPromptResult, ListPromptsResult
from mcp.types import Tool as MCPTool

from pellucid.adapters.content import mcp_result, mcp_tool, observed
from pellucid.errors import ConfigError
from pellucid.providers import ToolProvider

__all__ = ["PellucidServer"]


class PellucidServer(MCPServer):
    """Tools of a provider, or of the result of `observe`, for agents of openai-agents: `Agent(mcp_servers=[...])`.

    Nothing is connected to: `connect()` is not needed. Runs are interrupted for the approval of tools with
    `needs_approval`, as openai-agents does it.

    Args:
        provider: The provider.
        **options: Those of `MCPServer`, except `require_approval`.
    """

    def __init__(self, provider: ToolProvider[None], **options: Any) -> None:
        super().__init__(require_approval=self._needs_approval, **options)
        self._provider = observed(provider)
        self._sensitive: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Id of the provider."""
        return self._provider.id

    async def connect(self) -> None:
        """Do nothing."""

    async def cleanup(self) -> None:
        """Do nothing: the provider belongs to the application."""

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[MCPTool]:
        """List the tools."""
        tools = await self._provider.list_tools()
        self._sensitive = frozenset(tool.name for tool in tools if tool.needs_approval)
        return [MCPTool.model_validate(mcp_tool(tool)) for tool in tools]

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> CallToolResult:
        """Call a tool; openai-agents does so with one that needs an approval once a person has given it."""
        approved = tool_name in self._sensitive
        return CallToolResult.model_validate(
            mcp_result(await self._provider.call_tool(tool_name, arguments or {}, approved=approved))
        )

    async def list_prompts(self) -> ListPromptsResult:
        """Return that there are none."""
        return ListPromptsResult(prompts=[])

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> GetPromptResult:
        """Refuse."""
        raise ConfigError(f"provider {self.name!r} has no prompts")

    def _needs_approval(self, run_context: Any, agent: Any, tool: MCPTool) -> bool:
        return tool.name in self._sensitive
