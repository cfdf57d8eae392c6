"""Tools and what lists them; see README.md beside this file for what is guaranteed."""

from pellucid.tools.catalog import ProviderCatalog
from pellucid.tools.combined import combined
from pellucid.tools.discovery_cache import DiscoveryProvider
from pellucid.tools.explain import Explanation
from pellucid.tools.listing import Lister
from pellucid.tools.policy import PermissionRequest, Policy, Verdict
from pellucid.tools.provider import ExplainContext, ToolHub, ToolProvider
from pellucid.tools.registry import ToolRegistry
from pellucid.tools.skills import Skill
from pellucid.tools.tool import Builtin, Hub, Mcp, Tool, ToolSource, tool
from pellucid.tools.wrappers import gated_tools, skill_scoped_tools, static_tools

__all__ = [
    "Builtin",
    "DiscoveryProvider",
    "ExplainContext",
    "Explanation",
    "Hub",
    "Lister",
    "Mcp",
    "PermissionRequest",
    "Policy",
    "ProviderCatalog",
    "Skill",
    "Tool",
    "ToolHub",
    "ToolProvider",
    "ToolRegistry",
    "ToolSource",
    "Verdict",
    "combined",
    "gated_tools",
    "skill_scoped_tools",
    "static_tools",
    "tool",
]
