"""Tools and catalogues of them; see README.md beside this file for their guarantees."""

from pellucid.tools.provider_tool import ProviderTool
from pellucid.tools.tool import Builtin, FunctionTool, Hub, Mcp, Tool, ToolSource, tool

__all__ = ["Builtin", "FunctionTool", "Hub", "Mcp", "ProviderTool", "Tool", "ToolSource", "tool"]
