"""Tools and catalogues of them; see README.md beside this file for their guarantees."""

from typing import TYPE_CHECKING

from pellucid.module_names import load_within, module_dir, module_getattr
from pellucid.tools.tool import Builtin, FunctionTool, Hub, Mcp, Tool, ToolSource, tool

__all__ = ["Builtin", "FunctionTool", "Hub", "Mcp", "ProviderTool", "Tool", "ToolSource", "tool"]

if TYPE_CHECKING:
    from pellucid.tools.provider_tool import ProviderTool
else:
    __getattr__ = module_getattr(__name__, lazy=load_within(__name__, {"provider_tool": ["ProviderTool"]}))
    __dir__ = module_dir(__name__)
