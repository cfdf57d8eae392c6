"""Console output: runs as trees, and a table of tool hubs."""

from pellucid_exporters.console.processor import Console, ConsoleProcessor

__all__ = ["Console", "ConsoleProcessor"]
