"""Tools by configuration."""

from pellucid.configured.factories import FACTORIES
from pellucid.configured.options import Factory, ToolOptions
from pellucid.configured.provider import ConfiguredTools, configured_tools

__all__ = ["FACTORIES", "ConfiguredTools", "Factory", "ToolOptions", "configured_tools"]
