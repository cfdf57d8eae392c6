"""Tools of MCP servers; needs the extra `mcp`. See README.md beside this file for what is guaranteed."""

from pellucid.errors import ConfigError

try:
    from pellucid.mcp.provider import MCPProvider, Options
except ModuleNotFoundError as error:
    raise ConfigError("pellucid.mcp needs the MCP SDK: pip install 'pellucid[mcp]'") from error

__all__ = ["MCPProvider", "Options"]
