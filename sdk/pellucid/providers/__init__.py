"""Tool providers, which list tools; see README.md beside this file for their guarantees."""

from pellucid.providers.combined import combined
from pellucid.providers.hub import DiscoveryProvider
from pellucid.providers.listing import Lister
from pellucid.providers.provider import ExplainContext, ToolHub, ToolProvider
from pellucid.providers.readiness import HubState, Readiness
from pellucid.providers.registry import ToolRegistry
from pellucid.providers.skills import Skill
from pellucid.providers.wrappers import gated_tools, skill_scoped_tools, static_tools

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
