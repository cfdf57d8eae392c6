"""Tools of a provider, or agents, as an MCP server. Needs the extra `mcp`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pellucid.adapters.content import mcp_result, mcp_tool, observed
from pellucid.agent import Agent
from pellucid.errors import ConfigError, DiscoveryError, PolicyHalt
from pellucid.failures import error_type_of
from pellucid.providers import ToolProvider
from pellucid.providers.static import StaticTools
from pellucid.types import JSONObject

try:
    from mcp.server.lowlevel import Server
    from mcp.shared.exceptions import MCPError
    from mcp_types import (
        INTERNAL_ERROR,
        CallToolRequestParams,
        CallToolResult,
        ListToolsResult,
        PaginatedRequestParams,
    )
    from mcp_types import Tool as MCPTool
except ModuleNotFoundError as error:
    raise ConfigError("pellucid.adapters.mcp_server needs the MCP SDK: pip install 'pellucid[mcp]'") from error

__all__ = ["agent_tools", "mcp_server"]


def agent_tools(agents: Iterable[Agent[None, Any]]) -> ToolProvider[None]:
    """Return a provider with the id `agents` of agents as tools.

    Raises:
        ConfigError: an agent has no description.
    """
    return StaticTools(tuple(agent.as_tool() for agent in agents), id="agents")


def mcp_server(provider: ToolProvider[None], *, name: str | None = None, version: str = "") -> Server[Any]:
    """Return a server of the official MCP SDK that lists and calls the tools of a provider.

    ```python
    server = mcp_server(observe(registry, policy=policy))
    uvicorn.run(server.streamable_http_app())
    ```

    Each request is one `discover_tools` or `execute_tool` span, in the trace of the client if that sends one. Calls
    that need an approval are refused. Clients are not notified when the tools change: they see it when they list again.

    Args:
        provider: The provider, or the result of `observe`, which has limits, a policy and an identity.
        name: Name of the server; the provider's id by default.
        version: Version of the server.
    """
    source = observed(provider)

    async def list_tools(ctx: object, params: PaginatedRequestParams | None) -> ListToolsResult:
        with _refusing(source.id):
            tools = await source.list_tools()
        return ListToolsResult(tools=[MCPTool.model_validate(mcp_tool(tool)) for tool in tools])

    async def call_tool(ctx: object, params: CallToolRequestParams) -> CallToolResult:
        with _refusing(source.id):
            result = await source.call_tool(params.name, params.arguments or {})
        return CallToolResult.model_validate(mcp_result(result, source.listed_tool(params.name)))

    def input_schema(name: str) -> JSONObject | None:
        tool = source.listed_tool(name)
        return tool.input_schema if tool is not None else None

    return Server(
        name or source.id,
        version=version,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=input_schema,  # otherwise the SDK lists the tools before each call over HTTP
    )


@contextmanager
def _refusing(provider_id: str) -> Iterator[None]:
    """Raise the error of the protocol when tools cannot be listed, also before a call."""
    try:
        yield
    except (DiscoveryError, PolicyHalt) as error:  # their text may have details that are not for clients
        problem = f"the tools of {provider_id!r} cannot be listed now ({error_type_of(error)})"
        raise MCPError(INTERNAL_ERROR, problem) from error
