"""Console output: runs as trees, and a table of tool hubs."""

from pellucid_exporters.console.options import Console
from pellucid_exporters.console.processor import ConsoleProcessor

__all__ = ["Console", "ConsoleProcessor"]
