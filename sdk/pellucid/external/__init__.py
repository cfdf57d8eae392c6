"""Tools from configuration, and what work outside of the process needs."""

from pellucid.external.factories import FACTORIES
from pellucid.external.options import Factory, ToolOptions
from pellucid.external.provider import ExternalTools, external_tools

__all__ = ["FACTORIES", "ExternalTools", "Factory", "ToolOptions", "external_tools"]
