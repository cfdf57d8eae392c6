"""Tool providers, which list tools; see README.md beside this file for their guarantees."""

from typing import TYPE_CHECKING

from pellucid.module_names import load_within, module_dir, module_getattr
from pellucid.providers.listing import Lister
from pellucid.providers.provider import ExplainContext, ToolHub, ToolProvider
from pellucid.providers.static import static_tools

__all__ = [
    "DiscoveryProvider",
    "ExplainContext",
    "HubState",
    "Lister",
    "Readiness",
    "Skill",
    "ToolHub",
    "ToolProvider",
    "ToolRegistry",
    "combined",
    "gated_tools",
    "skill_scoped_tools",
    "static_tools",
]

if TYPE_CHECKING:
    from pellucid.providers.combination import combined
    from pellucid.providers.hub import DiscoveryProvider
    from pellucid.providers.readiness import HubState, Readiness
    from pellucid.providers.registry import ToolRegistry
    from pellucid.providers.skills import Skill
    from pellucid.providers.wrappers import gated_tools, skill_scoped_tools
else:
    __getattr__ = module_getattr(
        __name__,
        lazy=load_within(
            __name__,
            {
                "combination": ["combined"],
                "hub": ["DiscoveryProvider"],
                "readiness": ["HubState", "Readiness"],
                "registry": ["ToolRegistry"],
                "skills": ["Skill"],
                "wrappers": ["gated_tools", "skill_scoped_tools"],
            },
        ),
    )
    __dir__ = module_dir(__name__)
