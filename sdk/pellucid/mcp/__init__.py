"""Tools of MCP servers. Needs the extra `mcp`; README.md in this folder lists the guarantees."""

from pellucid.errors import ConfigError

try:
    from pellucid.approvals.elicitation import Elicitation
    from pellucid.mcp.provider import MCPProvider, Options
    from pellucid.mcp.resources import Prompt, Resource
except ModuleNotFoundError as error:
    raise ConfigError("pellucid.mcp needs the MCP SDK: pip install 'pellucid[mcp]'") from error

__all__ = ["Elicitation", "MCPProvider", "Options", "Prompt", "Resource"]
