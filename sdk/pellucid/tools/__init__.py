"""Tools and catalogues of them; see README.md beside this file for their guarantees."""

from typing import TYPE_CHECKING

from pellucid.module_names import load_within, module_dir, module_getattr
from pellucid.tools.tool import Builtin, FunctionTool, Hub, Mcp, Tool, ToolSource, tool

__all__ = ["Builtin", "FunctionTool", "Hub", "Mcp", "ProviderTool", "Tool", "ToolAnnotations", "ToolSource", "tool"]

if TYPE_CHECKING:
    from pellucid.tools.annotations import ToolAnnotations
    from pellucid.tools.provider_tool import ProviderTool
else:
    _LAZY = {"provider_tool": ["ProviderTool"], "annotations": ["ToolAnnotations"]}
    __getattr__ = module_getattr(__name__, lazy=load_within(__name__, _LAZY))
    __dir__ = module_dir(__name__)
